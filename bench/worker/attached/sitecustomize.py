"""Python imports this at its start in every process of an attached command: ``bench attach`` puts this folder first on
``PYTHONPATH``. It imports no torch: it has ``recorder.py`` called once the script itself has.

It gives its place to the ``sitecustomize`` that it hides, if there is one, and leaves ``sys.path`` as it would be.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes milliseconds of each start of Python
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
WATCHED = {"torch.optim.optimizer": "watch_optimizers", "torch.utils.data.dataloader": "watch_loaders"}
"""By module what of ``recorder.py`` is called with it as soon as it is imported."""


class AfterImport:
    """Finds no module itself. It lets the others find those that are :data:`WATCHED`, and adds a call."""

    def __init__(self) -> None:
        self.left = dict(WATCHED)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if (call := self.left.pop(name, None)) is None:
            return None
        if not self.left:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                _call_after(spec.loader, call)
                return spec
        return None


def _call_after(loader: Any, call: str) -> None:
    def exec_module(module: Any) -> None:
        del loader.exec_module
        loader.exec_module(module)
        try:
            getattr(_recorder(), call)(module)
        except Exception as error:  # noqa: BLE001  # the script must not notice
            _tell(error)

    loader.exec_module = exec_module


def _recorder() -> Any:
    """The module, loaded by its path: the script's own imports find nothing of bench."""
    name = "_bench_attached"
    if name not in sys.modules:
        import importlib.util

        spec: Any = importlib.util.spec_from_file_location(name, os.path.join(HERE, "recorder.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _tell(error: Exception) -> None:
    import json
    from contextlib import suppress

    path = os.path.join(os.environ["BENCH_ATTACH"], f"{os.getpid()}.jsonl")
    with suppress(OSError), open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps({"problem": f"{type(error).__name__}: {error}"}) + "\n")


def _make_way() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    if os.environ.get("BENCH_ATTACH"):
        sys.meta_path.insert(0, AfterImport())
    _make_way()
