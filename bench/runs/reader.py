"""Reading a run: refused where a file is missing, changed or damaged; otherwise values.

python -c "from bench.runs.reader import read; print(read('results/RUN').steps)"
"""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.core.codec import decode
from bench.core.errors import RequestError
from bench.core.files import read_json
from bench.core.records import PHASES, SCHEMA_VERSION
from bench.runs import journal, tables
from bench.runs.document import RunDocument
from bench.runs.files import RESTORE, checksum, is_file, seal_of, unreadable
from bench.runs.frames import Iterations, RankSteps
from bench.seams.experiment import verb_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

READ_IN_PART = "read what is there with --allow-incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read from its folder. Tables have the columns of ``bench.core.records``; ``timed``: its steps.

    Where they were condensed, ``device`` has some of its columns, and ``per_device`` is what was made of all of them.
    """

    path: str
    document: RunDocument
    timed: RankSteps | Iterations
    memory: "pd.DataFrame"
    device: "pd.DataFrame"
    numerics: "pd.DataFrame"
    diagnostics: "pd.DataFrame"
    per_device: "pd.DataFrame | None" = None

    @property
    def id(self) -> str:
        return os.path.basename(self.path)

    @property
    def steps(self) -> "pd.DataFrame":
        """The rows of steps.parquet, if they were not condensed."""
        assert isinstance(self.timed, RankSteps), "its steps were condensed when it was read"
        return self.timed.frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Condense:
    """What makes few rows of many, for callers that need not hold millions of them at once. Functions of the rows of
    whole launches: ``steps``, and for iterations ``devices`` of device.parquet, of which ``kept`` are needed later."""

    steps: "Callable[[pd.DataFrame], pd.DataFrame]"
    devices: "Callable[[Iterations], Callable[[pd.DataFrame], pd.DataFrame]]"
    kept: Sequence[str]


def read(
    path: str,
    *,
    allow_incomplete: bool = False,
    condense: Condense | None = None,
    remedy: str | None = READ_IN_PART,
    document: RunDocument | None = None,
) -> Run:
    """Read and verify a run folder. ``remedy``: what to do about one that is incomplete; None: to finish it.
    ``document``: what :func:`verified` gave, if it was called already.

    Raises :class:`RequestError` that names the file if the folder is no run, is incomplete, is of another schema, or
    has a file that is missing or was changed after it was sealed.
    """
    import pandas as pd
    import pyarrow as pa

    document = document or verified(path, allow_incomplete=allow_incomplete, remedy=remedy)
    for name in tables.ALWAYS_WRITTEN if document.complete else ():
        if f"{name}.parquet" not in document.files:
            raise RequestError("RUN", f"{path}/{name}.parquet is missing", RESTORE)
    if not os.path.isfile(os.path.join(path, "steps.parquet")) and not tables.parts_of(path, "steps"):
        raise RequestError("RUN", f"{path} has no steps: no launch was done", "measure again")
    tables.refuse_harmful(path)
    timed: RankSteps | Iterations
    frames: dict[str, pd.DataFrame] = {}
    if condense is None:
        timed = RankSteps(tables.to_frame(_rows(path, "steps", document, labels=False)))
    else:
        timed = Iterations(_condensed(path, "steps", document, condense.steps))
        if document.complete:
            kept: list[pa.Table] = []
            frames["per_device"] = _condensed(path, "device", document, condense.devices(timed), kept, condense.kept)
            frames["device"] = tables.to_frame(pa.concat_tables(kept))
    for name in (name for name in tables.COLUMNS if name != "steps" and name not in frames):
        frames[name] = tables.to_frame(_rows(path, name, document, labels=name in tables.SAMPLED))
    return Run(path=os.path.abspath(path), document=document, timed=timed, **frames)


def excerpt(run: Run, launch: int, first: int, last: int) -> "pd.DataFrame":
    """The phases of all ranks of a launch from one step to another, from the file: those of ``run`` may be condensed.

    Empty while a launch is not in steps.parquet, as in a run that was interrupted.
    """
    import pandas as pd

    file = os.path.join(run.path, "steps.parquet")
    wanted = [("launch", "==", launch), ("step", ">=", first), ("step", "<=", last)]
    needed = ["launch", "rank", "step", "start_ns", *(f"{phase}_ms" for phase in PHASES)]
    if not os.path.isfile(file):
        return pd.DataFrame(columns=needed)
    return pd.read_parquet(file, columns=needed, filters=wanted, pre_buffer=False, buffer_size=1 << 20)


def verified(
    path: str, *, allow_incomplete: bool, remedy: str | None = READ_IN_PART, option: str = "RUN"
) -> RunDocument:
    """The document of a run whose files are as it says. Raises :class:`RequestError` in the name of ``option``.
    ``remedy``: as :func:`read` takes it."""
    try:
        document = _read_document(path)
        if not document.complete and not allow_incomplete:
            verb = verb_of(document.experiments)
            whole = f"finish it with 'python -m bench {verb} --resume {shlex.quote(path)}'" if verb else "measure again"
            problem = f"{path} is incomplete: it was interrupted, or is still being written"
            raise RequestError("RUN", problem, remedy or f"{whole}, or give another one")
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


def _read_document(path: str) -> RunDocument:
    file, remedy = os.path.join(path, "run.json"), "give a folder made by 'bench run'"
    if not is_file(file):
        raise RequestError("RUN", f"{path} is not a run folder: it has no run.json", remedy)
    try:
        stored = read_json(file, within=path)
    except ValueError as error:
        raise RequestError("RUN", f"{file} is damaged: {error}", RESTORE) from error
    version = stored.get("schema_version") if isinstance(stored, dict) else None
    if type(version) is not int or "path" in stored:
        what = "is not a run.json of bench" if type(version) is not int else "is what --json printed, not a run"
        raise RequestError("RUN", f"{file} {what}", remedy)
    if version != SCHEMA_VERSION:
        problem = f"{file} has schema version {version} and this bench reads {SCHEMA_VERSION}"
        raise RequestError("RUN", problem, "use the bench that wrote it, or measure again")
    try:
        if stored.get("seal") != seal_of(stored):
            raise RequestError("RUN", f"{file} was changed after it was sealed", RESTORE)
        if stored.get("complete") is False:
            journal.replay(journal.journal_path(path, stored["seal"]), stored)
        return decode(RunDocument, stored)
    except ValueError as error:
        raise RequestError("RUN", f"{file}: {error}", RESTORE) from error


def _condensed(
    path: str,
    name: str,
    document: RunDocument,
    condense: "Callable[[pd.DataFrame], pd.DataFrame]",
    kept: "list[pa.Table] | None" = None,
    columns: Sequence[str] = (),
) -> "pd.DataFrame":
    """What ``condense`` makes of a table of a run; ``kept`` takes its rows with these ``columns``."""
    import pyarrow as pa

    ends: list[pa.Table] = []

    def checked() -> Iterator[pa.Table]:
        for piece in tables.read_pieces(path, name, complete=document.complete, labels=True):
            rows = piece if document.complete else tables.recorded(piece, document)
            ends.append(tables.ends_of(rows))
            if kept is not None:
                kept.append(rows.select(columns))
            yield rows

    try:
        frame = tables.condensed(tables.whole_launches(checked()), condense)
        problem = tables.stray(tables.ends_of(pa.concat_tables(ends)), document)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise RequestError("RUN", f"{os.path.join(path, name)}.parquet: {problem}", RESTORE)
    return frame


def _rows(path: str, name: str, document: RunDocument, *, labels: bool) -> "pa.Table":
    """A table of a run. In an incomplete run a launch may have rows and no record yet: those are left out.

    ``labels``: see :func:`bench.runs.tables.read_table`.
    """
    table = tables.read_table(path, name, complete=document.complete, labels=labels)
    problem = tables.stray(tables.ends_of(table), document) or (tables.uneven(table) if name == "numerics" else None)
    if problem:
        raise RequestError("RUN", f"{os.path.join(path, name)}.parquet: {problem}", RESTORE)
    return table if document.complete else tables.recorded(table, document)
