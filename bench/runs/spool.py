"""The file between the sampler and the tables: samples of one launch, on disk as soon as they are taken.

One JSON document a line, ``[table, row]``, handed to the operating system after every sample. So whatever is killed,
what was sampled until then can be read back: when the launch ends, or by ``bench.runs.reader`` from an unfinished run.
Every :data:`SYNC_S` it is flushed to disk, so that a crash of the machine loses some seconds and no more.
"""

import json
import os
import re
import time
from typing import Any

SYNC_S = 2.0

_NAME = re.compile(r"samples-(\d+)\.jsonl")


def spool_path(folder: str, launch: int) -> str:
    return os.path.join(folder, f"samples-{launch}.jsonl")


def spooled_launches(folder: str) -> list[int]:
    """The launches that have a spool in ``folder``, in order."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(match.group(1)) for name in names if (match := _NAME.fullmatch(name)))


def read_spool(path: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a launch by table, ``memory`` and ``device``, up to a line that is cut off or damaged.

    Behind such a line a crash of the machine leaves zeros, or an older block.
    """
    tables: dict[str, list[dict[str, Any]]] = {"memory": [], "device": []}
    if os.path.exists(path):
        with open(path, "rb") as file:
            for line in file:
                match _parsed(line):
                    case [("memory" | "device") as table, dict(row)]:
                        tables[table].append(row)
                    case _:
                        break
    return tables


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


class Spool:
    """The end that writes. If the disk refuses, ``problem`` says why, and the launch goes on without samples."""

    def __init__(self, path: str) -> None:
        self.problem: str | None = None
        self._fd: int | None = None
        self._sync_due_s = time.monotonic() + SYNC_S
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            self._refused(error)

    def append(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Hand rows to the operating system, so that they outlive this process."""
        lines = "".join(json.dumps([table, row]) + "\n" for row in rows).encode()
        try:
            while lines and self.problem is None and self._fd is not None:
                lines = lines[os.write(self._fd, lines) :]
        except OSError as error:
            self._refused(error)

    def sync(self) -> None:
        """Flush to disk if that is due: call it between samples, for a disk may be slow."""
        if self._fd is None or self.problem is not None or time.monotonic() < self._sync_due_s:
            return
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._refused(error)
        self._sync_due_s = time.monotonic() + SYNC_S

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def _refused(self, error: OSError) -> None:
        self.problem = f"the samples could not be written: {error.strerror}"
