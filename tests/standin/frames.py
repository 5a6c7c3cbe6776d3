"""From rows of steps.parquet, as a test writes them, to the tables that are made of them."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from bench.analyse.steps import per_iteration, per_launch, phases_by_launch
from bench.core.records import MEMORY_COLUMNS
from bench.runs.frames import Iterations, LaunchStats, RankSteps


def memory(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(MEMORY_COLUMNS)).astype({"used_mib": "float64"})


def iterations(rows: pd.DataFrame) -> Iterations:
    return per_iteration(RankSteps(rows))


def launch_stats(rows: pd.DataFrame) -> LaunchStats:
    return per_launch(iterations(rows))


def phase_medians(rows: pd.DataFrame) -> pd.DataFrame:
    return phases_by_launch(iterations(rows))


def step_rows(launch: int, scenario: str, *ranks: list[float], warmup: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Rows of steps.parquet: one list of step times (ms) per rank, the first ``warmup`` of them warm-up. A quarter of
    each step is forward, half of it backward. ``more``: other values in all of them."""
    about = {"launch": launch, "scenario": scenario, "repeat": 0, "start_ns": 0, "data_ms": 0.0, "loss": 7.0}
    return [
        about
        | {"rank": rank, "step": step, "warmup": step < warmup, "step_ms": step_ms}
        | {"forward_ms": step_ms / 4, "backward_ms": step_ms / 2, "optimizer_ms": step_ms / 4, **more}
        for rank, times in enumerate(ranks)
        for step, step_ms in enumerate(times)
    ]
