"""What the figures of a run are worth, as JSON values for its run.json."""

import math
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.advice import recommendations
from bench.analyse.analysed import Analysed
from bench.analyse.overview import overview
from bench.runs.store import Run


def of(run: Run) -> dict[str, Any]:
    """``validity``: findings; ``parity``: a verdict per launch; ``recommendation``: as its functions say."""
    run = Analysed.of(run)
    return {
        "validity": records(run.findings),
        "parity": records(run.parity),
        "recommendation": recommendations(run.document, overview(run)),
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values: every digit of a figure, and null for what is unknown or not finite.

    ``DataFrame.to_json`` writes ten decimals unless it is asked for more, fifteen at most: of 3e-12 none is left.
    """
    return [{str(name): _value(value) for name, value in row.items()} for row in table.to_dict("records")]


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    if pd.isna(value) or (isinstance(value, float) and math.isinf(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
