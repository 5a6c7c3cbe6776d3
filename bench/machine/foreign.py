"""Who else is on the chosen GPUs: found before a run, so that it does not measure somebody else's work.

A GPU is in use if the driver lists a process on it, more than 500 MiB are occupied, or it is more than 5 % busy (in a
container the list may be empty). It is checked again for a moment: the driver still shows what has just ended.
"""

import time
from contextlib import closing

from bench.core.errors import RequestError
from bench.machine.nvml import Gpu, Nvml, NvmlUnavailable

OCCUPIED_MIB = 500.0
BUSY_PERCENT = 5.0
PATIENCE_S = 2.0


def occupant(nvml: Nvml, gpu: Gpu) -> str | None:
    """What is on a GPU, or None if it is free as far as the driver knows.

    Such as ``GPU 0 (NVIDIA H100): PID 4711 (python, 2,048 MiB), 2,100 MiB occupied, 97 % busy``.
    """
    rows, _ = nvml.processes(gpu.uuid)
    occupied_mib, _ = nvml.occupied_mib(gpu.uuid)
    busy = nvml.device_sample(gpu.uuid)["utilisation_percent"]
    if not rows and (occupied_mib or 0.0) <= OCCUPIED_MIB and (busy or 0.0) <= BUSY_PERCENT:
        return None
    found = []
    for pid, used_mib in rows:
        size = "memory unknown" if used_mib is None else f"{used_mib:,.0f} MiB"
        found.append(f"PID {pid} ({nvml.process_name(pid) or 'name unknown'}, {size})")
    if occupied_mib is not None:
        found.append(f"{occupied_mib:,.0f} MiB occupied")
    if busy is not None:
        found.append(f"{busy:.0f} % busy")
    return f"GPU {gpu.index} ({gpu.name}): {', '.join(found)}"


def refuse(gpus: list[Gpu], chosen: tuple[str, ...], *, force: bool) -> None:
    """Raise :class:`RequestError` with PIDs, names and memory where a chosen GPU is in use; not with ``force``."""
    if force or not chosen:
        return
    try:
        nvml = Nvml()
    except NvmlUnavailable:  # the GPUs were listed a moment ago; the run itself will say what is wrong now
        return
    deadline_s = time.monotonic() + PATIENCE_S
    with closing(nvml):
        while (found := [on for gpu in gpus if gpu.uuid in chosen and (on := occupant(nvml, gpu))]) and (
            time.monotonic() < deadline_s
        ):
            time.sleep(0.2)
    if found:
        raise RequestError(
            "--gpus",
            f"in use by others: {'; '.join(found)}",
            "wait until they are free, choose others, or measure beside them with --force",
        )
