"""From the name of a scenario, a strategy, a switch, a workload to its file, importing nothing until one is asked for.

Names come from the files of a folder (``scenarios/``, ``bench/strategies/``, ...) and from the entry points of
installed packages (``bench.scenarios``, ...); a path such as ``./mine.py`` is one too. Two of one name are an error.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from glob import glob
from importlib.machinery import PathFinder
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING

from bench.core.dtypes import HALF_ON
from bench.core.errors import RequestError, closest
from bench.core.records import Setting, SwitchOn
from bench.seams.execute import Kind, check_functions, check_there, declared, load_file, load_module
from bench.seams.scenario import Scenario
from bench.seams.strategy import Strategy
from bench.seams.switch import MAY_DEFINE as SWITCH_FUNCTIONS
from bench.seams.workload import FUNCTIONS, MAY_DEFINE, Workload

if TYPE_CHECKING:
    from bench.core.job import Task

DEFAULT = ("single", "dp", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")
"""``single`` and the nine scenarios of the published comparison, in the order of every table."""

DEFAULT_WORKLOAD = "resnet101"

REFERENCE = "reference"  # the name of the launch that computes the reference: no scenario has it


SCENARIO = Kind(word="scenario", option="--scenario", first=DEFAULT)
STRATEGY = Kind(word="strategy", option="--scenario", functions=("build(parts)",))
WORKLOAD = Kind(
    word="workload", option="--workload", functions=FUNCTIONS, may_define=MAY_DEFINE, first=(DEFAULT_WORKLOAD,)
)
SWITCH = Kind(word="switch", option="--with", may_define=SWITCH_FUNCTIONS)
SITE = Kind(word="site", option="--site", functions=("connect(options)",))
ENGINE = Kind(
    word="engine",
    option="--engine",
    functions=("specification(asked)", "call(asked)", "notes(asked)"),
    shown_by="bench submit --help",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A scenario that was loaded. ``strategy_file``: the file that defines the strategy's ``build``.

    ``base``: the scenario's own name. ``switches``: all that are on, the scenario's own too. ``half``: what half means,
    None for the device's own choice. ``level``: the precision that was asked for behind the name, such as ``o2``, if
    its file does not declare it. ``environment``: which of several interpreters runs it.
    """

    base: str
    file: str
    scenario: Scenario
    doc: str
    strategy: Strategy
    strategy_name: str
    strategy_file: str
    switches: tuple[SwitchOn, ...] = ()
    half: str | None = None
    level: str | None = None
    environment: str | None = None

    def obstacle(self, device: str, devices: int) -> str | None:
        """That of its strategy, which may ask for options of the scenario."""
        asked = signature(self.strategy.obstacle).parameters
        options = {name: value for name, value in self.scenario.options.items() if name in asked}
        return self.strategy.obstacle(device, devices, **options)

    def half_on(self, device: str) -> str:
        """Half in a launch on ``cpu`` or ``cuda``: ``fp16`` or ``bf16``."""
        return self.half or HALF_ON[device]

    @property
    def name(self) -> str:
        """With what was turned on, and the environment: ``ddp+bucket_mb=50+channels_last@2.10``."""
        return f"{self.base}{self.turned_on}{f'@{self.environment}' if self.environment else ''}"

    @property
    def turned_on(self) -> str:
        """The part of ``name`` after the scenario's own: the level and the switches that its file does not have."""
        own = {os.path.basename(spec.partition("=")[0]).removesuffix(".py") for spec in self.scenario.switches}
        added = (one.spec for one in self.switches if one.name not in own)
        return "".join(f"+{part}" for part in (*filter(None, [self.level]), *added))

    @property
    def apex_modules(self) -> set[str]:
        """The modules of apex that the scenario uses if they can be had."""
        modules = {one.needs for one in self.strategy.implementations if one.needs is not None}
        return modules | ({"apex.amp"} if self.scenario.precision != "O0" and "apex" in self.strategy.amp else set())


Files = Sequence[tuple[Kind, str, str]]  # that ranks execute: kind, name and file of each


def files_of(scenarios: Iterable[Found], task: "Task") -> Files:
    """The files that the ranks of these scenarios execute."""
    files = [(WORKLOAD, task.name, task.file)]
    for one in scenarios:
        files.append((STRATEGY, one.strategy_name, one.strategy_file))
        files += [(SWITCH, switch.name, switch.file) for switch in one.switches]
    return list(dict.fromkeys(files))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkload:
    """A workload that was loaded."""

    name: str
    file: str
    workload: Workload
    doc: str

    def task(self, device: str, settings: Mapping[str, Setting], data: str | None = None) -> "Task":
        """``data``: the folder of real data."""
        from bench.core.files import sha256, sha256_of_names  # here, since 'bench list' needs none of it
        from bench.core.job import Task
        from bench.seams.code import code_sha256

        title = self.workload.title_of(settings) or self.name
        if self.workload.reads:
            title += f", {os.path.basename(data) if data else 'synthetic data'}"
        each = self.workload.units_in(settings)
        own = os.path.dirname(self.file) != WORKLOAD.folder
        return Task(
            name=self.name,
            file=self.file,
            sha256=sha256(self.file) if own else None,
            code_sha256=None if own else code_sha256(self.file),
            unit=self.workload.unit,
            unit_short=self.workload.unit_short or self.workload.unit,
            title=title,
            settings=dict(settings),
            units_per_example=each if each != 1 else None,
            data=data,
            data_sha256=data and sha256_of_names(data),
        )


def names(kind: Kind = SCENARIO) -> dict[str, str]:
    """Every name of this kind that can be asked for, with its file; those of ``kind.first`` first.

    A missing module of an installed package stands in place of its file, for :func:`resolve` and :func:`load_file` to
    refuse. Raises :class:`RequestError` where two have the same name.
    """
    return dict(_names(kind, tuple(sys.path)))


