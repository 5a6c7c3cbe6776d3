"""The tables of a run with all their values, in one place: as CSV beside a page, and as JSON of ``bench report``."""

import re
from collections.abc import Sequence

import pandas as pd

from bench.analyse import memory, memory_parts
from bench.analyse import scaling as scalings
from bench.analyse.analysed import Analysed
from bench.analyse.communication import communication, spent
from bench.analyse.intervals import columns
from bench.analyse.launches import ok_rows
from bench.analyse.loader import found_by, rates, together
from bench.analyse.verdicts import records
from bench.core.codec import encode
from bench.core.text import printable
from bench.runs.reader import Run
from bench.seams.experiment import experiments

IN_JSON = {"findings": "validity", "energy": "energy_by_device", "energy-by-scenario": "energy"}
"""Names in JSON, if they are not those of the files."""
ONLY_JSON = ("summary", "energy-by-scenario", "memory")

FORMULA = re.compile(r"\s*([=@\uff1d\uff20]|[-+\uff0b\uff0d](?!\d*\.?\d+$))")
"""The beginning of a formula in a spreadsheet, also where letters are wide."""


def values(run: Analysed) -> dict[str, pd.DataFrame]:
    """The tables by name, each with the run's id as its first column; some may be empty."""
    document, swept, points = run.document, found_by(run.document), scalings.scaled(run)
    predictions = [encode(one) for group in scalings.foreseen(run) for one in group] if points else []
    on_cpu = memory.resident(document.launches, run.memory) if document.workload.device == "cpu" else None
    by_name = {
        "summary": run.overview,
        "findings": run.findings,
        "parity": run.parity,
        "communication": communication(document, run.diagnostics),
        "time-spent": spent(document),
        "energy": ok_rows(document, run.devices),
        "energy-by-scenario": run.energy,
        "memory-beside-torch": run.beside_torch,
        "memory": run.beside_torch if on_cpu is None else on_cpu,
        "memory-parts": memory_parts.parts(document),
        **of_experiments(run),
        **({} if swept is None else {"input": rates(swept, together(document, run.good_stats))}),
        **({"scaling": pd.json_normalize([point(one) for one in points])} if points else {}),
        **({"predictions": pd.DataFrame(predictions)} if predictions else {}),
    }
    return {name: of_run(run, table) for name, table in by_name.items()}


def of_experiments(run: Analysed) -> dict[str, pd.DataFrame]:
    """The tables of the experiments that declare some; empty ones of those that a run has none of."""
    makers = [one.tables for one in experiments().values() if one.tables is not None]
    return {name: pd.DataFrame(table) for make in makers for name, table in make(run).items()}


def point(one: scalings.Scaled) -> dict[str, object]:
    """A point of a curve of scaling as a row."""
    return {
        **{name: getattr(one, name) for name in ("mode", "count", "global_batch", "per_s", "failed")},
        **columns("step{}_ms", one.step),
        "launches": one.step.n,
        **columns("efficiency{}", one.efficiency),
        "loss": encode(one.loss),
    }


def as_csv(runs: Sequence[Analysed]) -> dict[str, str]:
    """The tables of all runs below each other by the names of their files, those that have a row."""
    by_run = [values(run) for run in runs]
    names = [name for name in dict.fromkeys(name for own in by_run for name in own) if name not in ONLY_JSON]
    filled = {name: [own[name] for own in by_run if len(own.get(name, ()))] for name in names}
    return {f"{name}.csv": csv(parts) for name, parts in filled.items() if parts}


def as_json(runs: Sequence[Analysed]) -> dict[str, list[dict[str, object]]]:
    """The same as JSON values: what is unknown is null."""
    rows: dict[str, list[dict[str, object]]] = {"input": []}
    for run in runs:
        for name, table in values(run).items():
            rows.setdefault(IN_JSON.get(name, name.replace("-", "_")), []).extend(records(table))
    return rows


def of_run(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the run's id as its first column."""
    return table.assign(run=run.id)[["run", *table.columns]]


def csv(tables: Sequence[pd.DataFrame]) -> str:
    """The tables of all runs below each other; values in full, unknown ones empty."""
    whole = pd.concat([table.astype("object") for table in tables], ignore_index=True)
    for name in whole:
        whole[name] = pd.Series(map(_no_formula, whole[name]), dtype="object")
    return whole.to_csv(index=False, lineterminator="\n")


def _no_formula(cell: object) -> object:
    """Text that a spreadsheet would calculate gets the mark of text before it; numbers stay."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if FORMULA.match(text) else text
