"""The base of the verbs' parsers: errors of one line, and numbers that say what they take."""

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from reprlib import repr as brief
from typing import NoReturn, TextIO

from bench.console import COMMAND, fold, tell
from bench.core.errors import BenchError, RequestError
from bench.core.text import is_name, is_scenario

DEFAULT_OUT = "results"
"""Where runs go, and where a run id is looked for."""
MOST = 10**9
"""Of anything that is counted: more is a slip."""
MOST_WORKERS = 1000
"""Of a rank's loader; each is a process."""
MOST_DEVICES = 100_000
"""More than any job has: devices are listed one by one."""


class WrongOption(BenchError):
    exit_code = 2


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as it was written if there is room, and else folded like the options below it."""

    def __init__(self, prog: str) -> None:
        try:
            width = os.get_terminal_size().columns
        except OSError:  # a file or a pipe
            width = 80
        super().__init__(prog, width=width - 2)  # left out, argparse imports shutil, with all that can compress

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if max(map(len, text.splitlines()), default=0) <= width:
            return super()._fill_text(text, width, indent)
        import textwrap

        text = re.sub(r"(?m)^( +python -m bench .*?) {2,}(?=\S)", r"\1\n      ", text.rstrip())
        return "\n\n".join(
            fold(one, width) if "\n " in one else textwrap.fill(one, width, break_on_hyphens=False)
            for one in text.split("\n\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the remedy, raised and not printed.

    ``elsewhere``: of options that people expect and that there are not, what to use instead.
    """

    def __init__(self, verb: str, description: str, epilog: str, elsewhere: Mapping[str, str] | None = None) -> None:
        self.elsewhere = elsewhere or {}
        prog = f"python -m bench {verb}"
        super().__init__(prog, description=description, epilog=epilog, formatter_class=Help, allow_abbrev=False)
        self.add_argument("--json", action="store_true", help="one JSON document on standard output")

    def add_run(self, nargs: str | None = None) -> None:
        which = f"a folder, a run id or 'latest'{'' if nargs is None else ' (default: latest)'}"
        name, default = ("runs", ["latest"]) if nargs == "*" else ("run", "latest")
        self.add_argument(name, nargs=nargs, default=default, metavar="RUN", help=which)
        self.add_results()

    def add_results(self) -> None:
        self.add_argument("--results", default=DEFAULT_OUT, metavar="DIR", help="where run ids are (default: results)")

    def add_out(self) -> None:
        self.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="where run folders are (default: results)")

    def parse_command(
        self, arguments: list[str], missing: RequestError | None = None
    ) -> tuple[argparse.Namespace, tuple[str, ...]]:
        """The options, and what follows ``--``; without that :class:`RequestError` ``missing``, if one is given."""
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        options, rest = self.parse_known_args(own)
        if missing is not None and "--" not in arguments:
            raise missing
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, tuple(arguments[len(own) + 1 :])

    def error(self, message: str) -> NoReturn:
        """Raise the message with where to read on, and for an unknown option with the closest known one."""
        unknown, _, names = message.partition(": ")
        if unknown == "unrecognized arguments" and names.startswith("-"):
            from difflib import get_close_matches

            flags = [name for action in self._actions for name in action.option_strings]
            option = names.split()[0].partition("=")[0]
            close = get_close_matches(option, flags, n=1, cutoff=0.8)
            hint = self.elsewhere.get(option) or (f"did you mean {close[0]}?" if close else "")
            message += f"; {hint}" if hint else ""
        raise WrongOption(f"{message.removeprefix('argument ')}; see '{self.prog} --help'")


def whole_number(text: str, least: int = 1, most: int = MOST, of: str = "") -> int:
    """A whole number from ``least`` to ``most``; ``of`` is what it counts."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{brief(text)} is not a whole number of at least {least}")
    if value > most:
        problem = f"{of} are too many" if of else " is too large"
        raise argparse.ArgumentTypeError(f"{brief(value)}{problem}: give at most {most:,}")
    return value


worker_count = partial(whole_number, least=0, most=MOST_WORKERS, of=" processes a rank")
device_count = partial(whole_number, most=MOST_DEVICES, of=" devices")
seed = partial(whole_number, least=0, most=2**32 - 1)
"""Of 32 bits: an example may have a seed of its own made of this one, which torch wants in 64."""


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1 to :data:`MOST_DEVICES`, with commas between, each once and in order."""
    return tuple(sorted({device_count(part.strip()) for part in text.split(",")}))


UNITS_MBIT = {"kbit": 1e-3, "Mbit": 1.0, "Gbit": 1e3, "Tbit": 1e6, "kB": 8e-3, "MB": 8.0, "GB": 8e3, "TB": 8e6}


def what_if(text: str) -> float:
    """``bandwidth=100Gbit`` in Mbit/s; a B is a byte, 10^9 of them a GB."""
    name, equals, value = text.partition("=")
    parts = re.fullmatch(r"(\d*\.?\d+) *([A-Za-z]+)(?:/s)?", value)
    if name != "bandwidth" or not equals:
        raise argparse.ArgumentTypeError(f"{brief(text)} is not bandwidth=VALUE, such as bandwidth=100Gbit")
    if parts is None or parts[2] not in UNITS_MBIT:
        units = ", ".join(UNITS_MBIT)
        raise argparse.ArgumentTypeError(f"{brief(value)} is not a number with one of the units {units}")
    mbit = float(parts[1]) * UNITS_MBIT[parts[2]]
    if not 0.0 < mbit <= 1e12:
        raise argparse.ArgumentTypeError(f"{brief(value)} is not a bandwidth that a link can have")
    return mbit


