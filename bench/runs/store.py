"""Run folders: written whole or not at all, sealed with checksums, refused where they do not match.

    results/<UTC yyyymmddThhmmssZ>-<8 hex>/
        run.json  steps.parquet  memory.parquet  device.parquet (GPU only)  logs/

``run.json`` is written again after each launch, with the row count and SHA-256 of every other file as it is then;
``complete: true`` comes with the last one.
"""

import copy
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.core.errors import RequestError
from bench.core.records import (
    DEVICE_COLUMNS,
    DIAGNOSTIC_COLUMNS,
    LATER_COLUMNS,
    MEMORY_COLUMNS,
    NUMERICS_COLUMNS,
    SCHEMA_VERSION,
    STEP_COLUMNS,
    canonical_json,
)
from bench.runs.spool import read_spool, spool_path, spooled_launches

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DOCUMENT = {
    "schema_version": int,
    "launches": list,
    "files": dict,
    "complete": bool,
    "request": dict,
    "workload": dict,
}
"""What a run.json must have, and of which kind, before anything in it is used."""

LETTERS = 4
"""Of the name of a run, with which it may be called: fewer are a slip."""

DIGEST = "digest.json"
"""What comparisons over many runs read of a finished run instead of its tables."""

ALWAYS_WRITTEN = ("steps", "memory")
"""Tables that a finished run has also where they are empty."""

SAMPLED = ("memory", "device")
"""Tables that the sampler fills, which has rows of a launch before the launch has a record."""

EMPTY: dict[str, Any] = {
    "diagnostics": [],
    "reference": None,
    "precision": None,
    "validity": [],
    "parity": [],
    "superseded": [],
    "resumed": [],
    "batch_search": None,
}
"""What a run has that was not asked for it, and what one of an older schema is given when it is read."""

READ_IN_PART = "read what is there with --allow-incomplete"
"""The remedy for an incomplete run, of the verbs that have this option."""

SEALED_SINCE = 3
"""The schema version from which on run.json has a checksum of its own."""

CHUNK_ROWS = 500_000
"""Of steps, condensed at a time."""

