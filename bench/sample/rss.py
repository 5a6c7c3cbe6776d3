"""The resident set size of a process, from ``/proc``: what a CPU rank occupies.

The ranks of a worker host share the pages that it had before it forked them, and each rank's figure has them in it, so
figures of ranks do not add up to the memory of the host.
"""

import os

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def resident_mib(pid: int) -> float | None:
    """RSS in MiB (second field of ``/proc/PID/statm``); None when the process has ended, as a zombie too."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            pages = int(file.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pages * _PAGE_MIB if pages else None
