"""Energy, power, clocks, temperature, throttling and traffic of each GPU over the measured steps of a launch. Pure.

Energy is that of the whole board, by one of these sources:

``counter``    the difference of the driver's counter (``nvmlDeviceGetTotalEnergyConsumption``, mJ; Volta and later),
               over windows of 10 s and more, in which its steps of some 20 to 100 ms no longer matter,
               and over shorter ones where power was sampled too seldom to be integrated
``estimated``  the integral of the sampled power (``nvmlDeviceGetPowerUsage``; trapezoids), without a counter or in a
               shorter window. On many boards that power is itself an average over up to a second

It is null with a reason if the counter stands still or falls, and under MIG, where other instances share the board. The
samples at the ends of the window lie up to an interval inside, so energy is mean power between them times the window.
Where they are rarer than that, those that the sampler takes right before the window and right after it count, too.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from bench.analyse import intervals
from bench.analyse.intervals import estimate_positive
from bench.analyse.launches import by_launch, different, joined, only
from bench.core.records import ACTIVITY_COLUMNS
from bench.machine import throttle
from bench.machine.nvml import FIRST, SOON
from bench.runs.frames import Iterations, TableRow

COUNTER_WINDOW_S = 10.0  # shorter windows integrate power
COVERED = 0.8  # the share of the window that the samples must span
LARGEST_GAP_S = 2.0  # without a known power
EDGE_NS = 300_000_000  # from a window to the samples that were taken at its beginning and at its end

Windows = Mapping[int, tuple[int, int]]
"""By launch the start and the end (ns) of its measured steps."""

KEPT = ("launch", "scenario", "device", "t_ns", "power_w", "throttle_reasons")
"""Columns of the samples that are needed once :func:`per_device` has been made of them."""

NUMBERS = ("_s", "_j", "_w", "_percent", "_mhz", "_c", "_reasons")  # the ends of the names of columns of numbers

LINKS = ("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx")

ACTIVITY = {f"gpm_{name}" if name.startswith("nvlink") else name: name for name in ACTIVITY_COLUMNS}
"""Columns of GPM's metrics here, by those of the samples: ``nvlink_*_mib_s`` here is of the counters."""

COLUMNS = [
    *("launch", "scenario", "device", "window_s", "samples"),
    *("energy_j", "energy_source", "energy_reason", "mean_power_w", "peak_power_w"),
    *("utilisation_percent", "sm_clock_mhz", "min_sm_clock_mhz", "memory_clock_mhz", "max_temperature_c"),
    *("throttle_reasons", "throttle", "verdict"),
    *("pcie_tx_mib_s", "pcie_rx_mib_s", "nvlink_tx_mib_s", "nvlink_rx_mib_s"),
    *ACTIVITY,
    "activity_reason",
]

SCENARIO_COLUMNS = [
    *("scenario", "launches", "devices", "energy_j", "energy_low_j", "energy_high_j", "energy_source", "energy_reason"),
    *("energy_per_1000_j", "energy_per_1000_low_j", "energy_per_1000_high_j"),
    *("mean_power_w", "mean_power_low_w", "mean_power_high_w", "peak_power_w", "sm_clock_mhz", "min_sm_clock_mhz"),
    *("max_temperature_c", "throttle", "verdict", *(f"{link}_mib_s" for link in LINKS)),
    *ACTIVITY,
    "activity_reason",
]


def per_device(device: pd.DataFrame, bounds: Windows) -> pd.DataFrame:
    """One row per launch and device with samples in its measured window: the columns of :data:`COLUMNS`.

    ``energy_j`` over ``window_s``, with ``energy_source`` (see above) or ``energy_reason``. ``mean_power_w`` is
    ``energy_j / window_s`` or else the mean of the samples. ``sm_clock_mhz`` and ``memory_clock_mhz``: medians.
    ``throttle_reasons``: the bits of all samples ORed (null: none known), ``throttle`` their names, ``verdict`` as in
    ``bench.machine.throttle`` (``unknown`` without bits). Traffic from counters; null where they fell.
    """
    rows = []
    for launch, places in _within(device, bounds):
        start_ns, end_ns = bounds[launch]
        for uuid, samples in device.take(places).groupby("device", observed=True, sort=False):
            in_time = samples if samples["t_ns"].is_monotonic_increasing else samples.sort_values("t_ns")
            rows.append(_one(in_time, int(launch), str(uuid), (end_ns - start_ns) / 1e9))
    return _table(rows, COLUMNS)


