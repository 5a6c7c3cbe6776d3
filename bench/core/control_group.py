"""The machine's CPU time and memory that control groups leave to this process: cgroup v2, or v1.

    python -c "from bench.core import control_group as c; print(c.cpu_quota(), c.memory_limit_bytes())"

A group may use no more than those that it is in. In a container the path of /proc/self/cgroup may be that on the host,
whose innermost folders are not there; what limits the container is at the root of what is mounted then.
"""

import os
from collections.abc import Iterator

from bench.core.files import text_from

ROOT = "/sys/fs/cgroup"
OWN = "/proc/self/cgroup"


def cpu_quota(root: str = ROOT, own: str = OWN) -> float | None:
    """How many cores' worth of time this process may use; None where it is not limited."""
    quotas = []
    for group in _groups("cpu", root, own):
        limit = _text(group, "cpu.max") or f"{_text(group, 'cpu.cfs_quota_us')} {_text(group, 'cpu.cfs_period_us')}"
        quota, period = limit.split()
        if quota not in ("max", "-1", "None"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit_bytes(root: str = ROOT, own: str = OWN) -> int | None:
    """How much this process and those in its group may use; None where it is no less than the machine has."""
    least = min((limit for limit, _ in _memory(root, own)), default=None)
    return None if least is None or least >= meminfo("MemTotal") else least


def available_memory_bytes(root: str = ROOT, own: str = OWN) -> int:
    """Memory that can be had without swapping: by the kernel's estimate, and within each limit."""
    return min([meminfo("MemAvailable"), *(max(0, limit - used) for limit, used in _memory(root, own))])


def _memory(root: str, own: str) -> Iterator[tuple[int, int]]:
    """Limit and use (bytes) of each group that has a limit; files that can be dropped from the cache do not count."""
    for group in _groups("memory", root, own):
        for limit, used, dropped in (
            ("memory.max", "memory.current", "inactive_file "),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        ):
            text = _text(group, limit)
            if text not in (None, "max"):
                lines = (_text(group, "memory.stat") or "").splitlines()
                cache = sum(int(line.split()[1]) for line in lines if line.startswith(dropped))
                yield int(text), int(_text(group, used) or 0) - cache


def _groups(controller: str, root: str, own: str) -> Iterator[str]:
    """The folders of the group of this process and of all that it is in, from the innermost on."""
    for line in (_text("", own) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mounted = os.path.join(root, controller) if controllers else root
            names = [name for name in path.split("/") if name]
            yield from (os.path.join(mounted, *names[:depth]) for depth in range(len(names), -1, -1))


def _text(folder: str, name: str) -> str | None:
    """The content of a file; None of one that is empty or cannot be read."""
    return text_from(os.path.join(folder, name), 0).strip() or None


def meminfo(name: str) -> int:
    """A size in /proc/meminfo (bytes)."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:"))
