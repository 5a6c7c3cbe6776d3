"""From the name of a scenario, a strategy, a switch, a workload to its file, importing nothing until one is asked for.

Names come from the files of a folder (``scenarios/``, ``bench/strategies/``, ...) and from the entry points of
installed packages (``bench.scenarios``, ...); a path such as ``./mine.py`` is one too. Two of one name are an error.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from glob import glob
from importlib.machinery import PathFinder
from types import FunctionType, ModuleType, NoneType
from typing import Any, TypeVar

from bench.core.dtypes import HALF_ON
from bench.core.errors import RequestError, closest, described
from bench.core.records import Setting, SwitchOn, Task
from bench.seams.scenario import Scenario
from bench.seams.strategy import Rank, Strategy
from bench.seams.switch import MAY_DEFINE as SWITCH_FUNCTIONS
from bench.seams.workload import FUNCTIONS, MAY_DEFINE, Workload

T = TypeVar("T")

DEFAULT = ("single", "dp", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")
"""``single`` and the nine scenarios of the published comparison, in the order of every table."""

DEFAULT_WORKLOAD = "resnet101"

IMPORT_LIMIT_S = 60.0
"""For a file that is not bench's own to be imported, which may take torch along."""

RESERVED = "reference"
"""What the launch that computes the reference is called: no scenario has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A seam: what its files declare, where they are, and which functions each of them must or may define.

    ``option``: the one that errors name. ``first``: the names that come first, in their order. ``shown_by``: what lists
    them all.
    """

    word: str
    option: str
    functions: tuple[str, ...] = ()
    may_define: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    shown_by: str = "bench list"

    @property
    def declares(self) -> str:
        """The name that a file gives to its declaration, such as ``SCENARIO``."""
        return self.word.upper()

    @property
    def declaration(self) -> type:
        """What it must be, such as ``bench.seams.scenario.Scenario``; a site's is imported no sooner than this."""
        kind: type = getattr(importlib.import_module(f"bench.seams.{self.word}"), self.word.capitalize())
        return kind

    @property
    def plural(self) -> str:
        """The name of the folder in a checkout, and the end of the entry point group."""
        return {"strategy": "strategies", "switch": "switches"}.get(self.word, f"{self.word}s")

    @property
    def folder(self) -> str:
        """Where the built-in files are: in the package; scenarios lie beside it in a checkout."""
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        beside = os.path.join(os.path.dirname(package), "scenarios")
        if self.word == "scenario" and os.path.isdir(beside):
            return beside
        return os.path.join(package, *(("sites",) if self.word == "engine" else ()), self.plural)


SCENARIO = Kind(word="scenario", option="--scenario", first=DEFAULT)
STRATEGY = Kind(word="strategy", option="--scenario", functions=("build(parts)",))
PROBE = "probe(session, load, steps, tick)"
"""What a strategy defines that declares a ``probe``."""

