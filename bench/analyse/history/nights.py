"""A folder of runs as a history: one digest a run, in the order of time, and what a person accepted.

    history = read("results")          # thousands of runs in seconds
    for night in history.nights: ...     # .digest as bench.analyse.digest makes it

Of a run that has a sealed digest nothing else is read (:mod:`bench.runs.digests`). Where a decision rests on a run,
:func:`verify` it too.
"""

import hashlib
import marshal
import os
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape, glob
from typing import TYPE_CHECKING

from bench.core.children import beside
from bench.core.codec import decode, encode
from bench.core.errors import RequestError
from bench.core.files import JSON_BYTES, open_regular, read_json, sha256
from bench.runs.digests import Digest, stored
from bench.runs.document import RunDocument
from bench.runs.files import DIGEST_BYTES, unreadable, unwritable, write_atomically
from bench.runs.names import RUN_ID, run_ids
from bench.runs.reader import read as read_run
from bench.runs.reader import verified
from bench.runs.writer import as_text

if TYPE_CHECKING:
    from bench.analyse.between_runs import Compared

ACCEPTED = "accepted"  # the folder in a history with a file per accepted run
EARLIER = 10  # runs that are tried as the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run that can be a night of a history: its folder and its digest."""

    path: str
    digest: Digest

    @property
    def id(self) -> str:
        return os.path.basename(self.path)

    @property
    def when(self) -> tuple[str, str]:
        """The start, and the name where two started in the same second."""
        return self.digest["utc"] or "", self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that is no night, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """That a person accepted a run, as :func:`accept` wrote it; ``sha256``: of its run.json."""

    run: str
    reason: str
    utc: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """The runs of a folder: ``nights`` by time, those ``left_out`` by name, and the acceptances that hold, by run."""

    folder: str
    nights: list[Night]
    left_out: list[LeftOut]
    accepted: dict[str, Acceptance]


def read(folder: str, option: str = "--history", meanwhile: Callable[[], object] = lambda: None) -> Nights:
    """Every run of a folder, verified as far as its digest goes. ``meanwhile``: done here while another process reads.

    A run without a digest is read whole and gets one, slowly. Left out are runs that are incomplete, damaged or
    changed, or have measured nothing; copies; links out of the folder; and what is named like a run and is none. Raises
    :class:`RequestError` in the name of ``option`` if the folder is missing or is a run itself.
    """
    folder = _history(folder, option)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise unreadable(option, folder, error) from error
    paths = [path for name in names if may_be_run(path := os.path.join(folder, name))]
    ours = len(paths) * 2 // 5  # fewer than the other process reads, which has nothing else to do
    later = beside(lambda: [_read(path, folder) for path in paths[ours:]], marshal)
    meanwhile()
    of_all = list(zip(paths, [*[_read(path, folder) for path in paths[:ours]], *later()], strict=True))
    nights = [Night(path=path, digest=one) for path, one in of_all if not isinstance(one, str)]
    left_out = [LeftOut(path=path, why=one) for path, one in of_all if isinstance(one, str)]
    once: dict[str, Night] = {}  # in the folder of its own name where there is one
    for night in sorted(nights, key=lambda night: (night.id != night.digest["run"], night.id)):
        if (first := once.setdefault(night.digest["run"], night)) is not night:
            why = f"{night.path} is a copy of {first.id}: both are the run {night.digest['run']}"
            left_out.append(LeftOut(path=night.path, why=why))
    accepted, stale = _acceptances(folder)
    in_time = sorted(once.values(), key=lambda night: night.when)
    return Nights(folder=folder, nights=in_time, left_out=[*left_out, *stale], accepted=accepted)


def _read(path: str, folder: str) -> Digest | str:
    """The digest, or why the run is left out."""
    try:
        return digest_of(_inside(path, folder))
    except RequestError as error:
        return error.problem


def _inside(path: str, folder: str) -> str:
    """``path``, an entry of a history ``folder``. Raises :class:`RequestError` where it is a link that leads out."""
    if os.path.islink(path) and not os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), "")):
        raise RequestError("--history", f"{path} is a link out of {folder}", "copy the run there")
    return path


def read_one(path: str, option: str = "RUN") -> Night:
    verify(path, option)
    return Night(path=os.path.abspath(path), digest=digest_of(path))


def verify(path: str, option: str = "RUN") -> None:
    """Verify every file of a run, which must be complete: a part passes no gate and is no base."""
    verified(path, allow_incomplete=False, remedy=None, option=option)


