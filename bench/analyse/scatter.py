"""How much does each of several scenarios scatter, when few launches or nights are known of each?

A handful of values tell a variance badly, but the scenarios of a run are measured by the same machine in the same way.
So each variance is *moderated*: shrunk towards what all have in common, the more the more alike they are (Smyth 2004,
Statistical Applications in Genetics and Molecular Biology 3(1), article 3: an F distribution fitted to the variances).
One that is larger than the others beyond chance keeps its own, or its noise would be taken for differences (as Phipson
and others 2016, Annals of Applied Statistics 10(2), protect hypervariable genes).
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

FEWEST_POOLED = 3  # variances; of fewer it cannot be told how alike they are
FLOOR = 1e-5  # of the median variance: the least that one counts as, since 0 has no logarithm
NOISIER_AT = 1.2
"""Over the square of its degrees of freedom: the level at which a variance counts as larger than what all have in
common. The fewer they are, the more easily one looks like the others that is nine times as large."""


def moderated(variances: Array, degrees: Array) -> tuple[Array, Array]:
    """Variances shrunk towards each other along the last axis, and the degrees of freedom that they then have.

    ``variances``: shape (..., scenarios). ``degrees``: of freedom of each, shape (scenarios,), above 0. Those most of
    which are 0 stay.
    """
    own = degrees + np.zeros(variances.shape)
    if variances.shape[-1] < FEWEST_POOLED:
        return variances, own
    total = float(degrees.sum())
    at = variances.shape[-1] // 2
    middle = np.sort(variances, axis=-1)[..., at : at + 1]  # np.median takes six times as long
    usable = middle > 0.0
    logs = np.log(np.maximum(variances, np.where(usable, FLOOR * middle, 1.0)))
    centred = logs - special.digamma(degrees / 2.0) + np.log(degrees / 2.0)
    centre = centred.mean(axis=-1, keepdims=True)
    scatter = ((centred - centre) ** 2).sum(axis=-1, keepdims=True) / (centred.shape[-1] - 1)
    excess = scatter - special.zeta(2.0, degrees / 2.0).mean()
    differ = excess > 0.0  # by more than chance does
    common = shrunk = np.full(own.shape, (degrees * variances).sum(axis=-1, keepdims=True) / total)
    freedom = np.full(own.shape, total)
    if differ.any():  # mostly none does, and the root takes long
        prior = np.where(differ, 2.0 * _inverse_trigamma(np.where(differ, excess, 1.0)), 1.0)
        apart = np.exp(centre + special.digamma(prior / 2.0) - np.log(prior / 2.0))
        common = np.where(differ, apart, common)
        shrunk = np.where(differ, (prior * common + degrees * variances) / (prior + degrees), common)
        freedom = np.where(differ, np.minimum(prior + degrees, total), total)
    chance = special.fdtrc(degrees, total - degrees, variances / np.maximum(common, 1e-300))
    keeps = ~usable | ((chance < NOISIER_AT / degrees**2) & (variances > shrunk))
    return np.where(keeps, variances, shrunk), np.where(keeps, own, freedom)


def _inverse_trigamma(values: Array) -> Array:
    """Where the trigamma function has these (positive) values, by Newton's method (Smyth 2004, appendix).

    The trigamma function is Hurwitz's zeta function of 2, its derivative -2 times that of 3.
    """
    roots = 0.5 + 1.0 / values
    for _ in range(50):
        trigamma = special.zeta(2.0, roots)
        step = trigamma * (1.0 - trigamma / values) / (-2.0 * special.zeta(3.0, roots))
        roots = roots + step
        if np.all(-step / roots < 1e-8):
            break
    return np.asarray(roots)
