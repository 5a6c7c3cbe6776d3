"""How the steps of a scenario scatter, and what their losses came to."""

import numpy as np
import pandas as pd

from bench.analyse.intervals import figures, geometric_mean
from bench.analyse.steps import headline, per_launch


def spread(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario: ``scenario, p25_ms, median_ms, p75_ms, measured``.

    Quartiles of all measured steps of the slowest rank; the median is that of the summary, the geometric mean of the
    launches' medians.
    """
    measured = headline(steps)
    groups = measured[~measured["warmup"]].groupby("scenario")["step_ms"]
    medians = per_launch(steps).groupby("scenario")["median_ms"].agg(lambda mine: geometric_mean(figures(mine)))
    return pd.DataFrame(
        {
            "p25_ms": groups.quantile(0.25),
            "median_ms": medians,
            "p75_ms": groups.quantile(0.75),
            "measured": groups.size(),
        }
    ).reset_index()


def losses(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch: ``launch, last_loss, first_not_finite``.

    ``last_loss``: of the last step, the mean over ranks, which is the loss of the global batch because the ranks' parts
    are equal. ``first_not_finite``: the first step at which some rank's loss is NaN or infinite; null without one.
    """
    ends = steps[steps["step"] == steps.groupby("launch")["step"].transform("max")]
    last = ends.groupby("launch")["loss"].agg(lambda values: values.mean(skipna=False)).rename("last_loss")
    broken = steps[~np.isfinite(steps["loss"])]
    first = broken.groupby("launch")["step"].min().rename("first_not_finite").astype("Int64")
    table: pd.DataFrame = pd.concat([last, first], axis=1).reset_index()
    return table
