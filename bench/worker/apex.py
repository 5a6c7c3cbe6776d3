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
from bench.core.job import Job
from bench.seams.strategy import APEX_MODULES, Strategy, amp_obstacle


def add_to_path(apex_path: str | None) -> None:
    """Let ``import apex`` take the checkout that ``--apex`` names."""
    if (root := search_path(apex_path)) is not None and root not in sys.path:
        sys.path.insert(0, root)


def probe(apex_path: str | None) -> dict[str, Any]:
    """The description of apex's files, and for each module ``None`` (it imports) or one line why not."""
    add_to_path(apex_path)
    files = classify(apex_path)
    there = {"apex.amp": files.amp, "apex.parallel": files.parallel}
    problems = {name: _import_problem(name) if there[name] else files.explanation for name in APEX_MODULES}
    imported = files.kind == "nvidia" and problems["apex.amp"] is None
    version = getattr(sys.modules["apex"], "__version__", None) if imported else None
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
    strategy: Strategy, job: Job, *, cuda: bool, problems: Mapping[str, str | None]
) -> tuple[str, str | None, str | None]:
    """``(amp, implementation, problem)``: whose precision level, and which of the strategy's implementations.

    ``job.impl``: apex is used where it can be (``auto``), never (``native``), or wherever it plays a part (``apex``).
    ``problems``: as in :func:`probe`. ``problem``: why ``--impl apex`` cannot be served, or None.
    """
    impl = job.impl
    no_cuda = None if cuda else "apex needs CUDA and this run is on the CPU; use --impl native"
    problem = None

    def takes(module: str) -> bool:
        nonlocal problem
        obstacle = no_cuda or problems[module]
        if module == "apex.amp":
            obstacle = obstacle or amp_obstacle(job.half, [one.name for one in job.switches])
        if impl == "apex":
            problem = problem or obstacle
        return impl == "apex" or (impl == "auto" and obstacle is None)

    amp = "apex" if job.precision != "O0" and "apex" in strategy.amp and takes("apex.amp") else "native"
    implementation = next((one.name for one in strategy.implementations if one.needs is None or takes(one.needs)), None)
    return amp, implementation, problem
