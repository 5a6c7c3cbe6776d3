"""Plots that several processes draw side by side: forks, which have every table without a copy."""

import ctypes
import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context

from bench.core.channel import die_with_parent
from bench.report import drawing
from bench.report.drawing import Plot

MOST_PROCESSES = 4
DRAWS: list[Callable[[], Plot | None]] = []
"""Of this process, and of its forks."""


def drawn(
    plots: Sequence[Callable[[], Plot | None]], ids: str = "", meanwhile: Callable[[], object] = lambda: None
) -> list[Plot]:
    """The plots for a page that there are; ``ids``: how their ids in it begin. Other processes begin with the last.
    This one does ``meanwhile`` first, the results of which it needs later."""
    DRAWS[:] = [partial(drawing.for_page, draw, ids) for draw in plots]
    others = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(DRAWS)) - 1
    drawing.ready()
    futures: dict[int, Future[Plot | None]] = {}
    gc.freeze()  # what the collector marks would be copied, and here it would go through all tables for each figure
    pool = ProcessPoolExecutor(max(1, others), get_context("fork"), die_with_parent, (os.getpid(),))
    try:
        for number in reversed(range(len(DRAWS) if others > 0 else 0)):
            futures[number] = pool.submit(_drawn, number)
    except OSError:  # no room for another process
        futures.clear()
        for child in active_children():
            child.terminate()
    meanwhile()
    finished = {one: _drawn(one) for one in range(len(DRAWS)) if one not in futures or futures[one].cancel()}
    for number in futures.keys() - finished.keys():
        try:
            finished[number] = futures[number].result()
        except BrokenProcessPool:  # one was killed, such as for want of memory
            finished[number] = _drawn(number)
    pool.shutdown()
    gc.unfreeze()
    return [plot for _, plot in sorted(finished.items()) if plot is not None]


def _drawn(number: int) -> Plot | None:
    gc.disable()  # all parts of a figure refer to each other: none is free before the end
    plot = DRAWS[number]()
    gc.enable()
    gc.collect(1)
    ctypes.CDLL(None).malloc_trim(0)
    return plot
