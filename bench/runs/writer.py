"""Writing a run: the only place that changes a run document, and the order in which things reach the disk.

    results/<UTC yyyymmddThhmmssZ>-<8 hex>/
        run.json  steps.parquet  memory.parquet  device.parquet (GPU only)  logs/

While a run lasts, a launch adds a file with its rows for each table, and a line to a journal, both in ``.parts/``
(:mod:`bench.runs.journal`): what that takes does not grow with the run. When the journal has become a tenth as long as
``run.json``, that is written again. The end joins the parts to tables, and writes ``run.json`` with ``complete: true``
and the row count and SHA-256 of every other file.
"""

import io
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Self

from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.core.records import SCHEMA_VERSION
from bench.runs import document as parts
from bench.runs import journal
from bench.runs.digests import Digest
from bench.runs.files import DIGEST, PARTS, TEMPORARY, append, describe_files, seal_of, unwritable, write_atomically
from bench.runs.frames import RankSteps, TableRow
from bench.runs.launches import LaunchRecord, Record
from bench.runs.reader import Run, verified
from bench.runs.tables import ALWAYS_WRITTEN, COLUMNS, capped, part_path, read_table, recorded, refuse_harmful, to_table
from bench.seams.experiment import name_of

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[TableRow]

REWRITTEN_AT = 0.1  # of the length of run.json, that of the journal at which it is written again


