"""The tables of a run: rows to Parquet, Parquet to frames."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.core import records
from bench.core.errors import RequestError
from bench.core.files import open_regular
from bench.runs.document import RunDocument
from bench.runs.files import RESTORE, limit_of, unreadable
from bench.runs.frames import Iterations, RankSteps

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq


ALWAYS_WRITTEN = ("steps", "memory")
"""Tables that a finished run has even if they are empty."""

SAMPLED = ("memory", "device")
"""Tables that the sampler fills, which has rows of a launch before the launch has a record."""

CHUNK_ROWS = 500_000
"""Of steps, condensed at a time."""

MOST_ROWS, FREE_ROWS = 20_000_000, 250_000
ROWS_PER_BYTE = {"steps": 0.25, "memory": 4.0, "device": 4.0, "numerics": 4.0, "diagnostics": 0.25}
"""How many rows a table may have, beyond those that are free: a step has its own times, while samples of many ranks
that hold the same for an hour take a third of a byte each, and launches may compute the same bit for bit. In a file
that was made to be a bomb it is a fiftieth."""
FREE_TEXT, TEXT_BYTES = 16 << 20, 400
"""How long the texts of a table may be in all, and of each row beyond that."""

COLUMNS = {
    "steps": records.STEP_COLUMNS,
    "memory": records.MEMORY_COLUMNS,
    "device": records.DEVICE_COLUMNS,
    "numerics": records.NUMERICS_COLUMNS,
    "diagnostics": records.DIAGNOSTIC_COLUMNS,
}


def to_table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> "pa.Table":
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), schema=_schema(columns, pa.string()))


def _schema(columns: dict[str, str], text: "pa.DataType") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([(name, text if kind == "string" else pa.type_for_alias(kind)) for name, kind in columns.items()])


def read_table(path: str, name: str, *, labels: bool = False, option: str = "RUN") -> "pa.Table":
    """A table as it is on disk. ``labels``: its text as a dictionary, which saves memory for few words in many rows.

    Raises :class:`RequestError` for what is damaged, is no such table, or cannot be true (:func:`untrue`).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = os.path.join(path, f"{name}.parquet")
    schema = _schema(COLUMNS[name], pa.string())
    try:
        with open_regular(file, limit=limit_of(file), within=path) as content:
            about = pq.read_metadata(content)
            problem = _another_form(about, name, schema, os.fstat(content.fileno()).st_size)
            if problem:
                raise RequestError(option, f"{file}: {problem}", RESTORE)
            there = [field for field in schema if field.name in about.schema.names]
            texts = [field.name for field in there if pa.types.is_string(field.type)]
            how = {"page_checksum_verification": True, "read_dictionary": texts, "pre_buffer": False}
            table = pq.ParquetFile(content, metadata=about, **how).read(columns=[field.name for field in there])
        table.validate(full=True)  # a page's header is in no checksum: labels may be of words that are not there
        problem = _long_texts(table) or untrue(table, name)
        if problem:
            raise RequestError(option, f"{file}: {problem}", RESTORE)
        for field in schema:
            if field not in there:
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table.cast(_schema(COLUMNS[name], pa.dictionary(pa.int32(), pa.string()) if labels else pa.string()))
    except FileNotFoundError:
        return _schema(COLUMNS[name], pa.string()).empty_table()
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename:
            raise unreadable(option, file, error) from error
        first = str(error).splitlines()[0]
        raise RequestError(option, f"{file} is damaged: {first}", RESTORE) from error


