"""What this machine can measure, and what would spoil it: facts, and findings with their consequence and remedy.

    from bench.machine.doctor import examine
    report = examine(apex_path=None, python=None)

Nothing is measured and nothing is changed; no CUDA context is made. What torch has to say is asked of a child
interpreter, which imports it while the rest is looked at.
"""

from dataclasses import asdict
from typing import Any

from bench.machine.doctor import gpus, host, torch_facts
from bench.machine.doctor.concerns import concerns


def examine(*, apex_path: str | None, python: str | None) -> dict[str, Any]:
    """``gpus``, ``driver``, ``topology``, ``torch``, ``host`` and ``findings``, all JSON values.

    What is unknown is None, beside a reason where there is one.
    """
    child = torch_facts.ask(apex_path=apex_path, python=python)
    report: dict[str, Any] = {**gpus.facts(), "host": host.facts()}
    report["torch"] = torch_facts.answer(child)
    return {**report, "findings": [asdict(finding) for finding in concerns(report)]}
