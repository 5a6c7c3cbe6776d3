"""Plots that several processes draw side by side: forks, which have every table without a copy."""

import ctypes
import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from bench.core.channel import die_with_parent
from bench.report import drawing
from bench.report.drawing import Plot

Draw = Callable[[], Plot | None]

MOST_PROCESSES = 4
NUMBER_BYTES = 2  # of a plot in the queue


def drawn(plots: Sequence[Draw], ids: str = "", meanwhile: Callable[[], object] = lambda: None) -> list[Plot]:
    """The plots for a page that there are; ``ids``: how their ids in it begin. Each process takes the last that nobody
    has begun, until none is left. This one does ``meanwhile`` first, the results of which it needs later."""
    draws = [partial(drawing.for_page, draw, ids) for draw in plots]
    queue, filled = os.pipe()
    with open(filled, "wb") as numbers:
        numbers.write(b"".join(number.to_bytes(NUMBER_BYTES) for number in reversed(range(len(draws)))))
    try:
        others = forked(draws, queue, min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(draws)) - 1)
        meanwhile()
        finished = _taken(draws, queue)
    finally:
        os.close(queue)
    for other in others:
        with suppress(EOFError, OSError):  # it was killed, such as for want of memory
            finished |= other.recv()
    finished |= {number: draws[number]() for number in range(len(draws)) if number not in finished}
    return [plot for _, plot in sorted(finished.items()) if plot is not None]


def forked(draws: Sequence[Draw], queue: int, processes: int) -> list[Connection]:
    """As many other processes that draw as there is room for; each sends its plots by number, and ends."""
    if processes < 1:
        return []
    with drawing.styled():
        drawing.sheet(1.0)  # so that matplotlib is imported once
    gc.freeze()  # in the forks: what their collector marks would be copied
    fork = multiprocessing.get_context("fork")
    others = []
    try:
        for _ in range(processes):
            here, there = fork.Pipe(duplex=False)
            fork.Process(target=_draw, args=(draws, queue, there, os.getpid()), daemon=True).start()
            there.close()
            others.append(here)
    except OSError:
        pass
    finally:
        gc.unfreeze()
    return others


def _draw(draws: Sequence[Draw], queue: int, results: Connection, parent: int) -> None:
    die_with_parent(parent)
    with suppress(BaseException):  # the parent draws what is missing, and has the same
        results.send(_taken(draws, queue))


def _taken(draws: Sequence[Draw], queue: int) -> dict[int, Plot | None]:
    plots: dict[int, Plot | None] = {}
    while taken := os.read(queue, NUMBER_BYTES):
        number = int.from_bytes(taken)
        plots[number] = draws[number]()
        gc.collect(1)  # its figure, all parts of which refer to each other
        ctypes.CDLL(None).malloc_trim(0)
    return plots
