"""Which process has which PIDs, where ``/proc`` is that of an outer PID namespace."""

import os

from bench.core.pid_namespace import nested
from bench.machine.sample.attribution import same_process

__all__ = ["nested", "rank_of"]


def rank_of(listed: int, ranks: frozenset[int], proc: str = "/proc") -> int | None:
    """Which rank the driver calls ``listed``, where ``/proc`` is that of an outer namespace; or None.

    Two containers may use the same inner PID, so it counts only if the kernel shows that the namespace is this one.
    """
    try:
        with open(os.path.join(proc, str(listed), "status"), encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file if line.startswith("NSpid:")]
        theirs = os.readlink(os.path.join(proc, str(listed), "ns", "pid"))
        ours = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    if not lines or theirs != ours:
        return None
    nspid = [int(number) for number in lines[0][1:]]
    return next((rank for rank in ranks if same_process(rank, listed, nspid)), None)
