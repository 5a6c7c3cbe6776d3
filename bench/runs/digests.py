"""The one reader of ``digest.json``: what comparisons over many runs read of a finished run instead of its tables.

Only the checksums in run.json are read besides: half a millisecond, against ten for everything
that :func:`bench.runs.reader.verified` reads. That run.json and the tables are as they were sealed is taken on trust.
"""

import hashlib
import os
from typing import Annotated, Any, TypedDict

from bench.core.codec import Between, OneOf, decode
from bench.core.errors import RequestError
from bench.core.files import JSON_BYTES, open_regular, parse_json
from bench.core.records import STATUSES
from bench.runs.document import Attached, Git, Imported, WorkloadRecord
from bench.runs.fields import Count, DeviceKind, Names, Parity, Several, Utc
from bench.runs.files import DIGEST, RESTORE, limit_of, unreadable

VERSION = 1
"""Of :class:`Form`. A digest of another version is made again from the run."""

LOOKED_AT = "looked_at"  # a condition: how many launches of each scenario a verdict had before others were added

COMPLETE = b'\n "complete": true'
FILES = b'\n "files": {'
"""How run.json begins these keys. A line of one blank and a quotation mark is no part of a text: there, the line break
would be two characters, and the mark three."""

Value = Annotated[float, Between(1e-9, 10**15)] | None
"""A measured value. Comparisons take its logarithm."""


class Launches(TypedDict):
    """Columns with a value for each launch: thousands of digests are read sooner than if each launch were an object."""

    launch: tuple[Count, ...]
    repeat: tuple[Count, ...]
    step_ms: tuple[Value, ...]
    throughput_per_s: tuple[Value, ...]
    peak_pid_mib: tuple[Value, ...]
    peak_total_mib: tuple[Value, ...]
    energy_per_1000_j: tuple[Value, ...]
    sm_clock_mhz: tuple[Annotated[float, Between(0, 10**6)] | None, ...]


class ScenarioDigest(TypedDict):
    scenario: str
    what_ran: str
    world_size: Several | None
    status: Annotated[str, OneOf((*STATUSES, "not run"))]
    reason: str | None
    validity: Annotated[str, OneOf(("valid", "warning", "invalid"))] | None
    invalid: Names
    parity: Parity | None
    loss_error: float | None
    memory_source: str | None
    energy_source: str | None
    launches: Launches


class Conditions(TypedDict):
    power_limit_w: tuple[float | None, ...]
    more: dict[str, str | int | float | None]


class Form(TypedDict):
    """``hardware``: the names of the GPUs, or of the CPU of each host."""

    digest_version: int
    run: str
    utc: Utc | None
    label: str | None
    profile: str | None
    git: Git | None
    imported: Imported | None
    attached: Attached | None
    workload: WorkloadRecord
    device: DeviceKind | None
    hardware: Names
    replicas: Several | None
    conditions: Conditions
    scenarios: tuple[ScenarioDigest, ...]


Entry = dict[str, Any]  # a scenario in a digest, of the form of ScenarioDigest
Digest = dict[str, Any]  # a digest as JSON values, of the form of Form


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
        digest = parse_json(content)
        version = digest.get("digest_version") if isinstance(digest, dict) else None
        if type(version) is not int:
            raise ValueError("it has no digest version")
        if version != VERSION:
            return None
        decode(Form, digest)
        names = [row["scenario"] for row in digest["scenarios"]]
        launches = [launch for row in digest["scenarios"] for launch in row["launches"]["launch"]]
        if len(set(names)) < len(names) or len(set(launches)) < len(launches):
            raise ValueError("a scenario or a launch is in it twice")
        if any(len(set(map(len, row["launches"].values()))) > 1 for row in digest["scenarios"]):
            raise ValueError("a value is not there for each launch")
    except ValueError as error:
        raise RequestError("RUN", f"{os.path.join(path, DIGEST)}: {error}", RESTORE) from error
    return dict(digest)


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