WORKLOAD = Kind(
    word="workload",
    option="--workload",
    functions=FUNCTIONS,
    may_define=MAY_DEFINE,
    first=(DEFAULT_WORKLOAD,),
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

    ``switches``: all that are on, the scenario's own too. ``half``: what half means, None for the device's own choice.
    ``base``: the scenario's own name; ``name`` has besides what was turned on: ``ddp+bucket_mb=50+channels_last``.
    ``level``: the precision that was asked for behind the name, such as ``o2``, if its file does not declare it.
    """

    name: str
    file: str
    scenario: Scenario
    doc: str
    strategy: Strategy
    strategy_name: str
    strategy_file: str
    switches: tuple[SwitchOn, ...] = ()
    half: str | None = None
    level: str | None = None

    def half_on(self, device: str) -> str:
        """What half is in a launch on ``cpu`` or ``cuda``: ``fp16`` or ``bf16``."""
        return self.half or HALF_ON[device]

    @property
    def base(self) -> str:
        return self.name[: -len(self.turned_on) or None]

    @property
    def turned_on(self) -> str:
        """What ``name`` has after the scenario's own name: the level and the switches that its file does not have."""
        return "".join(f"+{part}" for part in (*filter(None, [self.level]), *(one.spec for one in self._added)))

    @property
    def _added(self) -> list[SwitchOn]:
        own = {os.path.basename(spec.partition("=")[0]).removesuffix(".py") for spec in self.scenario.switches}
        return [one for one in self.switches if one.name not in own]

    def asked(self, place: Callable[[str], str] = str) -> str:
        """What names it again, switches too: by the ``place`` of a file where its name would not be found."""
        parts = [self.base if self.base in names() else place(self.file), *filter(None, [self.level])]
        known = names(SWITCH) if self._added else {}
        parts += [one.spec if one.name in known else replace(one, name=place(one.file)).spec for one in self._added]
        return "+".join(parts)

    @property
    def apex_modules(self) -> set[str]:
        """The modules of apex that the scenario uses if they can be had."""
        modules = {one.needs for one in self.strategy.implementations if one.needs is not None}
        return modules | ({"apex.amp"} if self.scenario.precision != "O0" and "apex" in self.strategy.amp else set())


def files_of(scenarios: Iterable[Found], task: Task) -> list[tuple[Kind, str, str]]:
    """What the ranks of these scenarios execute: kind, name and file of each."""
    found = [(WORKLOAD, task.name, task.file)]
    for one in scenarios:
        found.append((STRATEGY, one.strategy_name, one.strategy_file))
        found += [(SWITCH, switch.name, switch.file) for switch in one.switches]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkload:
    """A workload that was loaded."""

    name: str
    file: str
    workload: Workload
    doc: str

    def task(self, device: str, settings: Mapping[str, Setting], data: str | None = None) -> Task:
        """``data``: the folder of real data."""
        from bench.core.files import sha256_of_names  # here, since 'bench list' needs none of it
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


def sha256(file: str) -> str:
    import hashlib

    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def names(kind: Kind = SCENARIO) -> dict[str, str]:
    """Every name of this kind that can be asked for, with its file; those of ``kind.first`` first.

    A missing module of an installed package stands in place of its file, for :func:`resolve` and :func:`load_file` to
    refuse. Raises :class:`RequestError` where two have the same name.
    """
    files = {
        entry.name[:-3]: entry.path
        for entry in sorted(os.scandir(kind.folder), key=lambda entry: entry.name)
        if entry.name.endswith(".py") and not entry.name.startswith("_")
    }
    for name, file in _entry_points(f"bench.{kind.plural}"):
        if name in files:
            what = f"{name!r} is defined twice, by {files[name]} and by {file}"
            raise RequestError(kind.plural, what, "rename one of them or uninstall the package that brings it")
        files[name] = file
    if kind is SCENARIO and RESERVED in files:
        what = f"{files[RESERVED]} takes the name {RESERVED!r}, which bench needs itself"
        raise RequestError(kind.plural, what, "rename it or uninstall its package")
    ordered = [name for name in kind.first if name in files] + [name for name in files if name not in kind.first]
    return {name: files[name] for name in ordered}


def resolve(request: str, kind: Kind = SCENARIO) -> tuple[str, str]:
    """``(name, file)`` of what is asked for by name or by path. Raises :class:`RequestError` with the closest names."""
    known = names(kind)
    if request.endswith(".py") or os.sep in request:
        return _resolve_path(request, kind, known)
    if request in known:
        _check_there(request, known[request], kind)
        return request, known[request]
    remedy = f"{closest(request.lower(), list(known), n=3, cutoff=0.4)} ('{kind.shown_by}' shows all)"
    raise RequestError(kind.option, f"there is no {kind.word} {request!r}", remedy)


def _resolve_path(request: str, kind: Kind, known: dict[str, str]) -> tuple[str, str]:
    file = os.path.abspath(request)
    name = os.path.basename(file).removesuffix(".py")
    if not os.path.isfile(file):
        raise RequestError(kind.option, f"there is no file {request}", f"give the path of a {kind.word} file")
    if not file.endswith(".py"):
        raise RequestError(kind.option, f"{file} is not a Python file", "give the path of a file that ends in .py")
    if not name.isidentifier():
        what = f"the name of {request} is not a valid identifier"
        raise RequestError(kind.option, what, f"name it like my_{kind.word}.py")
    if kind is SCENARIO and name == RESERVED:
        what = f"{request} takes the name {name!r}, which bench needs itself"
        raise RequestError(kind.option, what, "rename the file")
    if name in known and os.path.realpath(known[name]) != os.path.realpath(file):
        raise RequestError(kind.option, f"{request} takes the name of the {kind.word} {name!r}", "rename the file")
    return name, file


def load(name: str, file: str) -> Found:
    """Execute a scenario's file, and its strategy's, and take what they declare. Raises as :func:`load_file`."""
    found = declared(_load, Found, name, file, SCENARIO)
    if os.path.dirname(file) == SCENARIO.folder:
        return found
    if isinstance(found.scenario.strategy, str) and os.path.dirname(found.strategy_file) == STRATEGY.folder:
        return replace(found, strategy=load_strategy(found.strategy_name, found.strategy_file)[0])
    strategy = replace(found.strategy, ranks=partial(_own_ranks, found.strategy_name, found.strategy_file))
    named = isinstance(found.scenario.strategy, str)
    return replace(
        found, strategy=strategy, scenario=found.scenario if named else replace(found.scenario, strategy=strategy)
    )


def _load(name: str, file: str) -> Found:
    module = load_file(name, file, SCENARIO)
    scenario: Scenario = module.SCENARIO
    if isinstance(scenario.strategy, Strategy):
        strategy, strategy_name, strategy_file = scenario.strategy, name, file
        _check_functions(module, file, STRATEGY, scenario.strategy)
    else:
        strategy_name = scenario.strategy
        known = names(STRATEGY)
        if strategy_name not in known:
            remedy = f"choose from {', '.join(known)}, or declare your own with strategy=Strategy(...)"
            raise RequestError("--scenario", f"{file}: there is no strategy={strategy_name!r}", remedy)
        strategy_file = known[strategy_name]
        strategy, its_module = load_strategy(strategy_name, strategy_file)
        _check_options(scenario, its_module, file)
    what = f"{file}: precision={scenario.precision!r}"
    if scenario.precision not in strategy.precisions:
        remedy = f"choose from {', '.join(strategy.precisions)}"
        raise RequestError("--scenario", f"{what} does not go with strategy {strategy_name!r}", remedy)
    if "apex.amp" in scenario.needs and "apex" not in strategy.amp:
        why = f"{what} by apex.amp does not go with strategy {strategy_name!r}"
        raise RequestError("--scenario", why, "take 'apex.amp' out of needs: the native one goes with it")
    found = Found(
        name=name,
        file=file,
        scenario=scenario,
        doc=(module.__doc__ or "").strip(),
        strategy=strategy,
        strategy_name=strategy_name,
        strategy_file=strategy_file,
        half=scenario.half,
    )
    if not scenario.switches:
        return found
    from bench.seams.switching import with_switches  # here, since it builds on this module

    return with_switches(found, scenario.switches, "--scenario", named=False)


def _check_options(scenario: Scenario, strategy: ModuleType, file: str) -> None:
    """A value must be of its default's type, and positive if that is."""
    parameters = inspect.signature(strategy.build).parameters
    known = {name: one.default for name, one in list(parameters.items())[1:] if one.kind is not one.VAR_KEYWORD}
    for name, value in scenario.options.items():
        if name not in known:
            remedy = f"choose from {', '.join(known)}" if known else "leave options out"
            raise RequestError("--scenario", f"{file}: build of its strategy has no option {name!r}", remedy)
        usual = known[name]
        if usual is None or usual is inspect.Parameter.empty:
            continue
        if not _is_like(value, usual):
            what = f"{file}: option {name}={value!r} is not {_kind_of(usual)}"
            raise RequestError("--scenario", what, f"write {name}={usual!r}, say")


def _is_like(value: Setting, usual: Setting) -> bool:
    """Whether an option may have this value, by its default."""
    if isinstance(usual, bool | str) or isinstance(value, bool | str):
        return type(value) is type(usual)
    return (isinstance(usual, float) or isinstance(value, int)) and (value > 0 or usual <= 0)


def _kind_of(usual: Setting) -> str:
    """What values there are, by the default."""
    if isinstance(usual, bool):
        return "True or False"
    if isinstance(usual, str):
        return "a text"
    what = "a whole number" if isinstance(usual, int) else "a number"
    return f"{what} above 0" if usual > 0 else what


def load_workload(name: str, file: str) -> FoundWorkload:
    """Execute a workload's file and take its declaration. Raises as :func:`load_file`."""
    return declared(_load_workload, FoundWorkload, name, file, WORKLOAD)


def _load_workload(name: str, file: str) -> FoundWorkload:
    module = load_file(name, file, WORKLOAD)
    if module.WORKLOAD.reads and not hasattr(module, "size"):
        raise RequestError(WORKLOAD.option, f"{file} reads data and has no function size", "define size(work)")
    return FoundWorkload(name=name, file=file, workload=module.WORKLOAD, doc=(module.__doc__ or "").strip())


def try_site(name: str, file: str) -> None:
    """See whether a site's file can be executed, and declares what it should. Raises as :func:`load_file`."""
    declared(_try_site, NoneType, name, file, SITE)


def _try_site(name: str, file: str) -> None:
    load_file(name, file, SITE)


def declared(look: Callable[[str, str], T], answer: type[T], name: str, file: str, kind: Kind) -> T:
    """``look(name, file)``, an ``answer``. A file that is not bench's own is executed in another process, which answers
    with plain values: whatever it does when it is imported (leaves, hangs, replaces parts of Python), it is not done to
    this one.
    """
    if os.path.dirname(file) == kind.folder:
        return look(name, file)
    from bench.core.children import Unanswered  # here, since 'bench list' seldom needs it
    from bench.core.codec import decode

    changed_ns = os.stat(file).st_mtime_ns if os.path.isfile(file) else 0
    try:
        found = decode(answer, _asked(look, name, file, changed_ns))
    except Unanswered as error:
        what = f"{file} cannot be executed: the process that tried {error}"
        raise RequestError(kind.option, what, "fix the file") from error
    except ValueError as error:
        raise RequestError(kind.option, f"{file}: {error}", "fix the file") from error
    if not os.path.isfile(file):  # it is executed again in every rank, and its hash is recorded
        raise RequestError(kind.option, f"{file} was removed when it was executed", "fix the file")
    return found


@cache  # it may take torch along each time, and a run asks for its workload three times
def _asked(look: Callable[[str, str], Any], name: str, file: str, changed_ns: int) -> Any:
    from bench.core.children import ask

    return ask(partial(_quietly, look, name, file), IMPORT_LIMIT_S)


def _quietly(look: Callable[[str, str], Any], name: str, file: str) -> Any:
    """What was found as a JSON value. What the file prints is none of it."""
    from bench.core.codec import encode

    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)
    return encode(look(name, file))


