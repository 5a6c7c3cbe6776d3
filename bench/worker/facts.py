"""The libraries of this interpreter: torch and those it needs, and apex module by module, as one JSON line.

``bench doctor`` starts a child for it: the command line never imports torch, and a broken torch may end its process.
"""

import glob
import importlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

APEX_EXTRAS = ("apex.optimizers", "apex.normalization", "amp_C", "apex_C", "syncbn")
"""Parts of apex that make it faster, where they were built; looked for and not imported."""


def main(arguments: list[str]) -> int:
    """``[APEX_PATH]``: print the facts as the last line of standard output."""
    from bench.worker import apex

    facts: dict[str, object] = {"executable": sys.executable, "python": sys.version.split()[0]}
    facts["torch"], facts["torch_problem"] = _torch()
    facts["torchvision"], facts["torchvision_problem"] = None, None
    if facts["torch"] is not None:
        facts |= _of_torch()
        facts["torchvision"], facts["torchvision_problem"] = _torchvision()
    extras = {name: _is_there(name) for name in APEX_EXTRAS}
    facts["apex"] = {**apex.probe(arguments[0] if arguments else None), "extras": extras}
    print("\n" + json.dumps(facts), flush=True)
    os._exit(0)  # to clean up after torch takes half a second


def _torch() -> tuple[str | None, str | None]:
    if find_spec("torch") is None:
        return None, "not installed"
    try:
        return str(importlib.import_module("torch").__version__), None
    except Exception as error:  # noqa: BLE001  # whatever a broken build raises on import is the finding
        return None, " ".join(f"{type(error).__name__}: {error}".split())


def _torchvision() -> tuple[str | None, str | None]:
    """Its version, and its problem: only its compiled part is loaded; all of it takes longer than torch does."""
    if (spec := find_spec("torchvision")) is None:
        return None, "not installed"
    import torch

    try:
        for library in glob.glob(os.path.join(os.path.dirname(spec.origin or ""), "_C*.so")):
            torch.ops.load_library(library)
        return version("torchvision"), None
    except (OSError, PackageNotFoundError) as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _of_torch() -> dict[str, object]:
    """Versions and capabilities that need no device: no CUDA context is made."""
    import torch

    from bench.worker.live import bf16_instructions

    cuda, distributed = torch.version.cuda, torch.distributed.is_available()
    nccl = distributed and torch.distributed.is_nccl_available()
    return {
        "cuda": cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        "gloo": distributed and torch.distributed.is_gloo_available(),
        "bf16_instructions": bf16_instructions(),
        "architectures": (torch.cuda.get_arch_list() or torch._C._cuda_getArchFlags().split()) if cuda else [],
        "threads": torch.get_num_threads(),
    }
