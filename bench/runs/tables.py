"""The tables of a run: rows to Parquet, Parquet to frames."""

import ctypes
import faulthandler
import math
import os
import select
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from glob import escape, glob
from typing import IO, TYPE_CHECKING, Any

from bench.core import records
from bench.core.children import fork
from bench.core.errors import RequestError, remedy_of
from bench.core.files import open_regular
from bench.runs.document import RunDocument
from bench.runs.files import PARTS, RESTORE, limit_of, unreadable
from bench.runs.launches import LaunchRecord

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ALWAYS_WRITTEN = ("steps", "memory")  # tables that a finished run has even if they are empty

SAMPLED = ("memory", "device")
"""Tables that the sampler fills, which has rows of a launch before the launch has a record."""

SKETCHES = ("probed", "buffer", "alone", "own")
"""Quantities of numerics.parquet that have a row for each step, tensor and position."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt, see malloc.h

BOUNDED = ("update_error", "update_bound")
"""Quantities of numerics.parquet of which each row of one has a row of the other."""

CHILD_S = 20
"""For a look at files' metadata, which takes milliseconds."""

CHUNK_ROWS = 100_000  # of steps, condensed at a time

MOST_ROWS, FREE_ROWS = 20_000_000, 250_000
ROWS_PER_BYTE = {"steps": 0.25, "memory": 4.0, "device": 4.0, "numerics": 4.0, "diagnostics": 0.25}
"""How many rows a table may have, beyond those that are free: a step has its own times, while samples of many ranks
that hold the same for an hour take a third of a byte each, and launches may compute the same bit for bit."""

COLUMNS = {
    "steps": records.STEP_COLUMNS,
    "memory": records.MEMORY_COLUMNS,
    "device": records.DEVICE_COLUMNS,
    "numerics": records.NUMERICS_COLUMNS,
    "diagnostics": records.DIAGNOSTIC_COLUMNS,
}


def to_table(rows: Sequence[Mapping[str, object]], columns: dict[str, str]) -> "pa.Table":
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), schema=_schema(columns, pa.string()))


def capped(table: "pa.Table") -> "pa.Table":
    """With infinity for what a training computed beyond the range of its column: double precision alone holds it."""
    import pyarrow.compute as pc

    for name in {*records.NOT_FINITE} & {*table.column_names}:
        values, most = table[name], float(records.RANGES[name][1])
        values = pc.if_else(pc.greater(pc.abs(values), most), pc.multiply(values, math.inf), values)
        table = table.set_column(table.column_names.index(name), table.field(name), values)
    return table


def _schema(columns: dict[str, str], text: "pa.DataType") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([(name, text if kind == "string" else pa.type_for_alias(kind)) for name, kind in columns.items()])


def read_table(path: str, name: str, *, complete: bool, labels: bool = False, option: str = "RUN") -> "pa.Table":
    """A table of a run, of the pieces that :func:`read_pieces` has."""
    import pyarrow as pa

    return pa.concat_tables(read_pieces(path, name, complete=complete, labels=labels, option=option))


