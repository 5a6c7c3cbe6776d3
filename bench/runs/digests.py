"""The one reader of ``digest.json``: what comparisons over many runs read of a finished run instead of its tables.

Only the checksums in run.json are read besides: half a millisecond, against ten for everything
that :func:`bench.runs.reader.verified` reads. That run.json and the tables are as they were sealed is taken on trust.
"""

import hashlib
import json
import os
from typing import Any

from bench.runs.files import DIGEST
from bench.runs.migrate import digest_from_1

VERSION = 2
"""Of the form that ``bench.analyse.digest`` describes. One of a newer version is made again from the run."""

COMPLETE = b'\n "complete": true'
FILES = b'\n "files": {'
"""How run.json begins these keys. A line of one blank and a quotation mark is no part of a text: there, the line break
would be two characters, and the mark three."""


def stored(path: str) -> dict[str, Any] | None:
    """The digest of a finished run as it was sealed; None if it has none that can be trusted."""
    try:
        with open(os.path.join(path, "run.json"), "rb") as file:
            sealed = _sealed(file.read())
        with open(os.path.join(path, DIGEST), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    whole = all(os.path.exists(os.path.join(path, name)) for name in sealed)
    if hashlib.sha256(content).hexdigest() != sealed.get(DIGEST) or not whole:
        return None
    digest: dict[str, Any] = json.loads(content)
    if digest["digest_version"] == 1:
        digest = digest_from_1(digest)
    return digest if digest["digest_version"] == VERSION else None


def _sealed(text: bytes) -> dict[str, str]:
    """The files and their checksums in the text of a finished run.json as bench lays it out, else none."""
    start = text.rfind(FILES)
    if start < 0 or COMPLETE not in text or not text.endswith(b"\n}\n"):
        return {}
    end = text.find(b"\n }", start)
    try:
        files = json.loads(b"{" + text[start:end] + b"}}")["files"]
        return {name: seal["sha256"] for name, seal in files.items()}
    except (ValueError, TypeError, KeyError):
        return {}