def accept(folder: str, path: str, reason: str, utc: str) -> str:
    """Record that a person accepted the run at ``path`` in the history ``folder``; returns the file.

    It holds for the run as it is, not after a resume or a change, and replaces an earlier one. Raises
    :class:`RequestError` if the run is not sound or the history cannot be written.
    """
    folder = _history(folder, "--history")
    verify(path)
    _inside(os.path.join(folder, ACCEPTED), folder)
    name = os.path.basename(os.path.abspath(path))
    acceptance = {"run": name, "reason": reason, "utc": utc, "sha256": sha256(os.path.join(path, "run.json"))}
    file = os.path.join(folder, ACCEPTED, f"{name}.json")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        write_atomically(file, as_text(acceptance))
    except OSError as error:
        otherwise = "fix its permissions, or give a copy of the folder"
        raise unwritable("--history", error.filename or file, error, otherwise) from error
    return file


def may_be_run(path: str) -> bool:
    """Whether a folder holds a run, or is named as if it did."""
    named_so = RUN_ID.fullmatch(os.path.basename(os.path.abspath(path))) is not None
    return named_so or os.path.lexists(os.path.join(path, "run.json"))


def _history(folder: str, option: str) -> str:
    if not os.path.isdir(folder):
        raise RequestError(option, f"there is no folder {folder!r}", "give the one that holds the runs")
    if may_be_run(folder) and not any(map(may_be_run, glob(os.path.join(escape(folder), "*")))):
        raise RequestError(option, f"{folder} is a run itself", "give the folder that holds the runs")
    return os.path.abspath(folder)


def digest_of(path: str) -> Digest:
    """The digest of a finished run as it was sealed, else made again."""
    return stored(path) or _made(path, allow_incomplete=False)[0]


def with_findings(path: str, *, allow_incomplete: bool = False) -> Digest:
    document = verified(path, allow_incomplete=allow_incomplete)
    if (digest := stored(path)) is None:
        digest, document = _made(path, allow_incomplete=allow_incomplete)
    return {**digest, "run": os.path.basename(os.path.abspath(path)), "findings": encode(document.validity)}


def since_before(path: str) -> "Compared | None":
    """A finished run against the last one before it in its folder that did the same work on such devices, if any."""
    from bench.analyse import between_runs
    from bench.analyse.comparable import obstacles

    folder, name = os.path.split(os.path.abspath(path))
    runs = run_ids(folder, "RUN")
    earlier = runs[: runs.index(name)] if name in runs else []
    if not earlier or not verified(path, allow_incomplete=True).complete:
        return None
    new = with_findings(path)
    for one in earlier[: -EARLIER - 1 : -1]:
        try:
            base = with_findings(os.path.join(folder, one))
        except RequestError:
            continue  # a run that is damaged or unfinished is nobody's base
        if not obstacles(base, new):
            compared = between_runs.runs(base, new)
            return compared if compared.comparable else None
    return None


def _made(path: str, *, allow_incomplete: bool) -> tuple[Digest, RunDocument]:
    from bench.analyse.digest import of_run
    from bench.analyse.verdicts import judged

    run = read_run(path, allow_incomplete=allow_incomplete)
    if run.document.instead:
        raise RequestError("RUN", f"{path} {run.document.instead} and measured nothing", "choose another")
    run = judged(run)
    return of_run(run), run.document


def _acceptances(folder: str) -> tuple[dict[str, Acceptance], list[LeftOut]]:
    """Accepted runs that are unchanged, by run, and why the others do not count."""
    place = os.path.join(folder, ACCEPTED)
    try:
        names = sorted(name for name in os.listdir(_inside(place, folder)) if name.endswith(".json"))
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [LeftOut(path=place, why=unreadable("--history", place, error).problem)]
    except RequestError as error:
        return {}, [LeftOut(path=place, why=error.problem)]
    of_all = [(path, _acceptance(path, folder)) for path in (os.path.join(place, name) for name in names)]
    stale = [LeftOut(path=path, why=one) for path, one in of_all if isinstance(one, str)]
    return {one.run: one for _, one in of_all if not isinstance(one, str)}, stale


def _acceptance(path: str, folder: str) -> Acceptance | str:
    """The acceptance in a file, or why it does not count."""
    try:
        one = decode(Acceptance, read_json(path, limit=DIGEST_BYTES, within=folder))
        document = os.path.join(folder, os.path.basename(one.run), "run.json")
        if not os.path.isfile(document):
            return f"{one.run} was accepted and is no longer in {folder}"
        with open_regular(document, limit=JSON_BYTES, within=folder) as file:
            unchanged = hashlib.file_digest(file, "sha256").hexdigest() == one.sha256
    except OSError as error:
        return unreadable("--history", path, error).problem
    except ValueError:
        return f"{path} is damaged; accept the run again"
    return one if unchanged else f"{one.run} has changed since it was accepted; accept it again"
