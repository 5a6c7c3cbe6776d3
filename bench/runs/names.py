"""What a run may be called: its folder, its id, some letters of one, or ``latest``."""

import os
import re

from bench.core.errors import RequestError
from bench.core.files import read_json
from bench.runs.files import is_of_bench, unreadable

RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")

LETTERS = 4
"""Of a run's name that are enough to name it: fewer are a slip."""


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
        measured = (name for name in reversed(runs) if not _says(os.path.join(out, name), "imported"))
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
    folders = (os.path.join(out, name) for name in reversed(run_ids(out, "RUN")))
    return next((path for path in folders if _says(path, "complete") and not _says(path, "imported")), None)


def run_ids(out: str, option: str) -> list[str]:
    """The names of all run folders in ``out``, the oldest first."""
    try:
        entries = list(os.scandir(out)) if os.path.isdir(out) else []
    except OSError as error:
        raise unreadable(option, out, error) from error
    return sorted(entry.name for entry in entries if _holds_run(entry))


def _holds_run(entry: os.DirEntry[str]) -> bool:
    """Whether a folder holds a run, whose run.json may be damaged, and not that of another program."""
    file = os.path.join(entry.path, "run.json")
    if RUN_ID.fullmatch(entry.name) or not os.path.isfile(file):
        return os.path.isfile(file)
    try:
        return is_of_bench(read_json(file))
    except (OSError, ValueError):
        return True


def _says(path: str, name: str) -> bool:
    """Whether run.json has this field, neither null nor false; a damaged one is refused when it is read."""
    try:
        document = read_json(os.path.join(path, "run.json"), within=path)
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get(name) not in (None, False)
