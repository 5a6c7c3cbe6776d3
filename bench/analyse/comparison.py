"""Is one way to train faster than another, or have a few launches fallen out so by chance?

Scenarios are compared on the logarithms of one value per launch, with drift taken out (:mod:`bench.analyse.rounds`),
which needs neither equal numbers of launches nor equal scatter. Steps are never pooled, since those of one launch
resemble each other: pooled, chance alone makes one comparison in five "significant". p-values are adjusted for how many
comparisons answer one question, and for launches that were added after a verdict (:mod:`bench.analyse.multiplicity`).
``benchmarks/chance.py`` shows how often these verdicts are wrong.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import special

from bench.analyse.intervals import Ratio
from bench.analyse.multiplicity import ERROR, against_one, among_all, level
from bench.analyse.rounds import Rounds
from bench.runs.frames import TableRow

LAUNCHES_WANTED = 3  # of a side, for a verdict: with two, the scatter is known from a single difference
FASTER, SLOWER, ALIKE = "faster", "slower", "no difference found"
TOO_FEW = "too few launches"
SHOWN, POWER = 0.02, 0.8  # launches are planned so that a difference of this size is found this often
MOST_LAUNCHES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Ratio):
    """The time of ``new`` over that of ``base``: below 1 is faster.

    ``p``: None with fewer than three launches of a side. ``p_adjusted``: for other comparisons and earlier verdicts,
    by which the ``verdict`` goes. ``more``: as from :func:`more_launches`. ``before``: launches that an earlier verdict
    had.
    """

    n_base: int = 0
    n_new: int = 0
    verdict: str = TOO_FEW
    more: int | None = None
    before: float = 0.0
    p_adjusted: float | None = None


Compared = TypeVar("Compared", bound=Comparison)


def compared(ratio: Ratio, n_base: int, n_new: int, tests: int = 1, before: float = 0.0) -> Comparison:
    """The comparison of launches of two sides, one of ``tests`` of its kind, before :func:`judged`.

    ``before``: how many launches of a side an earlier verdict had; 0 for a first one.
    """
    few = min(n_base, n_new)
    known = asdict(ratio) | ({} if few >= LAUNCHES_WANTED else {"p": None})
    return Comparison(**known, n_base=n_base, n_new=n_new, more=more_launches(ratio, few, tests), before=before)


def judged(comparisons: Sequence[Compared], among: int | None = None) -> list[Compared]:
    """With p-values adjusted for each other and for earlier verdicts, and the verdicts that follow.

    ``among``: they are pairs of this many that are all compared with each other; None: each has the same base.
    """
    raw = [one.p for one in comparisons]
    adjusted = among_all(raw, among) if among else against_one(raw, [one.of_base for one in comparisons])
    decided = []
    for one, p in zip(comparisons, adjusted, strict=True):
        if p is not None:
            left = float(level(each_side(one.n_base, one.n_new), one.before))
            p = min(1.0, p * ERROR / left) if left > 0.0 else 1.0
        decided.append(replace(one, p_adjusted=p, verdict=verdict_of(one.ratio, p)))
    return decided


def each_side(n_base: float, n_new: float) -> float:
    """How many launches of each side tell as much as these (the harmonic mean)."""
    return 2.0 / (1.0 / n_base + 1.0 / n_new)


def more_launches(ratio: Ratio, launches: int, tests: int = 1) -> int | None:
    """About how many more launches of each side would show a difference of :data:`SHOWN`, with :data:`POWER`.

    They are judged by what is left of the error after these, one of ``tests`` of its kind (Bonferroni). Both quantiles
    are those of Student's t with the degrees of freedom that the scatter is known by so far, which keeps the power
    whatever the scatter is (Stein 1945). None beyond :data:`MOST_LAUNCHES`, and where nothing is known about scatter; 0
    where these launches were enough.
    """
    if ratio.value is None or ratio.error is None or ratio.freedom is None or launches < 1:
        return None
    wanted = np.arange(max(launches, LAUNCHES_WANTED), MOST_LAUNCHES + 1)
    spent = level(wanted, launches if launches >= LAUNCHES_WANTED else 0)
    spent[wanted == launches] = level(launches)
    reach = special.stdtrit(ratio.freedom, 1.0 - spent / max(1, tests) / 2.0) + special.stdtrit(ratio.freedom, POWER)
    enough = reach * ratio.error * np.sqrt(launches / wanted) <= math.log1p(SHOWN)
    return int(wanted[enough.argmax()]) - launches if enough.any() else None


def still_wanted(more: int | None) -> str:
    """``about 6 more launches would show a difference of 2 %``; empty where these are enough, or it cannot be told."""
    if not more:
        return ""
    return f"about {more} more launch{'es' * (more > 1)} of each would show a difference of {100 * SHOWN:.0f} %"


def verdict_of(ratio: float | None, p: float | None) -> str:
    """The verdict on a ratio of times (lower is better) with this p-value, adjusted or not."""
    if ratio is None or p is None:
        return TOO_FEW
    if p >= ERROR:
        return ALIKE
    return FASTER if ratio < 1.0 else SLOWER


def of_pairs(
    rounds: Rounds, pairs: Sequence[tuple[str, str]], before: int, among: int | None = None
) -> list[Comparison]:
    """Each pair of a base and a scenario, compared and :func:`judged`. ``among``: as there; None: each has a base of
    its own. ``before``: as in :func:`compared`."""
    tests = among * (among - 1) // 2 if among else len(pairs)
    comparisons = []
    for base, new in pairs:
        ratio = replace(rounds.ratio(base, new), of_base=0.0)
        n_base, n_new = (len(rounds.values.get(name, ())) for name in (base, new))
        comparisons.append(compared(ratio, n_base, n_new, tests, before))
    return judged(comparisons, among)


def against_fastest(rounds: Rounds, among: Iterable[str], before: int = 0) -> list[TableRow]:
    """The fastest of some scenarios, with drift taken out, as ``base`` against every other: a row each, with the fields
    of a comparison.

    ``rounds``: of all launches that are ``ok``, because all of them show how the run drifted. Which one is fastest
    comes from the same launches, so ``p_adjusted`` is over all pairs of scenarios, which the interval is not.
    """
    names = [name for name in rounds.values if name in {*among}]
    fastest = min(names, key=lambda scenario: rounds.ratio(names[0], scenario).value or math.inf, default="")
    pairs = [(fastest, name) for name in names if name != fastest]
    compared = of_pairs(rounds, pairs, before, len(names))
    return [{"base": fastest, "scenario": one, **asdict(of)} for (_, one), of in zip(pairs, compared, strict=True)]