@cache
def _own_ranks(name: str, file: str, devices: int) -> tuple[Rank, ...]:
    """What ``ranks(devices)`` of a strategy's file returns."""

    def refusal(returned: object) -> RequestError:
        what = f"{file}: ranks({devices}) returned {returned!r}"
        return RequestError(STRATEGY.option, what, f"return a tuple of Rank, with devices below {devices}")

    def look(name: str, file: str) -> tuple[Rank, ...]:
        returned = load_strategy(name, file)[0].ranks(devices)
        if not isinstance(returned, tuple) or not all(isinstance(one, Rank) for one in returned):
            raise refusal(returned)
        return returned

    found = declared(look, tuple[Rank, ...], name, file, STRATEGY)
    given = set(range(devices))
    if not found or any(
        not one.devices or not given.issuperset(one.devices) or min(one.replicas, one.on_cpu or 1) < 1 for one in found
    ):
        raise refusal(found)
    return found


@cache  # several scenarios share one
def load_strategy(name: str, file: str) -> tuple[Strategy, ModuleType]:
    """A strategy and the module that defines its ``build``, which may be a scenario's. Raises as :func:`load_file`."""
    module = load_module(name, file, STRATEGY)
    scenario = getattr(module, "SCENARIO", None)
    strategy = scenario.strategy if isinstance(scenario, Scenario) else getattr(module, "STRATEGY", None)
    if not isinstance(strategy, Strategy):
        raise RequestError("--scenario", f"{file} declares no STRATEGY", "add STRATEGY = Strategy(...)")
    _check_functions(module, file, STRATEGY, strategy)
    return strategy, module


