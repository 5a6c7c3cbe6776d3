"""Step times: the headline per iteration, per launch, per scenario.

The headline of an iteration is the slowest rank's step, because nobody can start the next one before: ranks are never
pooled as if they were repetitions. Warm-up steps are left out of every statistic here, and outliers out of none.
Throughput is the global batch over the step time.

The replicate is the launch. A scenario's value is the geometric mean of its launches' medians, because intervals and
ratios are computed on logarithms. Three tables, each made of the one before, have a type each
(:mod:`bench.runs.frames`): rows of steps.parquet, :func:`per_iteration` and :func:`per_launch`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.intervals import columns, estimate, estimate_positive, mean_interval
from bench.analyse.labels import what_ran
from bench.analyse.launches import by_launch, ended, joined
from bench.analyse.rounds import Rounds
from bench.core.records import PHASES
from bench.core.text import by_key
from bench.runs.document import RunDocument
from bench.runs.frames import Iterations, LaunchStats, RankSteps, TableRow

BASE = "ddp"  # the scenario that speeds are relative to
BASE_IN_SHORT = "base"
FENCE = 1.5  # interquartile ranges beyond the quartiles that make a step an outlier (Tukey 1977)
DRIFT_STEPS = 6  # with fewer measured steps a third of them is one, and its median no middle
Columns = dict[str, np.ndarray]
ELAPSED, FASTEST, MIDDLE = "elapsed_s", "fastest_ms", "middle_ms"


def per_iteration(timed: RankSteps) -> Iterations:
    """One row per launch and step, in their order: the row of the slowest rank (of equal ones the first), and more.

    ``fastest_ms``, ``middle_ms``: the shortest step of a rank, and the median over ranks; ``ranks``: how many had the
    step. As far as known: ``loss``, of the global batch: the mean over ranks, whose parts are equal; ``begin_ns``,
    ``end_ns``, ``forward_end_ns``: when the first rank began, the last one ended, and the last one's forward pass did,
    on the clock of ``host``, the first rank's, over the ranks there; ``elapsed_s``: seconds from the start of training
    to the end of the step, of the latest rank.
    """
    steps = timed.frame
    needed = ("rank", "step", "start_ns", "data_ms", "forward_ms", "step_ms", "loss")
    columns = {name: steps[name] for name in needed if name in steps}
    arrays = {name: one.to_numpy("float64" if one.dtype == object else None) for name, one in columns.items()}
    if several := "host" in steps and steps["host"].nunique() > 1:
        arrays["host"], hosts = pd.factorize(steps["host"])
    launches = list(steps.groupby("launch", sort=True).indices.values()) or [np.empty(0, dtype="int64")]
    parts = [_of_launch({name: values[rows] for name, values in arrays.items()}) for rows in launches]
    slowest = [rows[part.pop("slowest")] for rows, part in zip(launches, parts, strict=True)]
    own = [name for name in steps.columns if name not in ("start_ns", "loss")]
    table = steps[own].take(np.concatenate(slowest)).reset_index(drop=True)
    table = table.assign(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    return Iterations(table.assign(host=hosts.take(table["host"].to_numpy())) if several else table)


def _of_launch(rows: Columns) -> Columns:
    """The columns that :func:`per_iteration` adds for a launch, and the row of the ``slowest`` rank."""
    order = np.argsort(rows["step"], kind="stable")
    begins = np.flatnonzero(np.diff(rows["step"][order], prepend=-1))
    sizes = np.diff(begins, append=len(order))
    added = {"slowest": np.empty(len(begins), dtype="int64"), "ranks": sizes.astype("int32")}
    for size in np.unique(sizes) if len(sizes) else (1,):  # several where a rank went before the others
        of_size = sizes == size
        places = order[begins[of_size] + np.arange(size)[:, None]]
        for name, values in _over_ranks({name: values[places] for name, values in rows.items()}).items():
            added.setdefault(name, np.empty(len(begins), dtype=values.dtype))[of_size] = values
        added["slowest"][of_size] = np.take_along_axis(places, added["slowest"][None, of_size], axis=0)[0]
    if "rank" in rows:
        ranks, times, elapsed = rows["rank"][order], rows["step_ms"][order], np.empty(len(order))
        for rank in np.unique(ranks):
            own = np.flatnonzero(ranks == rank)
            elapsed[own] = np.cumsum(times[own]) / 1000.0
        added[ELAPSED] = np.maximum.reduceat(elapsed, begins)
    return added


def _over_ranks(of: Columns) -> Columns:
    """From columns of shape (ranks, steps) those over ranks; ``slowest``: the place of the rank."""
    times = of["step_ms"]
    added = {"slowest": times.argmax(axis=0), FASTEST: times.min(axis=0), MIDDLE: np.median(times, axis=0)}
    if "loss" in of:
        added["loss"] = of["loss"].mean(axis=0)
    if "start_ns" in of:
        begins_ns = of["start_ns"]
        ends_ns = begins_ns + np.rint(times * 1e6).astype("int64")
        if "host" in of:
            added["host"] = of["host"][0]
        added["begin_ns"] = _on_one_clock(begins_ns, of).min(axis=0)
        added["end_ns"] = _on_one_clock(ends_ns, of).max(axis=0)
        if "forward_ms" in of:
            forward_ns = begins_ns + (of["data_ms"] + of["forward_ms"]) * 1e6
            added["forward_end_ns"] = _on_one_clock(forward_ns, of).max(axis=0)
    return added


def _on_one_clock(times_ns: np.ndarray, of: Columns) -> np.ndarray:
    """Times of shape (ranks, steps), those of other hosts replaced by the first rank's."""
    return np.where(of["host"] == of["host"][:1], times_ns, times_ns[:1]) if "host" in of else times_ns


