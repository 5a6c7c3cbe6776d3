"""Changes since run.json was written: while a run lasts, a launch adds a line here and rewrites nothing.

``.parts/`` in a run folder holds the journal and the rows of each launch. A line of the journal is what changed in the
document, with its checksum; the first that is damaged ends it. A journal belongs to the run.json whose seal is in its
name: when run.json is written again, a new one begins.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from operator import is_

from bench.core.codec import REST, encode
from bench.core.files import JSON_BYTES, Json, open_regular, parse_json
from bench.runs.files import PARTS


def journal_path(run: str, seal: str | None) -> str:
    return os.path.join(run, PARTS, f"journal-{(seal or '')[:16]}.jsonl")


def replay(path: str, document: dict[str, Json]) -> None:
    """Bring ``document``, as JSON, up to the last whole line of the journal.

    Raises ``OSError``, or ``ValueError`` where a line is no change of such a document.
    """
    try:
        file = open_regular(path, limit=JSON_BYTES, within=os.path.dirname(os.path.dirname(path)))
    except FileNotFoundError:
        return
    with file:
        for line in file:
            checksum, _, rest = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(rest):  # it is damaged or cut off
                return
            try:
                _apply(document, parse_json(rest))
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"its journal does not fit: {type(error).__name__}: {error}") from error


def change(before: object, after: object) -> list[object]:
    """The change from one value to the next: ``["+", items]`` at the end of a list, ``[".", fields]`` of an object,
    or ``["=", value]``."""
    if isinstance(before, tuple) and isinstance(after, tuple) and all(map(is_, before, after[: len(before)])):
        if len(before) <= len(after):
            return ["+", encode(after[len(before) :])]
    elif isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() <= after.keys():
        changed = {name: one for name, one in after.items() if before.get(name) is not one}
        return [".", {name: change(before.get(name), one) for name, one in changed.items()}]
    elif is_dataclass(after) and type(before) is type(after):
        parts = {field.name: (getattr(before, field.name), getattr(after, field.name)) for field in fields(after)}
        if REST not in parts:
            return [".", {name: change(*pair) for name, pair in parts.items() if pair[0] is not pair[1]}]
    return ["=", encode(after)]


def checked_line(value: object) -> bytes:
    """A JSON value as a line: the CRC-32 of the rest of it, and the value."""
    line = json.dumps(value).encode() + b"\n"
    return b"%08x " % zlib.crc32(line) + line


def _apply(document: dict[str, Json], values: Json) -> None:
    kind, changed = values
    if kind != ".":
        raise TypeError(f"a document is not changed by {kind!r}")
    for name, (how, value) in changed.items():
        if how == "+":
            document[name].extend(value)
        elif how == ".":
            _apply(document[name], [how, value])
        elif how == "=":
            document[name] = value
        else:
            raise TypeError(f"a document is not changed by {how!r}")
