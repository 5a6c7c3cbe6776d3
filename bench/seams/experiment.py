"""An experiment: what is done with launches to answer one question, in one file ``bench/experiments/NAME.py``.

The file declares ``EXPERIMENT``. Its record is in run.json under the file's name; resume, page and terminal ask it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.seams.discover import Found

ROOM = "bench.experiments"

Above = Any  # of a room above this one: a request, a lab, a run document, an analysed run, material for a page
Option = Mapping[str, Any]  # arguments of ``add_argument``


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """``record``: the type of what run.json has of it; its launches are in fields of that.

    An option of ``bench run``: ``option`` says how (arguments of ``add_argument``), ``asked`` the type of its value,
    which is in the request under the name of the experiment; ``one_host`` why it cannot be had on several hosts.

    Launches beside the measured ones: ``rounds(request, strategy)`` says how many of each scenario, ``launch(found,
    repeat, lab)`` does one, and ``launches`` are words for them behind their number. ``order``: which comes first.

    ``after(lab)``: what is done when all launches of the run are.

    Resume: ``missing(document, request)``, whether there is something to do, where ``rounds`` does not say it; where
    ``alone``, all that such a run has is of this experiment. ``again(document)``: its launches that are done again.
    ``no_resume``: the problem and the remedy of one that cannot be resumed; ``verb``: which resumes such a run.

    What it shows of a run (a :class:`bench.analyse.analysed.Analysed`): ``chapter(material)`` on the page, where
    ``leads`` puts it first, ``sentences(run)`` on the terminal, ``tables(run)`` as CSV and JSON. ``failed(record)``:
    how many launches failed, for the exit code. ``instead``: what such a run did in place of measuring.
    """

    record: type
    option: Option | None = None
    asked: type | None = None
    one_host: str | None = None
    rounds: Callable[[Above, Above], int] | None = None
    launch: Callable[[Found, int, Above], None] | None = None
    launches: str = ""
    order: int = 0
    after: Callable[[Above], None] | None = None
    missing: Callable[[Above, Above], bool] | None = None
    alone: bool = False
    again: Callable[[Above], list[Above]] | None = None
    no_resume: tuple[str, str] | None = None
    verb: str = "run"
    chapter: Callable[[Above], Above] | None = None
    leads: bool = False
    sentences: Callable[[Above], list[str]] | None = None
    tables: Callable[[Above], Mapping[str, Above]] | None = None
    failed: Callable[[Above], int] | None = None
    instead: str | None = None


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by name, in their order."""
    names = [one.name for one in pkgutil.iter_modules(importlib.import_module(ROOM).__path__)]
    modules = {name: importlib.import_module(f"{ROOM}.{name}") for name in names}
    declared = {name: module.EXPERIMENT for name, module in modules.items() if hasattr(module, "EXPERIMENT")}
    return dict(sorted(declared.items(), key=lambda item: item[1].order))


def with_options() -> dict[str, Option]:
    """Their options of ``bench run``, by name."""
    return {name: one.option for name, one in experiments().items() if one.option is not None}


def records() -> dict[str, type]:
    """By experiment the type of its record."""
    return {name: one.record for name, one in experiments().items()}


def asked() -> dict[str, type]:
    """By experiment the type of what a request asks of it."""
    return {name: one.asked for name, one in experiments().items() if one.asked is not None}


def name_of(kind: type[object]) -> str:
    """Of the experiment whose record, or request, is of this type."""
    return next(name for name, one in experiments().items() if kind in (one.record, one.asked))


def verb_of(names: Iterable[str]) -> str | None:
    """The verb that goes on with a run of these experiments; None for one that cannot be resumed."""
    there = [experiments()[name] for name in names if name in experiments()]
    if any(one.no_resume for one in there):
        return None
    return next((one.verb for one in there if one.verb != "run"), "run")
