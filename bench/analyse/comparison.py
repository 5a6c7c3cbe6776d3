"""Is one way to train faster than another, or have a few launches fallen out so by chance?

Welch's t test on the logarithms of one figure per launch (Welch 1947): it needs neither equal numbers of launches nor
equal scatter, and its interval is one of the ratio. Steps are never pooled, since those of one launch resemble each
other: pooled, chance alone makes one comparison in five "significant". The p-values of several comparisons are adjusted
after Holm (1979). ``benchmarks/statistics_simulation.py`` shows how often these verdicts are wrong.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import pandas as pd

from bench.analyse.intervals import CONFIDENCE, figures, geometric_mean, ratio_of
from bench.runs.frames import LaunchFigures

LAUNCHES_WANTED = 3  # of a side, for a verdict: with two, the scatter is known from a single difference
FASTER, SLOWER, ALIKE = "faster", "slower", "no difference found"
TOO_FEW = "too few launches"

COLUMNS = ("base", "scenario", "ratio", "low", "high", "p", "p_holm", "n_base", "n_new", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The time of ``new`` over that of ``base``: below 1 is faster.

    ``low``, ``high``: interval of the ratio, None where a side has fewer than two launches. ``p``: two-sided, None with
    fewer than three.
    """

    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    n_base: int
    n_new: int
    verdict: str


def compare(base: Iterable[float | None], new: Iterable[float | None]) -> Comparison:
    """Compare two sets of times, one figure per launch, by :func:`bench.analyse.intervals.ratio_of`."""
    base, new = figures(base), figures(new)
    ratio = ratio_of(base, new)
    p = ratio.p if min(len(base), len(new)) >= LAUNCHES_WANTED else None
    return Comparison(
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        p=p,
        n_base=len(base),
        n_new=len(new),
        verdict=verdict_of(ratio.value, p),
    )


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


def between_scenarios(launches: LaunchFigures, base: str) -> pd.DataFrame:
    """Every other scenario against ``base``: one row each, in the order of ``launches``, columns :data:`COLUMNS`.

    ``launches``: of launches that are ``ok`` alone. ``ratio``: step time over that of ``base``, on the launches'
    medians. ``p_holm``: adjusted over the scenarios; the verdict goes by it, the interval does not.
    """
    medians = _medians(launches)
    return _compared(medians, [(base, scenario) for scenario in medians if scenario != base])


def pairwise(launches: LaunchFigures) -> pd.DataFrame:
    """Every scenario against every other once, as :func:`between_scenarios`; adjusted over all of the pairs."""
    medians = _medians(launches)
    return _compared(medians, list(combinations(medians, 2)))


def against_fastest(launches: LaunchFigures) -> pd.DataFrame:
    """The fastest scenario as ``base`` against every other: one row each, as :func:`between_scenarios`.

    Which one is fastest comes from the same launches, so ``p_holm`` is adjusted over all pairs of scenarios.
    """
    medians = _medians(launches)
    if not medians:
        return _compared({}, [])
    fastest = min(medians, key=lambda scenario: geometric_mean(figures(medians[scenario])))
    names = [fastest, *(scenario for scenario in medians if scenario != fastest)]
    table = _compared(medians, list(combinations(names, 2)))
    return table[table["base"] == fastest].reset_index(drop=True)


def _medians(launches: LaunchFigures) -> dict[str, list[float]]:
    return {str(scenario): list(mine) for scenario, mine in launches.frame.groupby("scenario", sort=False)["median_ms"]}


def _compared(medians: dict[str, list[float]], pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    found = [compare(medians.get(base, []), medians[scenario]) for base, scenario in pairs]
    adjusted = holm([one.p for one in found])
    rows = [
        {"base": base, "scenario": scenario, **asdict(one), "p_holm": p, "verdict": verdict_of(one.ratio, p)}
        for (base, scenario), one, p in zip(pairs, found, adjusted, strict=True)
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype(dict.fromkeys(("ratio", "low", "high", "p", "p_holm"), "float64"))
