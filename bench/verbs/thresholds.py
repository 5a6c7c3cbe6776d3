"""The thresholds of the gate: options, over ``[tool.bench.gate]`` of a TOML file, over what is built in."""

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.core.errors import RequestError
from bench.verbs.options import percentage, whole_number

if TYPE_CHECKING:
    from bench.history.gate import Rule

DEFAULT_FILE = "pyproject.toml"
TABLE = "[tool.bench.gate]"

FEWEST_NIGHTS = 3


def nights(text: str) -> int:
    """A whole number of nights from which a scatter can be known."""
    value = whole_number(text)
    if value < FEWEST_NIGHTS:
        raise argparse.ArgumentTypeError(f"{text!r} is fewer than the {FEWEST_NIGHTS} nights that a bound needs")
    return value


def level(text: str) -> float:
    """A level such as ``99%``, as a fraction of at least a half."""
    value = percentage(text)
    if value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is the level of a bound, and below 50%; 99% is usual")
    return value


KINDS: dict[str, Callable[[str], float]] = {
    "nights": nights,
    "level": level,
    "threshold": percentage,
    "memory-threshold": percentage,
    "early-threshold": percentage,
}
"""What there is to set, by its name as an option and in the file, and what reads it."""

HELP = {
    "nights": ("N", "accepted nights that make a base (default: 10)"),
    "level": ("PERCENT", "of the prediction bound, over all scenarios of a metric (default: 99%%)"),
    "threshold": ("PERCENT", "a step time that is slower by less has not regressed (default: 1%%)"),
    "memory-threshold": ("PERCENT", "the same of peak memory (default: 1%%)"),
    "early-threshold": ("PERCENT", "of both while the base has fewer nights, and with --baseline (default: 3%%)"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """One option for each, and ``--config``."""
    for name, kind in KINDS.items():
        metavar, text = HELP[name]
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with {TABLE} (default: {DEFAULT_FILE} here, where it has one)"
    )


def rule_from(options: argparse.Namespace) -> "Rule":
    """The rule that is asked for. Raises :class:`RequestError` that names the key and the file."""
    from bench.history.gate import MEMORY, STEP_TIME, Rule

    given = _from_file(options.config)
    for name in KINDS:
        value = getattr(options, name.replace("-", "_"))
        if value is not None:
            given[name] = value
    usual = Rule()
    thresholds = {
        STEP_TIME: given.get("threshold", usual.thresholds[STEP_TIME]),
        MEMORY: given.get("memory-threshold", usual.thresholds[MEMORY]),
    }
    return Rule(
        nights=int(given.get("nights", usual.nights)),
        level=given.get("level", usual.level),
        thresholds=thresholds,
        before=given.get("early-threshold", usual.before),
    )


def _from_file(file: str | None) -> dict[str, float]:
    """What the table of a file sets, by name; nothing where there is no default file or no table in it."""
    import tomllib

    path = DEFAULT_FILE if file is None else file
    if file is None and not os.path.isfile(path):
        return {}
    try:
        with open(path, "rb") as content:
            document = tomllib.load(content)
    except OSError as error:
        raise RequestError("--config", f"{path} cannot be read: {error.strerror}", "give a TOML file") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise RequestError("--config", f"{path} is no TOML: {error}", "correct it, or give another file") from error
    table = _inner(document, ("tool", "bench", "gate"))
    if table is None:
        if file is None:
            return {}
        raise RequestError("--config", f"{path} has no table {TABLE}", f"add one with {', '.join(KINDS)}")
    if not isinstance(table, dict):
        raise RequestError("--config", f"{TABLE} of {path} is no table", f"make it one with {', '.join(KINDS)}")
    return {name: _value(name, value, path) for name, value in table.items()}


def _inner(document: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _value(name: str, value: Any, path: str) -> float:
    where = f"{path}, {TABLE}"
    if name not in KINDS:
        from difflib import get_close_matches

        close = get_close_matches(name, KINDS, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(KINDS)}"
        raise RequestError(where, f"there is no {name!r}", remedy)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RequestError(where, f"{name} is {value!r}", "write " + _example(name))
    try:
        return KINDS[name](str(value))
    except argparse.ArgumentTypeError as error:
        raise RequestError(where, f"{name}: {error}", "write " + _example(name)) from error


def _example(name: str) -> str:
    return {"nights": "nights = 10", "level": 'level = "99%"'}.get(name, f'{name} = "1%"')
