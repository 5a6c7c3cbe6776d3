"""p-values adjusted for several comparisons, and for launches that were looked at before.

Several comparisons share their base, so its error is in all of them, and chance takes them along together. Bonferroni
and Holm allow for comparisons that know nothing of each other, and lose power for nothing. Here a two-sided p-value
stands for the normal deviate that is as rare, and the deviates are correlated as the ratios are (a Gaussian copula):

- :func:`against_one`: of several against one base, Dunnett's test (1955), stepping down from the smallest p as Holm
  does (Marcus, Peritz and Gabriel 1976). Without a common base it is Holm's procedure by Sidak's levels.
- :func:`among_all`: of two of several, whichever they are: Tukey's range of all (1949).

Whoever adds launches until something is significant finds something: in 8.8 % of A/A comparisons that "about N more"
launches were added to once. So an error of 5 % is spent over the launches (Lan and DeMets 1983): :func:`level` is what
is left for a verdict after those that came before it. ``benchmarks/chance.py`` shows what all of that comes to.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

ERROR = 0.05  # of all verdicts on one question together, however many launches are added

HALVED_BY = 2.5  # launches of each side that spend half of what is left of it

DEVIATES = np.linspace(-8.0, 8.0, 401)
DENSITY = np.exp(-(DEVIATES**2) / 2.0) / np.exp(-(DEVIATES**2) / 2.0).sum()
MOST_SHARED = 0.99  # beyond, what is summed over the deviates is a step between two of them


def level(launches: Array | NDArray[np.int64] | float, before: float = 0.0) -> Array:
    """The error of a verdict on this many launches of each side. ``before``: of those, what the last verdict had."""
    return np.asarray(ERROR * (2.0 ** (-before / HALVED_BY) - 2.0 ** (-launches / HALVED_BY)))


def against_one(p_values: Sequence[float | None], of_base: Sequence[float]) -> list[float | None]:
    """The p-values adjusted for their number, in the same order. None stays None and does not count.

    ``of_base``: of each, which part of the variance of its ratio is the base's.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    shared = np.sqrt(np.minimum([of_base[index] for _, index in tested], MOST_SHARED))[:, None]
    common, apart = shared * DEVIATES, np.sqrt(1.0 - shared**2)
    largest = 0.0
    for place, (p, index) in enumerate(tested):
        deviate = _deviate(p)  # how probable it is that any of these is at least as far from 0
        within = special.ndtr((deviate - common) / apart) - special.ndtr((-deviate - common) / apart)
        beyond = min(1.0, max(0.0, 1.0 - float(within[place:].prod(axis=0) @ DENSITY)))
        largest = max(largest, p, beyond)
        adjusted[index] = largest
    return adjusted


def among_all(p_values: Sequence[float | None], many: int) -> list[float | None]:
    """The p-values adjusted for comparing each of ``many`` with every other: how probable it is that two of as many
    normal values are as far apart as two of which one test says this."""
    adjusted: list[float | None] = []
    for p in p_values:
        if p is not None:
            above = special.ndtr(DEVIATES + _deviate(p) * np.sqrt(2.0)) - special.ndtr(DEVIATES)
            p = max(p, min(1.0, max(0.0, 1.0 - many * float(above ** (many - 1) @ DENSITY))))
        adjusted.append(p)
    return adjusted


def _deviate(p: float) -> float:
    return float(-special.ndtri(max(p, 1e-300) / 2.0))
