"""Memory that a step frees stays with the process. glibc gives large blocks back to the system, which hands them out
again page by page, zeroed at the first touch: of a step of ddp with ResNet-18 on two cores that took 12 %.
"""

import os

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="freed memory stays with the process, and is not zeroed again (glibc's mallopt)",
    label="kept memory",
    device="cpu",
    searched_on=("cpu",),
    recovers={"cpu": {"fresh": 0.9}},
)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as in malloc.h
BYTES = 2**26


def obstacle(device):
    return None if "CS_GNU_LIBC_VERSION" in os.confstr_names else "this C library is not glibc"


def begin(parts):
    import ctypes  # which 'bench list' need not wait for

    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)


def effect(session, ran):
    """Whether memory that is allocated, freed and allocated again is new again."""
    import resource

    import torch

    torch.ones(BYTES // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(BYTES // 8)  # half, since something small may lie where all of it was
    new = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    why = f"memory that was freed is new again ({new} page faults): another allocator is at work"
    return why if new > 256 else None


def recipe(switches):
    return Recipe(
        imports=("import ctypes",),
        begin=f"ctypes.CDLL(None).mallopt({M_MMAP_MAX}, 0)\nctypes.CDLL(None).mallopt({M_TRIM_THRESHOLD}, -1)",
    )
