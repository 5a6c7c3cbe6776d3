"""One launch, from its job to its record and rows on disk: the same for whatever a launch is for."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench import machine
from bench.core.codec import decode, encode
from bench.core.errors import BenchError, HostError, described
from bench.core.job import Job
from bench.experiments import interrupts, record, rows
from bench.experiments.lab import Lab
from bench.experiments.record import Executed
from bench.machine.sample.noticed import allocator_rows, checks, together
from bench.runs.files import shorten
from bench.runs.launches import LaunchRecord
from bench.runs.tables import COLUMNS, to_table
from bench.runs.writer import as_text
from bench.seams.site import Connected, Event, LaunchInterrupted, Outcome, interpreter_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """A launch that is over. ``results``: of each rank that finished. ``tables``: the rows for each table."""

    job: Job
    record: LaunchRecord
    results: rows.Results
    tables: dict[str, rows.Rows]


def perform(
    job: Job, lab: Lab, doing: str, keep: Callable[[Performed], str], rows_of: rows.Maker | None = None
) -> Performed:
    """Carry out one launch, and show how it went. ``keep(performed)`` puts it on disk and returns the line for people.
    ``rows_of``: makes its rows, unless its record says it all; those of a measured launch are always made.

    Raises ``KeyboardInterrupt`` for a launch that was interrupted, once it is on disk, and :class:`HostError` for one
    that a host has left.
    """
    sampled = job.purpose == "measure"
    rows_of = rows.measured if sampled else rows_of

    def on_event(event: Event) -> None:
        if sampled:
            lab.sampler.hear(job, event)
        lab.progress.hear(event)

    lab.progress.units, lab.progress.steps = job.workload.units, job.steps
    lab.progress.begin(job.scenario, doing)
    if sampled:
        job = replace(job, memory_probe=not lab.sampler.knows_pids)
        lab.sampler.begin(job.launch)
    done = execute(job, lab.site, lab.writer.logs, on_event)
    samples = lab.sampler.finish(job.launch) if sampled else ([], [])
    try:
        performed = _described(job, lab, done, rows_of, *samples)
    except Exception as error:  # noqa: BLE001  # a scenario can send anything: what it breaks here is its launch alone
        performed = _described(job, lab, _without_results(done, error), rows_of, [], [])
    with interrupts.held():
        text = keep(performed)
    lab.progress.end(status=performed.record.status, text=text)
    if done.interrupted:
        raise KeyboardInterrupt
    if done.outcome.lost is not None:
        raise HostError(f"{done.outcome.lost}; go on with --resume {lab.writer.id} when it is back")
    return performed


def leave_out(job: Job, lab: Lab, doing: str, keep: Callable[[Performed], str], status: str, reason: str) -> None:
    """Put a launch on disk that is not carried out, and say why."""
    lab.progress.begin(job.scenario, doing)
    blank = replace(record.blank(job), status=status, reason=reason)
    keep(Performed(job=job, record=blank, results=[], tables={}))
    lab.progress.end(status=status, text=reason)


def _described(
    job: Job, lab: Lab, done: Executed, rows_of: rows.Maker | None, memory: rows.Rows, device: rows.Rows
) -> Performed:
    """The record and the rows of a launch. Raises where what its ranks sent cannot be written, or read back."""
    sampled = job.purpose == "measure"
    outcome, elsewhere = done.outcome, done.outcome.elsewhere
    rows.check(job, outcome.results)
    tables = rows_of(job, outcome.results, outcome.partial) if rows_of else {}
    noticed: dict[str, object] = {}
    if sampled:
        memory = [*memory, *(row for one in elsewhere for row in one.memory)]
        device = [*device, *(row for one in elsewhere for row in one.device)]
        ours = lab.sampler.cost, lab.sampler.findings
        cost, findings = together(ours, *((one.cost, one.findings) for one in elsewhere))
        noticed = {"sampling": cost, **checks(findings, device, tables["steps"])}
    launch = record.of(job, done, noticed)
    if sampled:
        memory = memory + allocator_rows(memory, launch.ranks, launch=job.launch, scenario=job.scenario)
        tables |= {"memory": memory, "device": device}
    as_text(encode(decode(LaunchRecord, encode(launch))))
    for name, of_table in tables.items():
        to_table(of_table, COLUMNS[name])
    return Performed(job=job, record=launch, results=outcome.results, tables=tables)


def _without_results(done: Executed, error: Exception) -> Executed:
    """A launch whose ranks sent what no rank of bench does; what failed before that is still why it failed."""
    reason = f"what its ranks sent is not a result: {' '.join(str(error).split()) or type(error).__name__}"
    outcome = replace(done.outcome, results=[], partial=[], elsewhere=())
    return replace(done, outcome=replace(outcome, status="error", reason=reason) if outcome.status == "ok" else outcome)


def execute(job: Job, site: Connected, logs: str, on_event: Callable[[Event], None]) -> Executed:
    apex = interpreter_of(site.description, job.environment)["apex"]
    job = replace(job, logs=logs, apex_problems=apex["problems"])
    started_utc, started, busy = machine.utc_now(), time.monotonic(), machine.busy_s() - time.process_time()
    interrupted = False
    try:
        outcome = site.perform(job, on_event)
    except LaunchInterrupted as error:
        outcome, interrupted = error.outcome, True
    except (BenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # the site may be a file of the user's
        reason = f"the site failed: {described(error)}"
        outcome = Outcome(status="error", reason=reason, first_failed_rank=None, ranks=[])
    wall_s = time.monotonic() - started
    busy = machine.busy_s() - time.process_time() - busy
    here = machine.foreign_cores(busy - outcome.cpu_s, wall_s)
    for rank in range(job.processes):
        shorten(os.path.join(logs, job.log_name(rank)))
    return Executed(
        outcome=outcome,
        started_utc=started_utc,
        ended_utc=machine.utc_now(),
        wall_s=wall_s,
        foreign_cores=max([here, *(one.foreign_cores for one in outcome.elsewhere)]),
        interrupted=interrupted,
    )


def where_to_look(launch: LaunchRecord) -> str:
    """Why a launch failed, and the log that has more; empty for one that did not."""
    if launch.status == "ok":
        return ""
    logs = {rank.rank: rank.log for rank in launch.ranks}
    return f"{launch.reason} (see {logs.get(launch.first_failed_rank or 0, 'logs/worker-site.log')})"