def _within(device: pd.DataFrame, bounds: Windows) -> Iterator[tuple[int, np.ndarray]]:
    """By launch the places of its samples that count."""
    places: TableRow = device.groupby("launch").indices
    t_ns = device["t_ns"].to_numpy()
    for launch, (start_ns, end_ns) in bounds.items():
        if launch in places:
            own = places[launch]
            inside = own[(t_ns[own] >= start_ns) & (t_ns[own] <= end_ns)]
            if not len(inside) or np.ptp(t_ns[inside]) < COVERED * (end_ns - start_ns):
                inside = own[(t_ns[own] >= start_ns - EDGE_NS) & (t_ns[own] <= end_ns + EDGE_NS)]
            yield launch, inside


def per_launch(device: pd.DataFrame, steps: Iterations, units: int | None, devices: pd.DataFrame) -> pd.DataFrame:
    """One row per launch: the sum over its devices. Null where a device's value is null, with ``energy_reason``.

    ``units``: what a step counts. ``peak_power_w``: the highest sum of the devices' powers in one sample. ``verdict``:
    the worst of all. ``devices``: :func:`per_device` of these tables.
    """
    table = devices.groupby("launch", as_index=False).agg(
        scenario=("scenario", "first"),
        devices=("device", "size"),
        energy_j=("energy_j", _whole),
        energy_source=("energy_source", lambda sources: joined(sources.dropna())),
        energy_reason=("energy_reason", different),
        mean_power_w=("mean_power_w", _whole),
        max_temperature_c=("max_temperature_c", "max"),
        throttle=("throttle", lambda texts: _reasons(texts) or None),
        verdict=("verdict", throttle.worst),
    )
    samples = device[["launch", "t_ns", "device", "power_w"]]
    peaks_w = {}
    for launch, places in _within(samples, windows(steps)):
        own = samples.take(places)
        peaks_w[launch] = own.groupby("t_ns")["power_w"].sum(min_count=max(1, own["device"].nunique())).max()
    measured = steps.frame["launch"][~steps.frame["warmup"].astype(bool)].value_counts()
    table["energy_per_1000_j"] = 1000.0 * table["energy_j"] / (table["launch"].map(measured) * (units or math.nan))
    table["peak_power_w"] = table["launch"].map(peaks_w)
    return table.astype({name: "float64" for name in table if str(name).endswith(NUMBERS)})


