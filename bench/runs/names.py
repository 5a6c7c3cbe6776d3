"""Names of runs: a folder, an id, some letters of one, or ``latest``."""

import os
import re
from collections.abc import Mapping

from bench.core.errors import RequestError
from bench.runs.files import is_of_bench, stored, unreadable

RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")

LETTERS = 4  # of a run's name that are enough to name it: fewer are a slip


def find(run: str, out: str, option: str = "RUN") -> str:
    """The folder of a run given as a folder, a run id under ``out``, its unique first or last letters, or ``latest``.

    ``latest`` passes over imported runs. Raises :class:`RequestError` in the name of ``option`` if there is none.
    """
    if not run:
        raise RequestError(option, "it is empty", "give a folder, a run id or 'latest'")
    if run == "latest":
        runs = run_ids(out, option)
        if not runs:
            remedy = "make one with 'python -m bench run', or give the folder of one"
            raise RequestError(option, f"there is no run in {out}", remedy)
        measured = (name for name in reversed(runs) if not _is_imported(stored(os.path.join(out, name))))
        return os.path.join(out, next(measured, runs[-1]))
    for candidate in (run, os.path.join(out, run)):
        if os.path.isdir(candidate):
            return candidate.rstrip(os.sep) or os.sep
    ids = run_ids(out, option) if len(run) >= LETTERS else []
    meant = [name for name in ids if name.startswith(run) or name.endswith(run)]
    if len(meant) == 1:
        return os.path.join(out, meant[0])
    if meant:
        which = f"{', '.join(meant[:3])}{' and others' if len(meant) > 3 else ''}"
        raise RequestError(option, f"{len(meant)} runs in {out} are called {run!r}: {which}", "give more letters")
    raise RequestError(option, f"there is no run {run!r} here or in {out}", "give a folder, a run id or 'latest'")


def last_finished(out: str) -> str | None:
    """The folder of the newest run under ``out`` that was measured to its end; None if there is none."""
    for path in (os.path.join(out, name) for name in reversed(run_ids(out, "RUN"))):
        document = stored(path)
        if document.get("complete") is True and not _is_imported(document):
            return path
    return None


def run_ids(out: str, option: str) -> list[str]:
    """The names of all run folders in ``out``, the oldest first; of one second that which was written last is last."""

    def order(entry: os.DirEntry[str]) -> tuple[str, int]:
        begun = entry.name.partition("-")[0] if RUN_ID.fullmatch(entry.name) else entry.name
        return begun, os.stat(os.path.join(entry.path, "run.json")).st_mtime_ns

    try:
        entries = list(os.scandir(out)) if os.path.isdir(out) else []
        return [entry.name for entry in sorted(filter(_holds_run, entries), key=order)]
    except OSError as error:
        raise unreadable(option, out, error) from error


def _holds_run(entry: os.DirEntry[str]) -> bool:
    """Whether a folder holds a run, whose run.json may be damaged, and not that of another program."""
    if not os.path.isfile(os.path.join(entry.path, "run.json")):
        return False
    return bool(RUN_ID.fullmatch(entry.name)) or not (document := stored(entry.path)) or is_of_bench(document)


def _is_imported(document: Mapping[str, object]) -> bool:
    experiments = document.get("experiments")
    return isinstance(experiments, dict) and "importing" in experiments
