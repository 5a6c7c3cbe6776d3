"""Means of a few launches, and the intervals that they lie in.

The replicate is the launch. Times, speeds and peaks are positive and scatter by factors, so everything happens on
logarithms: the value is the geometric mean, and the interval is Student's t on the logarithms (the interval of a speed
is that of the time, inverted). It says how well the mean is known and shrinks with the number of launches, which a
standard deviation does not.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import special  # not stats, whose import takes longer than most of what is reckoned here

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95
LEAST_ERROR = 1e-12  # of a logarithm: less is rounding
FEWEST_FREEDOM = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value over ``n`` launches in its own unit, and its interval; what cannot be known is None."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def half_width_percent(self) -> float | None:
        return half_width_percent(self.value, self.low, self.high)


def estimate(values: Iterable[float | None]) -> Estimate:
    """The geometric mean of one value per launch, with its interval at :data:`CONFIDENCE`.

    exp(mean(log x) ± t · s(log x) / √n), with Student's t of n - 1 degrees of freedom (Student 1908). One value has no
    interval. Unknown ones (None, NaN) are left out, and ``n`` counts the others; ValueError at zero, less and infinity.
    """
    known = positive(values)
    if (n := len(known)) < 2:
        return Estimate(value=geometric_mean(known) if n else None, low=None, high=None, n=n)
    value = geometric_mean(known)
    if np.ptp(known) == 0.0:
        return Estimate(value=value, low=value, high=value, n=n)
    half = t_quantile(CONFIDENCE, n - 1) * float(np.std(np.log(known), ddof=1)) / math.sqrt(n)
    return Estimate(value=value, low=value * math.exp(-half), high=value * _exp(half), n=n)


def estimate_positive(values: "pd.Series[float]") -> Estimate:
    """:func:`estimate`, but of nothing where one of the values is 0 or less and has no logarithm."""
    numbers = values.dropna().astype("float64")
    return estimate(numbers if (numbers > 0).all() else ())


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float | None, float | None]:
    """Mean and 95 % interval (Student's t) of independent values; no interval for a single one."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    if np.ptp(values) == 0.0:
        return mean, mean, mean
    half = t_quantile(0.95, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def welch(sides: Iterable[tuple[float, int]]) -> tuple[float, float]:
    """The standard error of a difference of means, and its degrees of freedom (:func:`freedom_of`).

    ``sides``: of each mean the variance of what it is of, and of how many; not both variances may be 0.
    """
    parts, counts = np.array([(variance / n, n) for variance, n in sides]).T
    return math.sqrt(float(parts.sum())), float(freedom_of(parts, counts - 1.0))


def freedom_of(parts: NDArray[np.float64], freedom: NDArray[np.float64], cautious: float = 1.0) -> NDArray[np.float64]:
    """Degrees of freedom of a sum of estimated variances, along the last axis: c + (sum of v)² / sum of v² / (f - c).

    With c = 0 that is Welch's and Satterthwaite's, which takes the parts for known: of 3 launches against 10 that
    scatter half as much, 7.2 % of A/A comparisons differ at 5 %, and 2.0 % at 0.5 %. So c (``cautious``) is 1, but 0
    between scenarios of one fit, whose rests depend on each other. One part alone has its own f with both.
    """
    spread = (parts**2 / np.maximum(freedom - cautious, FEWEST_FREEDOM)).sum(axis=-1)
    return np.asarray(cautious + parts.sum(axis=-1) ** 2 / np.maximum(spread, 1e-300))


def t_quantile(confidence: float, freedom: float) -> float:
    """How many standard errors Student's t is from 0 at most, with this probability."""
    return float(special.stdtrit(freedom, 0.5 + confidence / 2.0))


def t_tail(t: float, freedom: float) -> float:
    """How probable it is that Student's t is at least as far from 0 as ``t``."""
    return 2.0 * float(special.stdtr(freedom, -abs(t)))


def overlap(one: "Estimate | Ratio", other: "Estimate | Ratio") -> bool | None:
    """Whether two intervals do; None where one is unknown."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


def columns(name: str, of: "Estimate | Ratio") -> dict[str, float | None]:
    """A value and the ends of its interval as columns. ``name``: such as ``energy{}_j``."""
    return {name.format(end): value for end, value in (("", of.value), ("_low", of.low), ("_high", of.high))}


def half_width_percent(value: float | None, low: float | None, high: float | None) -> float | None:
    """How far the farther end of its interval is from a value, in percent: what follows ±. None without one."""
    if value is None or low is None or high is None:
        return None
    return 100.0 * max(high / value - 1.0, 1.0 - low / value, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The geometric mean of one set of values over that of another; what cannot be known is None.

    ``low``, ``high``: its interval, from two launches on each side on. ``p``: that chance alone takes it as far from 1.
    ``error``: the standard error of its logarithm, with its degrees of ``freedom``; None where there is no interval, or
    nothing to estimate a scatter from. ``of_base``: the part of its square that is from a base that other ratios share.
    """

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    error: float | None = None
    freedom: float | None = None
    of_base: float = 0.0

    @property
    def value(self) -> float | None:
        return self.ratio


def ratio_of(
    base: Iterable[float | None],
    new: Iterable[float | None],
    confidence: float = CONFIDENCE,
    scatter: tuple[float, float] = (0.0, 0.0),
    least: float = 1.0,
) -> Ratio:
    """``new`` over ``base``, by Student's t on the logarithms; counts and scatter may differ (:func:`welch`).

    Values are read as by :func:`estimate`. Where all of each side are equal there is nothing to estimate a scatter
    from: the interval has no width, and p is 1 where the sides are equal and 0 where they are not. ``scatter``: of each
    side, the least standard deviation of a logarithm. ``least``: the ratio, or its inverse, beyond which p says that it
    is (a minimum-effect test: Murphy and Myors 1999).
    """
    below, above = positive(base), positive(new)
    if min(len(below), len(above)) == 0:
        return Ratio()
    value = geometric_mean(above) / geometric_mean(below)
    if min(len(below), len(above)) == 1:
        return Ratio(ratio=value)
    variances = [max(float(np.log(of).var(ddof=1)), own**2) for of, own in zip((below, above), scatter, strict=True)]
    if np.ptp(below) == 0.0 and np.ptp(above) == 0.0 and not any(scatter):
        return Ratio(ratio=value, low=value, high=value, p=float(below[0] == above[0]))
    error, freedom = welch(zip(variances, map(len, (below, above)), strict=True))
    return ratio_from(value, 0.0, error, freedom, confidence, least)


def ratio_from(value: float, more: float, error: float, freedom: float, confidence: float, least: float = 1.0) -> Ratio:
    """A ratio ``value`` to which a logarithm ``more`` is added, with the standard error of the sum."""
    change = math.log(value) + more
    value = value * math.exp(more) if abs(more) > LEAST_ERROR else value
    if error <= LEAST_ERROR:
        return Ratio(ratio=value, low=value, high=value, p=float(abs(change) <= LEAST_ERROR))
    half = t_quantile(confidence, freedom) * error
    p = t_tail(max(0.0, abs(change) - math.log(least)) / error, freedom)
    return Ratio(ratio=value, low=_exp(change - half), high=_exp(change + half), p=p, error=error, freedom=freedom)


def positive(values: Iterable[float | None]) -> NDArray[np.float64]:
    """The known values; ValueError where one is not positive and finite, and so has no logarithm."""
    given = np.array([math.nan if value is None else value for value in values], dtype="float64")
    known: NDArray[np.float64] = given[~np.isnan(given)]
    if len(wrong := known[(known <= 0.0) | np.isinf(known)]):
        raise ValueError(f"the value of a launch must be positive and finite, and one is {wrong[0]:g}")
    return known


def geometric_mean(values: NDArray[np.float64]) -> float:
    """Of at least one value. Computed from their median, so that equal values give exactly themselves."""
    middle = float(np.median(values))
    return middle * math.exp(float(np.mean(np.log(values / middle))))


def _exp(exponent: float) -> float:
    """e to this power; infinite where two launches that lie far apart say next to nothing."""
    return math.exp(exponent) if exponent < 700.0 else math.inf