def per_scenario(device: pd.DataFrame, steps: Iterations, units: int | None, devices: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario over its launches in these tables: the columns of :data:`SCENARIO_COLUMNS`.

    Energies and mean power of :func:`per_launch`: their geometric mean over the launches that have one, with its 95 %
    interval (``*_low_*``, ``*_high_*``; null below two launches). Traffic, by counters and by GPM, is summed over the
    devices of a launch, null where one is unknown, and averaged over launches. ``throttle``: the names of all reasons
    that were seen, empty where none was, null where no driver tells. ``devices``: :func:`per_device` of these tables.
    """
    rows = []
    for scenario, launches in per_launch(device, steps, units, devices).groupby("scenario", sort=False):
        theirs = devices[devices["scenario"] == scenario]
        row: TableRow = {
            "scenario": scenario,
            "launches": len(launches),
            "devices": int(launches["devices"].max()),
            "energy_source": joined(launches["energy_source"].dropna()),
            "energy_reason": different(launches["energy_reason"]),
            "peak_power_w": launches["peak_power_w"].max(),
            "sm_clock_mhz": theirs["sm_clock_mhz"].median(),
            "min_sm_clock_mhz": theirs["min_sm_clock_mhz"].min(),
            "max_temperature_c": theirs["max_temperature_c"].max(),
            "throttle": _reasons(theirs["throttle"]),
            "verdict": throttle.worst(launches["verdict"]),
            "activity_reason": different(theirs["activity_reason"]),
        }
        for name, unit in (("energy", "j"), ("energy_per_1000", "j"), ("mean_power", "w")):
            row |= intervals.columns(f"{name}{{}}_{unit}", estimate_positive(launches[f"{name}_{unit}"]))
        for link in (*(f"{link}_mib_s" for link in LINKS), *list(ACTIVITY)[3:]):
            row[link] = theirs.groupby("launch")[link].agg(_whole).mean()
        rows.append(row | {name: theirs[name].mean() for name in list(ACTIVITY)[:3]})
    return _table(rows, SCENARIO_COLUMNS)


def _whole(values: "pd.Series[float]") -> float:
    """The sum, null where one is."""
    return float(values.sum(skipna=False))


def _table(rows: list[TableRow], columns: list[str]) -> pd.DataFrame:
    """The rows as a table. A value that is null in all of them is a null number, and no object."""
    numbers = [name for name in columns if name.endswith(NUMBERS)]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, "float64"))


def _reasons(texts: "pd.Series[str]") -> str | None:
    """The different names in lists of throttle reasons; None without a list."""
    lists = texts.dropna()
    return ", ".join(dict.fromkeys(name for text in lists for name in text.split(", ") if name)) if len(lists) else None


def power_timeline(device: pd.DataFrame) -> pd.DataFrame:
    """The known powers for a plot, in order of time."""
    known = only(device, device["power_w"].notna())[["launch", "scenario", "device", "t_ns", "power_w"]]
    return known.sort_values(["launch", "t_ns"], kind="stable")


def throttled_stretches(device: pd.DataFrame) -> pd.DataFrame:
    """When devices were held back: ``launch, device, verdict, start_ns, end_ns``, warm-up and start-up included.

    A stretch lasts from its first such sample to the next one without, or the last of the launch.
    """
    rows = []
    bits = device["throttle_reasons"]
    verdict_of = {one: throttle.verdict(int(one)) for one in bits.dropna().unique()}
    verdicts = ["ok", *{*verdict_of.values()} - {"ok"}]
    number_of = {one: verdicts.index(verdict) for one, verdict in verdict_of.items()}
    bad = [one for one, number in number_of.items() if number]
    for launch, of_launch in by_launch(device[["launch", "device", "t_ns", "throttle_reasons"]]):
        if not of_launch["throttle_reasons"].isin(bad).any():
            continue
        for uuid, samples in of_launch.dropna().sort_values("t_ns").groupby("device", observed=True):
            t_ns, numbers = samples["t_ns"].to_numpy(), samples["throttle_reasons"].map(number_of).to_numpy()
            begins = np.flatnonzero(np.diff(numbers, prepend=-1))
            for begin, end in zip(begins, [*begins[1:], -1], strict=True):
                if numbers[begin]:
                    rows.append([launch, uuid, verdicts[numbers[begin]], int(t_ns[begin]), int(t_ns[end])])
    return pd.DataFrame(rows, columns=["launch", "device", "verdict", "start_ns", "end_ns"])


def windows(steps: Iterations) -> Windows:
    """Start and end (ns) of the measured steps of each launch, over its ranks; an imported launch has none."""
    table = steps.frame
    measured = table.loc[~table["warmup"].astype(bool), ["launch", "begin_ns", "end_ns"]]
    bounds = measured.groupby("launch").agg(start=("begin_ns", "min"), end=("end_ns", "max"))
    return {int(launch): (int(start), int(end)) for launch, start, end in bounds.dropna().itertuples()}


def _one(samples: pd.DataFrame, launch: int, uuid: str, window_s: float) -> TableRow:
    energy_j, source, reason = _energy(samples, window_s)
    power, clock = samples["power_w"], samples["sm_clock_mhz"]
    bits = throttle.combined(map(int, samples["throttle_reasons"].dropna().unique()))
    of_activity = only(samples, ~samples["activity_reason"].isin([SOON]))
    return {
        "launch": launch,
        "scenario": samples["scenario"].iloc[0],
        "device": uuid,
        "window_s": window_s,
        "samples": len(samples),
        "energy_j": energy_j,
        "energy_source": source,
        "energy_reason": reason,
        "mean_power_w": power.mean() if energy_j is None else energy_j / window_s,
        "peak_power_w": power.max(),
        "utilisation_percent": samples["utilisation_percent"].mean(),
        "sm_clock_mhz": clock.median(),
        "min_sm_clock_mhz": clock.min(),
        "memory_clock_mhz": samples["memory_clock_mhz"].median(),
        "max_temperature_c": samples["temperature_c"].max(),
        "throttle_reasons": bits,
        "throttle": None if bits is None else ", ".join(throttle.names(bits)),
        "verdict": "unknown" if bits is None else throttle.verdict(bits),
        **{f"{link}_mib_s": _traffic(samples, f"{link}_kib") for link in LINKS},
        **{name: _over_time(of_activity, of) for name, of in ACTIVITY.items()},
        "activity_reason": different(of_activity["activity_reason"][of_activity["activity_reason"] != FIRST]),
    }


def _over_time(samples: pd.DataFrame, column: str) -> float | None:
    """The mean of a value that each sample has of the time since the one before, which is within the window."""
    if samples[column].isna().all():
        return None
    spans_ns = samples["t_ns"].diff().where(samples[column].notna(), 0.0).fillna(0.0)
    return float((samples[column].fillna(0.0) * spans_ns).sum() / spans_ns.sum()) if spans_ns.sum() else None


def _energy(samples: pd.DataFrame, window_s: float) -> tuple[float | None, str | None, str | None]:
    if (samples["mig"] == True).any():  # noqa: E712  # null is neither
        return None, None, "MIG is on: power and counter are those of the whole GPU"
    counter = only(samples, samples["energy_mj"].notna())
    powers = only(samples, samples["power_w"].notna())
    integral = _integral(powers, samples, window_s)
    if len(counter) >= 2 and (window_s >= COUNTER_WINDOW_S or integral[0] is None):
        energies_j = counter["energy_mj"] / 1000.0
        span_s = _span_s(counter)
        if (energies_j.diff().dropna() < 0).any():
            return None, None, "the driver's counter fell within the window"
        if (gained_j := float(energies_j.iloc[-1] - energies_j.iloc[0])) <= 0:
            return None, None, "the driver's counter stood still over the window"
        if span_s >= COVERED * window_s:
            return gained_j * window_s / span_s, "counter", None
    if powers.empty and not counter.empty:
        return None, None, f"energy is known over {_span_s(counter):.1f} s of {window_s:.1f} s, and power is unknown"
    return integral


def _integral(
    powers: pd.DataFrame, samples: pd.DataFrame, window_s: float
) -> tuple[float | None, str | None, str | None]:
    if powers.empty:
        reasons = samples["reason"].dropna()
        why = f": {reasons.iloc[-1]}" if len(reasons) else ""
        return None, None, f"the driver gives neither energy nor power{why}"
    span_s = _span_s(powers)
    if len(powers) < 2 or span_s < COVERED * window_s:
        return None, None, f"power is known over {span_s:.1f} s of {window_s:.1f} s"
    seconds = powers["t_ns"].diff().iloc[1:] / 1e9
    if seconds.max() > LARGEST_GAP_S:
        return None, None, f"power is unknown over {seconds.max():.1f} s within the window"
    power_w = powers["power_w"].to_numpy()
    if (joules := float(((power_w[1:] + power_w[:-1]) / 2.0 * seconds).sum())) <= 0.0:
        return None, None, "the driver says that no power is drawn"
    return joules * window_s / span_s, "estimated", None


def _traffic(samples: pd.DataFrame, counter: str) -> float | None:
    """MiB/s between the first and the last known value of a counter in KiB; None where it fell or has not two."""
    is_known = samples[counter].notna().to_numpy()
    values = samples[counter].to_numpy(dtype="float64")[is_known]
    if len(values) < 2 or (values[1:] < values[:-1]).any():
        return None
    times_ns = samples["t_ns"].to_numpy()[is_known]
    return float(values[-1] - values[0]) / 1024.0 / (float(times_ns[-1] - times_ns[0]) / 1e9)


def _span_s(samples: pd.DataFrame) -> float:
    return float(samples["t_ns"].iloc[-1] - samples["t_ns"].iloc[0]) / 1e9