def _another_form(about: "pq.FileMetaData", name: str, schema: "pa.Schema", size: int) -> str | None:
    """Why a file is no such table of bench, or larger than its bytes can truly say, before it is read; else None."""
    import pyarrow as pa

    found = about.schema.to_arrow_schema()
    later = records.LATER_COLUMNS.get(name, ())
    columns = [column for column in found.names if column in schema.names]
    missing = [column for column in schema.names if column not in columns]
    if columns + missing != schema.names or not set(missing) <= set(later) or (missing and len(found) > len(columns)):
        return f"its columns are not those of {name}.parquet in their order"
    for column in columns:
        kind = found.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if kind != schema.field(column).type:
            return f"{column} must be {schema.field(column).type}, not {kind}"
    most = min(MOST_ROWS, FREE_ROWS + int(size * ROWS_PER_BYTE[name]))
    if about.num_rows > most:
        return f"it says that it has {about.num_rows:,} rows, and a file of {size:,} bytes has at most {most:,}"
    if about.num_columns > 2 * len(schema):
        return f"it has {about.num_columns} columns"
    chunks = [about.row_group(group).column(at) for group in range(about.num_row_groups) for at in range(len(found))]
    if {chunk.compression for chunk in chunks} - {"SNAPPY", "UNCOMPRESSED"}:
        return "it is compressed in another way than by bench, and may be larger than any memory"
    return None


def _long_texts(table: "pa.Table") -> str | None:
    """Whether its texts, which a dictionary keeps once, would take more memory than they can be worth."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            lengths = pc.binary_length(chunk.dictionary)
            if len(lengths) and (pc.max(lengths).as_py() or 0) > TEXT_BYTES:
                total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    return None if total <= FREE_TEXT + TEXT_BYTES * table.num_rows else f"its texts take {total:,} bytes"


def untrue(table: "pa.Table", name: str) -> str | None:
    """What cannot be in a table: a null or a number that may not be there, a row twice. None if all is well."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in table.column_names:
        values = table[column]
        if values.null_count and column in records.ALWAYS_KNOWN[name]:
            return f"{column} is unknown in {values.null_count:,} of {table.num_rows:,} rows"
        if column in records.RANGES:
            least, most = records.RANGES[column]
            floats = pa.types.is_floating(values.type)
            ends = pc.min_max(values).as_py()
            if (
                least <= (ends["min"] or 0)
                and (ends["max"] or 0) <= most
                and not (floats and pc.any(pc.is_nan(values)).as_py())
            ):
                continue
            bounds = [float(bound) if floats else bound for bound in (least, most)]
            within = pc.and_(pc.greater_equal(values, bounds[0]), pc.less_equal(values, bounds[1]))  # NaN is not
            if column in records.NOT_FINITE:
                within = pc.or_(within, pc.invert(pc.is_finite(values)))
            if pc.all(within).as_py() is False:
                count = pc.sum(pc.invert(within)).as_py()
                return f"{column} must be from {least:,} to {most:,}, and is not in {count:,} rows"
    twice = _twice(table, records.KEYS[name])
    if twice:
        return f"{twice:,} rows are there twice, by {', '.join(records.KEYS[name])}"
    if name in records.COUNTED and not _is_counted(table, *records.COUNTED[name]):
        same, column = records.COUNTED[name]
        return f"{column} does not count from 0 for each {', '.join(same)}"
    return next((what for what, rows in _unlawful(table, name) if pc.any(rows).as_py()), None)


