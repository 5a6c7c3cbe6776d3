"""Executes a file that declares something, and checks it: bench's own here, anybody else's in a process of its own."""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from bench.core.errors import RequestError, described
from bench.seams.strategy import Strategy

T = TypeVar("T")

IMPORT_LIMIT_S = 60.0  # for a file that is not bench's own to be imported, which may take torch along
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BESIDE = os.path.join(os.path.dirname(PACKAGE), "scenarios")
PROBE = "probe(session, load, steps, tick)"  # the function of a strategy that declares a `probe`


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
        """Its class, such as ``bench.seams.scenario.Scenario``; a site's is imported no sooner than this."""
        kind: type = getattr(importlib.import_module(f"bench.seams.{self.word}"), self.word.capitalize())
        return kind

    @property
    def plural(self) -> str:
        """The name of the folder in a checkout, and the end of the entry point group."""
        return {"strategy": "strategies", "switch": "switches"}.get(self.word, f"{self.word}s")

    @property
    def folder(self) -> str:
        """Where the built-in files are: in the package; scenarios lie beside it in a checkout."""
        if self.word == "scenario" and os.path.isdir(BESIDE):
            return BESIDE
        return os.path.join(PACKAGE, *(("sites",) if self.word == "engine" else ()), self.plural)


def declared(look: Callable[[str, str], T], answer: type[T], name: str, file: str, kind: Kind) -> T:
    """``look(name, file)``, an ``answer``. A file that is not bench's own is executed in another process, which answers
    with plain values: whatever it does when it is imported (leaves, hangs, replaces parts of Python), it is not done to
    this one."""
    if os.path.dirname(file) == kind.folder:
        return look(name, file)
    from bench.core.children import Unanswered  # here, since 'bench list' seldom needs it
    from bench.core.codec import decode
    from bench.core.files import refuse_bytes

    refuse_bytes(kind.option, file)
    changed_ns = os.stat(file).st_mtime_ns if os.path.isfile(file) else 0
    try:
        declaration = decode(answer, _asked(look, name, file, changed_ns))
    except Unanswered as error:
        what = f"{file} cannot be executed: the process that tried {error}"
        raise RequestError(kind.option, what, "fix the file") from error
    except ValueError as error:
        raise RequestError(kind.option, f"{file}: {error}", "fix the file") from error
    if not os.path.isfile(file):  # it is executed again in every rank, and its hash is recorded
        raise RequestError(kind.option, f"{file} was removed when it was executed", "fix the file")
    return declaration


@cache  # it may take torch along each time, and a run asks for its workload three times
def _asked(look: Callable[[str, str], object], name: str, file: str, changed_ns: int) -> object:
    from bench.core.children import ask

    return ask(partial(_quietly, look, name, file), IMPORT_LIMIT_S)


def _quietly(look: Callable[[str, str], object], name: str, file: str) -> object:
    """The declaration as a JSON value. The file's output is dropped."""
    from bench.core.codec import encode

    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)
    return encode(look(name, file))


def load_file(name: str, file: str, kind: Kind) -> ModuleType:
    """Execute a file of this kind and check it. Raises :class:`RequestError` that names file, field and remedy."""
    check_there(name, file, kind)
    module = load_module(name, file, kind)
    declaration = getattr(module, kind.declares, None)
    if not isinstance(declaration, kind.declaration):
        what = f"{kind.declares} = {kind.declaration.__name__}(...)"
        raise RequestError(kind.option, f"{file} declares no {kind.declares}", f"add {what}")
    if os.path.dirname(file) != kind.folder:  # a test checks bench's own, so that 'bench list' is quick
        check_values(declaration, file, kind)
        check_functions(module, file, kind)
    return module


def check_values(declaration: Any, file: str, kind: Kind) -> None:
    """Refuse a value that is not of its field's type, and an empty text."""
    from bench.core.codec import Damaged, decode, encode  # here, since 'bench list' seldom needs it

    try:
        decode(type(declaration), encode(declaration))
    except Damaged as error:
        what = f"{error.where} {error.problem}".strip()
        raise RequestError(kind.option, f"{file}: {what}", "fix the file") from error
    for one in fields(declaration):
        if one.default is MISSING and not str(getattr(declaration, one.name)).strip():
            raise RequestError(kind.option, f"{file}: {one.name} is empty", "give a text")


def check_functions(module: ModuleType, file: str, kind: Kind, strategy: Strategy | None = None) -> None:
    """Refuse a function that is missing, misspelt, or cannot be called with the arguments that it will get."""
    from difflib import get_close_matches

    must = kind.functions if strategy is None or strategy.probe is None else (*kind.functions, PROBE)
    calls = {call.partition("(")[0]: call for call in (*must, *kind.may_define)}
    own = (name for name, value in vars(module).items() if isinstance(value, FunctionType))
    others = [name for name in own if name not in calls and not name.startswith("_")]
    for name, call in calls.items():
        function = getattr(module, name, None)
        if not callable(function):
            near = get_close_matches(name, others, n=1, cutoff=0.8)
            if near or call in must:
                remedy = f"rename {near[0]} to {name}" if near else f"define {call}"
                raise RequestError(kind.option, f"{file} has no function {name}", remedy)
            continue
        try:
            inspect.signature(function).bind(*call[len(name) + 1 : -1].split(", "))
        except TypeError as error:
            raise RequestError(kind.option, f"{file}: {name} cannot be called: {error}", f"define {call}") from error


def load_module(name: str, file: str, kind: Kind) -> ModuleType:
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


def check_there(name: str, file: str, kind: Kind) -> None:
    if not os.path.isfile(file):
        raise RequestError(kind.plural, f"the entry point {name!r} names a missing module {file}", "reinstall it")


def line_in(file: str, error: BaseException) -> int | None:
    """The last line of ``file`` that took part in ``error``."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    from traceback import walk_tb

    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[-1] if lines else None
