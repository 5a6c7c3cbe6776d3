"""How far each rank is, in memory that the worker host shares with its ranks.

A rank notes the time of each mark of its loop there: it costs a fraction of a microsecond and wakes nobody. So the host
knows where a rank hangs, and what one that was killed had measured. Standard library alone.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns

from bench.core.records import PHASES

FD_VARIABLE = "BENCH_BEATS_FD"
WORD_BYTES = 8
SIZES = 2
"""Words at the start of the memory: the number of ranks, and how many marks each has room for."""

MARKS, SECOND, STEP, HEADER = range(4)
"""Words before the marks of a rank: how many there are, and the first mark and step of its second window."""

MARKS_PER_STEP = len(PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The steps that a rank has done, and the phase of the next one that it is in."""

    done: int
    phase: str


class Beats:
    """The shared memory of one launch, seen from either side."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._words = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, ranks: int, steps: int) -> "Beats":
        """Room for ``ranks`` that make ``steps`` steps each. Raises ``OSError`` where there is no memory for it."""
        capacity = (steps + 1) * MARKS_PER_STEP  # each window has a last mark
        fd = os.memfd_create("bench-beats")
        try:
            os.posix_fallocate(fd, 0, (SIZES + ranks * (HEADER + capacity)) * WORD_BYTES)
            beats = cls(fd)
        except OSError:
            os.close(fd)
            raise
        beats._words[0], beats._words[1] = ranks, capacity
        return beats

    def close(self) -> None:
        self._words.release()
        self._memory.close()
        os.close(self.fd)

    def _start(self, rank: int) -> int:
        return SIZES + rank * (HEADER + self._words[1])

    def window(self, rank: int, first_step: int) -> Callable[[], None]:
        """A window of this rank's steps begins: the first one, from 0 on, or the second one, from ``first_step`` on.
        Returns what notes each of its marks.
        """
        words, start, capacity = self._words, self._start(rank), self._words[1]
        at, marks = start + HEADER, words[start + MARKS]
        words[start + SECOND], words[start + STEP] = marks, first_step

        def note() -> None:
            nonlocal marks
            if marks < capacity:
                words[at + marks] = perf_counter_ns()
                marks += 1
                words[start + MARKS] = marks

        return note

    def marks(self, rank: int) -> int:
        """How many marks this rank has made: it rises for as long as there is progress."""
        return self._words[self._start(rank) + MARKS]

    def windows(self, rank: int) -> list[tuple[int, list[int]]]:
        """Of the warm-up and of the measured steps the first one and the times of the marks (ns, monotonic clock)."""
        start = self._start(rank)
        marks, second, step = self._words[start : start + HEADER]
        ticks = self._words[start + HEADER : start + HEADER + marks].tolist()
        return [(0, ticks[:second]), (step, ticks[second:])]

    def position(self, rank: int) -> Position | None:
        """Where this rank is; None before its first mark."""
        found = [(step, ticks) for step, ticks in self.windows(rank) if ticks]
        if not found:
            return None
        step, ticks = found[-1]
        done, phase = divmod(len(ticks) - 1, MARKS_PER_STEP)
        return Position(done=step + done, phase=PHASES[phase])

    def steps(self, rank: int) -> list[dict[str, float | int]]:
        """The steps that this rank has finished, as rows: ``start_ns``, phases and ``step_ms``."""
        rows: list[dict[str, float | int]] = []
        for first_step, ticks in self.windows(rank):
            for done in range((len(ticks) - 1) // MARKS_PER_STEP):
                mine = ticks[done * MARKS_PER_STEP : (done + 1) * MARKS_PER_STEP + 1]
                spans = [(after - before) / 1e6 for before, after in pairwise(mine)]
                phases = {f"{phase}_ms": span for phase, span in zip(PHASES, spans, strict=True)}
                rows.append({"step": first_step + done, "start_ns": mine[0], **phases, "step_ms": sum(spans)})
        return rows
