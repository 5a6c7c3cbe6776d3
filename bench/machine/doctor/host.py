"""The CPU side: cores and what limits them, governor, memory, container, and what of it can be measured."""

import os
import shutil
import socket
from typing import Any

from bench import machine
from bench.core.pid_namespace import nested
from bench.machine.rapl import Rapl


def facts() -> dict[str, Any]:
    """As JSON values; None is what this system does not tell."""
    described = machine.describe([])
    return {
        "host": socket.gethostname(),
        **{name: described[name] for name in ("os", "python", "cpu", "cores_usable", "cores_online", "memory_gib")},
        **{name: described[name] for name in ("governor", "turbo_disabled", "container")},
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
    v2, v1 = os.path.join(root, "cpu.max"), os.path.join(root, "cpu", "cpu.cfs_quota_us")
    if os.path.isfile(v2):
        quota, period = _text(v2).split()
        return None if quota == "max" else int(quota) / int(period)
    if os.path.isfile(v1):
        quota_us = int(_text(v1))
        return None if quota_us < 0 else quota_us / int(_text(os.path.join(root, "cpu", "cpu.cfs_period_us")))
    return None


def numa_nodes(root: str = "/sys/devices/system/node") -> int | None:
    """How many NUMA nodes the machine has."""
    if not os.path.isdir(root):
        return None
    return sum(name.removeprefix("node").isdigit() for name in os.listdir(root))


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
