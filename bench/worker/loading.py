"""The loader alone: how fast batches come where nothing else is done with them.

The first batches fill the queues of the processes that load. From then on the queues are empty whenever a batch is
asked for, since nothing is done between two batches: what is timed is the making of batches, not the taking of ready
ones. There is no pause between the two parts, in which a queue could fill.
"""

import os
import re
from itertools import pairwise
from multiprocessing import active_children
from time import perf_counter_ns

from bench.core.files import text_from
from bench.core.records import PHASES
from bench.worker import data
from bench.worker.loop import PROGRESS_INTERVAL_NS, uncollected
from bench.worker.plan import Plan, Report
from bench.worker.rank import barrier

READ = re.compile(r"^read_bytes: (\d+)$", re.MULTILINE)
"""In /proc/PID/io: what a process had fetched from a disk. What the page cache had does not count."""


def perform(plan: Plan, report: Report) -> dict[str, object]:
    """Take the batches of the warm-up and then the others, time each, and train nothing.

    ``warmup``, ``measured``: as :class:`bench.worker.loop.Timings` of steps that are waiting for data and nothing else,
    whose loss is None. ``disk_bytes``: read from a disk meanwhile, None where the kernel does not count it.
    """
    job, filling = plan.parts.job, plan.parts.job.workload.warmup
    pin = plan.parts.device.type == "cuda"
    stream = data.stream_of(job.workload, job.replicas, [job.parts_of(plan.parts.rank)], pin)
    on_batch = report("measure")
    barrier()  # all ranks load at the same time, as they do while they train
    before = _read_bytes([os.getpid()])
    with uncollected():
        ticks, next_report = [perf_counter_ns()], 0  # of each batch, after when the first was asked for
        for batch in range(filling + job.iters):
            next(stream)
            ticks.append(perf_counter_ns())
            if ticks[-1] >= next_report:  # about four times a second
                on_batch(batch + 1)
                next_report = ticks[-1] + PROGRESS_INTERVAL_NS
    after = _read_bytes([os.getpid(), *(process.pid for process in active_children() if process.pid)])
    return {
        "warmup": _window(ticks[: filling + 1]),
        "measured": _window(ticks[filling:]),
        "disk_bytes": None if before is None or after is None else after - before,
    }


def _window(ticks: list[int]) -> dict[str, list[int] | list[float] | list[None]]:
    times_ms = [(end - start) / 1e6 for start, end in pairwise(ticks)]
    nothing = {f"{phase}_ms": [0.0] * len(times_ms) for phase in PHASES if phase != "data"}
    return {"start_ns": ticks[:-1], "data_ms": times_ms, "step_ms": times_ms, "loss": [None] * len(times_ms), **nothing}


def _read_bytes(pids: list[int]) -> int | None:
    of_each = [READ.search(text_from(f"/proc/{pid}/io", 0)) for pid in pids]
    return sum(int(one[1]) for one in of_each if one) if all(of_each) else None
