"""Whether a run folder is what it says: seals, counts, and the laws that its values obey.

    python -m bench check --rows latest

Every finding is one line that names the file or the launch.
"""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.core.job import Training
from bench.core.records import PHASES
from bench.runs.digests import stored
from bench.runs.document import RunDocument
from bench.runs.files import checksum, count_rows, entries
from bench.runs.frames import TableRow
from bench.runs.launches import LaunchRecord
from bench.runs.reader import Run, read, verified

if TYPE_CHECKING:
    import pandas as pd

SUM_TOLERANCE_MS = 1e-6
START_TOLERANCE_MS = 1e-3
"""Of ``start_ns``, which is rounded to a nanosecond, over the step that lies between two of them."""


def findings(path: str, *, rows: bool = True) -> list[str]:
    """The findings about a run; ``rows``: also with the rows of its tables, which an unfinished run has no seal for."""
    try:
        stored(path)
        if not rows and (document := verified(path, allow_incomplete=True)).complete:
            return [*_files(path, document), *_document(path, document)]
        run = read(path, allow_incomplete=True)
    except RequestError as error:
        return [error.problem]
    return list(chain(_files(path, run.document), _document(path, run.document), _steps(run), _memory(run)))


def _files(path: str, document: RunDocument) -> Iterator[str]:
    sealed = document.files
    if not document.complete:
        yield f"{path} is incomplete: it was interrupted, or is still being written"
        recorded = tuple(f"logs/launch-{record.launch:03d}-" for record in document.records)
        logs = (name for name in sealed if name.startswith(recorded))
        changed = (name for name in logs if checksum(path, name) != sealed[name].sha256)
        yield from (f"{path}/{name} was changed after it was sealed" for name in changed)
        return
    present = entries(path)  # with the checksums that were sealed, or it would not have been read
    yield from (f"{path}/{name} does not belong to this run" for name in present if name not in sealed)
    for name, seal in sealed.items():
        rows = count_rows(path, name) if name in present else "no"
        if rows != seal.rows:
            yield f"{path}/{name} has {rows} rows and {seal.rows} were sealed"


def _document(path: str, document: RunDocument) -> Iterator[str]:
    numbers = [record.launch for record in document.records]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
        yield f"{path}/run.json: launches are numbered {_short(numbers)}"
    work = encode(document.workload)
    sealed = work.pop("hash")
    if (sealed is not None or document.planned) and Training(**work).hash() != sealed:
        yield f"{path}/run.json: the hash of the workload is not that of its fields"


def _steps(run: Run) -> Iterator[str]:
    import pandas as pd

    rows = run.steps
    document = run.document
    measured = {record.launch: record for record in document.timed}
    places: TableRow = rows.groupby("launch").indices
    for launch in sorted(set(places) - set(measured)):
        yield f"steps.parquet has rows of launch {launch}, which was not measured"
    for launch, record in measured.items():
        of_launch = rows.take(places.get(launch, []))
        yield from _ranks_and_steps(run, record, of_launch)
        if ((of_launch["scenario"] != record.scenario) | (of_launch["repeat"] != record.repeat)).any():
            yield f"launch {launch}: its steps are of another scenario or repeat than its record says"
    phases = rows[[f"{phase}_ms" for phase in PHASES]]
    sums = phases.sum(axis=1)
    if not document.planned:
        sums = sums.where(phases.notna().all(axis=1), rows["step_ms"])  # its phases are unknown, at least some
    wrong = (sums - rows["step_ms"]).abs() > SUM_TOLERANCE_MS * rows["step_ms"].abs().clip(lower=1.0)
    yield from (
        f"launch {row.launch}, rank {row.rank}, step {row.step}: its phases do not add up to it"
        for row in rows[wrong | rows["step_ms"].isna() | (rows["step_ms"] <= 0)].itertuples()
    )
    ordered = rows.sort_values(["launch", "rank", "step"])
    later = ordered.groupby(["launch", "rank"])[["start_ns", "warmup"]].shift(-1)
    gap = (later["start_ns"] - ordered["start_ns"]) / 1e6 - ordered["step_ms"]
    in_one_window = ~ordered["warmup"] & pd.notna(later["start_ns"])
    wrong = (gap < -START_TOLERANCE_MS) | (in_one_window & (gap.abs() > START_TOLERANCE_MS))
    yield from (
        f"launch {row.launch}, rank {row.rank}: step {row.step} does not end where the next one starts"
        for row in ordered[wrong].itertuples()
    )


def _ranks_and_steps(run: Run, record: LaunchRecord, rows: "pd.DataFrame") -> Iterator[str]:
    import numpy as np

    if record.status == "unsupported":
        if len(rows):
            yield f"launch {record.launch} is unsupported and has steps"
        return
    warmup = run.document.workload.warmup if record.warmup is None else record.warmup
    iters = run.document.request.iters if record.iters is None else record.iters
    if warmup is None or iters is None:
        yield f"launch {record.launch}: how many steps it should have is not recorded"
        return
    whole, kept = record.status == "ok", record.failure.steps_kept if record.failure else None
    present = set(rows["rank"])
    expected = range(record.processes) if whole else [r for r in range(record.processes) if kept and kept.get(str(r))]
    absent = [rank for rank in expected if rank not in present]
    if absent:
        yield f"launch {record.launch}: there are no steps of rank {_short(absent)}"
    for rank, steps in rows.sort_values("step").groupby("rank"):
        count = warmup + iters if whole else kept.get(str(rank), 0) if kept is not None else len(steps)
        who = f"launch {record.launch}, rank {rank}"
        if len(steps) != count or (steps["step"] != np.arange(count)).any():
            yield f"{who}: {count} steps were recorded and {_short(list(steps['step']))} are there"
        elif (steps["warmup"] != (steps["step"] < warmup)).any():
            yield f"{who}: other steps than the first {warmup} are warm-up"


def _memory(run: Run) -> Iterator[str]:
    nothing = int((run.memory["used_mib"] == 0).sum())
    if nothing:
        yield f"memory.parquet: {nothing} values are 0, where they should be unknown"


def _short(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:6])) or "none"
    return f"{text}, ... ({len(numbers)} in all)" if len(numbers) > 6 else text
