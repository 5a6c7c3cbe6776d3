"""The tables of a run: rows to Parquet, Parquet to frames."""

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from glob import escape, glob
from typing import TYPE_CHECKING, Any

from bench.core import records
from bench.core.errors import RequestError, remedy_of
from bench.core.files import open_regular
from bench.runs.document import RunDocument
from bench.runs.files import PARTS, RESTORE, limit_of, unreadable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ALWAYS_WRITTEN = ("steps", "memory")  # tables that a finished run has even if they are empty

SAMPLED = ("memory", "device")
"""Tables that the sampler fills, which has rows of a launch before the launch has a record."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt, see malloc.h

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

    Raises :class:`RequestError` for what is damaged, is no such table, or cannot be true.
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

    texts = [column for column, kind in COLUMNS[name].items() if kind == "string"]
    file = os.path.join(path, file)
    try:
        with open_regular(file, limit=limit_of(file), within=path) as content:
            stored = pq.ParquetFile(content, page_checksum_verification=True, read_dictionary=texts, pre_buffer=False)
            most = min(MOST_ROWS, FREE_ROWS + int(os.fstat(content.fileno()).st_size * ROWS_PER_BYTE[name]))
            if stored.metadata.num_rows > most:
                raise ValueError(f"it says that it has {stored.metadata.num_rows:,} rows, and may have {most:,}")
            for number in range(stored.num_row_groups):
                table = stored.read_row_group(number, columns=schema.names)
                table.validate(full=True)  # a page's header is in no checksum: labels may be of words not there
                if problem := untrue(table, name):
                    raise ValueError(problem)
                yield table.cast(schema)
    except FileNotFoundError:
        return
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.filename:
            raise unreadable(option, file, error) from error
        first = str(error).splitlines()[0]
        if remedy_of(first):  # such as no thread to read it with
            raise OSError(f"{file} cannot be read: {first}") from error
        raise RequestError(option, f"{file} is damaged: {first}", RESTORE) from error


def untrue(table: "pa.Table", name: str) -> str | None:
    """A column that is not known, not a number or infinite where it must not be. None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in COLUMNS[name]:
        values = table[column]
        if values.null_count and column in records.ALWAYS_KNOWN[name]:
            return f"{column} is unknown in {values.null_count:,} of {table.num_rows:,} rows"
        free = not pa.types.is_floating(values.type) or column in records.NOT_FINITE
        if not free and pc.any(pc.invert(pc.is_finite(values))).as_py():
            return f"{column} is not a number in some rows"
    return None


def recorded(table: "pa.Table", document: RunDocument) -> "pa.Table":
    """The rows of the launches that have a record: in an incomplete run a launch may have rows and none yet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if document.complete:
        return table
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
            if column.dtype != values.dtype:
                column = column.astype(np.result_type(column, values))
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
    """The rows of ``pieces`` in tables of whole launches, each of :data:`CHUNK_ROWS` rows and more but for the last."""
    import numpy as np
    import pyarrow as pa

    held: list[pa.Table] = []
    last = -1
    for piece in pieces:
        launch = piece["launch"].to_numpy()
        first = 0
        for begin in np.flatnonzero(np.diff(launch, prepend=last)).tolist():
            if sum(map(len, held)) + begin - first >= CHUNK_ROWS:
                yield pa.concat_tables([*held, piece.slice(first, begin - first)])
                held, first = [], begin
        held.append(piece.slice(first))
        last = int(launch[-1]) if len(launch) else last
    yield pa.concat_tables(held)
