"""From a scenario's name to its module, importing nothing until one is asked for.

Names come from the files under ``scenarios/`` and from the entry points ``bench.scenarios`` of installed packages; a
path such as ``./mine.py`` is a scenario too. Two scenarios of one name are an error.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from types import ModuleType

from bench.core.errors import RequestError
from bench.seams.scenario import Scenario

DEFAULT = (
    "single",
    "dp",
    "ddp",
    "ddp_o1",
    "ddp_o2",
    "ddp_o3",
    "apex_ddp",
    "apex_ddp_o1",
    "apex_ddp_o2",
    "apex_ddp_o3",
)
"""``single`` and the nine scenarios of the published comparison, in the order of every table."""

RESERVED = "reference"
"""What the launch that computes the reference is called: no scenario has this name."""

ENTRY_POINT_GROUP = "bench.scenarios"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A scenario that was loaded: its name, its file and what the file declares."""

    name: str
    file: str
    scenario: Scenario
    doc: str


def folder() -> str:
    """Where the built-in scenarios are: beside the package in a checkout, inside it in a wheel."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    beside = os.path.join(os.path.dirname(package), "scenarios")
    return beside if os.path.isdir(beside) else os.path.join(package, "builtin_scenarios")


def names() -> dict[str, str]:
    """Every scenario that can be asked for by name, with its file; the published ones first.

    A module that an installed package names and that is not there stands in place of its file, for :func:`resolve` and
    :func:`load` to refuse. Raises :class:`RequestError` where two have the same name.
    """
    files = {
        entry.name[:-3]: entry.path
        for entry in sorted(os.scandir(folder()), key=lambda entry: entry.name)
        if entry.name.endswith(".py") and not entry.name.startswith("_")
    }
    for name, file in _entry_points():
        if name in files:
            raise RequestError(
                "scenarios",
                f"{name!r} is defined twice, by {files[name]} and by {file}",
                "rename one of them or uninstall the package that brings it",
            )
        files[name] = file
    if RESERVED in files:
        what = f"{files[RESERVED]} takes the name {RESERVED!r}, which bench needs itself"
        raise RequestError("scenarios", what, "rename it or uninstall its package")
    ordered = [name for name in DEFAULT if name in files] + [name for name in files if name not in DEFAULT]
    return {name: files[name] for name in ordered}


def resolve(request: str) -> tuple[str, str]:
    """``(name, file)`` of a scenario asked for by name or by path.

    Raises :class:`RequestError` with the closest names when there is none, or when a file takes a name in use.
    """
    known = names()
    if request.endswith(".py") or os.sep in request:
        file = os.path.abspath(request)
        if not os.path.isfile(file):
            raise RequestError("--scenario", f"there is no file {request}", "give the path of a scenario file")
        name = os.path.basename(file).removesuffix(".py")
        if not file.endswith(".py"):
            raise RequestError("--scenario", f"{file} is no Python file", "give the path of a file that ends in .py")
        if not name.isidentifier():
            raise RequestError(
                "--scenario", f"{request} has a name that is no identifier", "name it like my_scenario.py"
            )
        if name == RESERVED:
            what = f"{request} takes the name {name!r}, which bench needs itself"
            raise RequestError("--scenario", what, "rename the file")
        if name in known and os.path.realpath(known[name]) != os.path.realpath(file):
            raise RequestError("--scenario", f"{request} takes the name of the scenario {name!r}", "rename the file")
        return name, file
    if request in known:
        _check_there(request, known[request])
        return request, known[request]
    from difflib import get_close_matches

    close = get_close_matches(request.lower(), known, n=3, cutoff=0.4)
    remedy = f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}"
    raise RequestError("--scenario", f"there is no scenario {request!r}", f"{remedy} ('bench list' shows all)")


def load(name: str, file: str) -> Found:
    """Execute a scenario's file and take its declaration.

    Raises :class:`RequestError` when the file cannot be executed or declares no ``SCENARIO``.
    """
    _check_there(name, file)
    module = load_module(name, file)
    scenario = getattr(module, "SCENARIO", None)
    if not isinstance(scenario, Scenario):
        raise RequestError(
            "--scenario", f"{file} declares no SCENARIO", "add SCENARIO = Scenario(summary=..., strategy=...)"
        )
    if scenario.strategy == "custom" and not callable(getattr(module, "setup", None)):
        raise RequestError("--scenario", f"{file} is 'custom' but has no setup(job)", "define setup(job)")
    return Found(name=name, file=file, scenario=scenario, doc=(module.__doc__ or "").strip())


def load_module(name: str, file: str) -> ModuleType:
    """Execute a scenario's file as a module of its own.

    Whatever the file raises, a ``SystemExit`` too, becomes a :class:`RequestError` that names the line.
    """
    spec = importlib.util.spec_from_file_location(f"bench_scenario_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        line = _line_in(file, error)
        at = f"{file}:{line}" if line else file
        raise RequestError(
            "--scenario", f"{at} cannot be executed: {type(error).__name__}: {error}", "mend the file"
        ) from error
    return module


def _check_there(name: str, file: str) -> None:
    if not os.path.isfile(file):
        raise RequestError("scenarios", f"the entry point {name!r} names a missing module {file}", "reinstall it")


def _line_in(file: str, error: BaseException) -> int | None:
    """The last line of ``file`` that took part in ``error``."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _entry_points() -> list[tuple[str, str]]:
    """``(name, file)`` of the scenarios that installed packages declare; the module where there is no file.

    ``importlib.metadata`` takes longer to import than ``bench list`` may take, so it is asked only where some package
    has the group at all.
    """
    if not any(_declares_group(folder) for folder in sys.path if os.path.isdir(folder)):
        return []
    from importlib.metadata import entry_points

    return [(point.name, _origin(point.module) or point.module) for point in entry_points(group=ENTRY_POINT_GROUP)]


def _origin(module: str) -> str | None:
    """The file of a module, found without importing the packages around it (``find_spec`` of all of it would).

    For the first of them every finder is asked: ``pip install -e`` may bring one of its own.
    """
    first, *below = module.split(".")
    spec = importlib.util.find_spec(first)
    for part in below:
        spec = spec and PathFinder.find_spec(part, list(spec.submodule_search_locations or []))
    return spec.origin if spec else None


def _declares_group(folder: str) -> bool:
    marker = f"[{ENTRY_POINT_GROUP}]"
    for entry in os.scandir(folder):
        if entry.name.endswith((".dist-info", ".egg-info")):
            file = os.path.join(entry.path, "entry_points.txt")
            if os.path.isfile(file):
                with open(file, encoding="utf-8", errors="replace") as text:
                    if marker in text.read():
                        return True
    return False
