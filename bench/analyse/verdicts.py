"""What the figures of a run are worth, as JSON values for its run.json."""

import json
from typing import Any

import pandas as pd

from bench.analyse.advice import recommendations
from bench.analyse.analysed import Analysed
from bench.analyse.overview import overview
from bench.store import Run


def of(run: Run) -> dict[str, Any]:
    """``validity``: findings; ``parity``: a verdict per launch; ``recommendation``: as its functions say."""
    run = Analysed.of(run)
    return {
        "validity": records(run.findings),
        "parity": records(run.parity),
        "recommendation": recommendations(run.document, overview(run)),
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values: what is unknown is null."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows
