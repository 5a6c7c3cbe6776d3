"""Plots that several processes draw side by side: forks, which have every table without a copy."""

import ctypes
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bench.core.children import beside
from bench.report import drawing
from bench.report.drawing import Plot

MOST_PROCESSES = 4


def drawn(
    plots: Sequence[Callable[[], Plot | None]], ids: str = "", meanwhile: Callable[[], object] = lambda: None
) -> list[Plot]:
    """The plots for a page that there are, for a screen and for a phone; ``ids``: how their ids in it begin. Other
    processes begin with the last. This one does ``meanwhile`` first, the results of which it needs later."""
    widths_in = (drawing.NARROW_IN, drawing.WIDE_IN)
    draws = [partial(drawing.for_page, draw, ids, width_in) for draw in plots for width_in in widths_in]
    drawing.ready()
    # a token for each, which every process takes first, and the numbers that the others draw
    left, last = _filled(bytes(len(draws))), _filled(bytes(reversed(range(len(draws)))))
    finished: dict[int, Plot | None] = {}

    def from_the_last() -> dict[int, Plot | None]:
        while os.read(left, 1):
            number = os.read(last, 1)[0]
            finished[number] = _drawn(draws[number])
        return finished

    gc.freeze()  # what the collector marks would be copied, and here it would go through all tables for each figure
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(draws))
    others = [beside(from_the_last) for _ in range(processes - 1)]
    meanwhile()
    for number, draw in enumerate(draws):
        if not os.read(left, 1):
            break
        finished[number] = _drawn(draw)
    for other in others:
        finished |= other()
    for number in set(range(len(draws))) - finished.keys():  # of a process that was killed, such as for want of memory
        finished[number] = _drawn(draws[number])
    gc.unfreeze()
    os.close(left)
    os.close(last)
    in_order = [plot for _, plot in sorted(finished.items())]
    both = zip(in_order[::2], in_order[1::2], strict=True)
    return [replace(wide, page=wide.page + narrow.page) for narrow, wide in both if wide and narrow]


def _filled(content: bytes) -> int:
    """A pipe from which several processes may read, each what no other has read."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(content)
    return reading


def _drawn(draw: Callable[[], Plot | None]) -> Plot | None:
    gc.collect(1)  # the figure before this one, all parts of which refer to each other: none is free while it is drawn
    ctypes.CDLL(None).malloc_trim(0)
    gc.disable()
    plot = draw()
    gc.enable()
    return plot
