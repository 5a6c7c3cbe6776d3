"""Whether an installed torch can compute on a GPU: the driver must know its CUDA, and it must have code for the GPU."""

from collections.abc import Iterable, Iterator

from bench.core.channel import Message

OLDEST_IN_CUDA_13 = (7, 5)
"""CUDA 13 has no code for anything before Turing; wheels for CUDA 12.6 are the last that have Volta's."""


def problems(
    cuda: str, architectures: list[str], newest: str | None, gpus: Iterable[Message]
) -> Iterator[tuple[str, str, str]]:
    """(what it concerns, problem, remedy). ``cuda``: what torch was built for. ``newest``: the driver's. ``gpus``: with
    ``index`` and ``compute_capability``."""
    if newest is not None and int(cuda.split(".")[0]) > int(newest.split(".")[0]):
        major = newest.split(".")[0]
        build = {"11": "cu118", "12": "cu126"}.get(major, f"cu{newest.replace('.', '')}")  # with the most GPUs
        problem = f"torch needs CUDA {cuda}, and the driver supports up to {newest}"
        yield "CUDA", problem, f"update it, or install a torch built for CUDA {major} ({build})"
    for gpu in gpus:
        capability = gpu["compute_capability"]
        if capability and architectures and not _runs(capability, architectures):
            finding = f"torch has no code for its sm_{capability.replace('.', '')} (only {', '.join(architectures)})"
            old = tuple(map(int, capability.split("."))) < OLDEST_IN_CUDA_13
            fitting = "torch built for CUDA 12.6 (cu126)" if old else "newer torch"
            yield f"GPU {gpu['index']}", finding, f"install a {fitting}, or choose others with --gpus"


def _runs(capability: str, built: list[str]) -> bool:
    """Code for the same major version and no newer minor one runs, and so does PTX of anything older."""
    gpu = tuple(map(int, capability.split(".")))
    parts = [one.rstrip("af").partition("_") for one in built]  # sm_90a, sm_120f
    code = [(kind, divmod(int(number), 10)) for kind, _, number in parts if number.isdigit()]
    return any(of <= gpu and (kind == "compute" or of[0] == gpu[0]) for kind, of in code)