COLUMNS = {
    "steps": STEP_COLUMNS,
    "memory": MEMORY_COLUMNS,
    "device": DEVICE_COLUMNS,
    "numerics": NUMERICS_COLUMNS,
    "diagnostics": DIAGNOSTIC_COLUMNS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read from its folder. Tables have the columns of ``bench.core.records``, unless steps were condensed."""

    path: str
    document: dict[str, Any]
    steps: "pd.DataFrame"
    memory: "pd.DataFrame"
    device: "pd.DataFrame"
    numerics: "pd.DataFrame"
    diagnostics: "pd.DataFrame"

    @property
    def id(self) -> str:
        """The folder's name."""
        return os.path.basename(self.path)


class RunWriter:
    """A run folder that is being written. Each launch's rows are on disk when :meth:`add` returns."""

    def __init__(self, out: str, document: dict[str, Any]) -> None:
        self.id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"
        self.path = os.path.join(os.path.abspath(out), self.id)
        os.makedirs(os.path.join(self.path, "logs"))
        self.document = {
            "schema_version": SCHEMA_VERSION,
            "run": self.id,
            **document,
            "launches": [],
            **copy.deepcopy(EMPTY),
            "complete": False,
        }
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in COLUMNS}
        self.seal(complete=False)

    @classmethod
    def reopen(cls, path: str) -> "RunWriter":
        """Go on writing a run that is there, with the rows of every launch that stands in its run.json.

        What a launch without a record left behind goes: its rows, and its logs under another name. Raises
        :class:`RequestError` as :func:`read` does, in the name of ``--resume``.
        """
        document = verified(path, allow_incomplete=True, option="--resume")
        writer = cls.__new__(cls)
        writer.id = os.path.basename(os.path.abspath(path))
        writer.path = os.path.abspath(path)
        writer.document = {**document, "schema_version": SCHEMA_VERSION}
        tables = {name: _recorded(_read_table(path, name, option="--resume"), document) for name in COLUMNS}
        writer._tables = {name: [table] if table.num_rows else [] for name, table in tables.items()}
        shutil.rmtree(os.path.join(path, ".scratch"), ignore_errors=True)
        os.makedirs(writer.logs, exist_ok=True)
        for name in sorted(os.listdir(writer.logs)):
            if re.match(rf"launch-0*{next_launch(document)}-.*\.log$", name):
                os.rename(os.path.join(writer.logs, name), os.path.join(writer.logs, f"interrupted-{name}"))
        writer.seal(complete=False)
        return writer

    def supersede(self, record: dict[str, Any]) -> None:
        """Take a launch of any kind that failed out of what tables show. Its record and its rows stay."""
        self.document["superseded"].append(record)
        if record is self.document["reference"]:
            self.document["reference"] = None
        for kind in ("launches", "diagnostics"):
            self.document[kind] = [other for other in self.document[kind] if other is not record]

    @property
    def logs(self) -> str:
        """The folder for what the ranks print."""
        return os.path.join(self.path, "logs")

    @property
    def scratch(self) -> str:
        """A folder for what ranks and sampler hand over; gone when the run is done."""
        path = os.path.join(self.path, ".scratch")
        os.makedirs(path, exist_ok=True)
        return path

    def add(self, record: dict[str, Any], **tables: Sequence[dict[str, Any]]) -> None:
        """Put a measured launch and its rows (``steps``, ``memory``, ``device``, ``numerics``) on disk."""
        self.document["launches"].append(record)
        self.put(**tables)

    def add_diagnostic(self, record: dict[str, Any], **tables: Sequence[dict[str, Any]]) -> None:
        """Put a diagnostic launch and its rows on disk, apart from the measured ones."""
        self.document["diagnostics"].append(record)
        self.put(**tables)

    def add_reference(self, record: dict[str, Any], **tables: Sequence[dict[str, Any]]) -> None:
        """Put the launch of the reference and its rows on disk."""
        self.document["reference"] = record
        self.put(**tables)

    def frames(self) -> Run:
        """The run as it would be read now."""
        tables = {name: self._whole(name).to_pandas() for name in COLUMNS}
        return Run(path=self.path, document=self.document, **tables)

    def put(self, **tables: Sequence[dict[str, Any]]) -> None:
        """Put the rows of a launch whose record stands in the document on disk."""
        for name, rows in tables.items():
            if rows:
                self._tables[name].append(_table(rows, COLUMNS[name]))
                self._write_table(name)
        self.seal(complete=False)

    def finish(self, *, complete: bool, digest: dict[str, Any] | None = None, **document: Any) -> None:
        """Write what is still missing, and ``run.json`` for the last time.

        ``digest``: what :data:`DIGEST` is to hold (``bench.analyse.digest``); None: the run gets none.
        """
        self.document.update(document)
        for name, rows in _salvaged(self.path, self.document).items():
            if rows:
                self._tables[name].append(_table(rows, COLUMNS[name]))
        for name in COLUMNS:
            if name in ALWAYS_WRITTEN or self._tables[name]:
                self._write_table(name)
        shutil.rmtree(os.path.join(self.path, ".scratch"), ignore_errors=True)
        if digest is not None:
            text = json.dumps(digest, indent=1, allow_nan=False) + "\n"
            write_atomically(os.path.join(self.path, DIGEST), text.encode())
        self.seal(complete=complete)

    def seal(self, *, complete: bool) -> None:
        """Write ``run.json`` with the checksum and the number of rows (logs: lines) of every other file."""
        self.document["files"] = describe_files(self.path)
        self.document["complete"] = complete
        self.document.pop("seal", None)
        self.document["seal"] = seal_of(json.loads(json.dumps(self.document, allow_nan=False)))
        text = json.dumps(self.document, indent=1, allow_nan=False) + "\n"
        write_atomically(os.path.join(self.path, "run.json"), text.encode())

    def _whole(self, name: str) -> "pa.Table":
        import pyarrow as pa

        return pa.concat_tables(self._tables[name] or [_table([], COLUMNS[name])])

    def _write_table(self, name: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(self._whole(name), sink, write_page_checksum=True)
        write_atomically(os.path.join(self.path, f"{name}.parquet"), sink.getvalue().to_pybytes())


def _table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> "pa.Table":
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), schema=_schema(columns, pa.string()))


