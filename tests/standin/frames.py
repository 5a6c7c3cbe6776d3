"""From rows of steps.parquet, as a test writes them, to the tables that are made of them."""

import pandas as pd

from bench.analyse.steps import per_iteration, per_launch, phases_by_launch
from bench.runs.frames import Iterations, LaunchFigures, RankSteps


def iterations(rows: pd.DataFrame) -> Iterations:
    return per_iteration(RankSteps(rows))


def launch_figures(rows: pd.DataFrame) -> LaunchFigures:
    return per_launch(iterations(rows))


def phase_medians(rows: pd.DataFrame) -> pd.DataFrame:
    return phases_by_launch(iterations(rows))
