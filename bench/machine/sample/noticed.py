"""The sampling of a launch as its record has it, and the last resort where the driver gave no value for a rank."""

from collections.abc import Sequence

from bench.machine import throttle
from bench.machine.sample.attribution import Reading
from bench.runs.frames import TableRow
from bench.runs.launches import RankRecord

_LAST_RESORT = "the driver gave no value for this process; this is the peak that torch reserved, without CUDA's context"


def checks(findings: TableRow | None, device: Sequence[TableRow], steps: Sequence[TableRow]) -> TableRow:
    """For ``LaunchRecord.checks``. ``foreign`` is None if the sampler died."""
    noticed = findings or {"foreign": None, "scrambled_lists": None}
    return {**noticed, "throttle": throttle.check(device, steps)}


def together(*hosts: tuple[TableRow | None, TableRow | None]) -> tuple[TableRow | None, TableRow | None]:
    """Cost and findings of the samplers of all hosts of a launch; None where one has died. What a sampler may
    take is a share of its host's time, so that the cost is that of the host where it was highest."""
    costs, noticed = [cost for cost, _ in hosts if cost], [finding for _, finding in hosts if finding]
    if len(costs) < len(hosts) or len(noticed) < len(hosts):
        return None, None
    cost = {kind: max((one[kind] for one in costs), key=lambda one: one["total_ms"]) for kind in costs[0]}
    whole = {
        "foreign": [process for one in noticed for process in one["foreign"]],
        "scrambled_lists": sum(one["scrambled_lists"] for one in noticed),
        "probes": {rank: pid for one in noticed for rank, pid in one["probes"].items()},
    }
    return cost, whole


def allocator_rows(
    memory: Sequence[TableRow], ranks: Sequence[RankRecord], *, launch: int, scenario: str, host: str = ""
) -> list[TableRow]:
    """The allocator's peak, which is no sample, for each rank and GPU without any other value. ``host``: of ranks that
    name none."""
    known = {(row["rank"], row["device"]) for row in memory if row["used_mib"] is not None}
    last_ns = {row["host"]: row["t_ns"] for row in sorted(memory, key=lambda row: row["t_ns"])}
    rows = []
    for rank in ranks:
        for name, peak_mib in (rank.allocator or {}).items():
            kind, _, device = name.partition(".")
            if kind != "max_reserved_mib" or not peak_mib or rank.pid is None or (rank.rank, device) in known:
                continue
            peak = Reading(
                pid=rank.pid, device=device, used_mib=peak_mib, source="torch_allocator", reason=_LAST_RESORT
            )
            where = rank.host or host
            at = {"host": where, "t_ns": last_ns.get(where, 0)}
            rows.append(peak.row(rank.rank, launch=launch, scenario=scenario, **at))
    return rows
