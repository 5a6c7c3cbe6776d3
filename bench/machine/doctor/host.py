"""The CPU side: cores and what limits them, governor, memory, container, and what of it can be measured."""

import os
import shutil
from pathlib import Path
from typing import Any

from bench import machine
from bench.core.pid_namespace import nested
from bench.machine.rapl import Rapl


def facts() -> dict[str, Any]:
    """As JSON values; None is what this system does not tell."""
    described = machine.describe([])
    return {
        **{name: described[name] for name in ("host", "os", "python", "cpu", "cores_usable", "cores_online")},
        **{name: described[name] for name in ("memory_gib", "governor", "turbo_disabled", "container")},
        "cpu_quota": cpu_quota(),
        "load_1min": machine.load(),
        "memory_available_gib": round(machine.available_memory_bytes() / 2**30, 1),
        "shm_mib": shutil.disk_usage("/dev/shm").total // 2**20 if os.path.isdir("/dev/shm") else None,
        "numa_nodes": numa_nodes(),
        "own_pid_namespace": nested(),
        "rapl_reason": Rapl().reason,
    }


def cpu_quota(root: str = "/sys/fs/cgroup") -> float | None:
    """How many cores' worth of time the control group may use (cgroup v2 or v1); None where it is not limited."""
    v2, v1 = Path(root, "cpu.max"), Path(root, "cpu", "cpu.cfs_quota_us")
    if v2.is_file():
        quota, period = v2.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us = int(v1.read_text()) if v1.is_file() else -1
    return None if quota_us < 0 else quota_us / int(v1.with_name("cpu.cfs_period_us").read_text())


def numa_nodes(root: str = "/sys/devices/system/node") -> int | None:
    """How many NUMA nodes the machine has."""
    if not os.path.isdir(root):
        return None
    return sum(name.removeprefix("node").isdigit() for name in os.listdir(root))
