"""In a container a rank shows the sampler which PID of the driver's list it is: that whose memory rises as it says.

Before its first step it allocates :data:`bench.core.records.PROBE_MIB` once and frees them (see
``bench.machine.sample.attribution``). That takes a second, which is not in ``first_forward_s``. Where the driver
has named the ranks of a launch by themselves, later launches do without.
"""

import os
import time
from typing import Any

import torch

from bench.core.children import nested
from bench.core.records import PROBE_MIB

HOLD_S = 0.5
"""How long each state lasts, so that the sampler sees it: the messages take milliseconds, its question some more."""


def show(tell: Any, device: torch.device, *, hold_s: float = HOLD_S) -> int:
    """Report ``before``, ``allocated`` and ``freed``; without ``allocated`` where the device has no room. Returns how
    long (ns) it took, without what must be done anyway.
    """
    if device.type != "cuda" or not nested():
        return 0
    torch.cuda.synchronize(device)  # there is a context now
    start_ns = time.perf_counter_ns()
    tell("probe", pid=os.getpid(), stage="before")
    time.sleep(hold_s)
    try:
        probe = torch.empty(int(PROBE_MIB) << 20, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        pass
    else:
        torch.cuda.synchronize(device)
        tell("probe", pid=os.getpid(), stage="allocated")
        time.sleep(hold_s)
        del probe
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    tell("probe", pid=os.getpid(), stage="freed")
    return time.perf_counter_ns() - start_ns
