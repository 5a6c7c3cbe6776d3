"""The verdicts on a run's values, for its run.json."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.recommendation import recommendations
from bench.core.codec import decode
from bench.runs.document import Finding, ParityRecord
from bench.runs.frames import TableRow
from bench.runs.reader import Run


def judged(run: Run) -> Analysed:
    """The run with what in its document follows from all else."""
    run = Analysed.of(run)
    document = replace(
        run.document,
        validity=tuple(decode(Finding, row) for row in records(run.findings)),
        parity=tuple(decode(ParityRecord, row) for row in records(run.parity)),
        recommendation=recommendations(run.document, run.overview),
    )
    return run.with_document(document)


def records(table: pd.DataFrame) -> list[TableRow]:
    """The rows of a table as JSON values, null for unknown or not finite: ``to_json`` drops digits."""
    return [{str(name): json_value(value) for name, value in row.items()} for row in table.to_dict("records")]


def json_value(value: Any) -> Any:
    """Null for what is unknown or not finite."""
    if isinstance(value, dict):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if pd.isna(value) or (isinstance(value, float) and math.isinf(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
