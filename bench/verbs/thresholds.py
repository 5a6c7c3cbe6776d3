"""The thresholds of the gate: options, over ``[tool.bench.gate]`` of a TOML file, over what is built in."""

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.core.errors import RequestError, closest
from bench.core.files import JSON_BYTES, open_regular
from bench.verbs.options import percentage, whole_number

if TYPE_CHECKING:
    from bench.analyse.history.gate import Rule

DEFAULT_FILE = "pyproject.toml"
TABLE = "[tool.bench.gate]"
FEWEST_NIGHTS = 3


def nights(text: str) -> int:
    value = whole_number(text)
    if value < FEWEST_NIGHTS:
        raise argparse.ArgumentTypeError(f"{text!r} is fewer than the {FEWEST_NIGHTS} nights that a bound needs")
    return value


def level(text: str) -> float:
    value = percentage(text)
    if value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is the level of a bound, and below 50%; 99% is usual")
    return value


KINDS: dict[str, tuple[Callable[[str], float], str]] = {
    "nights": (nights, "accepted nights that make a base (default: 10)"),
    "level": (level, "of the prediction bound, over all scenarios of a metric (default: 99%%)"),
    "threshold": (percentage, "a step time that is slower by less has not regressed (default: 1%%)"),
    "memory-threshold": (percentage, "the same of peak memory (default: 1%%)"),
    "early-threshold": (percentage, "of both while the base has fewer nights, and with --baseline (default: 3%%)"),
}
"""By name as an option and in the file its type and its help."""


def add_options(parser: argparse.ArgumentParser) -> None:
    for name, (kind, text) in KINDS.items():
        parser.add_argument(f"--{name}", type=kind, metavar="N" if kind is nights else "PERCENT", help=text)
    where = f"TOML file with {TABLE} (default: {DEFAULT_FILE} here, if it has that table)"
    parser.add_argument("--config", metavar="FILE", help=where)


def rule_from(options: argparse.Namespace) -> "Rule":
    """The rule that is asked for. Raises :class:`RequestError` that names the key and the file."""
    from bench.analyse.history.gate import MEMORY, STEP_TIME, Rule

    asked = {name: getattr(options, name.replace("-", "_")) for name in KINDS}
    given = _from_file(options.config) | {name: value for name, value in asked.items() if value is not None}
    usual = Rule()
    return Rule(
        nights=int(given.get("nights", usual.nights)),
        level=given.get("level", usual.level),
        thresholds={
            STEP_TIME: given.get("threshold", usual.thresholds[STEP_TIME]),
            MEMORY: given.get("memory-threshold", usual.thresholds[MEMORY]),
        },
        before=given.get("early-threshold", usual.before),
    )


def _from_file(file: str | None) -> dict[str, float]:
    """The values in the table of a file, by name; nothing if the default file or its table is missing."""
    import tomllib

    path = DEFAULT_FILE if file is None else file
    if file is None and not os.path.isfile(path):
        return {}
    try:
        with open_regular(path, limit=JSON_BYTES) as opened:
            table: object = tomllib.load(opened)
    except OSError as error:
        raise RequestError("--config", f"{path} cannot be read: {error.strerror}", "give a TOML file") from error
    except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8
        raise RequestError("--config", f"{path} is no TOML: {error}", "correct it, or give another file") from error
    for name in ("tool", "bench", "gate"):
        table = table.get(name) if isinstance(table, dict) else None
    if table is None and file is None:
        return {}
    if not isinstance(table, dict):
        raise RequestError("--config", f"{path} has no table {TABLE}", f"add one with {', '.join(KINDS)}")
    return {name: _value(name, value, path) for name, value in table.items()}


def _value(name: str, value: object, path: str) -> float:
    where = f"{path}, {TABLE}"
    if name not in KINDS:
        raise RequestError(where, f"there is no {name!r}", closest(name, list(KINDS)))
    example = {"nights": "nights = 10", "level": 'level = "99%"'}.get(name, f'{name} = "1%"')
    if type(value) not in (str, int, float):
        raise RequestError(where, f"{name} is {value!r}", f"write {example}")
    try:
        return KINDS[name][0](str(value))
    except argparse.ArgumentTypeError as error:
        raise RequestError(where, f"{name}: {error}", f"write {example}") from error
