"""What the figures of a run are worth, as JSON values for its run.json."""

import json
from typing import Any

import pandas as pd

from bench.analyse.advice import recommendations
from bench.analyse.overview import overview
from bench.analyse.parity import parity
from bench.analyse.validity import findings
from bench.store import Run


def of(run: Run) -> dict[str, Any]:
    """``validity``: findings; ``parity``: a verdict per launch; ``recommendation``: as its functions say."""
    numerics = parity(run.document, run.steps, run.numerics)
    return {
        "validity": records(findings(run.document, run.steps, numerics)),
        "parity": records(numerics),
        "recommendation": recommendations(run.document, overview(run)),
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values: what is unknown is null."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows
