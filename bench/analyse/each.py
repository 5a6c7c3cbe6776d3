"""Every device by itself: how fast each is, and which of several like devices is slow, against the median of all.

A device is named if it is slower than the median by more than chance would make *any* of them in 95 of 100 scans. There
are two bounds, and it must be beyond both: for the scatter of launches, as of devices that are alike; and, of eight and
more, for how far apart the devices lie, as of devices that differ a little by nature. The distribution of the largest
deviation has no formula, so it is simulated.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Estimate, estimate
from bench.analyse.scaling import launch_figures
from bench.runs.experiments import PointRecord, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device by itself. ``name``: host and device. ``slower``: than the median of all, relative; None: unknown.

    ``is_slow``: by more than chance; None if unknown. ``failed``: why a launch on it has no value.
    """

    name: str
    step: Estimate
    slower: float | None
    is_slow: bool | None
    failed: str | None


def devices(run: Analysed) -> list[Device]:
    """In the order in which they were chosen; empty for a run that measured them together."""
    scaling = run.document.of(Scaling)
    if scaling is None or not scaling.by_itself:
        return []
    of_device: dict[str, list[tuple[PointRecord, float | None]]] = defaultdict(list)
    for name, one, median_ms in sorted(_launches(run, scaling), key=lambda row: row[1].slot or 0):
        of_device[name].append((one, median_ms))
    scan, rows = scan_of(run), []
    for name, launches in of_device.items():
        bad = next((one for one, _ in launches if one.status != "ok"), None)
        rows.append(
            Device(
                name=name,
                step=estimate(median_ms for _, median_ms in launches),
                slower=scan.slower.get(name),
                is_slow=None if scan.bound is None or name not in scan.slower else name in scan.slow,
                failed=None if bad is None else f"{bad.status}: {bad.reason}",
            )
        )
    return rows


def scan_of(run: Analysed) -> "Scan":
    """Compares the devices over the rounds in which no launch failed."""
    scaling = run.document.of(Scaling)
    rounds: dict[str, dict[int, float]] = defaultdict(dict)
    for name, one, median_ms in _launches(run, scaling) if scaling else ():
        if median_ms is not None:
            rounds[name][one.repeat] = median_ms
    whole = set.intersection(*map(set, rounds.values())) if rounds else set()
    if not whole:
        return Scan(slower={}, bound=None, slow=())
    return scanned({name: [of[repeat] for repeat in sorted(whole)] for name, of in rounds.items()})


def _launches(run: Analysed, scaling: Scaling) -> Iterator[tuple[str, PointRecord, float | None]]:
    """Each launch with its device, such as ``node1 GPU 2`` or ``node1 part 1 of 2 of the cores``, and its median step
    (ms), None where it failed."""
    frame = launch_figures(run, [one.launch for one in scaling.launches])[0].frame
    medians = dict(zip(frame["launch"].tolist(), frame["median_ms"].tolist(), strict=True))
    indices = {gpu.uuid: gpu.index for gpu in run.document.machine.gpus}
    for one in scaling.launches:
        host = next((rank.host for rank in one.ranks if rank.host), None) or "this host"
        slot, chosen = one.slot or 0, run.document.request.devices
        name = f"{host} part {slot + 1} of {max(scaling.counts)} of the cores"
        if slot < len(chosen):
            name = f"{host} GPU {indices.get(chosen[slot], slot)}"
        yield name, one, medians.get(one.launch) if one.status == "ok" else None


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
