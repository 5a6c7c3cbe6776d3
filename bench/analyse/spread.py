"""How the steps of a scenario scatter, and what their losses came to."""

import numpy as np
import pandas as pd

from bench.analyse.intervals import estimate
from bench.analyse.steps import headline
from bench.runs.frames import Iterations, LaunchFigures


def spread(steps: Iterations, figures: LaunchFigures) -> pd.DataFrame:
    """One row per scenario: ``scenario, p25_ms, median_ms, p75_ms, measured, half_width_percent``.

    Quartiles of all measured steps of the slowest rank; the median is that of the summary, the geometric mean of the
    launches' medians, and so is its precision (null for one launch). ``figures``: of the same launches.
    """
    table = headline(steps)
    groups = table.loc[~table["warmup"], ["scenario", "step_ms"]].groupby("scenario")["step_ms"]
    medians = {name: estimate(of_launches) for name, of_launches in figures.frame.groupby("scenario")["median_ms"]}
    halves = {name: one.half_width_percent for name, one in medians.items()}
    table = pd.DataFrame(
        {
            "p25_ms": groups.quantile(0.25),
            "median_ms": pd.Series({name: one.value for name, one in medians.items()}, dtype="float64"),
            "p75_ms": groups.quantile(0.75),
            "measured": groups.size(),
            "half_width_percent": pd.Series(halves, dtype="float64"),
        }
    )
    return table.reset_index(names="scenario")


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
