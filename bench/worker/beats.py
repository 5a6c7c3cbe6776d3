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
CAPACITY, WARMUP, SIZES = range(3)
"""Words at the start of the memory: how many marks each rank has room for, and how many steps its warm-up has. Before
the marks of a rank there is one more: how many they are."""

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
    def create(cls, ranks: int, warmup: int, iters: int) -> "Beats":
        """Room for this many steps of each of ``ranks``. Raises ``OSError`` if there is no memory for it."""
        capacity = (warmup + iters) * MARKS_PER_STEP + 2  # each window has a last mark
        fd = os.memfd_create("bench-beats")
        try:
            os.posix_fallocate(fd, 0, (SIZES + ranks * (1 + capacity)) * WORD_BYTES)
            beats = cls(fd)
        except OSError:
            os.close(fd)
            raise
        beats._words[CAPACITY], beats._words[WARMUP] = capacity, warmup
        return beats

    def close(self) -> None:
        self._words.release()
        self._memory.close()
        os.close(self.fd)

    def _start(self, rank: int) -> int:
        return SIZES + rank * (1 + self._words[CAPACITY])

    def notes(self, rank: int) -> Callable[[], None]:
        """What notes each mark of this rank, of the warm-up and then of the measured steps."""
        words, start, capacity, marks = self._words, self._start(rank), self._words[CAPACITY], 0

        def note() -> None:
            nonlocal marks
            if marks < capacity:
                marks += 1
                words[start + marks] = perf_counter_ns()
                words[start] = marks

        return note

    def marks(self, rank: int) -> int:
        """How many marks this rank has made: it rises for as long as there is progress."""
        return self._words[self._start(rank)]

    def windows(self, rank: int) -> list[tuple[int, list[int]]]:
        """Of the warm-up and of the measured steps the first one and the times of the marks (ns, monotonic clock)."""
        begin, warmup = self._start(rank) + 1, self._words[WARMUP]
        ticks = self._words[begin : begin + self.marks(rank)].tolist()
        second = warmup * MARKS_PER_STEP + 1
        return [(0, ticks[:second]), (warmup, ticks[second:])]

    def position(self, rank: int) -> Position | None:
        """Where this rank is; None before its first mark."""
        for step, ticks in reversed(self.windows(rank)):
            if ticks:
                done, phase = divmod(len(ticks) - 1, MARKS_PER_STEP)
                return Position(done=step + done, phase=PHASES[phase])
        return None

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
