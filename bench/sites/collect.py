"""From a planned launch to its record and its rows: run it, watch it, and take up what its ranks wrote."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bench import machine
from bench.core.records import PHASES, Job, LaunchRecord
from bench.plan import Planned
from bench.runs.store import write_atomically
from bench.sites.local import LaunchInterrupted, Outcome, WorkerHost

CONSERVATION_LIMIT = 0.005
"""By how much the steps of a window may differ from the host's wall time for it."""
SLICE_MS = 10.0
"""Or by this much: a process that is put aside between the first mark, or the last, and the reading of the wall clock
beside it loses a few slices of the scheduler (some 3 ms each), more than 0.5 % of a window of some 100 ms."""

LOG_LIMIT_BYTES = 16 << 20
"""How much of what one rank prints is kept."""

EXPECTED_TO_DIFFER = {"device"}
"""Keys of ``effective`` in which the ranks of a launch are unlike by design."""

Rows = list[dict[str, Any]]
Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A launch that is over. ``results``: what each rank that came to its end wrote, in the order of ranks.

    ``partial``: the steps of the ranks that did not, as far as they came. ``interrupted``: by Ctrl-C or its like.
    """

    outcome: Outcome
    results: list[dict[str, Any]]
    started_utc: str
    ended_utc: str
    wall_s: float
    foreign_cores: float
    partial: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False


def execute(job: Job, host: WorkerHost, folder: str, logs: str, on_event: Callable[[Event], None]) -> Executed:
    """Run ``job`` with a scratch folder of its own under ``folder``."""
    scratch = os.path.join(folder, f"launch-{job.launch:03d}")
    os.makedirs(scratch)
    job = replace(job, scratch=scratch, logs=logs, apex_problems=host.description["apex"]["problems"])
    started_utc, started, busy = machine.utc_now(), time.monotonic(), machine.busy_s() - time.process_time()
    interrupted = False
    try:
        outcome = host.run(job, on_event)
    except LaunchInterrupted as error:
        outcome, interrupted = error.outcome, True
    wall_s = time.monotonic() - started
    busy = machine.busy_s() - time.process_time() - busy
    results = _read_results(scratch, job.processes, "rank{}.json")
    partial = _read_results(scratch, job.processes, "rank{}.partial.json") if outcome.status != "ok" else []
    shutil.rmtree(scratch)
    for rank in range(job.processes):
        shorten(os.path.join(logs, os.path.basename(log_of(job, rank))))
    return Executed(
        outcome=outcome,
        results=results,
        started_utc=started_utc,
        ended_utc=machine.utc_now(),
        wall_s=wall_s,
        foreign_cores=max(0.0, busy - outcome.cpu_s) / wall_s,
        partial=partial,
        interrupted=interrupted,
    )


def record(planned: Planned, done: Executed, checks: dict[str, Any]) -> LaunchRecord:
    """The record of a launch, for run.json. ``checks``: what others have verified about it."""
    job, outcome, results = planned.job, done.outcome, done.results
    return replace(
        blank_record(planned),
        status=outcome.status,
        reason=outcome.reason,
        first_failed_rank=outcome.first_failed_rank,
        effective=results[0]["effective"] if results else None,
        checks={**_checks(results), "foreign_cores": done.foreign_cores, **checks},
        ranks=_ranks(outcome, results, job),
        started_utc=done.started_utc,
        ended_utc=done.ended_utc,
        wall_s=done.wall_s,
        first_forward_s=max(
            (result["first_forward_s"] for result in results if "first_forward_s" in result), default=None
        ),
        failure=_failure(done),
    )


def _failure(done: Executed) -> dict[str, Any] | None:
    """What is known of a failure, with how many steps were kept of each rank that has any."""
    if done.outcome.status == "ok":
        return None
    kept = {str(result["rank"]): len(result["steps"]) for result in done.partial}
    for result in done.results:
        if "measured" in result:
            kept[str(result["rank"])] = sum(len(result[window]["step_ms"]) for window in ("warmup", "measured"))
    return {**(done.outcome.failure or {}), "steps_kept": kept}


def partial_step_rows(job: Job, partial: list[dict[str, Any]]) -> Rows:
    """The rows of steps.parquet of the ranks that came to no end: the losses, which stay with a rank, are unknown."""
    head = {"launch": job.launch, "scenario": job.scenario, "repeat": job.repeat}
    return [
        {**head, "rank": result["rank"], "warmup": row["step"] < job.workload.warmup, "loss": None, **row}
        for result in partial
        for row in result["steps"]
    ]


def blank_record(planned: Planned) -> LaunchRecord:
    """The record of a launch that has not been."""
    job = planned.job
    return LaunchRecord(
        launch=job.launch,
        scenario=job.scenario,
        repeat=job.repeat,
        strategy=job.strategy,
        precision=job.precision,
        processes=job.processes,
        replicas=job.replicas,
        status="ok",
    )


def step_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of steps.parquet of one launch: warm-up steps first, numbered on."""
    columns = ("start_ns", *(f"{phase}_ms" for phase in PHASES), "step_ms", "loss")
    rows = []
    for result in results:
        step = 0
        for window in ("warmup", "measured"):
            timings = result[window]
            for values in zip(*(timings[name] for name in columns), strict=True):
                rows.append(
                    {
                        "launch": job.launch,
                        "scenario": job.scenario,
                        "repeat": job.repeat,
                        "rank": result["rank"],
                        "step": step,
                        "warmup": window == "warmup",
                        **dict(zip(columns, values, strict=True)),
                    }
                )
                step += 1
    return rows


