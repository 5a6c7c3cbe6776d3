"""Why a scenario cannot run on a host, as far as its declaration and files tell."""

from functools import cache
from importlib.util import find_spec

from bench.seams.discover import Found
from bench.seams.strategy import amp_obstacle
from bench.seams.switching import switch_obstacle


def obstacle(found: Found, *, device: str, impl: str, apex_path: str | None, packages: bool = True) -> str | None:
    """Why a scenario cannot run here, or None, as far as files tell; the worker host has the last word.

    ``packages``: whether torch and torchvision must be installed for this interpreter (not so with ``--python``).
    """
    for package in ("torch", "torchvision") if packages else ():
        if not _is_installed(package):
            return f"{package} is not installed; pip install torch torchvision, or name an interpreter with --python"
    for package in found.scenario.packages if packages else ():
        if not _is_installed(package):
            return not_installed(package)
    needs = set(found.scenario.needs)
    if impl == "apex":
        if found.scenario.precision != "O0" and "apex" not in found.strategy.amp:
            return f"apex.amp does not go with strategy {found.strategy_name!r}; use --impl auto or native"
        if "apex.amp" in found.apex_modules:
            lacking = amp_obstacle(found.half_on("cuda"), [one.name for one in found.switches])
            if lacking:
                return lacking
        needs |= found.apex_modules
    if device == "cpu" and "cuda" in needs:
        return "it needs CUDA and there is no GPU here; run it on a machine with an NVIDIA GPU"
    for one in found.switches:
        if why := switch_obstacle(one, device):
            return why
    wanted = sorted(need for need in needs if need.startswith("apex."))
    if wanted and device == "cpu":
        return "apex needs CUDA and this is the CPU; use --impl auto or native"
    if wanted and packages:
        from bench.core.apex_files import classify  # here, since most scenarios have no use for it

        files = classify(apex_path)
        there = {"apex.amp": files.amp, "apex.parallel": files.parallel}
        if not all(there[need] for need in wanted):
            return files.explanation
    return None


@cache  # 'bench list' asks for every scenario
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def not_installed(package: str) -> str:
    return f"{package} is not installed; pip install {package}"
