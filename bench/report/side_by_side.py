"""Plots that several processes draw side by side: forks, which have every table without a copy."""

import ctypes
import gc
import os
from collections.abc import Callable, Sequence

from bench.core.children import beside
from bench.report import drawing
from bench.report.drawing import Plot

MOST_PROCESSES = 4


def drawn(
    plots: Sequence[Callable[[], Plot | None]], ids: str = "", meanwhile: Callable[[], object] = lambda: None
) -> list[Plot]:
    """The plots for a page that there are; ``ids``: how their ids in it begin. Other processes begin with the last.
    This one does ``meanwhile`` first, the results of which it needs later."""
    drawing.ready()
    left, last = _filled(bytes(len(plots))), _filled(bytes(reversed(range(len(plots)))))
    finished: dict[int, Plot | None] = {}

    def from_the_last() -> dict[int, Plot | None]:
        while os.read(left, 1):
            number = os.read(last, 1)[0]
            finished[number] = _drawn(plots[number], ids)
        return finished

    gc.freeze()  # what the collector marks would be copied, and here it would go through all tables for each figure
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(plots))
    others = [beside(from_the_last) for _ in range(processes - 1)]
    meanwhile()
    for number, draw in enumerate(plots):
        if not os.read(left, 1):
            break
        finished[number] = _drawn(draw, ids)
    for other in others:
        finished |= other()
    for number in set(range(len(plots))) - finished.keys():  # of a process that was killed, such as for want of memory
        finished[number] = _drawn(plots[number], ids)
    gc.unfreeze()
    os.close(left)
    os.close(last)
    return [plot for _, plot in sorted(finished.items()) if plot is not None]


def _filled(content: bytes) -> int:
    """A pipe from which several processes may read, each what no other has read."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(content)
    return reading


def _drawn(draw: Callable[[], Plot | None], ids: str) -> Plot | None:
    gc.disable()  # all parts of a figure refer to each other: none is free before the end
    plot = drawing.for_page(draw, ids)
    gc.enable()
    gc.collect(1)
    ctypes.CDLL(None).malloc_trim(0)
    return plot
