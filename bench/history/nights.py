"""A folder of runs as a history: one digest a run, in the order of time, and what a person accepted.

    found = read("results")            # thousands of runs in seconds
    for night in found.nights: ...     # .digest as bench.analyse.digest makes it
    for run in found.left_out: ...     # .why, to be told and not passed over

Of a run that has a sealed digest nothing else is read but that and where run.json gives the checksums, without parsing
the rest: half a millisecond, against ten for all that ``store.read`` verifies. The other files are looked for and not
opened. What is so taken on trust is that run.json itself and the tables are as they were sealed, which matters to
nobody who reads only the digest. Where a decision rests on a run, :func:`verify` it too: the gate does so with the
nights that it holds tonight against.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.core.errors import RequestError
from bench.runs import store

ACCEPTED = "accepted"
"""The folder in a history that holds what was accepted, a file a run."""

RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")

COMPLETE = b'\n "complete": true'
FILES = b'\n "files": {'
"""How run.json begins these keys. A line of one blank and a quotation mark is no part of a text: there, the line break
would be two characters, and the mark three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run that can be a night of a history: its folder and its digest."""

    path: str
    digest: dict[str, Any]

    @property
    def id(self) -> str:
        """The folder's name."""
        return os.path.basename(self.path)

    @property
    def when(self) -> tuple[str, str]:
        """What nights are sorted by: the start, and the name where two started in the same second."""
        return self.digest["utc"] or "", self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that is no night, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """That a person accepted a run, as :func:`accept` wrote it; ``sha256``: of the run.json that it is about."""

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


def read(folder: str, option: str = "--history") -> Nights:
    """Every run of a folder, verified as far as its digest goes. Runs of any kind: nothing is compared here.

    A run without a digest (made before there were any) is read whole and gets one, slowly. Left out are runs that are
    incomplete, lack a file or have a digest that was damaged or changed since it was sealed, those that looked for a
    batch and measured nothing, copies of another one under another name, and folders that are named like a run and hold
    none. Raises :class:`RequestError` in the name of ``option`` where the folder is not there or is a run itself.
    """
    folder = _history(folder, option)
    nights: list[Night] = []
    left_out: list[LeftOut] = []
    try:
        folders, accepting = list(_run_folders(folder)), list(_acceptance_files(os.path.join(folder, ACCEPTED)))
    except OSError as error:
        raise store.unreadable(option, folder, error) from error
    for path in folders:
        try:
            nights.append(Night(path=path, digest=_digest(path)))
        except RequestError as error:
            left_out.append(LeftOut(path=path, why=error.problem))
        except OSError as error:
            left_out.append(LeftOut(path=path, why=f"{error.filename or path}: {error.strerror}"))
    nights, copies = _once(nights)
    accepted, stale = _acceptances(folder, accepting)
    return Nights(
        folder=folder,
        nights=sorted(nights, key=lambda night: night.when),
        left_out=[*left_out, *copies, *stale],
        accepted=accepted,
    )


def _once(nights: list[Night]) -> tuple[list[Night], list[LeftOut]]:
    """Each run once, in the folder of its own name where there is one, and its copies."""
    known: dict[str, Night] = {}
    copies = []
    for night in sorted(nights, key=lambda night: (night.id != night.digest["run"], night.id)):
        first = known.setdefault(night.digest["run"], night)
        if first is not night:
            why = f"{night.path} is a copy of {first.id}: both are the run {night.digest['run']}"
            copies.append(LeftOut(path=night.path, why=why))
    return list(known.values()), copies


def read_one(path: str, option: str = "RUN") -> Night:
    """A run by itself, every file of it verified; :class:`RequestError` as :func:`bench.runs.store.verified`."""
    _whole(path, option)
    return Night(path=os.path.abspath(path), digest=_digest(path))


def verify(night: Night) -> None:
    """Verify all of a run: run.json by its own seal, and every file. Raises as :func:`bench.runs.store.read`."""
    _whole(night.path)


def _whole(path: str, option: str = "RUN") -> None:
    """Refuse a run that is not finished and sound: a part of it passes no gate and is no base."""
    finish = f"finish it with 'python -m bench run --resume {path}', or give another one"
    store.verified(path, allow_incomplete=False, remedy=finish, option=option)