def _number(text: str, most: float, what: str, unit: str = "") -> float:
    """A number above 0 and below ``most``, with its unit behind it."""
    try:
        value = float(text.removesuffix(unit)) if text.endswith(unit) else 0.0
    except ValueError:
        value = 0.0
    if not 0.0 < value < most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return value


seconds = partial(_number, most=math.inf, what="number of seconds above 0")
gibibytes = partial(_number, most=MOST, what="positive number of GiB, such as 40")


def percentage(text: str) -> float:
    return _number(text, 100.0, "percentage between 0% and 100%, such as 1%", unit="%") / 100


def span(text: str) -> float:
    """A length of time with its units, such as ``90s``, ``20m`` or ``1h30m``, in seconds."""
    parts = re.fullmatch("".join(rf"(?:(\d*\.?\d+){unit})?" for unit in "hms"), text)
    hours, minutes, rest = (float(part or 0) for part in parts.groups()) if parts else (0.0, 0.0, 0.0)
    value = 3600 * hours + 60 * minutes + rest
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time, such as 90s, 20m or 1h30m")
    return value


def checked(is_good: Callable[[str], object], what: str, text: str) -> str:
    """``text``, unless it is not ``what``."""
    if not is_good(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return text.strip()


any_name = partial(checked, is_name, "a valid name")
scenario_name = partial(checked, is_scenario, "the name of one scenario")


def utc(text: str) -> str:
    from bench.core.codec import Moment  # here, since 'bench list' does without it

    return checked(Moment().allows, Moment().words, text)


def scenario_names(given: str | None, option: str = "--scenario") -> list[str] | None:
    """The names in ``--scenario A,B``, each once; None without the option."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    if not all(names):
        raise RequestError(option, f"{given!r} has an empty name", "separate names by one comma each")
    return list(dict.fromkeys(names))


def place(path: str) -> str:
    """A path as one would give it: from here where it lies below, else in full."""
    near = os.path.relpath(path)
    return os.path.abspath(path) if near.startswith(os.pardir) else near


def called(path: str) -> str:
    """The name of a run in a command: its id where ids are looked for, else its folder, as a shell takes it."""
    folder, name = os.path.split(os.path.abspath(path))
    return shlex.quote(name if folder == os.path.abspath(DEFAULT_OUT) else place(path))


def check_apex(path: str | None) -> None:
    """Refuse an ``--apex`` that is no NVIDIA apex with both modules."""
    if path is None:
        return
    from bench.core.apex_files import classify, search_path

    if search_path(path) is None:
        problem = f"there is no package apex in {path!r}"
        raise RequestError("--apex", problem, "give a checkout of NVIDIA/apex, tag 25.05")
    files = classify(path)
    if files.kind != "nvidia":
        raise RequestError("--apex", *files.explanation.split("; ", 1))


def interpreter(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give an interpreter's path, or leave it out")
    return os.path.abspath(text) if os.sep in text else text


def write_new(path: str, text: str) -> None:
    """Write a new file. Raises :class:`RequestError` where it cannot be written, or is there by now."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RequestError("--out", f"{path} cannot be written: {error.strerror}", "give another place") from error


def latest_or(name: str, results: str, *, finished: bool) -> str:
    """The folder of a run. ``finished``: ``latest`` is the last finished one, with a note if a newer one is not."""
    from bench.runs.names import find, last_finished
    from bench.runs.reader import verified
    from bench.seams.experiment import verb_of

    path = find(name, results)
    older = last_finished(results) if finished and name == "latest" else None
    if older is None or older == path:
        return path
    try:
        verb = verb_of(verified(path, allow_incomplete=True).experiments)
    except RequestError:  # it is damaged
        verb = None
    go_on = f"; finish the newer one: {COMMAND}{verb} --resume {shlex.quote(path)}" if verb else ""
    tell(f"note: {path} is not finished, so 'latest' is {older}{go_on}", file=sys.stderr)
    return older


def next_steps(path: str) -> str:
    return f"Run folder: {place(path)}\nNext, as a page with plots: {COMMAND}report {called(path)}"


def people(options: argparse.Namespace) -> TextIO:
    """The stream for people: standard error if the JSON document has standard output to itself."""
    return sys.stderr if options.json else sys.stdout


def reply(options: argparse.Namespace, *lines: str, document: Callable[[], object]) -> None:
    """Print the lines for people, and the document if ``--json`` asks for it."""
    tell(*lines, file=people(options))
    if options.json:
        print_json(document())


def print_json(document: object) -> None:
    """Indented, but a list or an object that holds no other is one line, be it the values of thousands of nights."""
    import json

    encoder = json.JSONEncoder(allow_nan=False)

    def laid_out(value: object, margin: str) -> str:
        parts = list(value.values()) if isinstance(value, dict) else value
        if not isinstance(parts, list | tuple) or {dict, list, tuple}.isdisjoint(map(type, parts)):
            return encoder.encode(value)
        texts = [laid_out(part, f"{margin} ") for part in parts]
        if isinstance(value, dict):
            texts = [f"{encoder.encode(str(name))}: {text}" for name, text in zip(value, texts, strict=True)]
        lines = ",".join(f"{margin} {text}" for text in texts)
        return f"{{{lines}{margin}}}" if isinstance(value, dict) else f"[{lines}{margin}]"

    print(laid_out(document, "\n"))
