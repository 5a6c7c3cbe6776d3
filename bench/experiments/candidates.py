"""Candidates of ``bench bisect``: the commits of a repository, the versions of a package, or interpreters.

Commits are work trees of a clone that shares the repository's objects, so nothing in the repository changes.
Environments are made by uv, and kept for the next search (:func:`environments`).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.core.errors import BenchError, RequestError
from bench.core.files import cache_folder
from bench.experiments.attached_command import Side

INSTALLED = ".bench-installed"  # the file of an environment that is whole

Prepare = Callable[["Candidate", str], Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """``about``: such as the subject of a commit. ``place``: its commit, its version, or its interpreter."""

    name: str
    about: str
    place: str


def commits(repository: str, good: str, bad: str) -> tuple[Candidate, ...]:
    """From ``good`` to ``bad``, each followed by its first parent. Raises :class:`RequestError`."""
    ends = []
    for option, revision in (("--good", good), ("--bad", bad)):
        commit = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if not commit:
            what = f"there is no revision {revision!r} in {repository}"
            if not _git(repository, "rev-parse", "--git-dir"):
                raise RequestError("--git", f"{repository} is no git repository", "give the folder of one")
            raise RequestError(option, what, "give a commit, a tag or a branch")
        ends.append(commit)
    if ends[0] == ends[1]:
        raise RequestError("--bad", f"{bad} is the same commit as {good}", "give another one")
    if _git(repository, "merge-base", *ends) != ends[0]:
        raise RequestError("--good", f"{good} is not an ancestor of {bad}", "give an older commit, or swap the two")
    form = ("--first-parent", "--abbrev-commit", "--abbrev=10", "--format=%h %H %s", "--no-commit-header")
    lines = _git(repository, "rev-list", *form, "--max-count=1", ends[0]).split("\n")
    lines += _git(repository, "rev-list", "--reverse", *form, f"{ends[0]}..{ends[1]}").split("\n")
    parts = [line.split(" ", 2) for line in lines]
    return tuple(Candidate(name=name, about=subject, place=commit) for name, commit, subject in parts)


def work_tree(repository: str, command: tuple[str, ...], build: tuple[str, ...]) -> Prepare:
    """``build``: a command that is run once in each work tree."""

    def prepare(candidate: Candidate, scratch: str) -> Side:
        clone, tree = os.path.join(scratch, "clone"), os.path.join(scratch, candidate.name)
        if not os.path.isdir(clone):
            _run(("git", "clone", "--quiet", "--shared", "--no-checkout", os.path.abspath(repository), clone), None)
        _run(("git", "-C", clone, "worktree", "add", "--quiet", "--detach", "--force", tree, candidate.place), None)
        paths = os.pathsep.join(filter(None, [tree, os.environ.get("PYTHONPATH")]))
        side = Side(command=command, cwd=tree, environment={"PYTHONPATH": paths})
        if build:
            _run(build, side)
        return side

    return prepare


def interpreters(package: str, pythons: Sequence[str]) -> tuple[Candidate, ...]:
    """Environments that are there, in this order, named by their version of the package."""
    candidates: list[Candidate] = []
    for python in pythons:
        ask = f"from importlib.metadata import version; print(version({package!r}))"
        try:
            version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            problem = f"{python} has no package {package!r}, or is no interpreter"
            raise RequestError("--pythons", problem, "give the paths of interpreters that have it") from error
        name = version if all(one.name != version for one in candidates) else f"{version} ({python})"
        candidates.append(Candidate(name=name, about=python, place=python))
    return tuple(candidates)


def versions(package: str, good: str, bad: str) -> tuple[Candidate, ...]:
    """The releases from ``good`` to ``bad``, in the order of the index that uv asks."""
    if shutil.which("uv") is None:
        raise RequestError("--package", "there is no uv", "install it, or give interpreters with --pythons A,B,C")
    command = ("uv", "run", "--no-project", "--with", "pip", "python", "-m", "pip", "index", "versions", package)
    done = subprocess.run(command, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("Available versions: ")), None)
    if line is None:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        raise RequestError("--package", f"the index has no {package!r} ({last})", "check its name and the network")
    names = line.removeprefix("Available versions: ").split(", ")[::-1]
    return tuple(Candidate(name=name, about=package, place=name) for name in between(names, good, bad))


def between(names: Sequence[str], good: str, bad: str) -> Sequence[str]:
    """From one name to another; 2.9 means 2.9.0 where there is no 2.9."""
    places = []
    for option, asked in (("--good", good), ("--bad", bad)):
        place = next((number for number, name in enumerate(names) if name in (asked, f"{asked}.0")), None)
        if place is None:
            raise RequestError(option, f"there is no {asked!r} among {', '.join(names)}", "give one of these")
        places.append(place)
    if places[0] >= places[1]:
        raise RequestError("--bad", f"{bad} does not come after {good}", "give a later one")
    return names[places[0] : places[1] + 1]


def interpreter(command: tuple[str, ...]) -> Prepare:
    """The command by the interpreter of a candidate, whose folder comes first on ``PATH``."""
    return lambda candidate, scratch: _by(command, candidate.place)


def environment(package: str, command: tuple[str, ...], more: tuple[str, ...]) -> Prepare:
    """The command in an environment of uv that has this version and ``more`` packages."""

    def prepare(candidate: Candidate, scratch: str) -> Side:
        name = "-".join((package, candidate.place, *more, f"{sys.version_info[0]}.{sys.version_info[1]}"))
        folder = os.path.join(cache_folder(), "environments", name.replace(os.sep, "_"))
        python = os.path.join(folder, "bin", "python")
        if not os.path.exists(os.path.join(folder, INSTALLED)):
            shutil.rmtree(folder, ignore_errors=True)
            _run(("uv", "venv", "--quiet", "--python", sys.executable, folder), None)
            _run(("uv", "pip", "install", "--quiet", "--python", python, f"{package}=={candidate.place}", *more), None)
            with open(os.path.join(folder, INSTALLED), "x", encoding="utf-8"):
                pass
        return _by(command, python)

    return prepare


def _by(command: tuple[str, ...], python: str) -> Side:
    path = os.pathsep.join([os.path.dirname(os.path.abspath(python)), os.environ.get("PATH", os.defpath)])
    first = python if os.path.basename(command[0]) in ("python", "python3") else command[0]
    return Side(command=(first, *command[1:]), environment={"PATH": path})


def _run(command: tuple[str, ...], side: Side | None) -> None:
    """Run a command, whose output goes to standard error. Raises :class:`BenchError` where it fails."""
    environment = {**os.environ, **(side.environment if side else {})}
    try:
        code = subprocess.run(command, cwd=side.cwd if side else None, env=environment, stdout=2).returncode
    except OSError as error:
        raise BenchError(f"{command[0]} cannot be started: {error.strerror}") from error
    if code:
        raise BenchError(f"'{' '.join(command[:3])} ...' ended with exit code {code}")


def _git(repository: str, *words: str) -> str:
    """The output of git; nothing where it fails."""
    try:
        done = subprocess.run(["git", "-C", repository, *words], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise RequestError("--git", f"git cannot be started: {error.strerror}", "install it") from error
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""  # a line may end in a subject that is empty