def _unlawful(table: "pa.Table", name: str) -> Iterator[tuple[str, "pa.ChunkedArray"]]:
    """What columns may not say together, and the rows where they do."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {column: pc.is_valid(table[column]) for column in table.column_names}
    if name == "memory":
        unheard = {*pc.unique(table["source"]).to_pylist()} - {*records.MEMORY_SOURCES}
        yield f"source is none of {', '.join(records.MEMORY_SOURCES)}", pa.array([bool(unheard)])
        used, unknown = known["used_mib"], pc.invert(known["used_mib"])
        yield "used_mib is unknown without a reason", pc.and_not(unknown, known["reason"])
        yield "used_mib is known, and device is not", pc.and_not(used, known["device"])
        yield "host is known in some rows, and not in others", pc.and_(known["host"], pc.any(pc.invert(known["host"])))
    elif name == "diagnostics":
        kinds = table["synchronised"]
        uneven = 2 * (pc.sum(kinds).as_py() or 0) != len(kinds) - kinds.null_count
        yield "pairs lack a step with or without synchronisation", pc.and_(known["pair"], uneven)
        yield "pair is known, and backward_ms is not", pc.and_not(known["pair"], known["backward_ms"])
        yield (
            "only some of compute_ms, comm_ms and overlap_ms are known",
            pc.or_(pc.xor(known["compute_ms"], known["comm_ms"]), pc.xor(known["comm_ms"], known["overlap_ms"])),
        )
        yield "only one of pair and synchronised is known", pc.xor(known["pair"], known["synchronised"])
    elif name == "numerics":
        yield "rank and replicas are both known, or neither", pc.equal(known["rank"], known["replicas"])
        for column in [column for column in ("step", "tensor") if column in known]:
            of_group = ("launch", "rank", "replicas", "twin", "quantity", "computation")
            same = [other for other in of_group if other in known]
            groups = table.group_by([*same, *(["step"] if column == "tensor" else [])])
            seen = groups.aggregate([(column, "count_distinct"), (column, "max")])
            counted = pc.equal(seen[f"{column}_count_distinct"], pc.add(seen[f"{column}_max"], 1))
            yield f"{column} does not count from 0 for each {', '.join(same)}", pc.invert(counted)


def _twice(table: "pa.Table", key: Sequence[str]) -> int:
    """How many rows are like another one in the columns of ``key``. Quick where rows are in the order of these."""
    import numpy as np
    import pyarrow as pa

    if table.num_rows < 2:
        return 0
    columns = {name: _numbers(table[name]) for name in key if name in table.column_names}
    alike = np.ones(table.num_rows - 1, dtype=bool)
    for values in columns.values():
        if (alike & (values[1:] < values[:-1])).any():
            return int(table.num_rows - pa.table(columns).group_by(list(columns)).aggregate([]).num_rows)
        alike &= values[1:] == values[:-1]
    return int(alike.sum())


def _is_counted(table: "pa.Table", same: Sequence[str], column: str) -> bool:
    import numpy as np

    if not table.num_rows:
        return True
    begins = np.zeros(table.num_rows, dtype=bool)
    begins[0] = True
    for name in (name for name in same if name in table.column_names):
        values = _numbers(table[name])
        begins[1:] |= values[1:] != values[:-1]
    count = _numbers(table[column])
    return bool((count[begins] == 0).all() and ((np.diff(count) == 1) | begins[1:]).all())


def _numbers(column: "pa.ChunkedArray") -> Any:
    """A column as a numpy array of numbers: a text as its place in the dictionary, null as -1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array([chunk.indices for chunk in column.unify_dictionaries().chunks], pa.int32())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return pc.fill_null(column, -1).to_numpy()


def distinct(table: "pa.Table", *columns: str) -> list[tuple[Any, ...]]:
    """The values that rows have in these columns together, each once, in order."""
    import numpy as np
    import pyarrow as pa

    if not table.num_rows:
        return []
    changes = np.zeros(table.num_rows, dtype=bool)
    changes[0] = True
    for name in columns:
        values = _numbers(table[name])
        changes[1:] |= values[1:] != values[:-1]
    kinds = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in table.schema]
    some = table.filter(pa.array(changes)).cast(pa.schema(kinds)).select(list(columns))
    rows = some.group_by(list(columns)).aggregate([]).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in rows), key=str)


def recorded(table: "pa.Table", document: RunDocument) -> "pa.Table":
    """The rows of the launches that have a record."""
    import pyarrow as pa
    import pyarrow.compute as pc

    launches = pa.array([record.launch for record in document.records], pa.int32())
    return table.filter(pc.is_in(table["launch"], value_set=launches))


def to_frame(table: "pa.Table") -> "pd.DataFrame":
    """The table as a frame. Each column is freed as soon as it is copied: millions of rows fit only once."""
    import pyarrow as pa

    table = table.unify_dictionaries()
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    for name in frame.select_dtypes("category"):  # sorting by it is to sort by its words
        frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
    pa.default_memory_pool().release_unused()
    return frame


def condensed(table: "pa.Table", condense: Callable[[RankSteps], Iterations]) -> Iterations:
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
        parts = list(pool.map(lambda part: condense(RankSteps(part.to_pandas())).frame, slices))
    del table, slices
    pa.default_memory_pool().release_unused()
    whole = pd.concat(parts, ignore_index=True)
    words = {name: whole[name].cat.categories.dtype for name in whole.select_dtypes("category")}
    return Iterations(whole.astype(words))
