"""One launch, from its job to its record and rows on disk: the same for whatever a launch is for."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench import machine
from bench.core.codec import decode, encode
from bench.core.errors import BenchError, described
from bench.core.records import Job
from bench.experiments import interrupts, record, rows
from bench.experiments.lab import Lab
from bench.experiments.record import Executed
from bench.runs.document import LaunchRecord
from bench.runs.files import write_atomically
from bench.runs.tables import COLUMNS, to_table
from bench.runs.writer import as_text
from bench.sample.noticed import allocator_rows, checks
from bench.seams.site import Connected, Event, LaunchInterrupted, Outcome

LOG_LIMIT_BYTES = 16 << 20
"""Of what one rank prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """A launch that is over. ``results``: of each rank that finished. ``tables``: the rows for each table."""

    job: Job
    record: LaunchRecord
    results: list[dict[str, Any]]
    tables: dict[str, rows.Rows]


def perform(job: Job, lab: Lab, doing: str, keep: Callable[[Performed], str]) -> Performed:
    """Carry out one launch, and show how it went. ``keep(performed)`` puts it on disk and returns the line for people.

    Raises ``KeyboardInterrupt`` for a launch that was interrupted, once it is on disk.
    """
    sampled = job.purpose == "measure"

    def on_event(event: Event) -> None:
        if sampled:
            lab.sampler.hear(job, event)
        lab.progress.hear(event)

    lab.progress.begin(job.scenario, doing, job.launch)
    if sampled:
        job = replace(job, memory_probe=not lab.sampler.knows_pids)
        lab.sampler.begin(job.launch)
    done = execute(job, lab.site, lab.writer.logs, on_event)
    samples = lab.sampler.finish(job.launch) if sampled else ([], [])
    try:
        performed = _described(job, lab, done, *samples)
    except Exception as error:  # noqa: BLE001  # a scenario can send anything: what it breaks here is its launch alone
        performed = _described(job, lab, _without_results(done, error), [], [])
    with interrupts.held():
        text = keep(performed)
    lab.progress.end(status=performed.record.status, text=text)
    if done.interrupted:
        raise KeyboardInterrupt
    return performed


def _described(job: Job, lab: Lab, done: Executed, memory: rows.Rows, device: rows.Rows) -> Performed:
    """The record and the rows of a launch. Raises where what its ranks sent cannot be written, or read back."""
    sampled = job.purpose == "measure"
    outcome = done.outcome
    rows.check(job, outcome.results)
    tables = rows.of(job, outcome.results, outcome.partial)
    noticed = {"sampling": lab.sampler.cost, **checks(lab.sampler.findings, device, tables["steps"])} if sampled else {}
    launch = record.of(job, done, noticed)
    if sampled:
        host = lab.writer.document.machine.host or ""
        memory = memory + allocator_rows(memory, launch.ranks, launch=job.launch, scenario=job.scenario, host=host)
        tables |= {"memory": memory, "device": device}
    as_text(encode(decode(LaunchRecord, encode(launch))))
    for name, found in tables.items():
        to_table(found, COLUMNS[name])
    return Performed(job=job, record=launch, results=outcome.results, tables=tables)


def _without_results(done: Executed, error: Exception) -> Executed:
    """A launch whose ranks sent what no rank of bench does; what failed before that is still why it failed."""
    reason = f"what its ranks sent is no result: {' '.join(str(error).split()) or type(error).__name__}"
    outcome = replace(done.outcome, results=[], partial=[])
    return replace(done, outcome=replace(outcome, status="error", reason=reason) if outcome.status == "ok" else outcome)


def execute(job: Job, site: Connected, logs: str, on_event: Callable[[Event], None]) -> Executed:
    job = replace(job, logs=logs, apex_problems=site.description["apex"]["problems"])
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
    for rank in range(job.processes):
        shorten(os.path.join(logs, job.log_name(rank)))
    return Executed(
        outcome=outcome,
        started_utc=started_utc,
        ended_utc=machine.utc_now(),
        wall_s=wall_s,
        foreign_cores=max(0.0, busy - outcome.cpu_s) / wall_s,
        interrupted=interrupted,
    )


def where_to_look(launch: LaunchRecord) -> str:
    """Why a launch failed, and the log that has more; empty for one that did not."""
    if launch.status == "ok":
        return ""
    logs = {rank.rank: rank.log for rank in launch.ranks}
    return f"{launch.reason} (see {logs.get(launch.first_failed_rank or 0, 'logs/worker-site.log')})"


def shorten(log: str) -> None:
    """Keep the two ends of a log longer than :data:`LOG_LIMIT_BYTES`, with a line between that says what is missing.

    Only afterwards: while a rank writes, nothing may stand between it and its log.
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
