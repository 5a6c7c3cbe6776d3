"""The file between the sampler and the tables: samples of one launch, handed over as soon as they are taken.

A line is a JSON document ``[table, row]``, written to the file after every sample. So if the sampler is killed, what it
sampled until then is read back when the launch ends.
"""

import json
import os
from collections.abc import Sequence

from bench.core.files import open_regular, parse_json
from bench.runs.frames import TableRow

SPOOL_BYTES = 1 << 30


def spool_path(folder: str, launch: int) -> str:
    return os.path.join(folder, f"samples-{launch}.jsonl")


def read_spool(path: str) -> dict[str, list[TableRow]]:
    """The rows of a launch by table, ``memory`` and ``device``. A last line that is cut off is left out.

    Raises ``OSError`` for what is no file in its folder, and ``ValueError`` for what no sampler has written.
    """
    tables: dict[str, list[TableRow]] = {"memory": [], "device": []}
    try:
        file = open_regular(path, limit=SPOOL_BYTES, within=os.path.dirname(path))
    except FileNotFoundError:
        return tables
    with file:
        for line in file:
            if line.endswith(b"\n"):
                table, row = parse_json(line)
                tables[table].append(row)
    return tables


class Spool:
    """The end that writes. If the disk refuses, ``problem`` says why, and the launch goes on without samples."""

    def __init__(self, path: str) -> None:
        self.problem: str | None = None
        self._fd: int | None = None
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # an earlier launch may have removed it
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            self._refused(error)

    def append(self, table: str, rows: Sequence[TableRow]) -> None:
        """Hand rows to the operating system, so that they outlive this process."""
        lines = b"".join(json.dumps([table, row]).encode() + b"\n" for row in rows)
        try:
            while lines and self.problem is None and self._fd is not None:
                lines = lines[os.write(self._fd, lines) :]
        except OSError as error:
            self._refused(error)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def _refused(self, error: OSError) -> None:
        self.problem = f"the samples could not be written: {error.strerror}"