STATS = {
    "launch": "int32",
    "scenario": "str",
    "repeat": "int32",
    **dict.fromkeys(("median_ms", "mean_ms", "p95_ms", "p99_ms", "iqr_ms"), "float64"),
    **dict.fromkeys(("measured", "outliers"), "int64"),
    "drift": "float64",
    "skew": "float64",
    "slowest_rank": "Int64",
    "data_share": "float64",
}


def per_launch(table: Iterations) -> LaunchStats:
    """One row per launch over its measured steps; times are of the headline (ms).

    ``launch, scenario, repeat, median_ms, mean_ms, p95_ms, p99_ms, iqr_ms`` (third quartile less the first),
    ``measured`` (their number); ``outliers``; ``drift``: median of the last third over that of the first, less 1, null
    with fewer than :data:`DRIFT_STEPS`; ``skew``: median over steps of (max - min) / median over ranks;
    ``slowest_rank``: the rank that most often was the slowest (the lowest such), null for one rank; ``data_share``:
    the part of the slowest rank's steps that it waited for data.
    """
    needed = ["launch", "scenario", "repeat", "warmup", "rank", "ranks", "step_ms", FASTEST, MIDDLE, "data_ms"]
    launches = (rows[~rows["warmup"]] for _, rows in by_launch(table.frame[needed]))
    rows = [_stats(measured) for measured in launches if len(measured)]
    return LaunchStats(pd.DataFrame(rows, columns=list(STATS)).astype(STATS))


