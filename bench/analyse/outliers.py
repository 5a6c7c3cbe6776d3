"""Which of several like devices is slow: each measured by itself, in rounds, against the median of all.

A device is named if it is slower than the median by more than chance would make *any* of them in 95 of 100 scans. There
are two bounds, and it must be beyond both: for the scatter of launches, as of devices that are alike; and, of eight and
more, for how far apart the devices lie, as of devices that differ a little by nature. The distribution of the largest
deviation has no formula, so it is simulated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FALSE_ALARMS = 0.05  # in how many scans of like devices one is named all the same
FEWEST_LAUNCHES = 2
FEWEST_FOR_SPREAD = 8
"""Devices from which on the spread between them counts, too: those of one kind are never quite equal."""
NORMAL_MAD = 1.4826  # times the median absolute deviation is the standard deviation, where values are normal
SCANS, MOST_VALUES = 20_000, 20_000_000
LEAST_SCALE = 1e-9  # less is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """``slower``: of each device, by how much it is slower than the median (relative, negative: faster). ``bound``:
    from where on that is no chance; None of too few launches. ``slow``: those beyond it, the slowest first."""

    slower: Mapping[str, float]
    bound: float | None
    slow: tuple[str, ...]


def scanned(times_ms: Mapping[str, Sequence[float]]) -> Scan:
    """``times_ms``: of each device the step of each round, as many for all."""
    names = list(times_ms)
    logs = np.log(np.array([times_ms[name] for name in names], dtype="float64"))
    levels, *scales = _levels(logs)
    slower = {name: math.expm1(float(level)) for name, level in zip(names, levels, strict=True)}
    devices, launches = logs.shape
    if launches < FEWEST_LAUNCHES or devices < 2:
        return Scan(slower=slower, bound=None, slow=())
    times = critical(devices, launches)
    bound = math.expm1(max(factor * float(scale) for factor, scale in zip(times, scales, strict=True)))
    slow = sorted((name for name in names if slower[name] > bound), key=lambda name: -slower[name])
    return Scan(slower=slower, bound=bound, slow=tuple(slow))


def _levels(logs: Array) -> tuple[Array, Array, Array]:
    """From an array (..., devices, launches) how far each device is from the median, without what is common to a round;
    and two standard deviations of that: by the scatter of launches, and by the spread of devices."""
    means = (logs - np.median(logs, axis=-2, keepdims=True)).mean(axis=-1)
    levels = means - np.median(means, axis=-1, keepdims=True)
    devices, launches = logs.shape[-2:]
    rests = logs - logs.mean(axis=-2, keepdims=True) - logs.mean(axis=-1, keepdims=True)
    rests = rests + logs.mean(axis=(-2, -1), keepdims=True)
    freedom = max(1, (devices - 1) * (launches - 1))
    scatter = np.sqrt((rests**2).sum(axis=(-2, -1)) / freedom / launches)
    spread = NORMAL_MAD * np.median(np.abs(levels), axis=-1) * (devices >= FEWEST_FOR_SPREAD)
    return levels, np.maximum(scatter, LEAST_SCALE), np.maximum(spread, LEAST_SCALE)


@cache
def critical(devices: int, launches: int) -> tuple[float, float]:
    """How many of each of the two standard deviations the slowest of like devices is beyond, in :data:`FALSE_ALARMS` of
    scans; 0 where the spread does not count."""
    scans = max(1_000, min(SCANS, MOST_VALUES // (devices * launches)))
    random = np.random.default_rng(20261123)
    levels, scatter, spread = _levels(random.standard_normal((scans, devices, launches)))
    slowest = levels.max(axis=-1)
    by_scatter, by_spread = (float(np.quantile(slowest / scale, 1.0 - FALSE_ALARMS)) for scale in (scatter, spread))
    return by_scatter, by_spread if devices >= FEWEST_FOR_SPREAD else 0.0
