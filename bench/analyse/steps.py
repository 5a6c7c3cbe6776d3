"""Step times: the headline per iteration, per launch, per scenario.

The headline of an iteration is the slowest rank's step, because nobody can start the next one before: ranks are never
pooled as if they were repetitions. Warm-up steps are left out of every statistic here, and outliers out of none.
Throughput is the global batch over the step time.

The replicate is the launch. A scenario's figure is the geometric mean of its launches' medians: an interval over
launches and a ratio of scenarios are reckoned on logarithms, whose mean that is, so that the point is the middle of its
interval and the quotient of two points is the ratio that their comparison gives.
"""

from typing import Any

import pandas as pd

from bench.analyse.intervals import Estimate, estimate, mean_interval, ratio_of
from bench.analyse.labels import what_ran
from bench.analyse.memory import peaks
from bench.records import PHASES

BASE = "ddp"
"""The scenario that speeds are given relative to."""

NOT_RUN = {"status": "not run", "reason": "the run ended before its first launch"}
"""How a scenario stands that an interrupted run did not come to."""


FENCE = 1.5
"""Interquartile ranges beyond the quartiles from which on a step is an outlier (Tukey 1977)."""

DRIFT_STEPS = 6
"""With fewer measured steps a third of them is one, and its median no middle."""