def gradient_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of numerics.parquet of one launch: the sketch of rank 0, and of each rank whose own is another."""
    rows: Rows = []
    for result in results:
        if result["rank"] == 0 or result["gradient"] != results[0]["gradient"]:
            rows += _numbers(job, "gradient", result["gradient"], rank=result["rank"])
    return rows


def reference_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of numerics.parquet of the reference."""
    rows: Rows = []
    for done in (done for result in results for done in result["passes"]):
        for quantity in ("loss", "gradient", "alone"):
            rows += _numbers(job, quantity, done[quantity] or [], replicas=done["replicas"], twin=done["twin"])
    return rows


def _numbers(job: Job, quantity: str, values: list[float], **about: Any) -> Rows:
    head = {"launch": job.launch, "scenario": job.scenario, "quantity": quantity, **about}
    return [{**head, "position": position, "value": value} for position, value in enumerate(values)]


def diagnostic_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of diagnostics.parquet of one diagnostic launch."""
    rows: Rows = []
    for result in results:
        for probe in ("pairs", "logger", "data_parallel"):
            head = {"launch": job.launch, "scenario": job.scenario, "rank": result["rank"], "look": probe}
            rows += [{**head, "step": step, **values} for step, values in enumerate(result[probe])]
    return rows


def log_of(job: Job, rank: int) -> str:
    """Where a rank's standard output and error are, within the run folder."""
    return f"logs/launch-{job.launch:03d}-{job.scenario}-rank{rank}.log"


def shorten(log: str) -> None:
    """Leave of a log longer than :data:`LOG_LIMIT_BYTES` its two ends, with a line between that says what is missing.

    While a rank writes nobody stands between it and its log, which would take part in what is measured.
    """
    size = os.path.getsize(log) if os.path.isfile(log) else 0
    if size <= LOG_LIMIT_BYTES:
        return
    half = LOG_LIMIT_BYTES // 2
    with open(log, "rb") as file:
        head = file.read(half)
        file.seek(size - half)
        tail = file.read()
    note = f"\n[bench: {size - 2 * half} bytes were left out here]\n".encode()
    write_atomically(log, head + note + tail)


def _read_results(scratch: str, processes: int, name: str) -> list[dict[str, Any]]:
    results = []
    for rank in range(processes):
        path = os.path.join(scratch, name.format(rank))
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                results.append(json.load(file))
    return results


def _checks(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What can be verified about a measured launch's figures.

    ``conservation_error``: the largest relative difference between the steps of a rank's measured window and the host's
    wall time for it. ``ranks_differ``: keys of ``effective`` in which the ranks are unlike. ``initial_weights_alike``
    and ``final_weights_alike``: whether all ranks had the same parameters, bit for bit, before the first and after the
    last step.
    """
    measured = [result["measured"] for result in results if "measured" in result]
    if not measured:
        return {}
    apart_ms = [abs(sum(window["step_ms"]) - window["wall_ms"]) for window in measured]
    allowed_ms = [max(CONSERVATION_LIMIT * window["wall_ms"], SLICE_MS) for window in measured]
    first = results[0]["effective"]
    differ = {
        key
        for result in results[1:]
        for key in first
        if key not in EXPECTED_TO_DIFFER and result["effective"][key] != first[key]
    }
    return {
        "conservation_error": max(ms / window["wall_ms"] for ms, window in zip(apart_ms, measured, strict=True)),
        "conservation_ok": all(ms <= limit for ms, limit in zip(apart_ms, allowed_ms, strict=True)),
        "ranks_differ": sorted(differ),
        "skipped_steps": max(result["skipped_steps"] or 0 for result in results),
        "skipped_warmup_steps": max(result["skipped_warmup_steps"] or 0 for result in results),
        "finite_loss": all(_finite(loss) for window in measured for loss in window["loss"]),
        "initial_weights_alike": len({result["initial_sha256"] for result in results}) == 1,
        "final_weights_alike": len({result["final_sha256"] for result in results}) == 1,
    }


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _ranks(outcome: Outcome, results: list[dict[str, Any]], job: Job) -> list[dict[str, Any]]:
    """What is known of each rank; of one that wrote no result, what the supervisor saw."""
    by_rank = {result["rank"]: result for result in results}
    ranks = []
    for rank in outcome.ranks:
        result = by_rank.get(rank["rank"], {})
        ranks.append(
            {
                **rank,
                "log": log_of(job, rank["rank"]),
                "device": result["effective"]["device"] if "effective" in result else None,
                **{name: result.get(name) for name in ("allocator", "initial_sha256", "final_sha256")},
            }
        )
    return ranks