@cache  # each scenario asks for the strategies
def _names(kind: Kind, places: tuple[str, ...]) -> dict[str, str]:
    folder = kind.folder
    built_in = sorted(glob("[!_]*.py", root_dir=folder))
    files = {file.removesuffix(".py"): os.path.join(folder, file) for file in built_in}
    for name, file in _entry_points(f"bench.{kind.plural}", places):
        if name in files:
            what = f"{name!r} is defined twice, by {files[name]} and by {file}"
            raise RequestError(kind.plural, what, "rename one of them or uninstall the package that brings it")
        files[name] = file
    if kind is SCENARIO and REFERENCE in files:
        what = f"{files[REFERENCE]} takes the name {REFERENCE!r}, which bench needs itself"
        raise RequestError(kind.plural, what, "rename it or uninstall its package")
    ordered = [name for name in kind.first if name in files] + [name for name in files if name not in kind.first]
    return {name: files[name] for name in ordered}


def resolve(request: str, kind: Kind = SCENARIO) -> tuple[str, str]:
    """``(name, file)`` of what is asked for by name or by path. Raises :class:`RequestError` with the closest names."""
    files = names(kind)
    if request in files:
        check_there(request, files[request], kind)
        return request, files[request]
    if not request.endswith(".py") and os.sep not in request:
        remedy = f"{closest(request.lower(), list(files), n=3, cutoff=0.4)} ('{kind.shown_by}' shows all)"
        raise RequestError(kind.option, f"there is no {kind.word} {request!r}", remedy)
    file = os.path.abspath(request)
    name = os.path.basename(file).removesuffix(".py")
    if not os.path.isfile(file):
        raise RequestError(kind.option, f"there is no file {request}", f"give the path of a {kind.word} file")
    if not file.endswith(".py"):
        raise RequestError(kind.option, f"{file} is not a Python file", "give the path of a file that ends in .py")
    if not name.isidentifier():
        what = f"the name of {request} is not a valid identifier"
        raise RequestError(kind.option, what, f"name it like my_{kind.word}.py")
    if kind is SCENARIO and name == REFERENCE:
        what = f"{request} takes the name {name!r}, which bench needs itself"
        raise RequestError(kind.option, what, "rename the file")
    if name in files and os.path.realpath(files[name]) != os.path.realpath(file):
        raise RequestError(kind.option, f"{request} takes the name of the {kind.word} {name!r}", "rename the file")
    return name, file


def load_workload(name: str, file: str) -> FoundWorkload:
    """Execute a workload's file and take its declaration. Raises as :func:`load_file`."""
    return declared(_load_workload, FoundWorkload, name, file, WORKLOAD)


def _load_workload(name: str, file: str) -> FoundWorkload:
    module = load_file(name, file, WORKLOAD)
    if module.WORKLOAD.reads and not hasattr(module, "size"):
        raise RequestError(WORKLOAD.option, f"{file} reads data and has no function size", "define size(work)")
    if os.path.dirname(file) != WORKLOAD.folder:
        from bench.core.job import Training

        taken = sorted(own.name for own in fields(Training))
        for setting in module.WORKLOAD.settings.keys() & taken:
            what = f"{file}: the setting {setting!r} has a name that bench needs itself"
            raise RequestError(WORKLOAD.option, what, f"choose another (taken: {', '.join(taken)})")
    return FoundWorkload(name=name, file=file, workload=module.WORKLOAD, doc=(module.__doc__ or "").strip())


def try_site(name: str, file: str) -> None:
    """See whether a site's file can be executed, and declares what it should. Raises as :func:`load_file`."""
    declared(lambda name, file: load_file(name, file, SITE).SITE, SITE.declaration, name, file, SITE)


@cache  # several scenarios share one
def load_strategy(name: str, file: str) -> tuple[Strategy, ModuleType]:
    """A strategy and the module that defines its ``build``, which may be a scenario's. Raises as :func:`load_file`."""
    module = load_module(name, file, STRATEGY)
    scenario = getattr(module, "SCENARIO", None)
    strategy = scenario.strategy if isinstance(scenario, Scenario) else getattr(module, "STRATEGY", None)
    if not isinstance(strategy, Strategy):
        raise RequestError("--scenario", f"{file} declares no STRATEGY", "add STRATEGY = Strategy(...)")
    if os.path.dirname(file) != STRATEGY.folder:
        check_functions(module, file, STRATEGY, strategy)
    return strategy, module


def _entry_points(group: str, places: tuple[str, ...]) -> list[tuple[str, str]]:
    """``(name, file)`` of what installed packages declare in this group; the module where there is no file.

    ``importlib.metadata`` is slow to import, so it is asked only where some package has the group at all.
    """
    if not any(f"[{group}]" in _entry_point_texts(folder) for folder in places):
        return []
    from importlib.metadata import entry_points

    return [(point.name, _origin(point.module) or point.module) for point in entry_points(group=group)]


def _origin(module: str) -> str | None:
    """The file of a module, found without importing the packages around it. For the first of them every finder is
    asked: ``pip install -e`` may bring one of its own."""
    first, *below = module.split(".")
    spec = importlib.util.find_spec(first)
    for part in below:
        spec = spec and PathFinder.find_spec(part, list(spec.submodule_search_locations or []))
    return spec.origin if spec else None


@cache  # each kind asks for its group
def _entry_point_texts(folder: str) -> str:
    texts = []
    for file in glob("*.*-info/entry_points.txt", root_dir=folder):
        with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as text:
            texts.append(text.read())
    return "\n".join(texts)