def read_pieces(
    path: str, name: str, *, complete: bool, labels: bool = False, option: str = "RUN"
) -> "Iterator[pa.Table]":
    """An empty table, and the row groups of a table of a run; if it is not ``complete``, the parts not yet in it too.
    ``labels``: its text as a dictionary, which saves memory for few words in many rows.

    Raises :class:`RequestError` for what is damaged, is no such table, or cannot be true. To be called after
    :func:`refuse_harmful`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = _schema(COLUMNS[name], pa.dictionary(pa.int32(), pa.string()) if labels else pa.string())
    joined: set[int] = set()
    yield schema.empty_table()
    for table in _row_groups(path, f"{name}.parquet", name, schema, option):
        if not complete:
            joined.update(pc.unique(table["launch"]).to_pylist())
        yield table
    for file in [] if complete else parts_of(path, name):
        for part in _row_groups(path, file, name, schema, option):
            yield part.filter(pc.invert(pc.is_in(part["launch"], value_set=pa.array(sorted(joined), pa.int32()))))


def part_path(path: str, name: str, number: int) -> str:
    return os.path.join(path, PARTS, f"{name}-{number:06d}.parquet")


def parts_of(path: str, name: str) -> list[str]:
    """The files with rows of single launches, in the order in which they were written."""
    files = glob(os.path.join(escape(path), PARTS, f"{name}-*.parquet"))
    return sorted(os.path.relpath(file, path) for file in files)


def _row_groups(path: str, file: str, name: str, schema: "pa.Schema", option: str) -> "Iterator[pa.Table]":
    """The parts of a file, each checked as soon as it is read; none where there is no file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = _schema(COLUMNS[name], pa.string())
    file = os.path.join(path, file)
    try:
        with open_regular(file, limit=limit_of(file), within=path) as content:
            texts = [field.name for field in plain if pa.types.is_string(field.type)]
            how = {"page_checksum_verification": True, "read_dictionary": texts, "pre_buffer": False}
            metadata = pq.read_metadata(content)
            problem = _another_form(metadata.schema.to_arrow_schema(), name, plain)
            most = min(MOST_ROWS, FREE_ROWS + int(os.fstat(content.fileno()).st_size * ROWS_PER_BYTE[name]))
            if metadata.num_rows > most:
                problem = f"it says that it has {metadata.num_rows:,} rows, and a file of its size has at most {most:,}"
            if problem:
                raise RequestError(option, f"{file}: {problem}", RESTORE)
            stored = pq.ParquetFile(content, metadata=metadata, **how)
            for number in range(stored.num_row_groups):
                table = stored.read_row_group(number, columns=plain.names)
                table.validate(full=True)  # a page's header is in no checksum: labels may be of words not there
                if problem := untrue(table, name):
                    raise RequestError(option, f"{file}: {problem}", RESTORE)
                yield table.cast(schema)
    except FileNotFoundError:
        return
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename:
            raise unreadable(option, file, error) from error
        first = str(error).splitlines()[0]
        if remedy_of(first):  # such as no thread to read it with
            raise OSError(f"{file} cannot be read: {first}") from error
        raise RequestError(option, f"{file} is damaged: {first}", RESTORE) from error


def _another_form(stored: "pa.Schema", name: str, schema: "pa.Schema") -> str | None:
    """Why a file is no such table of bench; else None."""
    import pyarrow as pa

    if [column for column in stored.names if column in schema.names] != schema.names:
        return f"its columns are not those of {name}.parquet in their order"
    for column in schema.names:
        kind = stored.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if kind != schema.field(column).type:
            return f"{column} must be {schema.field(column).type}, not {kind}"
    return None


def refuse_harmful(path: str, *, option: str = "RUN") -> None:
    """Raise :class:`RequestError` for a table of a run whose metadata would end or stop this process: where that of a
    column is damaged, pyarrow 26 lets an exception of C++ through, or waits for ever."""
    import pyarrow.parquet  # noqa: F401  # here, and not in each child

    files = [file for name in COLUMNS for file in (f"{name}.parquet", *parts_of(path, name))]
    files = [file for file in files if os.path.lexists(os.path.join(path, file))]
    if _in_a_child(lambda: _look_at(path, files)):
        return
    for file in files:
        if not _in_a_child(partial(_look_at, path, [file])):
            raise RequestError(option, f"{os.path.join(path, file)}: its column metadata is damaged", RESTORE)


def _look_at(path: str, files: Sequence[str]) -> None:
    """Read the metadata of all that can be read."""
    import pyarrow.parquet as pq

    for file in (os.path.join(path, one) for one in files):
        with suppress(Exception), open_regular(file, limit=limit_of(file), within=path) as content:
            metadata = pq.read_metadata(content)
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                for column in range(metadata.num_columns):
                    group.column(column).compression  # noqa: B018  # is read as it is asked for


