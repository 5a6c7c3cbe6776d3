"""What a launch's record says of its sampling, and the last resort where the driver gave no figure of a rank."""

from collections.abc import Sequence
from typing import Any

from bench.machine import throttle
from bench.runs.document import RankRecord

_LAST_RESORT = "the driver gave no figure of this process; this is the peak that torch reserved, without CUDA's context"


def checks(
    findings: dict[str, Any] | None, device: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """For ``LaunchRecord.checks``.

    ``foreign``: processes on the launch's GPUs that are not bench's, with name, peak MiB, and whether that is certain;
    None where the sampler died and nobody looked. ``throttle``: see :func:`bench.machine.throttle.check`.
    ``scrambled_lists``: how many of the driver's lists were dropped. ``probes``: by rank the PID that its probe showed.
    ``cpu_energy``:
    whence the energy of the CPU, or why there is none.
    """
    found = findings or {"foreign": None, "scrambled_lists": None}
    return {**found, "throttle": throttle.check(device, steps)}


def allocator_rows(
    memory: Sequence[dict[str, Any]], ranks: Sequence[RankRecord], *, launch: int, scenario: str, host: str
) -> list[dict[str, Any]]:
    """A row with source ``torch_allocator`` for each rank and GPU that has no known figure but torch's own peak.

    It is a peak and no sample, and stands at the time of the launch's last sample.
    """
    known = {(row["rank"], row["device"]) for row in memory if row["used_mib"] is not None}
    t_ns = max((row["t_ns"] for row in memory), default=0)
    rows = []
    for rank in ranks:
        for name, peak_mib in (rank.allocator or {}).items():
            kind, _, device = name.partition(".")
            if kind != "max_reserved_mib" or not peak_mib or (rank.rank, device) in known:
                continue
            rows.append(
                {
                    "launch": launch,
                    "scenario": scenario,
                    "host": host,
                    "t_ns": t_ns,
                    "pid": rank.pid,
                    "rank": rank.rank,
                    "device": device,
                    "used_mib": peak_mib,
                    "source": "torch_allocator",
                    "reason": _LAST_RESORT,
                    "pss_mib": None,
                }
            )
    return rows
