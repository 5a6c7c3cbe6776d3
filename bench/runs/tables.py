"""The tables of a run: rows to Parquet, Parquet to frames."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.core import records
from bench.core.errors import RequestError
from bench.runs.document import RunDocument
from bench.runs.frames import Iterations, RankSteps

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


ALWAYS_WRITTEN = ("steps", "memory")
"""Tables that a finished run has even if they are empty."""

SAMPLED = ("memory", "device")
"""Tables that the sampler fills, which has rows of a launch before the launch has a record."""

CHUNK_ROWS = 500_000
"""Of steps, condensed at a time."""

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
    """A table as it is on disk. ``labels``: its text as a dictionary, which saves memory for few words in many rows."""
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
            if field.name in records.LATER_COLUMNS.get(name, ()) and field.name not in table.column_names:
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        table = table.select(schema.names).cast(schema)
        table.validate(full=True)  # a page's header is in no checksum: its labels may be of words that are not there
        return table
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise RequestError(option, f"{file} is damaged: {first}", "restore it, or measure again") from error


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
