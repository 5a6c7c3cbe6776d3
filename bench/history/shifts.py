"""On which night did a figure change its level, and stay there?

A night's figure scatters, a bad night comes and goes, and a change of the code, the driver or the machine moves all
that follow. Only the last is a shift. They are looked for on logarithms, since figures differ by factors:

1. A night more than :data:`OUTLIER_AT` deviations from the median of its five nearest (Hampel 1974) is an outlier: it
   is named, and has no part in any level. One or two such nights in a row never make two shifts.
2. The noise is read off the differences of successive nights, of which shifts touch few.
3. Seeded binary segmentation (Kovacs, Buhlmann, Li and Munk 2023): within each of O(n) intervals of all lengths, laid
   out beforehand, the split that changes the mean most. O(n log n), whatever the figures are. Of the intervals whose
   split is beyond :data:`THRESHOLD` x sqrt(2 log n) noises the narrowest is taken first (narrowest over threshold,
   Baranowski, Chen and Fryzlewicz 2019), because a narrow one holds a single shift; each night is then chosen again
   between its neighbours. Where what is left resembles the night before it, because nights wander, the means of many
   nights scatter by more than their number lets expect, and it is done once more with that much noise.
4. What is left must matter and be beyond chance: at least :data:`AT_LEAST` between the two levels, and p of at most
   :data:`SIGNIFICANCE` in Student's t test over their nights. The weakest that fails is taken away, and its two levels
   are one, until none does.

``tests/unit/test_shifts.py`` holds how often this is wrong on nights whose truth is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bench.analyse.intervals import CONFIDENCE, t_quantile, t_tail

Array = NDArray[np.float64]

MIN_NIGHTS = 3
"""Nights that a level lasts at least. What is shorter is an outlier, or not yet a level."""

NEIGHBOURS = 2
"""Nights at either side of one that its outlyingness is judged by."""

OUTLIER_AT = 4.0
"""Deviations from the median of its neighbours that make a night an outlier."""

THRESHOLD = 1.3
"""In sqrt(2 log n) deviations, the largest that n nights of pure noise reach; the factor leaves room above that."""

AT_LEAST = 0.01
"""A shift by less is of no consequence: the gate's bound too."""

SIGNIFICANCE = 0.001
"""Of the t test between two levels. Strict, because the night between them was chosen for being the best."""

DECAY = math.sqrt(0.5)
"""The length of the seeded intervals over that of the next longer ones."""

LEAST_NOISE = 5e-4
"""Figures that repeat exactly, as those of memory do, still get this much noise: less would make dust a shift."""

MOST_CORRELATED = 0.8
"""A stronger correlation of successive nights is not believed: too little would be left to find anything with."""

UNSURE = 1.5
"""A correlation of n nights below this over sqrt(n) is taken for none: chance brings forth as much."""

