"""What a launch's record says of its sampling, and the last resort where the driver gave no figure of a rank."""

from collections.abc import Sequence
from typing import Any

from bench.machine import throttle
from bench.runs.document import RankRecord
from bench.sample.attribution import Reading

_LAST_RESORT = "the driver gave no figure of this process; this is the peak that torch reserved, without CUDA's context"


def checks(
    findings: dict[str, Any] | None, device: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """For ``LaunchRecord.checks``. ``foreign`` is None if the sampler died."""
    found = findings or {"foreign": None, "scrambled_lists": None}
    return {**found, "throttle": throttle.check(device, steps)}


def allocator_rows(
    memory: Sequence[dict[str, Any]], ranks: Sequence[RankRecord], *, launch: int, scenario: str, host: str
) -> list[dict[str, Any]]:
    """The allocator's peak, which is no sample, for each rank and GPU without any other figure."""
    known = {(row["rank"], row["device"]) for row in memory if row["used_mib"] is not None}
    t_ns = max((row["t_ns"] for row in memory), default=0)
    rows = []
    for rank in ranks:
        for name, peak_mib in (rank.allocator or {}).items():
            kind, _, device = name.partition(".")
            if kind != "max_reserved_mib" or not peak_mib or rank.pid is None or (rank.rank, device) in known:
                continue
            peak = Reading(
                pid=rank.pid, device=device, used_mib=peak_mib, source="torch_allocator", reason=_LAST_RESORT
            )
            rows.append(peak.row(rank.rank, launch=launch, scenario=scenario, host=host, t_ns=t_ns))
    return rows
