"""Which ``apex`` would be imported here, read off its files without importing it.

Three different things have the name: NVIDIA's up to 25.05 with ``apex.amp`` and ``apex.parallel``; NVIDIA's since
2025-05-08 (NVIDIA/apex#1896), which imports well and has neither; and an unrelated project on PyPI. ``bench list`` uses
this; a worker confirms it by importing the modules one by one (``bench.worker.apex``).
"""

import os
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder

REMEDY = "check out NVIDIA/apex at tag 25.05 and give its folder with --apex, or use --impl native"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApexFiles:
    """The apex on disk: ``kind`` is ``absent``, ``nvidia``, ``nvidia_without_amp``, ``pypi_unrelated`` or ``unknown``.

    ``path``: the package's folder, or None. ``explanation``: one line on what was found and, if needed, the remedy.
    """

    kind: str
    path: str | None = None
    amp: bool = False
    parallel: bool = False
    explanation: str


def search_path(apex_path: str | None) -> str | None:
    """The folder to put on ``sys.path`` for ``apex_path``, a checkout or the folder ``apex`` in it; or None."""
    if apex_path is None:
        return None
    root = os.path.abspath(apex_path)
    if os.path.isfile(os.path.join(root, "apex", "__init__.py")):
        return root
    if os.path.basename(root) == "apex" and os.path.isfile(os.path.join(root, "__init__.py")):
        return os.path.dirname(root)
    return None


def classify(apex_path: str | None = None, path: list[str] | None = None) -> ApexFiles:
    """Classify the ``apex`` that ``apex_path`` names, or else the first on ``path`` (default: ``sys.path``)."""
    chosen = search_path(apex_path)
    spec = PathFinder.find_spec("apex", [chosen] if chosen else (sys.path if path is None else path))
    if spec is None:
        return ApexFiles(kind="absent", explanation=f"apex is not installed; {REMEDY}")
    locations = list(spec.submodule_search_locations or [])
    folder = locations[0] if locations else os.path.dirname(spec.origin or "")
    amp, parallel = _module(folder, "amp"), _module(folder, "parallel")
    if amp and parallel:
        explanation = f"NVIDIA apex with apex.amp and apex.parallel at {folder}"
        return ApexFiles(kind="nvidia", path=folder, amp=True, parallel=True, explanation=explanation)
    if os.path.isfile(os.path.join(folder, "lib", "libapex.py")):
        kind, what = "pypi_unrelated", "is the unrelated PyPI project 'apex' (a web toolkit), not NVIDIA's"
    elif _module(folder, "normalization") and _module(folder, "optimizers"):
        kind, what = "nvidia_without_amp", "is NVIDIA's, newer than 25.05: apex.amp and apex.parallel were removed"
    else:
        missing = [name for name, there in (("apex.amp", amp), ("apex.parallel", parallel)) if not there]
        kind, what = "unknown", f"is not a NVIDIA apex up to 25.05: it has no {' and no '.join(missing)}"
    explanation = f"the apex at {folder} {what}; {REMEDY}"
    return ApexFiles(kind=kind, path=folder, amp=amp, parallel=parallel, explanation=explanation)


def _module(folder: str, name: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, file)) for file in (f"{name}/__init__.py", f"{name}.py"))
