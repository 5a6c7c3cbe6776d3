"""The file between the sampler and the tables: samples of one launch, handed over as soon as they are taken.

A line is the CRC-32 of the rest of it, and a JSON document ``[table, row]``, written to the file after every sample. So
if the sampler is killed, what it sampled until then is read back when the launch ends.
"""

import json
import os
import re
import zlib
from collections.abc import Sequence

from bench.core.files import open_regular, parse_json
from bench.core.records import DEVICE_COLUMNS, MEMORY_COLUMNS
from bench.runs.frames import TableRow

SPOOL_BYTES = 1 << 30

COLUMNS = {"memory": MEMORY_COLUMNS, "device": DEVICE_COLUMNS}

_NAME = re.compile(r"samples-(\d+)\.jsonl")


def spool_path(folder: str, launch: int) -> str:
    return os.path.join(folder, f"samples-{launch}.jsonl")


def read_spool(path: str) -> dict[str, list[TableRow]]:
    """The rows of a launch by table, ``memory`` and ``device``, up to a line that is damaged or of another launch.

    Then a row of each process says that its later samples are missing. A last line that is cut off is no damage.
    Raises ``OSError`` for what is no file in its folder.
    """
    tables: dict[str, list[TableRow]] = {name: [] for name in COLUMNS}
    launch = int(_NAME.fullmatch(os.path.basename(path))[1])  # type: ignore[index]  # it has such a name
    try:
        file = open_regular(path, limit=SPOOL_BYTES, within=os.path.dirname(path))
    except FileNotFoundError:
        return tables
    with file:
        for number, line in enumerate(file, 1):
            match value_of(line):
                case [("memory" | "device") as table, {"launch": of, **rest}] if (
                    of == launch and {"launch", *rest} == COLUMNS[table].keys()
                ):
                    tables[table].append({name: of if name == "launch" else rest[name] for name in COLUMNS[table]})
                case _:
                    if line.endswith(b"\n"):
                        why = f"line {number} of {path} is damaged; its later samples are missing"
                        unknown = {**dict.fromkeys(("device", "used_mib", "pss_mib")), "source": "unavailable"}
                        last = {(row["pid"], row["rank"]): row for row in tables["memory"]}
                        tables["memory"] += [{**row, **unknown, "reason": why} for row in last.values()]
                    break
    return tables


def checked_line(value: object) -> bytes:
    """A JSON value as a line of a spool."""
    line = json.dumps(value).encode() + b"\n"
    return b"%08x " % zlib.crc32(line) + line


def value_of(line: bytes) -> object:
    """The value of such a line; None if it is damaged or cut off."""
    checksum, _, rest = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(rest):
        return None
    try:
        return parse_json(rest)
    except ValueError:
        return None


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
        lines = b"".join(checked_line([table, row]) for row in rows)
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
