"""How long an all-reduce takes, by the size of what is reduced: on its own, with nothing to overlap with.

A sample is several all-reduces one after the other, as in NCCL's own tests: the time of one of them alone would be
mostly that of the clock and of the barrier before it.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bench.worker.loop import clock_for
from bench.worker.transport import transport

SIZES = tuple(1024 * 4**power for power in range(9))
"""Bytes: 1 KiB to 64 MiB."""

SAMPLE_MS, MOST_CALLS = 20.0, 100
"""A sample takes about this long, unless that is more calls, or less than one."""

SAMPLES, FEWEST_SAMPLES = 7, 3
SIZE_LIMIT_MS = 4000.0
"""What the samples of one size may take, down to the fewest."""

MOST_MS = 6000.0
"""A size whose all-reduce is expected to take longer is left out, and all larger ones."""


def run(device: torch.device, on_size: Callable[[int], None]) -> dict[str, Any]:
    """Time every size. ``bytes``: the sizes; ``times_ms``: of each its samples, the time of one call as this rank saw
    it; ``left_out``: why larger ones are missing. All ranks take the same steps. ``on_size(k)`` is called after each.
    """
    found: dict[str, Any] = {"bytes": [], "times_ms": [], "left_out": None}
    before_ms = 0.0
    _timed(torch.zeros(SIZES[0] // 4, device=device), MOST_CALLS, device)
    for number, size in enumerate(SIZES, start=1):
        if 4 * before_ms > MOST_MS:
            took = f"an all-reduce of {found['bytes'][-1] >> 10:,} KiB takes {before_ms / 1000:,.1f} s already"
            found["left_out"] = f"larger sizes were left out: {took}"
            break
        tensor = torch.zeros(size // 4, device=device)
        _timed(tensor, 1, device)
        before_ms = _agreed(_timed(tensor, 2, device), device)
        calls = max(1, min(MOST_CALLS, round(SAMPLE_MS / before_ms)))
        samples = max(FEWEST_SAMPLES, min(SAMPLES, int(SIZE_LIMIT_MS / (calls * before_ms))))
        found["bytes"].append(size)
        found["times_ms"].append([_timed(tensor, calls, device) for _ in range(samples)])
        on_size(number)
    return {"bandwidth": found, "transport": transport(os.environ)}


def _timed(tensor: torch.Tensor, calls: int, device: torch.device) -> float:
    """Milliseconds of one of these calls; all ranks begin together."""
    clock = clock_for(device)
    clock.prepare(2)
    dist.barrier()
    clock.mark()
    for _ in range(calls):
        dist.all_reduce(tensor)
    clock.mark()
    clock.wait()
    _, (span,) = clock.read()
    return span / calls


def _agreed(time_ms: float, device: torch.device) -> float:
    """That of the slowest rank, on all of them."""
    slowest = torch.tensor([time_ms], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())
