"""Is one way to train faster than another, or have a few launches fallen out so by chance?

Scenarios of one run are compared round by round (:mod:`bench.analyse.rounds`), two runs by Welch's t test on the
logarithms of one figure per launch (Welch 1947). Both need neither equal numbers of launches nor equal scatter, and
their interval is one of the ratio. Steps are never pooled, since those of one launch resemble each other: pooled,
chance alone makes one comparison in five "significant". The p-values of several comparisons are adjusted after Holm
(1979). ``benchmarks/statistics_simulation.py`` shows how often these verdicts are wrong.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import pandas as pd

from bench.analyse.intervals import CONFIDENCE, Ratio, figures, geometric_mean, ratio_of, t_quantile
from bench.analyse.rounds import Rounds
from bench.runs.frames import LaunchFigures

LAUNCHES_WANTED = 3  # of a side, for a verdict: with two, the scatter is known from a single difference
FASTER, SLOWER, ALIKE = "faster", "slower", "no difference found"
TOO_FEW = "too few launches"
MATTERS = 0.01  # a smaller difference need not be told from none
MOST_LAUNCHES = 1000

COLUMNS = ("base", "scenario", "ratio", "low", "high", "p", "p_holm", "n_base", "n_new", "more", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The time of ``new`` over that of ``base``: below 1 is faster.

    ``low``, ``high``: interval of the ratio, None where a side has fewer than two launches. ``p``: two-sided, None with
    fewer than three. ``more``: as from :func:`more_launches`. ``error``, ``freedom``: of the logarithm of the ratio, as
    in :class:`bench.analyse.intervals.Ratio`.
    """

    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    n_base: int
    n_new: int
    verdict: str
    more: int | None = None
    error: float | None = None
    freedom: float | None = None


def compare(base: Iterable[float | None], new: Iterable[float | None]) -> Comparison:
    """Compare two sets of times, one figure per launch, by :func:`bench.analyse.intervals.ratio_of`."""
    base, new = figures(base), figures(new)
    return compared(ratio_of(base, new), len(base), len(new))


def compared(ratio: Ratio, n_base: int, n_new: int, tests: int = 1) -> Comparison:
    """What the ratio of so many launches on each side comes to, one of so many ``tests``."""
    p = ratio.p if min(n_base, n_new) >= LAUNCHES_WANTED else None
    return Comparison(
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        p=p,
        n_base=n_base,
        n_new=n_new,
        verdict=verdict_of(ratio.value, p),
        more=more_launches(ratio, min(n_base, n_new), tests),
        error=ratio.error,
        freedom=ratio.freedom,
    )


def more_launches(ratio: Ratio, launches: int, tests: int = 1) -> int | None:
    """About how many more launches of each side would tell them apart; 0 where these are enough, None if unknown.

    The interval at the level of so many ``tests`` (Bonferroni) is to become as narrow as the difference found, or as
    :data:`MATTERS` if that is less, should they scatter on as they have so far: half-width t · error · sqrt(launches /
    n). None beyond :data:`MOST_LAUNCHES`, and where nothing is known about scatter.
    """
    if ratio.value is None or ratio.error is None or ratio.freedom is None:
        return None
    aim = max(abs(math.log(ratio.value)), math.log1p(MATTERS))
    level = 1.0 - (1.0 - CONFIDENCE) / max(1, tests)
    for wanted in range(max(launches, LAUNCHES_WANTED), MOST_LAUNCHES + 1):
        part = launches / wanted
        if t_quantile(level, ratio.freedom / part) * ratio.error * math.sqrt(part) <= aim:
            return wanted - launches
    return None


def still_wanted(more: int | None) -> str:
    """``too few launches: about 6 more``; empty where these are enough, or it cannot be told."""
    return "" if more is None or pd.isna(more) or more == 0 else f"{TOO_FEW}: about {int(more)} more"


def verdict_of(ratio: float | None, p: float | None) -> str:
    """What a ratio of times (lower is better) and its p-value, adjusted or not, come to."""
    if ratio is None or p is None:
        return TOO_FEW
    if p >= 1.0 - CONFIDENCE:
        return ALIKE
    return FASTER if ratio < 1.0 else SLOWER


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values adjusted for being so many, in the same order (Holm 1979, step-down).

    The smallest of m is multiplied by m, the next by m - 1 and so on; none gets smaller than one before it, nor larger
    than 1. None stays None and does not count.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, index) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - place) * p))
        adjusted[index] = largest
    return adjusted


def between_scenarios(launches: LaunchFigures, base: str, among: Iterable[str] | None = None) -> pd.DataFrame:
    """Every other scenario against ``base``: one row each, in the order of ``launches``, columns :data:`COLUMNS`.

    ``launches``: all of a run that are ``ok``, because all of them show how it drifted. ``among``: the scenarios that
    are compared (default: all). ``ratio``: step time over that of ``base``, on the launches' medians. ``p_holm``:
    adjusted over the scenarios; the verdict goes by it, the interval does not.
    """
    rounds, names = _of(launches, among)
    return _compared(rounds, [(base, scenario) for scenario in names if scenario != base])


def pairwise(launches: LaunchFigures, among: Iterable[str] | None = None) -> pd.DataFrame:
    """Every scenario against every other once, as :func:`between_scenarios`; adjusted over all of the pairs."""
    rounds, names = _of(launches, among)
    return _compared(rounds, list(combinations(names, 2)))


def against_fastest(launches: LaunchFigures, among: Iterable[str] | None = None) -> pd.DataFrame:
    """The fastest scenario as ``base`` against every other: one row each, as :func:`between_scenarios`.

    Which one is fastest comes from the same launches, so ``p_holm`` is adjusted over all pairs of scenarios.
    """
    rounds, names = _of(launches, among)
    if not names:
        return _compared(rounds, [])
    fastest = min(names, key=lambda scenario: geometric_mean(rounds.values[scenario]))
    others = [scenario for scenario in names if scenario != fastest]
    table = _compared(rounds, list(combinations([fastest, *others], 2)))
    return table[table["base"] == fastest].reset_index(drop=True)


def _of(launches: LaunchFigures, among: Iterable[str] | None) -> tuple[Rounds, list[str]]:
    rounds = Rounds.of(launches)
    wanted = set(rounds.values if among is None else among)
    return rounds, [name for name in rounds.values if name in wanted]


def _compared(rounds: Rounds, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    counts = {name: len(mine) for name, mine in rounds.values.items()}
    found = [
        compared(rounds.ratio(base, new), counts.get(base, 0), counts.get(new, 0), len(pairs)) for base, new in pairs
    ]
    adjusted = holm([one.p for one in found])
    rows = [
        {"base": base, "scenario": scenario, **asdict(one), "p_holm": p, "verdict": verdict_of(one.ratio, p)}
        for (base, scenario), one, p in zip(pairs, found, adjusted, strict=True)
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    floats = dict.fromkeys(("ratio", "low", "high", "p", "p_holm"), "float64")
    return table.astype({**floats, "more": "Int64"})