def load_file(name: str, file: str, kind: Kind) -> ModuleType:
    """Execute a file of this kind and check it. Raises :class:`RequestError` that names file, field and remedy."""
    _check_there(name, file, kind)
    module = load_module(name, file, kind)
    if not isinstance(getattr(module, kind.declares, None), kind.declaration):
        what = f"{kind.declares} = {kind.declaration.__name__}(...)"
        raise RequestError(kind.option, f"{file} declares no {kind.declares}", f"add {what}")
    _check_functions(module, file, kind)
    return module


def _check_functions(module: ModuleType, file: str, kind: Kind, strategy: Strategy | None = None) -> None:
    """Refuse a function that is missing, misspelt, or cannot be called with the arguments that it will get."""
    must = kind.functions if strategy is None or strategy.probe is None else (*kind.functions, PROBE)
    calls = {call.partition("(")[0]: call for call in (*must, *kind.may_define)}
    own = {name for name, value in vars(module).items() if isinstance(value, FunctionType)}
    others = [name for name in own - set(calls) if not name.startswith("_") and os.path.dirname(file) != kind.folder]
    for name, call in calls.items():
        function = getattr(module, name, None)
        if not callable(function):
            near = _alike(name, others) if others else []
            if near or call in must:
                remedy = f"rename {near[0]} to {name}" if near else f"define {call}"
                raise RequestError(kind.option, f"{file} has no function {name}", remedy)
            continue
        arguments = call[len(name) + 1 : -1].split(", ")
        code = getattr(function, "__code__", None)
        least = 0 if code is None else code.co_argcount - len(function.__defaults__ or ())
        if code is not None and least <= len(arguments) <= code.co_argcount and not code.co_kwonlyargcount:
            continue  # as usual; importing inspect takes longer than all files of bench
        try:
            import inspect

            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise RequestError(kind.option, f"{file}: {name} cannot be called: {error}", f"define {call}") from error


