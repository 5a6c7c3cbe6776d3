"""A folder of runs as a history: one digest a run, in the order of time, and what a person accepted.

    found = read("results")            # thousands of runs in seconds
    for night in found.nights: ...     # .digest as bench.analyse.digest makes it

Of a run that has a sealed digest nothing else is read (:mod:`bench.runs.digests`). Where a decision rests on a run,
:func:`verify` it too.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.core.errors import RequestError
from bench.runs.codec import encode
from bench.runs.digests import stored
from bench.runs.files import sha256, unreadable, unwritable, write_atomically
from bench.runs.reader import read as read_run
from bench.runs.reader import verified
from bench.runs.writer import as_text

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed

ACCEPTED = "accepted"  # the folder in a history with a file per accepted run
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run that can be a night of a history: its folder and its digest."""

    path: str
    digest: dict[str, Any]

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


def read(folder: str, option: str = "--history") -> Nights:
    """Every run of a folder, verified as far as its digest goes.

    A run without a digest is read whole and gets one, slowly. Left out are runs that are incomplete, damaged or
    changed, or have measured nothing; copies; and folders that are named like a run and hold none. Raises
    :class:`RequestError` in the name of ``option`` if the folder is missing or is a run itself.
    """
    folder = _history(folder, option)
    nights: list[Night] = []
    left_out: list[LeftOut] = []
    try:
        folders = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and may_be_run(entry.path))
        accepting = sorted(_acceptance_files(os.path.join(folder, ACCEPTED)))
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
    verify(path, option)
    return Night(path=os.path.abspath(path), digest=digest_of(path))


def verify(path: str, option: str = "RUN") -> None:
    """Verify every file of a run, which must be complete: a part passes no gate and is no base."""
    finish = f"finish it with 'python -m bench run --resume {path}', or give another one"
    verified(path, allow_incomplete=False, remedy=finish, option=option)


def accept(folder: str, path: str, reason: str, utc: str) -> str:
    """Record that a person accepted the run at ``path`` in the history ``folder``; returns the file.

    It holds for the run as it is, not after a resume or a change, and replaces an earlier one. Raises
    :class:`RequestError` if the run is not sound or the history cannot be written.
    """
    folder = _history(folder, "--history")
    verify(path)
    name = os.path.basename(os.path.abspath(path))
    said = {"run": name, "reason": reason, "utc": utc, "sha256": sha256(os.path.join(path, "run.json"))}
    file = os.path.join(folder, ACCEPTED, f"{name}.json")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        write_atomically(file, as_text(said))
    except OSError as error:
        otherwise = "fix its permissions, or give a copy of the folder"
        raise unwritable("--history", file, error, otherwise) from error
    return file


def may_be_run(path: str) -> bool:
    """Whether a folder holds a run, or is named as if it did."""
    named_so = RUN_ID.fullmatch(os.path.basename(os.path.abspath(path))) is not None
    return named_so or os.path.isfile(os.path.join(path, "run.json"))


def _history(folder: str, option: str) -> str:
    if not os.path.isdir(folder):
        raise RequestError(option, f"there is no folder {folder!r}", "give the one that holds the runs")
    if os.path.isfile(os.path.join(folder, "run.json")):
        raise RequestError(option, f"{folder} is a run itself", "give the folder that holds the runs")
    return os.path.abspath(folder)


def digest_of(path: str) -> dict[str, Any]:
    """The digest of a finished run of any schema version as it was sealed, else made again."""
    from bench.analyse.digest import of_run

    return stored(path) or of_run(_measured(path, allow_incomplete=False))


def with_findings(path: str, *, allow_incomplete: bool = False) -> dict[str, Any]:
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
    """What was accepted and is unchanged, by run, and why the others do not count."""
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


def _acceptance_files(folder: str) -> list[str]:
    entries = os.scandir(folder) if os.path.isdir(folder) else ()
    return [entry.path for entry in entries if entry.name.endswith(".json") and entry.is_file()]
