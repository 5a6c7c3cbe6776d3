"""Plots that several processes draw side by side: forks, which have every table without a copy."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from bench.core.channel import die_with_parent
from bench.report import drawing
from bench.report.drawing import Plot

Draw = Callable[[], Plot | None]

MOST_PROCESSES = 4


def drawn(draws: Sequence[Draw]) -> list[Plot]:
    """The plots for a page that there are. With several cores other processes begin them at the other end."""
    elsewhere = begun(draws)
    plots: dict[int, Plot | None] = {}
    for number in reversed(range(len(draws))):
        if number not in elsewhere or elsewhere[number].cancel():
            plots[number] = drawing.for_page(draws[number])
    for number in elsewhere.keys() - plots.keys():
        try:
            plots[number] = elsewhere[number].result()
        except BrokenProcessPool:  # it was killed, such as for want of memory
            plots[number] = drawing.for_page(draws[number])
    return [plot for _, plot in sorted(plots.items()) if plot is not None]


def begun(draws: Sequence[Draw]) -> "dict[int, Future[Plot | None]]":
    """All but the last, by number; none if there is no room for a process."""
    others = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(draws)) - 1
    if others < 1:
        return {}
    drawing.imported()
    gc.freeze()  # in the forks: what their collector marks would be copied
    fork, start = multiprocessing.get_context("fork"), (draws, os.getpid())
    pool = ProcessPoolExecutor(others, fork, initializer=_keep, initargs=start)
    try:
        return {number: pool.submit(_drawn, number) for number in range(len(draws) - 1)}
    except OSError:
        return {}
    finally:
        gc.unfreeze()
        pool.shutdown(wait=False)


_kept: list[Sequence[Draw]] = []
"""In a process that draws: what it may be told to, which is too large to be sent there."""


def _keep(draws: Sequence[Draw], parent: int) -> None:
    die_with_parent(parent)
    _kept.append(draws)


def _drawn(number: int) -> Plot | None:
    return drawing.for_page(_kept[0][number])