TAKEN_BY_A_LEVEL = 3.0
"""By what part of 1 / n each level that is fitted lowers the correlation of what is left: its mean by one (Marriott and
Pope 1954), and more because its ends were sought. Found by simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A change of level between two nights, by their place in the series: ``before`` is the last of the old level.

    ``ratio``: the new level over the old one, with its 95 % interval (Student's t) and ``p``. ``n_before``,
    ``n_after``: the nights that each level is known from, outliers apart. The interval is on the safe side, since a
    level that scatters more than the others has a scatter of its own; that makes up for the night being chosen on the
    same figures.
    """

    before: int
    after: int
    ratio: float
    low: float
    high: float
    p: float
    n_before: int
    n_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A stretch without a shift: its first and last night, and the geometric mean of its nights, outliers apart."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """A series taken apart. ``noise``: standard deviation of the logarithm of a night; None for fewer than three.

    ``correlation``: of a night with the one before, from 0. ``outliers``: nights by their place. The levels cover every
    known night; there is one more of them than of shifts.
    """

    shifts: tuple[Shift, ...]
    levels: tuple[Level, ...]
    outliers: tuple[int, ...]
    noise: float | None
    correlation: float


def levels(series: Sequence[float | None]) -> Levels:
    """Take a series of nights apart: one figure per night, the oldest first, in any unit.

    What has no logarithm (None, NaN, zero and less) is unknown and left out; places count them nevertheless. With fewer
    than two times :data:`MIN_NIGHTS` known nights no shift is looked for.
    """
    given = np.array([math.nan if value is None else value for value in series], dtype="float64")
    places = np.flatnonzero(np.isfinite(given) & (given > 0.0))
    logs = np.log(given[places])
    if len(logs) == 0:
        return Levels(shifts=(), levels=(), outliers=(), noise=None, correlation=0.0)
    if len(logs) < 3:
        whole = _level(logs, places, np.zeros(len(logs), dtype=bool), 0, len(logs))
        return Levels(shifts=(), levels=(whole,), outliers=(), noise=None, correlation=0.0)
    middle = _local_median(logs)
    outlying = np.abs(logs - middle) > OUTLIER_AT * _noise(logs)
    calm = np.where(outlying, middle, logs)
    cuts = _refined(calm, _cuts(calm, _noise(calm)))
    noise, correlation = _left(calm, cuts)
    if correlation > 0.0:
        cuts = _refined(calm, _cuts(calm, noise * _wandering(correlation)))
    cuts = _significant(logs, outlying, cuts, correlation)
    tests = _tests(logs, outlying, cuts, correlation) if cuts else []
    edges = [0, *cuts, len(logs)]
    return Levels(
        shifts=tuple(_shift(places, cut, test) for cut, test in zip(cuts, tests, strict=True)),
        levels=tuple(_level(logs, places, outlying, start, end) for start, end in pairwise(edges)),
        outliers=tuple(int(place) for place in places[outlying]),
        noise=noise,
        correlation=correlation,
    )


def _local_median(logs: Array) -> Array:
    """Of each night and its :data:`NEIGHBOURS` on both sides; at the ends of as many nights, the nearest ones."""
    width = min(2 * NEIGHBOURS + 1, len(logs))
    medians = np.median(sliding_window_view(logs, width), axis=1)
    first = np.clip(np.arange(len(logs)) - NEIGHBOURS, 0, len(logs) - width)
    chosen: Array = medians[first]
    return chosen


def _noise(logs: Array) -> float:
    """The standard deviation of a night, from differences of successive ones."""
    return max(LEAST_NOISE, _scale(np.diff(logs)) / math.sqrt(2.0))


def _left(logs: Array, cuts: list[int]) -> tuple[float, float]:
    """The standard deviation of nights about their levels, and the correlation of successive ones, from 0."""
    rests = [logs[low:high] - logs[low:high].mean() for low, high in pairwise([0, *cuts, len(logs)])]
    squares = sum(float(rest @ rest) for rest in rests)
    if squares == 0.0:
        return LEAST_NOISE, 0.0
    noise = max(LEAST_NOISE, math.sqrt(squares / max(1, len(logs) - len(rests))))
    found = sum(float(rest[1:] @ rest[:-1]) for rest in rests) / squares + TAKEN_BY_A_LEVEL * len(rests) / len(logs)
    return noise, min(MOST_CORRELATED, found) if found > UNSURE / math.sqrt(len(logs)) else 0.0


def _scale(differences: Array) -> float:
    """The standard deviation of differences about 0 of which some are shifts.

    Of those within three times what their absolute median promises (0.6745 deviations): few shifts are.
    """
    sizes = np.abs(differences)
    rough = float(np.median(sizes)) / 0.6745
    return float(np.sqrt(np.mean(sizes[sizes <= 3.0 * rough] ** 2)))


def _wandering(correlation: float) -> float:
    """How much more the mean of many nights scatters when each resembles the one before it (first order)."""
    return math.sqrt((1.0 + correlation) / (1.0 - correlation))


@lru_cache(maxsize=64)
def seeds(nights: int) -> tuple[tuple[int, NDArray[np.int64]], ...]:
    """The seeded intervals: for each length, the longest first, where those of that length begin."""
    layers = []
    length = float(nights)
    while math.ceil(length) >= 2 * MIN_NIGHTS:
        whole, count = math.ceil(length), 2 * math.ceil(nights / length) - 1
        layers.append((whole, np.unique(np.floor(np.linspace(0.0, nights - whole, count)).astype("int64"))))
        length *= DECAY
    return tuple(layers)


def _splits(sums: Array, starts: NDArray[np.int64], length: int) -> tuple[Array, NDArray[np.int64]]:
    """The best split of each interval of this length: how much it changes the mean, and where the new mean begins.

    ``sums``: cumulative, from 0. The change is in deviations of one night: sqrt(a b / (a + b)) (mean of the b after -
    mean of the a before), of which the largest over a is chosen.
    """
    before = np.arange(MIN_NIGHTS, length - MIN_NIGHTS + 1)
    after = length - before
    left = (sums[starts[:, None] + before] - sums[starts, None]) / before
    right = (sums[starts + length, None] - sums[starts[:, None] + before]) / after
    change = np.abs(right - left) * np.sqrt(before * after / length)
    best = change.argmax(axis=1)
    return change[np.arange(len(starts)), best], starts + before[best]


def _cuts(logs: Array, noise: float) -> list[int]:
    """Where a new level begins, by narrowest over threshold."""
    sums = np.concatenate([[0.0], np.cumsum(logs - logs.mean())])
    threshold = THRESHOLD * math.sqrt(2.0 * math.log(len(logs))) * noise
    found: list[tuple[int, float, int, int]] = []  # length, minus the change, start, cut: in the order of choice
    for length, starts in seeds(len(logs)):
        change, where = _splits(sums, starts, length)
        found += [
            (length, -float(change[at]), int(starts[at]), int(where[at])) for at in np.flatnonzero(change > threshold)
        ]
    found.sort()
    cuts: list[int] = []
    for wide, _, start, cut in found:
        if not any(start < other < start + wide for other in cuts):
            cuts.append(cut)
    return sorted(cuts)


def _refined(logs: Array, cuts: list[int]) -> list[int]:
    """Each cut again as the best one between its neighbours."""
    sums = np.concatenate([[0.0], np.cumsum(logs - logs.mean())])
    edges = [0, *cuts, len(logs)]
    for at in range(1, len(edges) - 1):
        start, end = edges[at - 1], edges[at + 1]
        if end - start >= 2 * MIN_NIGHTS:
            edges[at] = int(_splits(sums, np.array([start]), end - start)[1][0])
    return edges[1:-1]


def _significant(logs: Array, outlying: NDArray[np.bool_], cuts: list[int], correlation: float) -> list[int]:
    """The cuts between levels that differ by enough and beyond chance; the weakest of the others goes first."""
    while cuts:
        tests = _tests(logs, outlying, cuts, correlation)
        weak = [at for at, test in enumerate(tests) if test.p > SIGNIFICANCE or abs(test.change) < math.log1p(AT_LEAST)]
        if not weak:
            return cuts
        weakest = min(weak, key=lambda at: (-tests[at].p, abs(tests[at].change)))
        cuts = _refined(np.where(outlying, _local_median(logs), logs), cuts[:weakest] + cuts[weakest + 1 :])
    return cuts


@dataclass(frozen=True, slots=True)
class _Test:
    change: float
    half: float
    p: float
    n_before: int
    n_after: int


def _tests(logs: Array, outlying: NDArray[np.bool_], cuts: list[int], correlation: float) -> list[_Test]:
    """Student's t at each cut between the nights of the two levels; correlated nights count for fewer of them.

    A level of three nights says little about its own scatter, and so the one about all levels is taken, with all of
    their degrees of freedom; for a level that scatters more than that, its own.
    """
    edges = [0, *cuts, len(logs)]
    sides = [logs[low:high][~outlying[low:high]] for low, high in pairwise(edges)]
    freedom = max(1, sum(len(side) - 1 for side in sides if len(side)))
    pooled = sum(float(side.var()) * len(side) for side in sides if len(side)) / freedom
    shrunk = _wandering(correlation) ** 2
    quantile = t_quantile(CONFIDENCE, freedom)
    tests = []
    for old, new in pairwise(sides):
        if min(len(old), len(new)) < 2:  # the others are outliers
            tests.append(_Test(0.0, math.inf, 1.0, len(old), len(new)))
            continue
        change = float(new.mean() - old.mean())
        error = math.sqrt(
            sum(max(pooled, float(side.var(ddof=1)), LEAST_NOISE**2) * shrunk / len(side) for side in (old, new))
        )
        p = t_tail(change / error, freedom)
        tests.append(_Test(change, quantile * error, p, len(old), len(new)))
    return tests


def _shift(places: NDArray[np.intp], cut: int, test: _Test) -> Shift:
    return Shift(
        before=int(places[cut - 1]),
        after=int(places[cut]),
        ratio=math.exp(test.change),
        low=math.exp(test.change - test.half),
        high=math.exp(test.change + test.half),
        p=test.p,
        n_before=test.n_before,
        n_after=test.n_after,
    )


def _level(logs: Array, places: NDArray[np.intp], outlying: NDArray[np.bool_], start: int, end: int) -> Level:
    mine = logs[start:end][~outlying[start:end]]
    value = math.exp(float((mine if len(mine) else logs[start:end]).mean()))
    return Level(first=int(places[start]), last=int(places[end - 1]), value=value)