class RunWriter:
    """A run folder that is being written. A launch's rows are on disk when :meth:`add` or its like returns."""

    _parts = 0  # files with rows of single launches that were written

    def __init__(self, out: str, document: parts.RunDocument, began: time.struct_time | None = None) -> None:
        """``began``: when the run did, in UTC, if that is not now."""
        self.id = f"{time.strftime('%Y%m%dT%H%M%SZ', began or time.gmtime())}-{secrets.token_hex(4)}"
        self.path = os.path.join(os.path.abspath(out), self.id)
        self._document = self._noted = replace(document, run=self.id)
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in COLUMNS}
        try:
            os.makedirs(os.path.join(self.path, "logs"))
            self.seal(complete=False)
        except BaseException as error:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise unwritable("--out", self.path, error, "give another folder") from error
            raise

    @classmethod
    def reopen(cls, path: str) -> Self:
        """Continue an existing run, with the rows of every launch that has a record.

        The rows of a launch without a record go, and its logs get another name. Raises :class:`RequestError`.
        """
        document = verified(path, allow_incomplete=True, option="--resume")
        for folder in (os.path.join(path, name) for name in ("logs", ".scratch", PARTS)):
            if os.path.islink(folder):
                raise RequestError("--resume", f"{folder} is a link", "put the folder itself in its place")
        writer = cls.__new__(cls)
        writer.id = os.path.basename(os.path.abspath(path))
        writer.path = os.path.abspath(path)
        writer._document = document
        refuse_harmful(path, option="--resume")
        writer._tables = {
            name: [recorded(read_table(path, name, complete=document.complete, option="--resume"), document)]
            for name in COLUMNS
        }
        shutil.rmtree(os.path.join(path, ".scratch"), ignore_errors=True)
        for name in filter(TEMPORARY.fullmatch, os.listdir(path)):
            os.unlink(os.path.join(path, name))  # a SIGKILL came while it was written
        for name in sorted(os.listdir(writer.logs)):
            if re.match(rf"launch-0*{document.next_launch}-.*\.log$", name):
                os.rename(os.path.join(writer.logs, name), os.path.join(writer.logs, f"interrupted-{name}"))
        writer._join()
        writer.seal(complete=False)
        if os.path.isdir(os.path.join(path, PARTS)):
            shutil.rmtree(os.path.join(path, PARTS))
        return writer

    @property
    def document(self) -> parts.RunDocument:
        return self._document

    @property
    def logs(self) -> str:
        """The folder for what ranks print, and with it that of the run: a scenario may have removed them."""
        path = os.path.join(self.path, "logs")
        os.makedirs(path, exist_ok=True)
        return path

    @property
    def scratch(self) -> str:
        """A folder for what ranks and sampler hand over, removed when the run is done."""
        path = os.path.join(self.path, ".scratch")
        os.makedirs(path, exist_ok=True)
        return path

    def add(self, *records: LaunchRecord, noted: object = None, **tables: Rows) -> None:
        """Put measured launches and the rows of each table on disk. ``noted``: as :meth:`note` takes it."""
        self._change(launches=(*self._document.launches, *records))
        if noted is None:
            self.put(**tables)
        else:
            self.note(noted, **tables)

    def add_to(self, experiment: type[Any], record: Record, field: str = "launches", /, **tables: Rows) -> None:
        """Put a launch of an experiment on disk. ``experiment``: the type of its record; ``field``: of that."""
        begun = self._document.begun(experiment)
        self.note(replace(begun, **{field: (*getattr(begun, field), record)}), **tables)

    def note(self, experiment: object, **tables: Rows) -> None:
        """Put the record of an experiment on disk, in the place of its last one, and the rows of a launch of it."""
        self._change(experiments={**self._document.experiments, name_of(type(experiment)): experiment})
        self.put(**tables)

    def note_request(self, request: parts.Asked, workload: parts.WorkloadRecord | None = None) -> None:
        """Another request, from now on, and another workload if it is of one."""
        self._change(request=request, workload=workload or self._document.workload)
        self.put()

    def note_resumed(self, resumed: parts.Resumed, now: parts.RunDocument) -> None:
        """``now``: the circumstances of this part; its probe seed is for a run that has none yet."""
        before = self._document
        seed = now.probe_seed if before.probe_seed is None else before.probe_seed
        request = replace(before.request, launches=now.request.launches)
        self._change(request=request, resumed=(*before.resumed, resumed), probe_seed=seed, engine=now.engine)
        self.put()

    def judge(self, run: Run) -> None:
        """Take over the verdicts in the document of ``run``, and keep it as ``judged``: its tables cost time."""
        by, self.judged = run.document, run
        self._change(validity=by.validity, parity=by.parity, recommendation=by.recommendation)

    def supersede(self, record: Record, reason: str | None = None) -> None:
        """Take a launch of any kind out of what tables show, for its own reason or this one. Its rows stay."""
        superseded = (*self._document.superseded, record if reason is None else replace(record, reason=reason))
        experiments = {name: _without(record, one) for name, one in self._document.experiments.items()}
        self._document = replace(_without(record, self._document), experiments=experiments, superseded=superseded)

    def frames(self) -> Run:
        """The run as it would be read now."""
        tables = {name: self._whole(name).to_pandas(use_threads=False) for name in COLUMNS}
        return Run(path=self.path, document=self._document, timed=RankSteps(tables.pop("steps")), **tables)

    def put(self, **tables: Rows) -> None:
        """Put the rows of a launch on disk, and then what changed in the document."""
        for name, rows in tables.items():
            if rows:
                table = capped(to_table(rows, COLUMNS[name]))
                self._tables[name].append(table)
                self._parts += 1
                part = part_path(self.path, name, self._parts)
                os.makedirs(os.path.dirname(part), exist_ok=True)
                write_atomically(part, _as_parquet(table))
        line = journal.checked_line(journal.change(self._noted, self._document))
        append(self._journal_path, line)
        self._journal += len(line)
        self._noted = self._document
        if self._journal > self._sealed * REWRITTEN_AT:
            before = self._journal_path
            self._rewrite(complete=False)
            with suppress(FileNotFoundError):
                os.unlink(before)

    def finish(self, *, complete: bool, digest: Digest | None = None, end: parts.State | None = None) -> None:
        """Write what is still missing, and ``run.json`` for the last time. ``digest``: None for a run without one."""
        self._change(end=end)
        self._join()
        shutil.rmtree(os.path.join(self.path, ".scratch"), ignore_errors=True)
        if digest is not None:
            self._write(DIGEST, as_text(digest))
        self.seal(complete=complete)
        shutil.rmtree(os.path.join(self.path, PARTS), ignore_errors=True)

    def seal(self, *, complete: bool) -> None:
        """Write ``run.json`` with the checksum and row count of every other file."""
        self._change(files=describe_files(self.path))
        self._rewrite(complete=complete)

    def _rewrite(self, *, complete: bool) -> None:
        """Write ``run.json`` as the document is, and begin another journal."""
        self._change(complete=complete, seal=None, schema_version=SCHEMA_VERSION)
        encoded = encode(self._document)
        self._change(seal=seal_of(encoded))
        text = as_text(encoded | {"seal": self._document.seal})
        self._write("run.json", text)
        self._noted, self._sealed, self._journal = self._document, len(text), 0

    @property
    def _journal_path(self) -> str:
        return journal.journal_path(self.path, self._document.seal)

    def _change(self, **fields: Any) -> None:
        self._document = replace(self._document, **fields)

    def _whole(self, name: str) -> "pa.Table":
        import pyarrow as pa

        return pa.concat_tables(self._tables[name] or [to_table([], COLUMNS[name])])

    def _join(self) -> None:
        """Write the tables, whole."""
        for name, tables in self._tables.items():
            if any(table.num_rows for table in tables) or name in ALWAYS_WRITTEN:
                self._write(f"{name}.parquet", _as_parquet(self._whole(name)))

    def _write(self, name: str, content: bytes) -> None:
        write_atomically(os.path.join(os.path.dirname(self.logs), name), content)


def _without(record: Record, part: Any) -> Any:
    """A document, or the record of an experiment in it, whose tuples do not have this launch."""
    kept = {
        field.name: tuple(one for one in value if one is not record)
        for field in fields(part)
        if isinstance(value := getattr(part, field.name), tuple) and any(one is record for one in value)
    }
    return replace(part, **kept) if kept else part


def _as_parquet(table: "pa.Table") -> bytes:
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(table, content, write_page_checksum=True)
    return content.getvalue()


def as_text(document: Mapping[str, object]) -> bytes:
    """A JSON document as bench lays it out. Raises ``ValueError`` for NaN."""
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