def _in_a_child(look: Callable[[], object]) -> bool:
    """True if this ends in a child, well or with an exception."""

    def quietly(pipe: IO[bytes]) -> None:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        look()

    pid, pipe = fork(quietly)
    wait = select.poll()
    wait.register(pipe)
    if not wait.poll(1000 * CHILD_S):
        os.kill(pid, signal.SIGKILL)
    pipe.close()
    return os.waitpid(pid, 0)[1] == 0


def untrue(table: "pa.Table", name: str) -> str | None:
    """A null, a number or a word that may not be in a column. None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in COLUMNS[name]:
        values = table[column]
        if values.null_count and column in records.ALWAYS_KNOWN[name]:
            return f"{column} is unknown in {values.null_count:,} of {table.num_rows:,} rows"
        if column == "source" and not {*pc.unique(values).to_pylist()} <= {*records.MEMORY_SOURCES}:
            return f"source is none of {', '.join(records.MEMORY_SOURCES)}"
        if column not in records.RANGES:
            continue
        least, most = records.RANGES[column]
        if column in records.NOT_FINITE:
            values = values.filter(pc.is_finite(values))
        elif pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            return f"{column} is not a number in some rows"
        ends = pc.min_max(values).as_py()
        if ends["min"] is not None and not least <= ends["min"] <= ends["max"] <= most:
            return f"{column} must be from {least:,} to {most:,}, and is from {ends['min']:,} to {ends['max']:,}"
    return None


def ends_of(table: "pa.Table") -> "pa.Table":
    """A row for each launch and scenario of a table, or of several of these joined: its highest ``rank``, and whether
    all its steps are ``warmup``, as far as the table has them."""
    ends = [(name, end) for name, end in (("rank", "max"), ("warmup", "min")) if name in table.column_names]
    groups = table.unify_dictionaries().group_by(["launch", "scenario"]).aggregate(ends)
    return groups.rename_columns({f"{name}_{end}": name for name, end in ends})


def stray(ends: "pa.Table", document: RunDocument) -> str | None:
    """A launch, or a rank of one, that a table has and the document does not, or a good launch without a measured step.
    None if there is none. ``ends``: of :func:`ends_of`."""
    records = {record.launch: record for record in document.records}
    groups = ends.to_pylist()
    for group in groups:
        record, launch = records.get(group["launch"]), group["launch"]
        if record is None and document.complete:
            return f"it has rows of launch {launch}, which has no record"
        if not isinstance(record, LaunchRecord):
            continue
        if record.scenario != group["scenario"]:
            return f"it has rows of launch {launch} under another scenario than {record.scenario}"
        if (group.get("rank") or 0) >= record.processes:
            return f"it has rows of launch {launch}, rank {group['rank']}, and there is no such rank"
    measured = {group["launch"] for group in groups if group.get("warmup") is False}
    for one in document.good if document.complete and "warmup" in ends.column_names else ():
        if one.launch not in measured:
            return f"it has no measured step of launch {one.launch}"
    return None


def uneven(numerics: "pa.Table") -> str | None:
    """A launch whose sketches are not of every position of every tensor in every step, or whose errors and bounds are
    not of the same tensors. None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sketches = numerics.filter(pc.is_in(numerics["quantity"].cast("string"), value_set=pa.array(SKETCHES)))
    ends, every = ("step", "tensor", "position"), pc.CountOptions(mode="all")
    groups = sketches.group_by(["launch", "rank", "quantity", "computation", "twin"])
    for group in groups.aggregate([*((name, "max") for name in ends), ("value", "count", every)]).to_pylist():
        sizes = [-1 if group[f"{name}_max"] is None else group[f"{name}_max"] + 1 for name in ends]
        if min(sizes) < 1 or math.prod(sizes) != group["value_count"]:
            return f"of launch {group['launch']} some numbers are missing"
    errors, bounds = (
        numerics.filter(pc.equal(numerics["quantity"].cast("string"), quantity)).select(["launch", "rank", *ends[:2]])
        for quantity in BOUNDED
    )
    return None if errors.equals(bounds) else "errors and bounds of updates are not of the same tensors"