def _alike(name: str, others: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, others, n=1, cutoff=0.8)


def load_module(name: str, file: str, kind: Kind = SCENARIO) -> ModuleType:
    """Execute a file as a module of its own. Whatever it raises becomes a :class:`RequestError` that names the line."""
    spec = importlib.util.spec_from_file_location(f"bench_{kind.word}_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(spec.name, None)
        line = line_in(file, error)
        what = f"{file}{f':{line}' if line else ''} cannot be executed: {described(error)}"
        raise RequestError(kind.option, what, "fix the file") from error
    return module


def _check_there(name: str, file: str, kind: Kind) -> None:
    if not os.path.isfile(file):
        raise RequestError(kind.plural, f"the entry point {name!r} names a missing module {file}", "reinstall it")


def line_in(file: str, error: BaseException) -> int | None:
    """The last line of ``file`` that took part in ``error``."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    from traceback import walk_tb

    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def _entry_points(group: str) -> list[tuple[str, str]]:
    """``(name, file)`` of what installed packages declare in this group; the module where there is no file.

    ``importlib.metadata`` is slow to import, so it is asked only where some package has the group at all.
    """
    if not any(f"[{group}]" in _entry_point_texts(folder) for folder in sys.path):
        return []
    from importlib.metadata import entry_points

    return [(point.name, _origin(point.module) or point.module) for point in entry_points(group=group)]


def _origin(module: str) -> str | None:
    """The file of a module, found without importing the packages around it. For the first of them every finder is
    asked: ``pip install -e`` may bring one of its own.
    """
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
