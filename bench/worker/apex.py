"""Which of apex's modules can be imported in this interpreter, tried one by one, and who implements what in a job.

The trial is made in a child of the worker host, so that the host stays without foreign modules and threads.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.core.apex_files import classify, search_path

MODULES = ("apex.amp", "apex.parallel")


def add_to_path(apex_path: str | None) -> None:
    """Let ``import apex`` take the checkout that ``--apex`` names."""
    root = search_path(apex_path)
    if root is not None and root not in sys.path:
        sys.path.insert(0, root)


def probe(apex_path: str | None) -> dict[str, Any]:
    """What is there: the files' description, and for each module ``None`` (it imports) or one line why not."""
    add_to_path(apex_path)
    files = classify(apex_path)
    there = {"apex.amp": files.amp, "apex.parallel": files.parallel}
    problems: dict[str, str | None] = {}
    for name in MODULES:
        problems[name] = _import_problem(name) if there[name] else files.explanation
    version = None
    if files.kind == "nvidia" and problems["apex.amp"] is None:
        version = getattr(sys.modules["apex"], "__version__", None)
    return {**asdict(files), "version": version, "problems": problems}


def _import_problem(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  # whatever a foreign package raises on import is the finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        return f"{name} fails to import: {type(error).__name__}: {error} ({where}); use --impl native"
    return None


def implementations(
    *, strategy: str, precision: str, impl: str, cuda: bool, problems: Mapping[str, str | None]
) -> tuple[str, str, str | None]:
    """``(precision_impl, parallel_impl, problem)`` for a scenario. ``problems``: as in :func:`probe`.

    ``torch``: the scenario has nothing of apex in it. ``apex`` where apex was asked for or may be used, and is there;
    ``native`` otherwise. ``problem`` is the reason why ``--impl apex`` cannot be served, or None.
    """
    wanted = {
        "apex.amp": precision != "O0",
        "apex.parallel": strategy == "apex_ddp",
    }
    chosen: dict[str, str] = {}
    problem = None
    for module, is_wanted in wanted.items():
        obstacle = "apex needs CUDA and this run is on the CPU; use --impl native" if not cuda else None
        obstacle = obstacle or problems[module]
        if not is_wanted:
            chosen[module] = "torch"
        elif impl == "native" or (impl == "auto" and obstacle is not None):
            chosen[module] = "native"
        else:
            chosen[module] = "apex"
            problem = problem or obstacle
    return chosen["apex.amp"], chosen["apex.parallel"], problem