def headline(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch and step: ``launch, scenario, repeat, step, warmup, step_ms`` (maximum over ranks)."""
    rows = steps[["launch", "scenario", "repeat", "step", "warmup", "step_ms"]].reset_index(drop=True)
    return rows.loc[rows.groupby(["launch", "step"])["step_ms"].idxmax()].reset_index(drop=True)


def outliers(steps: pd.DataFrame) -> pd.DataFrame:
    """The headline of the measured steps with a column ``outlier``: far from the other steps of its launch.

    Beyond :data:`FENCE` interquartile ranges below the first or above the third quartile of the launch. A label and no
    sieve: a step that waited was waited for, and it stays in every figure.
    """
    measured = headline(steps[~steps["warmup"]])
    groups = measured.groupby("launch")["step_ms"]
    low, high = (measured["launch"].map(groups.quantile(part)) for part in (0.25, 0.75))
    reach = FENCE * (high - low)
    return measured.assign(outlier=(measured["step_ms"] < low - reach) | (measured["step_ms"] > high + reach))


def per_launch(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch over its measured steps; times are of the headline (ms).

    ``launch, scenario, repeat, median_ms, mean_ms, p95_ms, p99_ms, iqr_ms`` (third quartile less the first),
    ``measured`` (their number); ``outliers``: how many of
    them :func:`outliers` labels; ``drift``: median of the last third over that of the first, less 1, null with fewer
    than :data:`DRIFT_STEPS`; ``skew``: median over steps of (max - min) / median over ranks, 0 for one rank;
    ``slowest_rank``: the rank that most often was the slowest (the lowest such), null for one rank; ``data_share``:
    median over steps of the part of the slowest rank's step that it waited for data.
    """
    keys = ["launch", "scenario", "repeat"]
    labelled = outliers(steps)
    groups = labelled.groupby(keys)
    times = groups["step_ms"]
    table = times.agg(["median", "mean"]).rename(columns={"median": "median_ms", "mean": "mean_ms"})
    table = table.assign(
        p95_ms=times.quantile(0.95),
        p99_ms=times.quantile(0.99),
        iqr_ms=times.quantile(0.75) - times.quantile(0.25),
        measured=times.size(),
        outliers=groups["outlier"].sum().astype("int64"),
    ).reset_index()
    more = pd.concat([_drift(labelled), _of_ranks(steps)], axis=1)
    return table.join(more, on="launch")


def _drift(measured: pd.DataFrame) -> pd.Series:
    """``drift`` by launch. ``measured``: the headline, in the order of the steps."""
    launches = measured.groupby("launch")["step_ms"]
    size, place = launches.transform("size"), launches.cumcount()
    enough = size >= DRIFT_STEPS
    first = measured[enough & (place < size // 3)].groupby("launch")["step_ms"].median()
    last = measured[enough & (place >= size - size // 3)].groupby("launch")["step_ms"].median()
    return (last / first - 1.0).rename("drift")


def _of_ranks(steps: pd.DataFrame) -> pd.DataFrame:
    """``skew, slowest_rank, data_share`` by launch, over the measured steps."""
    measured = steps[~steps["warmup"]].reset_index(drop=True)
    ranks = measured.groupby(["launch", "step"])["step_ms"].agg(["idxmax", "max", "min", "median"])
    skew = ((ranks["max"] - ranks["min"]) / ranks["median"]).groupby("launch").median()
    slowest = measured.loc[ranks["idxmax"], ["launch", "rank", "step_ms", "data_ms"]]
    share = (slowest["data_ms"] / slowest["step_ms"]).groupby(slowest["launch"]).median()
    often = slowest.groupby(["launch", "rank"]).size().rename("often").reset_index()
    often = often.sort_values(["launch", "often", "rank"], ascending=[True, False, True]).drop_duplicates("launch")
    several = measured.groupby("launch")["rank"].nunique() > 1
    rank = often.set_index("launch")["rank"].astype("Int64")
    return pd.DataFrame({"skew": skew, "slowest_rank": rank.where(several.reindex(rank.index)), "data_share": share})


def phases(steps: pd.DataFrame) -> pd.DataFrame:
    """Median of each phase per scenario (ms), over the measured steps of the rank whose step was the headline.

    Columns ``scenario, data_ms, forward_ms, backward_ms, optimizer_ms``: for each launch the median over its steps, for
    the scenario the median over its launches. Medians of phases need not add up to the median of the step.
    """
    return _phases_by_launch(steps).groupby("scenario", sort=False).median().reset_index()


def phase_intervals(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario and phase: ``scenario, phase, low_ms, high_ms``, over the launches of :func:`phases`.

    The 95 % interval (Student's t) of the mean of the launches' medians, on the times themselves, because a phase may
    take none; null for one launch.
    """
    rows = []
    for scenario, mine in _phases_by_launch(steps).groupby("scenario", sort=False):
        for phase in PHASES:
            _, low, high = mean_interval(mine[f"{phase}_ms"].to_numpy())
            rows.append({"scenario": scenario, "phase": phase, "low_ms": low, "high_ms": high})
    return pd.DataFrame(rows, columns=["scenario", "phase", "low_ms", "high_ms"])


def _phases_by_launch(steps: pd.DataFrame) -> pd.DataFrame:
    """Median of each phase of the slowest rank's measured steps; index ``scenario, launch``."""
    measured = steps[~steps["warmup"]]
    slowest = measured.loc[measured.groupby(["launch", "step"])["step_ms"].idxmax()]
    return slowest.groupby(["scenario", "launch"])[[f"{phase}_ms" for phase in PHASES]].median()


def summary(document: dict[str, Any], steps: pd.DataFrame, memory: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario of the run, in its order: the table that a person reads first.

    ``status`` and ``reason`` are those of the first launch that did not end well, or ``not run`` where an interrupted
    run has none; figures come from the launches that are ``ok``. ``relative_to_ddp``: speed, so above 1 is faster than
    ``ddp``. Unknown figures are null.

    Times are geometric means over launches (see the module). ``*_low*`` and ``*_high*`` are the ends of 95 % intervals
    over launches, null below two of them; those of ``relative_*`` are Welch's on the medians, and null for ``ddp``
    itself, which is 1 by definition. ``precision_percent``: half-width of the interval of the step time in percent,
    the larger side; that of the speed is the same.

    Peaks are not means: the question is whether the memory suffices, so the largest of the launches counts, and their
    mean would promise too little. ``peak_*_low_mib`` and ``peak_*_high_mib`` are the interval of the mean peak of a
    launch, and tell how much it changes from one to the next.
    """
    global_batch = document["workload"]["global_batch"]
    figures = per_launch(steps)
    peak = peaks(memory)
    good = {launch["launch"]: launch["scenario"] for launch in document["launches"] if launch["status"] == "ok"}
    mine = figures.assign(of=figures["launch"].map(good))
    base = mine.loc[mine["of"] == BASE, "median_ms"]
    rows = []
    for scenario in scenarios(document):
        launches = mine[mine["of"] == scenario]
        memory_of = peak[peak["launch"].map(good) == scenario]
        median = estimate(launches["median_ms"])
        sources = memory.loc[memory["launch"].map(good) == scenario, "source"]
        rows.append(
            {
                "scenario": scenario,
                **_speed(median, global_batch),
                **_time("step_median_ms", "step", median),
                **_time("step_p95_ms", "step_p95", estimate(launches["p95_ms"])),
                "precision_percent": median.precision_percent,
                **_relative(base, launches["median_ms"], of_base=scenario == BASE),
                **_peak("peak_pid", memory_of["peak_pid_mib"]),
                **_peak("peak_total", memory_of["peak_total_mib"]),
                "memory_source": "+".join(sorted(set(sources))) or None,
                **_outcome(document, scenario),
            }
        )
    return pd.DataFrame(rows)


def _speed(median: Estimate, global_batch: int | None) -> dict[str, float | None]:
    """Images a second; the interval of the time upside down. Null where an imported run does not say its batch."""
    ends = {"": median.value, "_low": median.high, "_high": median.low}
    return {
        f"throughput{end}_img_s": 1000.0 * global_batch / ms if ms and global_batch else None
        for end, ms in ends.items()
    }


def _time(name: str, stem: str, over_launches: Estimate) -> dict[str, float | None]:
    return {name: over_launches.value, f"{stem}_low_ms": over_launches.low, f"{stem}_high_ms": over_launches.high}


def _relative(base: pd.Series, medians: pd.Series, *, of_base: bool) -> dict[str, float | None]:
    """Speed in parts of that of the base: its time over this one, with Welch's interval."""
    speed = ratio_of(medians, base)
    low, high = (None, None) if of_base else (speed.low, speed.high)
    return {"relative_to_ddp": speed.value, "relative_low": low, "relative_high": high}


def _peak(stem: str, of_launches: pd.Series) -> dict[str, float | None]:
    """The largest peak of the launches, and the interval of their mean (none where one is no more than nothing)."""
    known = of_launches.dropna()
    mean = estimate(known if (known > 0).all() else ())
    return {
        f"{stem}_mib": float(known.max()) if len(known) else None,
        f"{stem}_low_mib": mean.low,
        f"{stem}_high_mib": mean.high,
    }


def _outcome(document: dict[str, Any], scenario: str) -> dict[str, Any]:
    """What ran, and how the launches of a scenario ended."""
    launches = [launch for launch in document["launches"] if launch["scenario"] == scenario]
    good = [launch for launch in launches if launch["status"] == "ok"]
    bad = [launch for launch in launches if launch["status"] != "ok"]
    ended = (bad or good or [NOT_RUN])[0]
    return {
        "what_ran": what_ran(good[0]["effective"] if good else None),
        "launches_ok": len(good),
        "launches": len(launches),
        "status": ended["status"],
        "reason": ended["reason"],
    }


def scenarios(document: dict[str, Any]) -> list[str]:
    """The scenarios of a run in the order in which they were asked for."""
    return list(document["request"]["scenarios"])
