"""From what the ranks of a launch report to the record of it in run.json."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from bench.core.codec import decode, encode
from bench.core.job import Job
from bench.experiments.rows import Results
from bench.runs.launches import Checks, Effective, Failure, LaunchRecord, MemoryHeld, RankRecord
from bench.seams.site import Outcome

CONSERVATION_LIMIT = 0.005  # how far the steps of a window may be from the host's wall time for it
SLICE_MS = 10.0
"""Or by this much: a process preempted between a mark and the wall clock beside it loses a few scheduler slices (some
3 ms each), more than 0.5 % of a window of some 100 ms."""

EXPECTED_TO_DIFFER = {"device", "compiled"}  # keys of `effective` in which the ranks of a launch differ by design
OF_A_HOST = {"threads", "affinity", "bound_cores", "chosen_threads"}  # keys in which ranks on different hosts differ
OF_A_PASS = {"precision", "compute_dtypes", "memory_format", "gradient_dtypes"}
"""Keys in which a server differs from the ranks that compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A launch that is over. ``interrupted``: by Ctrl-C or its like."""

    outcome: Outcome
    started_utc: str
    ended_utc: str
    wall_s: float
    foreign_cores: float
    interrupted: bool = False


def of(job: Job, done: Executed, checks: dict[str, object]) -> LaunchRecord:
    """The record of a launch. ``checks``: what others have verified about it."""
    outcome, results = done.outcome, done.outcome.results
    ran = results[0].get("effective") if results else None
    hosts = [job.ranks[result["rank"]].host for result in results]
    servers = [rank for rank, one in enumerate(job.ranks) if one.role == "server"]
    checks = _checks(results, hosts, servers) | checks
    return replace(
        blank(job),
        status=outcome.status,
        reason=outcome.reason,
        first_failed_rank=outcome.first_failed_rank,
        effective=decode(Effective, ran, "effective") if ran else None,
        checks=decode(Checks, encode(Checks(foreign_cores=done.foreign_cores)) | checks),
        ranks=_ranks(outcome, results, job),
        started_utc=done.started_utc,
        ended_utc=done.ended_utc,
        wall_s=done.wall_s,
        first_forward_s=max((one["first_forward_s"] for one in results if "first_forward_s" in one), default=None),
        failure=_failure(done),
    )


def _failure(done: Executed) -> Failure | None:
    """A failure as far as it is known, with how many steps were kept of each rank that has any."""
    if done.outcome.status == "ok":
        return None
    kept = {str(result["rank"]): len(result["steps"]) for result in done.outcome.partial}
    for result in done.outcome.results:
        if "measured" in result:
            kept[str(result["rank"])] = sum(len(result[window]["step_ms"]) for window in ("warmup", "measured"))
    return decode(Failure, {**encode(Failure()), **(done.outcome.failure or {}), "steps_kept": kept})


def blank(job: Job) -> LaunchRecord:
    return LaunchRecord(
        launch=job.launch,
        scenario=job.scenario,
        repeat=job.repeat,
        strategy=job.strategy,
        precision=job.precision,
        processes=job.processes,
        replicas=job.replicas,
        devices=job.devices,
        status="ok",
        environment=job.environment,
    )


def _checks(results: Results, hosts: list[str], servers: Collection[int] = ()) -> dict[str, object]:
    """The checks of a measured launch (:class:`bench.runs.launches.Checks`).

    ``hosts``: of each rank, in the order of ``results``. ``servers``: ranks that compute no passes. Weights are alike
    if they are the same bit for bit.
    """
    measured = [result["measured"] for result in results if "effective" in result and "measured" in result]
    if not measured:
        return {}
    apart_ms = [abs(sum(window["step_ms"]) - window["wall_ms"]) for window in measured]
    allowed_ms = [max(CONSERVATION_LIMIT * window["wall_ms"], SLICE_MS) for window in measured]
    of_host = {host: result["effective"] for host, result in zip(reversed(hosts), reversed(results), strict=True)}
    differ = {
        key
        for host, result in zip(hosts, results, strict=True)
        for key, value in result["effective"].items()
        if key not in EXPECTED_TO_DIFFER
        and (result["rank"] not in servers or key not in OF_A_PASS)
        and value != (of_host[host] if key in OF_A_HOST else results[0]["effective"])[key]
    }
    return {
        "conservation_error": max(ms / window["wall_ms"] for ms, window in zip(apart_ms, measured, strict=True)),
        "conservation_ok": all(ms <= limit for ms, limit in zip(apart_ms, allowed_ms, strict=True)),
        "ranks_differ": sorted(differ),
        "skipped_steps": max(result["skipped_steps"] or 0 for result in results),
        "finite_loss": all(math.isfinite(loss) for window in measured for loss in window["loss"]),
        "initial_weights_alike": len({result["initial_sha256"] for result in results}) == 1,
        "final_weights_alike": len({result["final_sha256"] for result in results}) == 1,
    }


def _ranks(outcome: Outcome, results: Results, job: Job) -> tuple[RankRecord, ...]:
    """A record of each rank; of one without a result, from what the supervisor saw."""
    by_rank = {result["rank"]: result for result in results}
    ranks = []
    for rank in outcome.ranks:
        result = by_rank.get(rank["rank"], {})
        effective, planned = result.get("effective", {}), job.ranks[rank["rank"]]
        ranks.append(
            RankRecord(
                **rank,
                host=planned.host,
                threads=planned.threads,
                ran_threads=effective.get("threads"),
                cores=effective.get("affinity"),
                log=f"logs/{job.log_name(rank['rank'])}",
                device=effective.get("device"),
                allocator=result.get("allocator"),
                host_lead_ms=result.get("host_lead_ms"),
                initial_sha256=result.get("initial_sha256"),
                final_sha256=result.get("final_sha256"),
                memory=None if "memory" not in result else decode(MemoryHeld, result["memory"], "memory"),
            )
        )
    return tuple(ranks)
