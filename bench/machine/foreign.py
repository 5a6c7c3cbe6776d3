"""Who else is on the chosen GPUs: found before a run, so that it does not measure somebody else's work.

A GPU is in use if the driver lists a process that computes on it, more than 500 MiB are occupied, or it is more than
5 % busy (in a container the list may be empty). It is checked again for a moment: the driver still shows what has just
ended. What draws, such as a desktop, is named and may stay: its memory and its load are not held against the GPU.
"""

import time
from collections.abc import Sequence
from contextlib import closing

from bench.core.errors import RequestError
from bench.core.records import Gpu
from bench.machine.nvml import Nvml, NvmlUnavailable

OCCUPIED_MIB = 500.0
BUSY_PERCENT = 5.0
PATIENCE_S = 2.0

Rows = Sequence[tuple[int, float | None]]  # PID and MiB of processes; None: the driver gives no value


def in_use(computing: Rows, drawing: Rows, occupied_mib: float | None, busy_percent: float | None) -> bool:
    """Whether somebody computes on a GPU, as far as the driver knows."""
    screens = {pid for pid, _ in drawing}
    drawn = sum(mib or 0.0 for _, mib in drawing)
    hidden = 0.0 if any(mib is None for _, mib in drawing) else (occupied_mib or 0.0) - drawn
    busy = 0.0 if drawing else busy_percent or 0.0
    return any(pid not in screens for pid, _ in computing) or hidden > OCCUPIED_MIB or busy > BUSY_PERCENT


def occupant(nvml: Nvml, gpu: Gpu) -> tuple[str, bool] | None:
    """The processes on a GPU in words, and whether it is in use; None if it is free as far as the driver knows.

    Such as ``GPU 0 (NVIDIA H100): PID 4711 (python, 2,048 MiB), 2,100 MiB occupied, 97 % busy``.
    """
    (rows, _), drawing = nvml.processes(gpu.uuid), nvml.graphics(gpu.uuid)
    occupied_mib, _ = nvml.occupied_mib(gpu.uuid)
    busy = nvml.device_sample(gpu.uuid)["utilisation_percent"]
    used = in_use(rows, drawing, occupied_mib, busy)
    if not used and not drawing:
        return None
    words = []
    for pid, used_mib in dict.fromkeys((*rows, *drawing)):
        size = "memory unknown" if used_mib is None else f"{used_mib:,.0f} MiB"
        words.append(f"PID {pid} ({nvml.process_name(pid) or 'name unknown'}, {size})")
    if occupied_mib is not None:
        words.append(f"{occupied_mib:,.0f} MiB occupied")
    if busy is not None:
        words.append(f"{busy:.0f} % busy")
    return f"GPU {gpu.index} ({gpu.name}): {', '.join(words)}", used


def refuse(gpus: list[Gpu], chosen: tuple[str, ...], *, force: bool) -> list[str]:
    """A line for each chosen GPU on which something draws. Raises :class:`RequestError` with PIDs, names and memory
    where one is in use; not with ``force``."""
    if force or not chosen:
        return []
    try:
        nvml = Nvml()
    except NvmlUnavailable:  # the GPUs were listed a moment ago; the run itself will say what is wrong now
        return []
    deadline_s = time.monotonic() + PATIENCE_S
    with closing(nvml):
        while True:
            occupied = [on for gpu in gpus if gpu.uuid in chosen and (on := occupant(nvml, gpu))]
            used = [text for text, in_use in occupied if in_use]
            if not used or time.monotonic() >= deadline_s:
                break
            time.sleep(0.2)
    if used:
        remedy = "wait until they are free, choose others, or measure beside them with --force"
        raise RequestError("--gpus", f"in use by others: {'; '.join(used)}", remedy)
    return [text for text, _ in occupied]
