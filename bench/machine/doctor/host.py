"""The CPU side: cores and what limits them, governor, memory, container, and what of it can be measured."""

import os
import shutil
from glob import glob

from bench import machine
from bench.core import control_group
from bench.core.pid_namespace import nested
from bench.machine.rapl import Rapl


def facts() -> dict[str, object]:
    """As JSON values; None is what this system does not tell."""
    described, limit = machine.describe([]), control_group.memory_limit_bytes()
    return {
        **{name: getattr(described, name) for name in ("host", "os", "python", "cpu", "cores_usable", "cores_online")},
        **{name: getattr(described, name) for name in ("memory_gib", "governor", "turbo_disabled", "container")},
        "cores_of_affinity": len(os.sched_getaffinity(0)),
        "cpu_quota": control_group.cpu_quota(),
        "load_1min": machine.load(),
        "memory_available_gib": round(machine.available_memory_bytes() / 2**30, 1),
        "memory_limit_gib": None if limit is None else round(limit / 2**30, 1),
        "shm_mib": shutil.disk_usage("/dev/shm").total // 2**20 if os.path.isdir("/dev/shm") else None,
        "numa_nodes": len(glob("/sys/devices/system/node/node[0-9]*")) or None,
        "own_pid_namespace": nested(),
        "rapl_reason": Rapl().reason,
    }
