"""Facts about this machine, and findings about what would spoil a measurement, with consequence and remedy.

Nothing is measured or changed; no CUDA context is made. A child interpreter imports torch in the meantime.
"""

import os
import shutil
from dataclasses import asdict
from glob import glob

from bench import machine
from bench.core import control_group
from bench.core.children import nested
from bench.machine.doctor import gpus, torch_facts
from bench.machine.doctor.concerns import concerns


def examine(*, apex_path: str | None, python: str | None) -> dict[str, object]:
    """``gpus``, ``driver``, ``topology``, ``torch``, ``host`` and ``findings``, all JSON values; None: unknown."""
    child = torch_facts.ask(apex_path=apex_path, python=python)
    report: dict[str, object] = {**gpus.facts(), "host": _host()}
    report["torch"] = torch_facts.answer(child)
    return {**report, "findings": [asdict(finding) for finding in concerns(report)]}


def _host() -> dict[str, object]:
    """The CPU side: cores and what limits them, governor, memory, container, and what of it can be measured."""
    described, limit = machine.describe([]), control_group.memory_limit_bytes()
    return {
        **{name: getattr(described, name) for name in ("host", "os", "python", "cpu", "cores_usable", "cores_online")},
        **{name: getattr(described, name) for name in ("memory_gib", "governor", "turbo_disabled", "container")},
        "cores_of_affinity": len(os.sched_getaffinity(0)),
        "cpu_quota": control_group.cpu_quota(),
        "load_1min": os.getloadavg()[0],
        "memory_available_gib": round(machine.available_memory_bytes() / 2**30, 1),
        "memory_limit_gib": None if limit is None else round(limit / 2**30, 1),
        "shm_mib": shutil.disk_usage("/dev/shm").total // 2**20 if os.path.isdir("/dev/shm") else None,
        "numa_nodes": len(glob("/sys/devices/system/node/node[0-9]*")) or None,
        "own_pid_namespace": nested(),
    }
