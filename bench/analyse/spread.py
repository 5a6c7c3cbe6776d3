"""How the steps of a scenario scatter, and what their losses came to."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.intervals import estimate
from bench.runs.frames import Iterations, LaunchFigures


def times(steps: Iterations) -> dict[str, np.ndarray]:
    """By scenario the headline (ms) of each measured step, launch by launch."""
    step_ms, measured = steps.frame["step_ms"].to_numpy(), ~steps.frame["warmup"].to_numpy()
    names: Any = steps.frame[["launch", "scenario"]].drop_duplicates("launch").set_index("launch")["scenario"]
    launches: dict[str, list[np.ndarray]] = {}
    for launch, rows in steps.frame.groupby("launch").indices.items():
        launches.setdefault(names[launch], []).append(step_ms[rows[measured[rows]]])
    joined = {scenario: np.concatenate(own) for scenario, own in launches.items()}
    return {scenario: own for scenario, own in joined.items() if len(own)}


def spread(times_ms: Mapping[str, np.ndarray], figures: LaunchFigures) -> pd.DataFrame:
    """One row per scenario: ``scenario, p25_ms, median_ms, p75_ms, measured, half_width_percent``.

    Quartiles of all measured steps of the slowest rank; the median is that of the summary, the geometric mean of the
    launches' medians, and so is its precision (null for one launch). ``times_ms``: :func:`times`; ``figures``: of the
    same launches.
    """
    medians = {str(name): estimate(of_launches) for name, of_launches in figures.frame.groupby("scenario")["median_ms"]}
    rows = [
        {
            "scenario": name,
            "p25_ms": np.quantile(times_ms[name], 0.25),
            "median_ms": median.value,
            "p75_ms": np.quantile(times_ms[name], 0.75),
            "measured": len(times_ms[name]),
            "half_width_percent": median.half_width_percent,
        }
        for name, median in medians.items()
    ]
    columns = ["scenario", "p25_ms", "median_ms", "p75_ms", "measured", "half_width_percent"]
    return pd.DataFrame(rows, columns=columns).astype({"half_width_percent": "float64"})


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
