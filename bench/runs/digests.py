"""The one reader of ``digest.json``: what comparisons over many runs read of a finished run instead of its tables.

Only the checksums in run.json are read besides: half a millisecond, against ten for everything
that :func:`bench.runs.reader.verified` reads. That run.json and the tables are as they were sealed is taken on trust.
"""

import hashlib
import os
from typing import Any

from bench.core.errors import RequestError
from bench.core.files import JSON_BYTES, open_regular, parse_json
from bench.runs.files import DIGEST, RESTORE, limit_of, unreadable

VERSION = 1
"""Of the form that ``bench.analyse.digest`` describes. One of another version is made again from the run."""

LOOKED_AT = "looked_at"  # a condition: how many launches of each scenario a verdict had before others were added

COMPLETE = b'\n "complete": true'
FILES = b'\n "files": {'
"""How run.json begins these keys. A line of one blank and a quotation mark is no part of a text: there, the line break
would be two characters, and the mark three."""

Entry = dict[str, Any]  # a scenario in a digest
Digest = dict[str, Any]  # a digest as JSON values


def stored(path: str) -> Digest | None:
    """The digest of a finished run as it was sealed; None if it has none that can be trusted.

    Raises :class:`RequestError` for one that is sealed and no digest, or cannot be read.
    """
    try:
        with open_regular(os.path.join(path, "run.json"), limit=JSON_BYTES, within=path) as file:
            sealed = _sealed(file.read())
        with open_regular(os.path.join(path, DIGEST), limit=limit_of(DIGEST), within=path) as file:
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable("RUN", path, error) from error
    whole = all(os.path.exists(os.path.join(path, name)) for name in sealed)
    if hashlib.sha256(content).hexdigest() != sealed.get(DIGEST) or not whole:
        return None
    try:
        digest: Digest = parse_json(content)
        return digest if digest["digest_version"] == VERSION else None
    except (ValueError, TypeError, KeyError) as error:
        raise RequestError("RUN", f"{os.path.join(path, DIGEST)} is no digest", RESTORE) from error


def _sealed(text: bytes) -> dict[str, str]:
    """The files and their checksums in the text of a finished run.json as bench lays it out, else none."""
    start = text.rfind(FILES)
    if start < 0 or COMPLETE not in text or not text.endswith(b"\n}\n"):
        return {}
    end = text.find(b"\n }", start)
    try:
        files = parse_json(b"{" + text[start:end] + b"}}")["files"]
        return {name: seal["sha256"] for name, seal in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
