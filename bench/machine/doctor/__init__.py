"""Facts about this machine, and findings about what would spoil a measurement, with consequence and remedy.

Nothing is measured or changed; no CUDA context is made. A child interpreter imports torch in the meantime.
"""

from dataclasses import asdict

from bench.machine.doctor import gpus, host, torch_facts
from bench.machine.doctor.concerns import concerns


def examine(*, apex_path: str | None, python: str | None) -> dict[str, object]:
    """``gpus``, ``driver``, ``topology``, ``torch``, ``host`` and ``findings``, all JSON values; None: unknown."""
    child = torch_facts.ask(apex_path=apex_path, python=python)
    report: dict[str, object] = {**gpus.facts(), "host": host.facts()}
    report["torch"] = torch_facts.answer(child)
    return {**report, "findings": [asdict(finding) for finding in concerns(report)]}