def accept(folder: str, path: str, reason: str, utc: str) -> str:
    """Record that a person accepted the run at ``path`` in the history ``folder``; returns the file.

    It holds for the run as it is: one that is resumed or changed afterwards is no longer the one that was accepted.
    Replaces what was said of the run before. Raises :class:`RequestError` where the run is not sound, or the history
    cannot be written.
    """
    folder = _history(folder, "--history")
    _whole(path)
    name = os.path.basename(os.path.abspath(path))
    said = {"run": name, "reason": reason, "utc": utc, "sha256": store.sha256(os.path.join(path, "run.json"))}
    file = os.path.join(folder, ACCEPTED, f"{name}.json")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        store.write_atomically(file, (json.dumps(said, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        problem = f"{os.path.dirname(file)} cannot be written: {error.strerror}"
        raise RequestError("--history", problem, "mend that, or give a copy of the folder") from error
    return file


def may_be_run(path: str) -> bool:
    """Whether a folder holds a run, or is named as if it did: other folders, such as ``accepted``, stand among them."""
    named_so = RUN_ID.fullmatch(os.path.basename(os.path.abspath(path))) is not None
    return named_so or os.path.isfile(os.path.join(path, "run.json"))


def _history(folder: str, option: str) -> str:
    if not os.path.isdir(folder):
        raise RequestError(option, f"there is no folder {folder!r}", "give the one that holds the runs")
    if os.path.isfile(os.path.join(folder, "run.json")):
        raise RequestError(option, f"{folder} is a run itself", "give the folder that holds the runs")
    return os.path.abspath(folder)


def _run_folders(folder: str) -> Iterator[str]:
    """The folders in it that hold a run, or are named as if they did."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and may_be_run(entry.path):
            yield entry.path


def _digest(path: str) -> dict[str, Any]:
    """The digest of a run as it was sealed, or else made again of all that is sealed."""
    try:
        with open(os.path.join(path, "run.json"), "rb") as file:
            sealed = _sealed(file.read())
        with open(os.path.join(path, store.DIGEST), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return _made_again(path)
    whole = all(os.path.exists(os.path.join(path, name)) for name in sealed)
    if hashlib.sha256(content).hexdigest() != sealed.get(store.DIGEST) or not whole:
        return _made_again(path)  # or the reason why not
    digest: dict[str, Any] = json.loads(content)
    return digest if digest["digest_version"] == _version() else _made_again(path)


def _sealed(text: bytes) -> dict[str, str]:
    """The files and their checksums in the text of a finished run.json that is laid out as bench does it, else none."""
    start = text.rfind(FILES)
    if start < 0 or COMPLETE not in text or not text.endswith(b"\n}\n"):
        return {}
    end = text.find(b"\n }", start)
    try:
        files = json.loads(b"{" + text[start:end] + b"}}")["files"]
        return {name: seal["sha256"] for name, seal in files.items()}
    except (ValueError, TypeError, KeyError):
        return {}


def _made_again(path: str) -> dict[str, Any]:
    """The digest of a run that is verified and read whole, of any schema version."""
    from bench.analyse.digest import of_run

    run = store.read(path)
    if run.document["batch_search"]:
        raise RequestError("RUN", f"{path} looked for the largest batch and measured nothing", "choose another")
    try:
        return of_run(run)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{path}/run.json has a record that cannot be understood ({type(error).__name__}: {error})"
        raise RequestError("RUN", problem, "see 'bench check'") from error


def _version() -> int:
    from bench.analyse.digest import VERSION

    return VERSION


def _acceptances(folder: str, files: Iterable[str]) -> tuple[dict[str, Acceptance], list[LeftOut]]:
    """What was accepted and is still there as it was, and what is said of runs that are not."""
    accepted, stale = {}, []
    for path in files:
        try:
            with open(path, encoding="utf-8") as file:
                one = Acceptance(**json.load(file))
        except (ValueError, TypeError, RecursionError):
            stale.append(LeftOut(path=path, why=f"{path} is damaged; accept the run again"))
            continue
        except OSError as error:
            stale.append(LeftOut(path=path, why=f"{path} cannot be read: {error.strerror}"))
            continue
        document = os.path.join(folder, one.run, "run.json")
        if not os.path.isfile(document):
            stale.append(LeftOut(path=path, why=f"{one.run} was accepted and is no longer in {folder}"))
        elif store.sha256(document) != one.sha256:
            stale.append(LeftOut(path=path, why=f"{one.run} has changed since it was accepted; accept it again"))
        else:
            accepted[one.run] = one
    return accepted, stale


def _acceptance_files(folder: str) -> Iterable[str]:
    if not os.path.isdir(folder):
        return ()
    return sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".json") and entry.is_file())