def _schema(columns: dict[str, str], text: "pa.DataType") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([(name, text if kind == "string" else pa.type_for_alias(kind)) for name, kind in columns.items()])


def utf8(text: str) -> bytes:
    """Text in UTF-8; bytes that were none, in what came from outside (a label, the name of a host), are escaped."""
    return text.encode("utf-8", "backslashreplace")


def write_atomically(path: str, content: bytes) -> None:
    """Replace ``path`` by ``content``: a reader, or a crash, sees the old file or the new one and nothing else."""
    folder = os.path.dirname(path)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def describe_files(path: str) -> dict[str, dict[str, Any]]:
    """SHA-256 and number of rows (logs: lines) of every file of a run folder but ``run.json``."""
    found = {}
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            full = os.path.join(folder, name)
            relative = os.path.relpath(full, path)
            if relative != "run.json" and not name.startswith("."):
                found[relative] = {"sha256": sha256(full), "rows": _count_rows(full)}
    return found


def seal_of(document: dict[str, Any]) -> str:
    """The checksum of run.json itself: SHA-256 of its canonical JSON without ``seal``."""
    rest = {key: value for key, value in document.items() if key != "seal"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()


def records_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The record of every launch of any kind, superseded ones too, in the order of their numbers."""
    reference = [document["reference"]] if document["reference"] else []
    tries = document["batch_search"]["launches"] if document["batch_search"] else []
    everything = [*document["launches"], *document["diagnostics"], *document["superseded"], *tries, *reference]
    return sorted(everything, key=lambda record: int(record["launch"]))


def next_launch(document: dict[str, Any]) -> int:
    """The number of the next launch of any kind."""
    return max((record["launch"] for record in records_of(document)), default=-1) + 1


def sha256(path: str) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count_rows(path: str) -> int:
    if path.endswith(".parquet"):
        import pyarrow.parquet as pq

        return int(pq.ParquetFile(path).metadata.num_rows)
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def check_writable(out: str) -> None:
    """Refuse an output folder that cannot be made or written, before anything runs."""
    if not out:
        raise RequestError("--out", "it is empty", "give a folder")
    folder = os.path.abspath(out)
    try:
        existing = _deepest_existing(folder)
        if not os.path.isdir(existing):
            raise RequestError("--out", f"{existing} is not a folder", "give a folder")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise RequestError("--out", f"{folder} cannot be written: {error.strerror}", "give another folder") from error


def check_file(option: str, file: str) -> None:
    """Refuse a file that :func:`write_atomically` could not put in its place, or that is no file to be replaced.

    What is there is replaced by a new file of its name: a device or a pipe (``/dev/null``, ``/dev/stdout``) would be
    gone afterwards. Raises :class:`RequestError` in the name of ``option``.
    """
    remedy = "give a file in a folder that exists and can be written"
    path = os.path.abspath(file)
    folder = os.path.dirname(path)
    if not file or os.path.isdir(path) or not os.path.isdir(folder):
        raise RequestError(option, f"{file or repr(file)} cannot be a file", remedy)
    if os.path.exists(path) and not os.path.isfile(path):
        raise RequestError(option, f"{file} is a device or a pipe, and would be replaced by a file", remedy)
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass  # which is as it should be
    except OSError as error:
        raise RequestError(option, f"{file} cannot be a file: {error.strerror}", remedy) from error
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(option, f"{file} cannot be written: {error.strerror}", remedy) from error


def _deepest_existing(path: str) -> str:
    """``path`` or the nearest folder above it that is there; a link to nowhere is there."""
    while True:
        try:
            os.lstat(path)
            return path
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


def find(run: str, out: str, option: str = "RUN") -> str:
    """The folder of a run given as a folder, a run id under ``out``, the first or last letters of one, or ``latest``.

    Letters are enough where they are :data:`LETTERS` or more and no other run under ``out`` has them. ``latest`` is the
    latest that was measured here: what was imported is named by who wants it. Raises :class:`RequestError` in the name
    of ``option`` where there is none.
    """
    if not run:
        raise RequestError(option, "it is empty", "give a folder, a run id or 'latest'")
    if run == "latest":
        runs = _ids(out, option)
        if not runs:
            remedy = "make one with 'python -m bench run', or give the folder of one"
            raise RequestError(option, f"there is no run in {out}", remedy)
        measured = (name for name in reversed(runs) if not _is_imported(os.path.join(out, name)))
        return os.path.join(out, next(measured, runs[-1]))
    for candidate in (run, os.path.join(out, run)):
        if os.path.isdir(candidate):
            return candidate.rstrip(os.sep) or os.sep
    ids = _ids(out, option) if len(run) >= LETTERS else []
    meant = [name for name in ids if name.startswith(run) or name.endswith(run)]
    if len(meant) == 1:
        return os.path.join(out, meant[0])
    if meant:
        which = f"{', '.join(meant[:3])}{' and others' if len(meant) > 3 else ''}"
        raise RequestError(option, f"{len(meant)} runs in {out} are called {run!r}: {which}", "give more letters")
    raise RequestError(option, f"there is no run {run!r} here or in {out}", "give a folder, a run id or 'latest'")


def _ids(out: str, option: str) -> list[str]:
    """The names of all run folders in ``out``, the oldest first. Raises :class:`RequestError` where it is not told."""
    try:
        entries = list(os.scandir(out)) if os.path.isdir(out) else []
    except OSError as error:
        raise unreadable(option, out, error) from error
    return sorted(entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, "run.json")))


def _is_imported(path: str) -> bool:
    """Whether run.json says so; a damaged one says nothing here, and is refused when it is read."""
    try:
        with open(os.path.join(path, "run.json"), encoding="utf-8") as text:
            return _get(json.load(text), "imported") is not None
    except (OSError, ValueError, RecursionError):
        return False


def read(
    path: str, *, allow_incomplete: bool = False, condense: "Callable[[pd.DataFrame], pd.DataFrame] | None" = None
) -> Run:
    """Read and verify a run folder.

    ``condense``: what to make of the steps while they are read, some whole launches at a time, for who need not hold
    millions of rows (``bench.analyse.steps.per_iteration``).

    Raises :class:`RequestError` that names the file when the folder is no run, is incomplete, is of a newer schema, or
    has a file that is missing or changed since it was sealed.
    """
    document = verified(path, allow_incomplete=allow_incomplete)
    salvaged = {} if document["complete"] else _salvaged(path, document)
    if not os.path.isfile(os.path.join(path, "steps.parquet")) and not any(salvaged.values()):
        raise RequestError("RUN", f"{path} has no steps: no launch was done", "measure again")
    spooled = {row["launch"] for rows in salvaged.values() for row in rows}
    tables = {"steps": _condensed(_rows(path, "steps", document, spooled, labels=True), condense)} if condense else {}
    for name in COLUMNS:
        if name not in tables:
            tables[name] = _frame(_rows(path, name, document, spooled, labels=name in SAMPLED))
    tables |= _with_salvaged(tables, salvaged)
    return Run(path=os.path.abspath(path), document=document, **tables)


def verified(path: str, *, allow_incomplete: bool, remedy: str = READ_IN_PART, option: str = "RUN") -> dict[str, Any]:
    """The document of a run whose files are as it says. ``remedy``: what to do about an incomplete one.

    Raises :class:`RequestError` as :func:`read`, in the name of ``option``.
    """
    try:
        return _verified(path, allow_incomplete, remedy)
    except OSError as error:
        raise unreadable(option, path, error) from error
    except RequestError as error:
        raise RequestError(option, error.problem, error.remedy) from error


def _is_file(path: str) -> bool:
    """Whether a file is there; what may not be looked at is an :class:`OSError` and no "no"."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def unreadable(option: str, path: str, error: OSError) -> RequestError:
    """The refusal of a file or a folder, at or below ``path``, that is there and may not, or cannot, be read."""
    problem = f"{error.filename or path} cannot be read: {error.strerror}"
    return RequestError(option, problem, "mend that, or give another one")


def _verified(path: str, allow_incomplete: bool, remedy: str) -> dict[str, Any]:
    document = _read_document(path)
    if not document["complete"] and not allow_incomplete:
        raise RequestError("RUN", f"{path} is incomplete: it was interrupted, or is still being written", remedy)
    for name, seal in document["files"].items():
        file = os.path.join(path, name)
        if not _is_file(file):
            raise RequestError("RUN", f"{file} is missing", "restore the run folder, or measure again")
        if sha256(file) != seal["sha256"] and document["complete"]:
            raise RequestError("RUN", f"{file} was changed after it was sealed", "restore it, or measure again")
    return document


def _salvaged(path: str, document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The samples of launches that are not in ``document``, as the sampler left them when everything was killed."""
    folder = os.path.join(path, ".scratch")
    recorded = {record["launch"] for record in records_of(document)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SAMPLED}
    for launch in spooled_launches(folder):
        if launch not in recorded:
            for name, rows in read_spool(spool_path(folder, launch)).items():
                found[name] += rows
    return found


def _frame(table: "pa.Table") -> "pd.DataFrame":
    """The table as a frame. Each column is given back as soon as it is copied: millions of rows fit but once."""
    import pyarrow as pa

    table = table.unify_dictionaries()
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    for name in frame.select_dtypes("category"):  # sorting by it is to sort by its words
        frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
    pa.default_memory_pool().release_unused()
    return frame


def _condensed(table: "pa.Table", condense: "Callable[[pd.DataFrame], pd.DataFrame]") -> "pd.DataFrame":
    """What ``condense`` makes of the launches of a table, two chunks of :data:`CHUNK_ROWS` rows and more at a time."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    launch = table["launch"].to_numpy()
    if (np.diff(launch) < 0).any():
        order = np.argsort(launch, kind="stable")
        table, launch = table.take(order), launch[order]
    table = table.unify_dictionaries()
    starts = [0]
    while starts[-1] < len(launch):
        last = launch[min(starts[-1] + CHUNK_ROWS, len(launch)) - 1]
        starts.append(int(np.searchsorted(launch, last, "right")))
    with ThreadPoolExecutor(max_workers=2) as pool:
        slices = [table.slice(start, end - start) for start, end in pairwise(starts)] or [table]
        parts = list(pool.map(lambda part: condense(part.to_pandas()), slices))
    del table, slices
    pa.default_memory_pool().release_unused()
    whole = pd.concat(parts, ignore_index=True)
    return whole.astype({name: whole[name].cat.categories.dtype for name in whole.select_dtypes("category")})


def _with_salvaged(
    tables: "dict[str, pd.DataFrame]", salvaged: dict[str, list[dict[str, Any]]]
) -> "dict[str, pd.DataFrame]":
    import pandas as pd

    return {
        name: pd.concat([tables[name], _table(rows, COLUMNS[name]).to_pandas()], ignore_index=True)
        if len(tables[name])
        else _table(rows, COLUMNS[name]).to_pandas()
        for name, rows in salvaged.items()
        if rows
    }


def _read_document(path: str) -> dict[str, Any]:
    file = os.path.join(path, "run.json")
    if not _is_file(file):
        raise RequestError("RUN", f"{path} is no run folder: it has no run.json", "give a folder made by 'bench run'")
    try:
        with open(file, encoding="utf-8") as text:
            document = json.load(text)
    except (ValueError, RecursionError) as error:
        raise RequestError("RUN", f"{file} is damaged: {error}", "restore it, or measure again") from error
    wrong = [key for key, kind in DOCUMENT.items() if type(_get(document, key)) is not kind]
    if wrong:
        raise RequestError("RUN", f"{file} has no usable {wrong[0]!r}", "give a folder made by 'bench run'")
    if document["schema_version"] < (SEALED_SINCE if "seal" in document else 1):
        raise RequestError("RUN", f"{file} has a schema version that it is not of", "restore it, or measure again")
    if document["schema_version"] > SCHEMA_VERSION:
        raise RequestError(
            "RUN",
            f"{file} has schema version {document['schema_version']} and this bench reads up to {SCHEMA_VERSION}",
            "use the bench that wrote it, or a newer one",
        )
    for name, seal in document["files"].items():
        if not isinstance(_get(seal, "sha256"), str):
            raise RequestError("RUN", f"{file} has no checksum of {name}", "restore it, or measure again")
    migrated = migrate(document)
    sealed = "seal" in document or document["schema_version"] >= SEALED_SINCE
    if sealed and document.get("seal") != _seal_or_none(document):
        raise RequestError("RUN", f"{file} was changed after it was sealed", "restore it, or measure again")
    if not _has_records(migrated):
        raise RequestError("RUN", f"{file} has a launch without a number", "restore it, or measure again")
    return migrated


def _seal_or_none(document: dict[str, Any]) -> str | None:
    try:
        return seal_of(document)
    except ValueError:  # NaN, which bench never writes
        return None


def _has_records(document: dict[str, Any]) -> bool:
    reference = document["reference"]
    kinds = [document["launches"], document["diagnostics"], document["superseded"]]
    kinds += [] if reference is None else [[reference]]
    kinds += [] if document["batch_search"] is None else [_get(document["batch_search"], "launches")]
    return all(isinstance(kind, list) for kind in kinds) and all(
        isinstance(_get(record, "launch"), int) for kind in kinds for record in kind
    )


def migrate(document: dict[str, Any]) -> dict[str, Any]:
    """A run.json of any schema version up to the reader's, as one of the reader's. ``schema_version`` stays.

    Version 2 added what version 1 lacks: diagnostic launches, the reference, precision, validity and parity. Version 3
    added the checksum of run.json itself, superseded launches, and what failed launches say of themselves.
    """
    return {**copy.deepcopy(EMPTY), **document}


def _get(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None


def _recorded(table: "pa.Table", document: dict[str, Any]) -> "pa.Table":
    """The rows of the launches that have a record: one that was being written when the run ended has none yet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    launches = pa.array([record["launch"] for record in records_of(document)], pa.int32())
    return table.filter(pc.is_in(table["launch"], value_set=launches))


def _rows(path: str, name: str, document: dict[str, Any], spooled: set[int], *, labels: bool) -> "pa.Table":
    """A table of a run. Of one that is incomplete, a launch without a record has its samples alone, and those once.

    ``spooled``: the launches whose samples come from what the sampler left. ``labels``: as in :func:`_read_table`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _read_table(path, name, labels=labels)
    if document["complete"]:
        return table
    if name not in SAMPLED:
        return _recorded(table, document)
    return table.filter(pc.invert(pc.is_in(table["launch"], value_set=pa.array(sorted(spooled), pa.int32()))))


def _read_table(path: str, name: str, *, labels: bool = False, option: str = "RUN") -> "pa.Table":
    """A table as it is on disk. ``labels``: its text as a dictionary, for who holds it with few words and many rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = os.path.join(path, f"{name}.parquet")
    schema = _schema(COLUMNS[name], pa.dictionary(pa.int32(), pa.string()) if labels else pa.string())
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    if not os.path.isfile(file):
        return schema.empty_table()
    try:
        table = pq.read_table(file, page_checksum_verification=True, read_dictionary=texts, pre_buffer=False)
        for field in schema:
            if field.name in LATER_COLUMNS and field.name not in table.column_names:
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        table = table.select(schema.names).cast(schema)
        table.validate(full=True)  # a page's header is in no checksum: its labels may be of words that are not there
        return table
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise RequestError(option, f"{file} is damaged: {first}", "restore it, or measure again") from error