def _stats(steps: pd.DataFrame) -> TableRow:
    times = steps["step_ms"].to_numpy()
    low, median, high, p95, p99 = np.quantile(times, (0.25, 0.5, 0.75, 0.95, 0.99))
    third, reach = len(times) // 3, FENCE * (high - low)
    timed = steps[steps["data_ms"].notna()]
    often = np.bincount(steps["rank"])
    return {
        **{name: steps[name].iloc[0] for name in ("launch", "scenario", "repeat")},
        "median_ms": median,
        "mean_ms": times.mean(),
        "p95_ms": p95,
        "p99_ms": p99,
        "iqr_ms": high - low,
        "measured": len(times),
        "outliers": ((times < low - reach) | (times > high + reach)).sum(),
        "drift": np.median(times[-third:]) / np.median(times[:third]) - 1.0 if len(times) >= DRIFT_STEPS else None,
        "skew": ((steps["step_ms"] - steps[FASTEST]) / steps[MIDDLE]).median(),
        "slowest_rank": often.argmax() if steps["ranks"].max() > 1 else None,
        # of the sums and not the median: of the batches of several workers only some are late
        "data_share": timed["data_ms"].sum() / timed["step_ms"].sum() if len(timed) else None,
    }


def phase_intervals(medians: pd.DataFrame) -> dict[tuple[str, str], tuple[float, float]]:
    """By scenario and phase the 95 % interval (Student's t, ms) over launches: on the times themselves, because a phase
    may take none. Nothing of one launch, or of a phase that is unknown. ``medians``: :func:`phases_by_launch`."""
    intervals = {
        (str(scenario), phase): mean_interval(launches[f"{phase}_ms"].to_numpy())[1:]
        for scenario, launches in medians.groupby("scenario")
        for phase in PHASES
    }
    return {of: (low, high) for of, (low, high) in intervals.items() if pd.notna(low) and pd.notna(high)}


def phases_by_launch(iterations: Iterations) -> pd.DataFrame:
    """Median of each phase (ms) of the slowest rank's measured steps: a row per launch, by scenario and launch."""
    names = [f"{phase}_ms" for phase in PHASES]
    measured = iterations.frame.loc[~iterations.frame["warmup"], ["scenario", "launch", *names]]
    medians = measured.groupby(["scenario", "launch"], observed=True)[names].median().reset_index()
    return medians.astype({"scenario": "str"}).sort_values(["scenario", "launch"], ignore_index=True)


