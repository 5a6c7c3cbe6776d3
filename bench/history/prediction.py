"""Between which bounds does one more night lie, if it is as the nights before it?

The prediction bound of one more value is t · s · √(1 + 1/n) above the mean (Hahn and Meeker 1991, section 4.2). Ten
nights tell s badly: a slowdown of 3 % goes unseen every second time. But the scenarios of a night are measured by the
same machine in the same way, so each variance is *moderated*: shrunk towards what all have in common, the more the more
alike they are (Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3(1), article 3: an F
distribution fitted to the variances). ``benchmarks/gate_simulation.py`` shows what that is worth.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

FEWEST_POOLED = 3  # variances; of fewer it cannot be told how alike they are
FLOOR = 1e-5  # of the median variance: the least that one counts as, since 0 has no logarithm


def moderated(variances: Array, degrees: int) -> tuple[Array, Array]:
    """Variances shrunk towards each other along the last axis, and the degrees of freedom that they then have.

    ``variances``: shape (..., scenarios), each of ``degrees`` degrees of freedom. Those most of which are 0 stay.
    """
    scenarios = variances.shape[-1]
    plain = variances, np.full(variances.shape, float(degrees))
    if scenarios < FEWEST_POOLED:
        return plain
    middle = np.median(variances, axis=-1, keepdims=True)
    usable = middle > 0.0
    logs = np.log(np.maximum(variances, np.where(usable, FLOOR * middle, 1.0)))
    centred = logs - special.digamma(degrees / 2.0) + np.log(degrees / 2.0)
    excess = np.var(centred, axis=-1, ddof=1, keepdims=True) - special.polygamma(1, degrees / 2.0)
    differ = excess > 0.0  # by more than chance does
    prior = np.where(differ, 2.0 * _inverse_trigamma(np.where(differ, excess, 1.0)), 1.0)
    common = np.where(
        differ,
        np.exp(np.mean(centred, axis=-1, keepdims=True) + special.digamma(prior / 2.0) - np.log(prior / 2.0)),
        np.mean(variances, axis=-1, keepdims=True),
    )
    shrunk = np.where(differ, (prior * common + degrees * variances) / (prior + degrees), common)
    known = np.minimum(np.where(differ, prior + degrees, np.inf), degrees * scenarios)
    return np.where(usable, shrunk, plain[0]), np.where(usable, known, plain[1])


def margins(nights: Array, error: float, pooled: bool, extra: Array | float = 0.0) -> Array:
    """How far above the mean of its nights one more night may lie, for each scenario: shape (..., scenarios).

    ``nights``: logarithms, shape (..., scenarios, nights), at least two nights. ``error``: one-sided, of each scenario.
    ``pooled``: whether scatters are moderated. ``extra``: variance of this night beyond that of the others.
    """
    count = nights.shape[-1]
    variances = np.var(nights, axis=-1, ddof=1)
    degrees = np.full(variances.shape, count - 1.0)
    if pooled:
        variances, degrees = moderated(variances, count - 1)
    margin: Array = special.stdtrit(degrees, 1.0 - error) * np.sqrt(variances * (1.0 + 1.0 / count) + extra)
    return margin


def _inverse_trigamma(values: Array) -> Array:
    """Where the trigamma function has these (positive) values, by Newton's method (Smyth 2004, appendix)."""
    found = 0.5 + 1.0 / values
    for _ in range(50):
        trigamma = special.polygamma(1, found)
        step = trigamma * (1.0 - trigamma / values) / special.polygamma(2, found)
        found = found + step
        if np.all(-step / found < 1e-8):
            break
    return np.asarray(found)