def recorded(table: "pa.Table", document: RunDocument) -> "pa.Table":
    """The rows of the launches that have a record."""
    import pyarrow as pa
    import pyarrow.compute as pc

    launches = pa.array([record.launch for record in document.records], pa.int32())
    return table.filter(pc.is_in(table["launch"], value_set=launches))


def to_frame(table: "pa.Table") -> "pd.DataFrame":
    """The table as a frame. Each column is freed as soon as it is copied: millions of rows fit only once."""
    table = table.unify_dictionaries()
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    for name in frame.select_dtypes("category"):  # sorting by it is to sort by its words
        frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
    return frame


def condensed(tables: "Iterable[pa.Table]", condense: "Callable[[pd.DataFrame], pd.DataFrame]") -> "pd.DataFrame":
    """The tables after ``condense``, joined: two at a time, and never with all of their rows in memory."""
    import pandas as pd

    joined: dict[str, Any] = {}
    waiting: deque[Future[pd.DataFrame]] = deque()
    with ThreadPoolExecutor(max_workers=2) as pool:
        for table in tables:
            waiting.append(pool.submit(lambda rows: condense(to_frame(rows)), table))
            if len(waiting) > 4:
                _append(joined, waiting.popleft().result())
        while waiting:
            last = waiting.popleft().result()
            _append(joined, last)
    columns = {name: _joined(one) if isinstance(one, list) else one for name, one in joined.items()}
    return pd.DataFrame(columns, copy=False) if columns else last


def _joined(parts: "list[pd.Series[Any]]") -> "pd.Series[Any] | pd.Categorical":
    import pandas as pd
    from pandas.api.types import union_categoricals

    if all(part.dtype == "category" for part in parts):  # whose words pandas would else write out, row by row
        return union_categoricals(parts, sort_categories=True)
    return pd.concat(parts, ignore_index=True)


def _append(columns: dict[str, Any], frame: "pd.DataFrame") -> None:
    """Lengthen each column of numbers where it lies, since joining them at the end would take their memory twice; of
    others collect the parts."""
    import numpy as np
    import pandas as pd

    for name in map(str, frame) if len(frame) else ():
        values: Any = frame[name]
        column = columns.get(name)
        if values.dtype.kind in "biuf" and not isinstance(column, list):
            column = np.empty(0, values.dtype) if column is None else column
            column = column.astype(np.result_type(column, values), copy=False)
            column.resize(len(column) + len(values), refcheck=False)
            column[len(column) - len(values) :] = values
            columns[name] = column
            continue
        before = column if isinstance(column, list) else [] if column is None else [pd.Series(column)]
        columns[name] = [*before, values]


def free_at_once() -> None:
    """Let freed columns of millions of rows go back to the system: allocators would keep their memory for others.
    Smaller blocks stay until they are many: to take pages back and forth is a third of the time of reading."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    for parameter, size in ((M_MMAP_THRESHOLD, 4 << 20), (M_TRIM_THRESHOLD, 16 << 20)):
        ctypes.CDLL(None).mallopt(parameter, size)


def whole_launches(pieces: "Iterable[pa.Table]") -> "Iterator[pa.Table]":
    """The rows of ``pieces`` in tables of whole launches, each of :data:`CHUNK_ROWS` rows and more but for the last.

    Raises ``ValueError`` where a launch comes after a later one.
    """
    import numpy as np
    import pyarrow as pa

    held: list[pa.Table] = []
    last = -1
    for piece in pieces:
        launch = piece["launch"].to_numpy()
        if (np.diff(launch, prepend=last) < 0).any():
            raise ValueError("its launches are not in their order")
        first = 0
        for begin in np.flatnonzero(np.diff(launch, prepend=last)).tolist():
            if sum(map(len, held)) + begin - first >= CHUNK_ROWS:
                yield pa.concat_tables([*held, piece.slice(first, begin - first)])
                held, first = [], begin
        held.append(piece.slice(first))
        last = int(launch[-1]) if len(launch) else last
    yield pa.concat_tables(held)