def summary(document: RunDocument, stats: LaunchStats, peak: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario of the run, in its order: the table that a person reads first.

    ``status`` and ``reason`` are those of the first launch that did not end well, or ``not run``; values come from the
    launches that are ``ok``. ``relative_to_ddp``: speed, so above 1 is faster than ``relative_to`` (:func:`base_of`).
    Unknown values are null.

    Times are geometric means over launches (see the module). ``*_low*`` and ``*_high*`` are the ends of 95 % intervals
    over launches, null below two of them; those of ``relative_*`` are of :mod:`bench.analyse.rounds`.
    ``half_width_percent``: of the interval of the step time, the larger side.

    A peak is the largest of the launches, because the question is whether the memory suffices; ``peak_*_low_mib`` and
    ``peak_*_high_mib`` are the interval of the mean peak of a launch.
    """
    work = document.workload
    good = {launch.launch: launch.scenario for launch in document.good}
    labelled = stats.frame.assign(of=stats.frame["launch"].map(good))
    rounds = Rounds.of(stats.only(labelled["of"].notna()))
    rows, base, per_ms = [], base_of(document.request.scenarios), 1000.0 * (work.units or 0)
    for scenario in document.request.scenarios:
        launches = labelled[labelled["of"] == scenario]
        memory_of = peak[peak["launch"].map(good) == scenario]
        median, speed = estimate(launches["median_ms"]), rounds.ratio(scenario, base)
        ends = {"": median.value, "_low": median.high, "_high": median.low}  # of the time, upside down
        records = [launch for launch in document.launches if launch.scenario == scenario]
        first_good = next((launch for launch in records if launch.status == "ok"), None)
        status, reason = ended(records)
        rows.append(
            {
                "scenario": scenario,
                "unit": work.unit,
                "unit_short": work.unit_short,
                **{f"throughput{end}_per_s": per_ms / ms if ms and per_ms else None for end, ms in ends.items()},
                "step_median_ms": median.value,
                "step_low_ms": median.low,
                "step_high_ms": median.high,
                **columns("step_p95{}_ms", estimate(launches["p95_ms"])),
                "half_width_percent": median.half_width_percent,
                "relative_to": base,
                "relative_to_ddp": speed.value,
                "relative_low": speed.low,
                "relative_high": speed.high,
                **_peak("peak_pid", memory_of["peak_pid_mib"]),
                **_peak("peak_total", memory_of["peak_total_mib"]),
                "memory_source": joined(memory_of["source"]),
                "what_ran": what_ran(first_good.effective if first_good else None),
                "launches_ok": sum(launch.status == "ok" for launch in records),
                "launches": len(records),
                "status": status,
                "reason": reason,
            }
        )
    return pd.DataFrame(rows)


def base_of(names: Sequence[str]) -> str:
    """The scenario that speeds of these are relative to: ``ddp``, or if it is not there the one with the fewest
    switches on top of it; else the first of several, such as the command of ``attach --base``."""
    with_switches = (name for name in names if name.replace("@", "+").partition("+")[0] == BASE)
    return min(with_switches, key=lambda name: name.count("+"), default=names[0] if len(names) > 1 else BASE)


def short_base(base: str) -> str:
    """For a heading; a note says what it is short for (:func:`about_base`)."""
    return base if base == BASE else BASE_IN_SHORT


def about_base(base: str) -> list[str]:
    """The note that a heading with :func:`short_base` needs."""
    return [] if base in (BASE, BASE_IN_SHORT) else [f"{BASE_IN_SHORT}: {base}"]


def _peak(stem: str, of_launches: pd.Series) -> dict[str, float | None]:
    known = of_launches.dropna()
    largest = float(known.max()) if len(known) else None
    return columns(f"{stem}{{}}_mib", estimate_positive(of_launches)) | {f"{stem}_mib": largest}


def times(steps: Iterations) -> dict[str, np.ndarray]:
    """By scenario the headline (ms) of each measured step, launch by launch."""
    step_ms, measured = steps.frame["step_ms"].to_numpy(), ~steps.frame["warmup"].to_numpy()
    names: Any = steps.frame[["launch", "scenario"]].drop_duplicates("launch").set_index("launch")["scenario"]
    launches = steps.frame.groupby("launch").indices.items()
    of_each = by_key((names[launch], step_ms[rows[measured[rows]]]) for launch, rows in launches)
    return {scenario: own for scenario, parts in of_each.items() if len(own := np.concatenate(parts))}


def spread(times_ms: Mapping[str, np.ndarray], overview: pd.DataFrame) -> pd.DataFrame:
    """By scenario ``p25_ms, p75_ms`` of all measured steps of the slowest rank (:func:`times`), and ``median_ms,
    half_width_percent`` as in the :func:`summary`: of the geometric mean of the launches' medians."""
    ends = {name: np.quantile(own, (0.25, 0.75)) for name, own in times_ms.items()}
    quartiles = pd.DataFrame.from_dict(ends, orient="index", columns=["p25_ms", "p75_ms"])
    known = overview.set_index("scenario")[["step_median_ms", "half_width_percent"]]
    return quartiles.join(known.rename(columns={"step_median_ms": "median_ms"}))


def losses(steps: Iterations) -> pd.DataFrame:
    """One row per launch: ``launch, last_loss, first_not_finite``.

    ``last_loss``: of the global batch. ``first_not_finite``: the first step with a loss that is NaN or infinite.
    """
    means = steps.frame[["launch", "step", "loss"]]
    last = means.drop_duplicates("launch", keep="last").set_index("launch")["loss"].rename("last_loss")
    broken = means[~np.isfinite(means["loss"])]
    first = broken.groupby("launch")["step"].min().rename("first_not_finite").astype("Int64")
    table: pd.DataFrame = pd.concat([last, first], axis=1).reset_index()
    return table
