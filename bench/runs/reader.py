"""Reading a run: refused where a file is missing, changed or damaged; otherwise values.

python -c "from bench.runs.reader import read; print(read('results/RUN').steps)"
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.core.codec import Damaged, decode
from bench.core.errors import RequestError
from bench.core.files import read_json
from bench.core.records import PHASES, SCHEMA_VERSION
from bench.runs.document import RunDocument
from bench.runs.files import RESTORE, checksum, is_file, seal_of, unreadable
from bench.runs.frames import Iterations, RankSteps
from bench.runs.launches import LaunchRecord
from bench.runs.migrate import migrate
from bench.runs.spool import read_spool, spool_path, spooled_launches
from bench.runs.tables import (
    ALWAYS_WRITTEN,
    COLUMNS,
    SAMPLED,
    condensed,
    distinct,
    read_table,
    recorded,
    to_frame,
    to_table,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

READ_IN_PART = "read what is there with --allow-incomplete"

SEALED_SINCE = 3
"""The first schema version whose run.json has a checksum of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read from its folder. Tables have the columns of ``bench.core.records``; ``timed``: its steps."""

    path: str
    document: RunDocument
    timed: RankSteps | Iterations
    memory: "pd.DataFrame"
    device: "pd.DataFrame"
    numerics: "pd.DataFrame"
    diagnostics: "pd.DataFrame"

    @property
    def id(self) -> str:
        return os.path.basename(self.path)

    @property
    def steps(self) -> "pd.DataFrame":
        """The rows of steps.parquet, if they were not condensed."""
        assert isinstance(self.timed, RankSteps), "its steps were condensed when it was read"
        return self.timed.frame


def read(
    path: str, *, allow_incomplete: bool = False, condense: Callable[[RankSteps], Iterations] | None = None
) -> Run:
    """Read and verify a run folder. ``condense``: for callers that need not hold millions of steps at once.

    Raises :class:`RequestError` that names the file if the folder is no run, is incomplete, is of a newer schema, or
    has a file that is missing or was changed after it was sealed.
    """
    import pandas as pd

    document = verified(path, allow_incomplete=allow_incomplete)
    try:
        salvaged = {} if document.complete else salvage(path, document)
    except OSError as error:
        raise unreadable("RUN", path, error) from error
    for name in ALWAYS_WRITTEN if document.complete else ():
        if f"{name}.parquet" not in document.files:
            raise RequestError("RUN", f"{path}/{name}.parquet is missing", RESTORE)
    if not os.path.isfile(os.path.join(path, "steps.parquet")) and not any(salvaged.values()):
        raise RequestError("RUN", f"{path} has no steps: no launch was done", "measure again")
    spooled = {row["launch"] for rows in salvaged.values() for row in rows}
    timed = (  # the table has no name here: it would be held while it is condensed, and fits once
        condensed(_rows(path, "steps", document, spooled, labels=True), condense)
        if condense
        else RankSteps(to_frame(_rows(path, "steps", document, spooled, labels=False)))
    )
    others = [name for name in COLUMNS if name != "steps"]
    tables = {name: to_frame(_rows(path, name, document, spooled, labels=name in SAMPLED)) for name in others}
    for name, rows in salvaged.items():
        if rows:
            found = to_table(rows, COLUMNS[name]).to_pandas()
            tables[name] = pd.concat([tables[name], found], ignore_index=True) if len(tables[name]) else found
    return Run(path=os.path.abspath(path), document=document, timed=timed, **tables)


def verified(path: str, *, allow_incomplete: bool, remedy: str = READ_IN_PART, option: str = "RUN") -> RunDocument:
    """The document of a run whose files are as it says. Raises :class:`RequestError` in the name of ``option``."""
    try:
        document = _read_document(path)
        if not document.complete and not allow_incomplete:
            raise RequestError("RUN", f"{path} is incomplete: it was interrupted, or is still being written", remedy)
        for name, seal in document.files.items():
            file = os.path.join(path, name)
            try:
                changed = checksum(path, name) != seal.sha256
            except FileNotFoundError:
                raise RequestError("RUN", f"{file} is missing", "restore the run folder, or measure again") from None
            if changed and document.complete:
                raise RequestError("RUN", f"{file} was changed after it was sealed", RESTORE)
    except OSError as error:
        raise unreadable(option, path, error) from error
    except RequestError as error:
        raise RequestError(option, error.problem, error.remedy) from error
    return document


def salvage(path: str, document: RunDocument) -> dict[str, list[dict[str, Any]]]:
    """The samples of launches that are not in ``document``, left by the sampler when everything was killed.

    Raises ``OSError`` for a spool that is no file in there.
    """
    folder = os.path.join(path, ".scratch")
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, "it is a link", folder)
    known = {record.launch for record in document.records}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SAMPLED}
    for launch in spooled_launches(folder):
        if launch not in known:
            for name, rows in read_spool(spool_path(folder, launch)).items():
                found[name] += rows
    return found


def _read_document(path: str) -> RunDocument:
    file = os.path.join(path, "run.json")
    if not is_file(file):
        raise RequestError(
            "RUN", f"{path} is not a run folder: it has no run.json", "give a folder made by 'bench run'"
        )
    try:
        stored = read_json(file, within=path)
    except ValueError as error:
        raise RequestError("RUN", f"{file} is damaged: {error}", RESTORE) from error
    version = stored.get("schema_version") if isinstance(stored, dict) else None
    if type(version) is not int or "path" in stored:
        what = "is not a run.json of bench" if type(version) is not int else "is what --json printed, not a run"
        raise RequestError("RUN", f"{file} {what}", "give a folder made by 'bench run'")
    if version > SCHEMA_VERSION:
        problem = f"{file} has schema version {version} and this bench reads up to {SCHEMA_VERSION}"
        raise RequestError("RUN", problem, "use the bench that wrote it, or a newer one")
    if version < (SEALED_SINCE if "seal" in stored else 1):
        raise RequestError("RUN", f"{file} has a schema version that is not its own", RESTORE)
    if version >= SEALED_SINCE and stored.get("seal") != (_seal_or_none(stored) or ""):
        raise RequestError("RUN", f"{file} was changed after it was sealed", RESTORE)
    try:
        document = decode(RunDocument, migrate(stored))
    except Damaged as error:
        raise RequestError("RUN", f"{file}: {error}", RESTORE) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = f"{file} is not a run.json of schema {version} ({type(error).__name__}: {error})"
        raise RequestError("RUN", problem, RESTORE) from error
    numbers = [record.launch for record in document.records]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise RequestError("RUN", f"{file}: launch {twice} is there twice", RESTORE)
    return document


def _seal_or_none(document: dict[str, Any]) -> str | None:
    try:
        return seal_of(document)
    except ValueError:  # NaN, which bench never writes
        return None


def _rows(path: str, name: str, document: RunDocument, spooled: set[int], *, labels: bool) -> "pa.Table":
    """A table of a run. In an incomplete run a launch without a record has its samples alone, and those once.

    ``spooled``: the launches with salvaged samples. ``labels``: see :func:`bench.runs.tables.read_table`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = read_table(path, name, labels=labels)
    problem = _contradiction(table, name, document)
    if problem:
        raise RequestError("RUN", f"{os.path.join(path, name)}.parquet: {problem}", RESTORE)
    if document.complete:
        return table
    if name not in SAMPLED:
        return recorded(table, document)
    return table.filter(pc.invert(pc.is_in(table["launch"], value_set=pa.array(sorted(spooled), pa.int32()))))


