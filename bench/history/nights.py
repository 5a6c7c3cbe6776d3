"""A folder of runs as a history: one digest a run, in the order of time, and what a person accepted.

    found = read("results")            # thousands of runs in seconds
    for night in found.nights: ...     # .digest as bench.analyse.digest makes it
    for run in found.left_out: ...     # .why, to be told and not passed over

Of a run that has a sealed digest nothing else is read (:mod:`bench.runs.digests`). Where a decision rests on a run,
:func:`verify` it too: the gate does so with the nights that it holds tonight against.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.core.errors import RequestError
from bench.runs.codec import encode
from bench.runs.digests import stored
from bench.runs.files import sha256, unreadable, write_atomically
from bench.runs.reader import read as read_run
from bench.runs.reader import verified
from bench.runs.writer import as_text

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed

ACCEPTED = "accepted"
"""The folder in a history that holds what was accepted, a file a run."""

RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")


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
        raise unreadable(option, folder, error) from error
    for path in folders:
        try:
            nights.append(Night(path=path, digest=digest_of(path)))
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
    """A run by itself, every file of it verified; :class:`RequestError` as :func:`bench.runs.reader.verified`."""
    _whole(path, option)
    return Night(path=os.path.abspath(path), digest=digest_of(path))


def verify(night: Night) -> None:
    """Verify all of a run: run.json by its own seal, and every file. Raises as :func:`bench.runs.reader.read`."""
    _whole(night.path)


def _whole(path: str, option: str = "RUN") -> None:
    """Refuse a run that is not finished and sound: a part of it passes no gate and is no base."""
    finish = f"finish it with 'python -m bench run --resume {path}', or give another one"
    verified(path, allow_incomplete=False, remedy=finish, option=option)


def accept(folder: str, path: str, reason: str, utc: str) -> str:
    """Record that a person accepted the run at ``path`` in the history ``folder``; returns the file.

    It holds for the run as it is: one that is resumed or changed afterwards is no longer the one that was accepted.
    Replaces what was said of the run before. Raises :class:`RequestError` where the run is not sound, or the history
    cannot be written.
    """
    folder = _history(folder, "--history")
    _whole(path)
    name = os.path.basename(os.path.abspath(path))
    said = {"run": name, "reason": reason, "utc": utc, "sha256": sha256(os.path.join(path, "run.json"))}
    file = os.path.join(folder, ACCEPTED, f"{name}.json")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        write_atomically(file, as_text(said))
    except OSError as error:
        problem = f"{os.path.dirname(file)} cannot be written: {error.strerror}"
        raise RequestError("--history", problem, "fix its permissions, or give a copy of the folder") from error
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


def digest_of(path: str) -> dict[str, Any]:
    """The digest of a finished run as it was sealed, else made again of all that is sealed: of any schema version."""
    from bench.analyse.digest import of_run

    return stored(path) or of_run(_measured(path, allow_incomplete=False))


def with_findings(path: str, *, allow_incomplete: bool = False) -> dict[str, Any]:
    """The digest of a run that is verified whole, and its ``findings``.

    Raises :class:`RequestError` that names the run where it is damaged, incomplete, or has measured nothing.
    """
    from bench.analyse.digest import of_run

    document = verified(path, allow_incomplete=allow_incomplete)
    digest = stored(path)
    if digest is None:
        run = _measured(path, allow_incomplete=allow_incomplete)
        digest, document = of_run(run), run.document
    return {**digest, "run": os.path.basename(os.path.abspath(path)), "findings": encode(document.validity)}


def _measured(path: str, *, allow_incomplete: bool) -> "Analysed":
    from bench.analyse.verdicts import judged

    run = read_run(path, allow_incomplete=allow_incomplete)
    if run.document.batch_search:
        raise RequestError("RUN", f"{path} looked for the largest batch and measured nothing", "choose another")
    return judged(run)


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
        elif sha256(document) != one.sha256:
            stale.append(LeftOut(path=path, why=f"{one.run} has changed since it was accepted; accept it again"))
        else:
            accepted[one.run] = one
    return accepted, stale


def _acceptance_files(folder: str) -> Iterable[str]:
    if not os.path.isdir(folder):
        return ()
    return sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".json") and entry.is_file())
