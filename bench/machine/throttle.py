"""Why a GPU ran slower than it could: NVML's bits, what each means for a measurement, and which make it invalid.

The bits are NVML's ``nvmlClocksEventReasons``. A GPU that slows down for heat or by its hardware's protection measures
its cooling: the launch is invalid. One at its power cap does what it was set to do, but compares only under equal caps:
a warning.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_

from bench.core.text import by_key
from bench.runs.frames import TableRow

REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake (hardware)",
    0x100: "display clocks",
}
INVALID = 0x8 | 0x20 | 0x40 | 0x80
WARNING = 0x4


def names(bits: int) -> list[str]:
    """The names of these bits; a bit without a name is given as a number."""
    unknown = bits & ~sum(REASONS)
    return [name for bit, name in REASONS.items() if bits & bit] + ([hex(unknown)] if unknown else [])


def verdict(bits: int) -> str:
    """``invalid``, ``warning`` or ``ok``."""
    if bits & INVALID:
        return "invalid"
    return "warning" if bits & WARNING else "ok"


def worst(verdicts: Iterable[str]) -> str:
    return min(verdicts, key=("invalid", "warning", "unknown", "ok").index)


def combined(samples: Iterable[int | None]) -> int | None:
    """All bits that were set in any sample; None where no sample knows. One sample in twenty is enough."""
    known = [bits for bits in samples if bits is not None]
    return reduce(or_, known) if known else None


def check(device: Iterable[TableRow], steps: Iterable[TableRow]) -> dict[str, object] | None:
    """The throttling of a launch within its measured window, for its record; None if no device was sampled in it.

    ``verdict``: the worst over the devices. ``devices``: by UUID the names of the reasons, or None if unknown.
    """
    by_host = by_key((row.get("host"), row) for row in steps if not row["warmup"])
    windows = {
        host: (min(row["start_ns"] for row in rows), max(row["start_ns"] + round(row["step_ms"] * 1e6) for row in rows))
        for host, rows in by_host.items()
    }
    alone = next(iter(windows.values())) if len(windows) == 1 else None  # whatever the host is called
    samples: dict[str, list[int | None]] = {}
    for row in device:
        start_ns, end_ns = alone or windows.get(row.get("host"), (0, -1))
        # A row of a GPU that could not be asked at all does not know of MIG either.
        if row["mig"] is not None and start_ns <= row["t_ns"] <= end_ns:
            samples.setdefault(row["device"], []).append(row["throttle_reasons"])
    if not samples:
        return None
    bits = {uuid: combined(values) for uuid, values in samples.items()}
    return {
        "verdict": worst("unknown" if value is None else verdict(value) for value in bits.values()),
        "devices": {uuid: None if value is None else names(value) for uuid, value in bits.items()},
    }
