"""Step times: the headline per iteration, per launch, per scenario.

The headline of an iteration is the slowest rank's step, because nobody can start the next one before: ranks are never
pooled as if they were repetitions. The replicate is the launch: a scenario's figure is the median of its launches'
medians. Warm-up steps are left out of every statistic here. Throughput is the global batch over the step time.
"""

from typing import Any

import pandas as pd

from bench.analyse.labels import what_ran
from bench.analyse.memory import peaks
from bench.records import PHASES

BASE = "ddp"
"""The scenario that speeds are given relative to."""

NOT_RUN = {"status": "not run", "reason": "the run ended before its first launch"}
"""How a scenario stands that an interrupted run did not come to."""


def headline(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch and step: ``launch, scenario, repeat, step, warmup, step_ms`` (maximum over ranks)."""
    keys = ["launch", "scenario", "repeat", "step", "warmup"]
    return steps.groupby(keys)["step_ms"].max().reset_index()


def per_launch(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch over its measured steps: ``median_ms, mean_ms, p95_ms, p99_ms, measured`` of the headline."""
    measured = headline(steps)
    measured = measured[~measured["warmup"]]
    groups = measured.groupby(["launch", "scenario", "repeat"])["step_ms"]
    return groups.agg(
        median_ms="median",
        mean_ms="mean",
        p95_ms=lambda values: values.quantile(0.95),
        p99_ms=lambda values: values.quantile(0.99),
        measured="size",
    ).reset_index()


def phases(steps: pd.DataFrame) -> pd.DataFrame:
    """Median of each phase per scenario (ms), over the measured steps of the rank whose step was the headline.

    Columns ``scenario, data_ms, forward_ms, backward_ms, optimizer_ms``: for each launch the median over its steps, for
    the scenario the median over its launches. Medians of phases need not add up to the median of the step.
    """
    columns = [f"{phase}_ms" for phase in PHASES]
    measured = steps[~steps["warmup"]]
    slowest = measured.loc[measured.groupby(["launch", "step"])["step_ms"].idxmax()]
    launches = slowest.groupby(["scenario", "launch"])[columns].median()
    return launches.groupby("scenario", sort=False).median().reset_index()


def summary(document: dict[str, Any], steps: pd.DataFrame, memory: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario of the run, in its order: the table that a person reads first.

    ``status`` and ``reason`` are those of the first launch that did not end well, or ``not run`` where an interrupted
    run has none; figures come from the launches that are ``ok``. ``relative_to_ddp``: speed, so above 1 is faster than
    ``ddp``. Unknown figures are null.
    """
    global_batch = document["workload"]["global_batch"]
    figures = per_launch(steps)
    peak = peaks(memory)
    rows = []
    for scenario in scenarios(document):
        launches = [launch for launch in document["launches"] if launch["scenario"] == scenario]
        good = [launch for launch in launches if launch["status"] == "ok"]
        bad = [launch for launch in launches if launch["status"] != "ok"]
        ended = (bad or good or [NOT_RUN])[0]
        ids = [launch["launch"] for launch in good]
        mine = figures[figures["launch"].isin(ids)]
        memory_of = peak[peak["launch"].isin(ids)]
        median = float(mine["median_ms"].median()) if len(mine) else None
        rows.append(
            {
                "scenario": scenario,
                "throughput_img_s": 1000.0 * global_batch / median if median else None,
                "step_median_ms": median,
                "step_p95_ms": float(mine["p95_ms"].median()) if len(mine) else None,
                "relative_to_ddp": None,
                "peak_pid_mib": _max(memory_of["peak_pid_mib"]),
                "peak_total_mib": _max(memory_of["peak_total_mib"]),
                "memory_source": "+".join(sorted(set(memory.loc[memory["launch"].isin(ids), "source"]))) or None,
                "what_ran": what_ran(good[0]["effective"] if good else None),
                "launches_ok": len(good),
                "launches": len(launches),
                "status": ended["status"],
                "reason": ended["reason"],
            }
        )
    table = pd.DataFrame(rows)
    base = table.loc[table["scenario"] == BASE, "throughput_img_s"]
    if len(base) and pd.notna(base.iloc[0]):
        table["relative_to_ddp"] = table["throughput_img_s"] / base.iloc[0]
    return table


def scenarios(document: dict[str, Any]) -> list[str]:
    """The scenarios of a run in the order in which they were asked for."""
    return list(document["request"]["scenarios"])


def _max(values: pd.Series) -> float | None:
    known = values.dropna()
    return float(known.max()) if len(known) else None
