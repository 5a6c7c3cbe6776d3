"""How the steps of a scenario scatter, and what their losses came to."""

import numpy as np
import pandas as pd

from bench.analyse.intervals import estimate
from bench.analyse.steps import headline, per_launch


def spread(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario: ``scenario, p25_ms, median_ms, p75_ms, measured, precision_percent``.

    Quartiles of all measured steps of the slowest rank; the median is that of the summary, the geometric mean of the
    launches' medians, and so is its precision (null for one launch).
    """
    measured = headline(steps)
    groups = measured[~measured["warmup"]].groupby("scenario")["step_ms"]
    medians = {name: estimate(mine) for name, mine in per_launch(steps).groupby("scenario")["median_ms"]}
    return pd.DataFrame(
        {
            "p25_ms": groups.quantile(0.25),
            "median_ms": pd.Series({name: found.value for name, found in medians.items()}, dtype="float64"),
            "p75_ms": groups.quantile(0.75),
            "measured": groups.size(),
            "precision_percent": pd.Series(
                {name: found.precision_percent for name, found in medians.items()}, dtype="float64"
            ),
        }
    ).reset_index(names="scenario")


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
