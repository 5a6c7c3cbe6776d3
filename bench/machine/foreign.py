"""Who else is on the chosen GPUs: found before a run, so that it does not measure somebody else's work.

A GPU is in use if the driver lists a process on it, more than 500 MiB are occupied, or it is more than 5 % busy (in a
container the list may be empty). It is checked again for a moment: the driver still shows what has just ended.
"""

import time
from contextlib import closing
from dataclasses import dataclass

from bench.core.errors import RequestError
from bench.machine.nvml import Gpu, Nvml, NvmlUnavailable

OCCUPIED_MIB = 500.0
BUSY_PERCENT = 5.0
PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """A GPU that is in use. ``processes``: (PID, name or None, MiB or None); figures are None where unknown."""

    gpu: Gpu
    processes: tuple[tuple[int, str | None, float | None], ...]
    occupied_mib: float | None
    busy_percent: float | None

    def __str__(self) -> str:
        """Such as ``GPU 0 (NVIDIA H100): PID 4711 (python, 2,048 MiB), 2,100 MiB occupied, 97 % busy``."""
        told = []
        for pid, name, used_mib in self.processes:
            size = "memory unknown" if used_mib is None else f"{used_mib:,.0f} MiB"
            told.append(f"PID {pid} ({name or 'name unknown'}, {size})")
        if self.occupied_mib is not None:
            told.append(f"{self.occupied_mib:,.0f} MiB occupied")
        if self.busy_percent is not None:
            told.append(f"{self.busy_percent:.0f} % busy")
        return f"GPU {self.gpu.index} ({self.gpu.name}): {', '.join(told)}"


def occupant(nvml: Nvml, gpu: Gpu) -> Occupied | None:
    """What is on a GPU, or None where it is free as far as the driver tells."""
    rows, _ = nvml.processes(gpu.uuid)
    occupied_mib, _ = nvml.occupied_mib(gpu.uuid)
    busy = nvml.device_sample(gpu.uuid)["utilisation_percent"]
    much = occupied_mib is not None and occupied_mib > OCCUPIED_MIB
    if not rows and not much and not (busy is not None and busy > BUSY_PERCENT):
        return None
    processes = tuple((pid, nvml.process_name(pid), used_mib) for pid, used_mib in rows)
    return Occupied(gpu=gpu, processes=processes, occupied_mib=occupied_mib, busy_percent=busy)


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
            f"in use by others: {'; '.join(map(str, found))}",
            "wait until they are free, choose others, or measure beside them with --force",
        )
