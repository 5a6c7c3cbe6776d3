"""On which night did a value change its level, and stay there?

All on logarithms, since values differ by factors:

1. A night more than :data:`OUTLIER_AT` deviations from the median of its five nearest (Hampel 1974) is an outlier and
   has no part in any level. One or two such nights in a row never make two shifts.
2. The noise comes from the differences of successive nights, of which shifts touch few.
3. Seeded binary segmentation (Kovacs, Buhlmann, Li and Munk 2023) finds, in each of O(n) intervals of all lengths, the
   split that changes the mean most. Of those beyond :data:`THRESHOLD` x sqrt(2 log n) noises the narrowest interval
   comes first (Baranowski, Chen and Fryzlewicz 2019), because it holds a single shift; each cut is then placed again
   between its neighbours. Where the rests are correlated it is done once more, with as much more noise.
4. A shift must be at least :data:`AT_LEAST`, with p of at most :data:`SIGNIFICANCE` in Student's t test over the nights
   of its two levels. The weakest that fails is removed and its two levels become one, until none fails.

``tests/unit/test_shifts.py`` shows how often this is wrong on made-up nights.
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
Places = NDArray[np.intp]
Outlying = NDArray[np.bool_]

MIN_NIGHTS = 3  # of a level; what is shorter is an outlier, or not yet a level
NEIGHBOURS = 2  # nights at either side that a night's outlyingness is judged by
OUTLIER_AT = 4.0  # deviations from the median of the neighbours
THRESHOLD = 1.3  # times sqrt(2 log n) deviations, the most that n nights of pure noise reach
AT_LEAST = 0.01  # a smaller shift does not matter: the gate's bound too
SIGNIFICANCE = 0.001  # strict, because the cut was chosen for being the best
DECAY = math.sqrt(0.5)  # the length of seeded intervals over that of the next longer ones
LEAST_NOISE = 5e-4  # of values that repeat exactly, as peaks of memory do
MOST_CORRELATED = 0.8  # beyond it too little would be left to find anything with
UNSURE = 1.5  # a correlation of n nights below this over sqrt(n) may be chance
TAKEN_BY_A_LEVEL = 3.0
"""By what part of 1 / n each fitted level lowers the correlation of the rests: its mean by one (Marriott and Pope
1954), and more because its ends were sought. Found by simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A change of level between two nights, by their place in the series: ``before`` is the last of the old level.

    ``ratio``: the new level over the old one, with its 95 % interval (Student's t) and ``p``.
    """

    before: int
    after: int
    ratio: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The nights between shifts: the first, the last, and the geometric mean, outliers apart."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """A series taken apart. ``noise``: standard deviation of the logarithm of a night; None for fewer than three.

    ``correlation``: of a night with the one before, from 0. ``outliers``: nights by their place.
    """

    shifts: tuple[Shift, ...]
    levels: tuple[Level, ...]
    outliers: tuple[int, ...]
    noise: float | None
    correlation: float


def levels(series: Sequence[float | None]) -> Levels:
    """Take a series of nights apart: one value per night, the oldest first, in any unit.

    What has no logarithm (None, NaN, zero and less) is unknown and left out, but counts in the places.
    """
    given = np.array([math.nan if value is None else value for value in series], dtype="float64")
    places = np.flatnonzero(np.isfinite(given) & (given > 0.0))
    logs = np.log(given[places])
    if len(logs) < 3:
        whole = [_level(logs, places, np.zeros(len(logs), dtype=bool), 0, len(logs))] if len(logs) else []
        return Levels(shifts=(), levels=tuple(whole), outliers=(), noise=None, correlation=0.0)
    middle = _local_median(logs)
    outlying = np.abs(logs - middle) > OUTLIER_AT * _noise(logs)
    calm = np.where(outlying, middle, logs)
    sums = np.concatenate([[0.0], np.cumsum(calm - calm.mean())])
    cuts = _refined(sums, _cuts(sums, _noise(calm)))
    noise, correlation = _left(calm, cuts)
    if correlation > 0.0:
        cuts = _refined(sums, _cuts(sums, noise * _wandering(correlation)))
    shifts = _shifts(logs, places, outlying, cuts, correlation)
    while weak := [one for one in shifts if one.p > SIGNIFICANCE or abs(math.log(one.ratio)) < math.log1p(AT_LEAST)]:
        weakest = shifts.index(min(weak, key=lambda one: (-one.p, abs(math.log(one.ratio)))))
        cuts = _refined(sums, cuts[:weakest] + cuts[weakest + 1 :])
        shifts = _shifts(logs, places, outlying, cuts, correlation)
    return Levels(
        shifts=tuple(shifts),
        levels=tuple(_level(logs, places, outlying, start, end) for start, end in pairwise([0, *cuts, len(logs)])),
        outliers=tuple(int(place) for place in places[outlying]),
        noise=noise,
        correlation=correlation,
    )


def _local_median(logs: Array) -> Array:
    """Of each night and its :data:`NEIGHBOURS` on both sides; at the ends of as many nights, the nearest ones."""
    width = min(2 * NEIGHBOURS + 1, len(logs))
    medians = np.median(sliding_window_view(logs, width), axis=1)
    return np.asarray(medians[np.clip(np.arange(len(logs)) - NEIGHBOURS, 0, len(logs) - width)])


def _noise(logs: Array) -> float:
    """From differences of successive nights, of those within three times what their median promises."""
    sizes = np.abs(np.diff(logs))
    rough = float(np.median(sizes)) / 0.6745
    return max(LEAST_NOISE, float(np.sqrt(np.mean(sizes[sizes <= 3.0 * rough] ** 2))) / math.sqrt(2.0))


def _left(logs: Array, cuts: list[int]) -> tuple[float, float]:
    """The standard deviation of nights about their levels, and the correlation of successive ones, from 0."""
    rests = [logs[low:high] - logs[low:high].mean() for low, high in pairwise([0, *cuts, len(logs)])]
    if (squares := sum(float(rest @ rest) for rest in rests)) == 0.0:
        return LEAST_NOISE, 0.0
    noise = max(LEAST_NOISE, math.sqrt(squares / max(1, len(logs) - len(rests))))
    correlation = sum(float(one[1:] @ one[:-1]) for one in rests) / squares + TAKEN_BY_A_LEVEL * len(rests) / len(logs)
    return noise, min(MOST_CORRELATED, correlation) if correlation > UNSURE / math.sqrt(len(logs)) else 0.0


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

    ``sums``: cumulative, from 0. The change: sqrt(a b / (a + b)) |mean of the b after - mean of the a before|.
    """
    before = np.arange(MIN_NIGHTS, length - MIN_NIGHTS + 1)
    after = length - before
    left = (sums[starts[:, None] + before] - sums[starts, None]) / before
    right = (sums[starts + length, None] - sums[starts[:, None] + before]) / after
    change = np.abs(right - left) * np.sqrt(before * after / length)
    best = change.argmax(axis=1)
    return change[np.arange(len(starts)), best], starts + before[best]


def _cuts(sums: Array, noise: float) -> list[int]:
    """Where a new level begins, by narrowest over threshold. ``sums``: as for :func:`_splits`."""
    nights = len(sums) - 1
    threshold = THRESHOLD * math.sqrt(2.0 * math.log(nights)) * noise
    splits: list[tuple[int, float, int, int]] = []  # length, minus the change, start, cut: in the order of choice
    for length, starts in seeds(nights):
        change, where = _splits(sums, starts, length)
        beyond = np.flatnonzero(change > threshold)
        splits += [(length, -float(change[at]), int(starts[at]), int(where[at])) for at in beyond]
    splits.sort()
    cuts: list[int] = []
    for wide, _, start, cut in splits:
        if not any(start < other < start + wide for other in cuts):
            cuts.append(cut)
    return sorted(cuts)


def _refined(sums: Array, cuts: list[int]) -> list[int]:
    edges = [0, *cuts, len(sums) - 1]
    for at in range(1, len(edges) - 1):
        start, end = edges[at - 1], edges[at + 1]
        if end - start >= 2 * MIN_NIGHTS:
            edges[at] = int(_splits(sums, np.array([start]), end - start)[1][0])
    return edges[1:-1]


def _shifts(logs: Array, places: Places, outlying: Outlying, cuts: list[int], correlation: float) -> list[Shift]:
    """Student's t at each cut between the nights of the two levels; correlated nights count for fewer of them.

    With the scatter about all levels and its degrees of freedom; a level that scatters more has its own.
    """
    sides = [logs[low:high][~outlying[low:high]] for low, high in pairwise([0, *cuts, len(logs)])]
    freedom = max(1, sum(len(side) - 1 for side in sides if len(side)))
    pooled = sum(float(side.var()) * len(side) for side in sides if len(side)) / freedom
    shrunk = _wandering(correlation) ** 2
    quantile = t_quantile(CONFIDENCE, freedom)
    shifts = []
    for cut, old, new in zip(cuts, sides, sides[1:], strict=False):
        change, error = 0.0, math.inf
        if min(len(old), len(new)) > 1:  # or the others are outliers
            change = float(new.mean() - old.mean())
            variances = (max(pooled, float(side.var(ddof=1)), LEAST_NOISE**2) / len(side) for side in (old, new))
            error = math.sqrt(shrunk * sum(variances))
        shift = Shift(
            before=int(places[cut - 1]),
            after=int(places[cut]),
            ratio=math.exp(change),
            low=math.exp(change - quantile * error),
            high=math.exp(min(change + quantile * error, 700.0)),
            p=t_tail(change / error, freedom),
        )
        shifts.append(shift)
    return shifts


def _level(logs: Array, places: Places, outlying: Outlying, start: int, end: int) -> Level:
    calm = logs[start:end][~outlying[start:end]]
    value = math.exp(float((calm if len(calm) else logs[start:end]).mean()))
    return Level(first=int(places[start]), last=int(places[end - 1]), value=value)
