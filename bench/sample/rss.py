"""The resident set size of a process, from ``/proc``: what a CPU rank occupies. Ranks share the pages that the worker
host had before it forked them, so these sizes do not add up to the memory of the host.
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


def proportional_mib(pid: int) -> tuple[float | None, str | None]:
    """PSS in MiB, in which a page that n processes share counts 1/n, so these add up. Or None and why. The kernel walks
    the whole page table for it: 10 ms and more for 1 GiB, during which the process cannot map memory.
    """
    import psutil

    try:
        return psutil.Process(pid).memory_full_info().pss / 2**20, None
    except psutil.NoSuchProcess:
        return None, "the process had ended"
    except psutil.AccessDenied:
        return None, f"the kernel does not let us read /proc/{pid}/smaps_rollup"
    except AttributeError:
        return None, "this system has no proportional set size"