def _contradiction(table: "pa.Table", name: str, document: RunDocument) -> str | None:
    """What a table says that the document does not; None for nothing. An unfinished run may have one more launch."""
    import pyarrow.compute as pc

    records = {record.launch: record for record in document.records}
    scenarios = distinct(table, "launch", "scenario")
    for launch, scenario in scenarios:
        record = records.get(launch)
        if record is None and document.complete:
            return f"it has rows of launch {launch}, which has no record"
        if isinstance(record, LaunchRecord) and record.scenario != scenario:
            return f"it has rows of launch {launch} under another scenario than {record.scenario}"
    of_rank = [column for column in ("launch", "rank", "pid") if column in table.column_names]
    for launch, rank, *pid in distinct(table, *of_rank) if "rank" in of_rank else ():
        record = records.get(launch)
        if isinstance(record, LaunchRecord) and rank is not None and rank >= record.processes:
            return f"it has rows of launch {launch}, rank {rank}, and there is no such rank"
        pids = {one.rank: one.pid for one in record.ranks} if isinstance(record, LaunchRecord) else {}
        if pid and pid != [pids.get(rank, *pid)] and not document.attached:  # which has other processes, too
            return f"launch {launch} has no rank {rank} of PID {pid[0]}"
    for launch, host in distinct(table, "launch", "host") if name == "memory" and not document.attached else ():
        hosts = {one.host for one in getattr(records.get(launch), "ranks", ())}
        if hosts and host not in {None, *hosts} and None not in hosts:
            return f"it has rows of launch {launch} of another host than its ranks ran on"
    absent = _with_rows(name, document) - {launch for launch, _ in scenarios}
    if absent and document.complete:
        return f"it has no rows of launch {min(absent)}"
    if name == "steps" and document.planned:
        parts = table.group_by(["launch", "warmup"]).aggregate([("step", "min"), ("step", "max")]).to_pylist()
        for part in parts:
            of_launch = getattr(records.get(part["launch"]), "warmup", None)
            first = document.workload.warmup if of_launch is None else of_launch
            wrong = part["step_max"] >= (first or 0) if part["warmup"] else part["step_min"] < (first or 0)
            if wrong and first is not None:
                return f"launch {part['launch']}: other steps than the first {first} are warm-up"
        for column in ("start_ns", *(f"{phase}_ms" for phase in PHASES)):
            if table[column].null_count:
                return f"{column} is unknown in {table[column].null_count:,} of {table.num_rows:,} rows"
        finite = {launch.launch for launch in document.good if launch.checks.finite_loss}
        without = table.filter(pc.is_null(table["loss"])) if table["loss"].null_count else table.slice(0, 0)
        unknown = finite & {launch for (launch,) in distinct(without, "launch")}
        if unknown:
            return f"loss is unknown in launch {min(unknown)}, whose record says that it was finite"
    return None


def _with_rows(name: str, document: RunDocument) -> set[int]:
    """The launches that must have rows in a table of a finished run, by what their records say."""
    match name:
        case "steps":
            return {launch.launch for launch in document.good}
        case "diagnostics":
            good = [launch for launch in document.diagnostics if launch.status == "ok"]
            return {launch.launch for launch in good if any(None in look.reasons.values() for look in launch.looks)}
        case "numerics":
            trained = {document.reference.launch} if document.reference and document.reference.status == "ok" else set()
            return trained | {one.launch for one in document.parity if one.gradient_error is not None}
        case _:
            sampled = [(launch.launch, (launch.checks.sampling or {}).get(name)) for launch in document.good]
            return {launch for launch, cost in sampled if cost and cost.calls}
