"""An experiment: what is done with launches to answer one question, in one file ``bench/experiments/NAME.py``.

The file declares ``EXPERIMENT``, and defines those of the functions of :class:`Experiment` that it needs.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

ROOM = "bench.experiments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """``record``: the type of what run.json has of it, under the name of the file. Its launches are in its fields."""

    record: type[Any]


@cache
def experiments() -> Mapping[str, Experiment]:
    """What there is, by name."""
    names = [one.name for one in pkgutil.iter_modules(importlib.import_module(ROOM).__path__)]
    modules = {name: importlib.import_module(f"{ROOM}.{name}") for name in names}
    return {name: module.EXPERIMENT for name, module in modules.items() if hasattr(module, "EXPERIMENT")}


def records() -> dict[str, Any]:
    """By experiment the type of its record."""
    return {name: one.record for name, one in experiments().items()}


def name_of(record: type[Any]) -> str:
    return next(name for name, one in records().items() if one is record)
