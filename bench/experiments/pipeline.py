"""A run from plan to sealed folder, to be read as a method section.

Everything that can be wrong with the request is found before the first launch and before anything is written. Then
each launch is one isolated set of processes; its figures are on disk before the next one starts.
"""

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import bench
from bench import machine
from bench.console import Console, RunProgress, count, duration
from bench.core.errors import BenchError, HostError, Interrupted, RequestError
from bench.core.records import LaunchRecord
from bench.experiments import interrupts
from bench.experiments import resume as resuming
from bench.experiments.batch_search import (
    KEPT_FREE,
    TRY_ITERS,
    TRY_WARMUP,
    Try,
    expected_batch,
    expected_s,
    fullest_mib,
    next_batch,
    outcome,
    predicted_mib,
    reserved_mib,
)
from bench.machine import foreign, redact
from bench.machine.lock import Locks, acquire
from bench.plan import REFERENCE, Planned, Request, diagnostic, one_round, reference
from bench.plan.interval_target import Precision
from bench.runs.store import Run, RunWriter, check_writable, next_launch, sha256, verified
from bench.sample import Sampler
from bench.sample.noticed import allocator_rows, checks
from bench.seams import discover
from bench.seams.discover import Found
from bench.sites import collect
from bench.sites.local import WorkerHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that is on disk: its folder, its ``run.json``, and how many launches failed."""

    path: str
    document: dict[str, Any]

    @property
    def failed(self) -> int:
        """Launches of any kind that should have run and did not end well."""
        reference = [self.document["reference"]] if self.document["reference"] else []
        everything = [*self.document["launches"], *self.document["diagnostics"], *reference]
        if self.document["batch_search"]:
            return sum(found["failed"] for found in self.document["batch_search"]["scenarios"].values())
        return sum(launch["status"] not in ("ok", "unsupported") for launch in everything)


def run(
    request: Request,
    scenarios: tuple[Found, ...],
    *,
    out: str,
    console: Console,
    wait: bool = False,
    resume: str | None = None,
    find_batch: bool = False,
) -> Finished:
    """Measure every scenario of ``request`` and write a run folder under ``out``.

    ``wait``: stand in line for GPUs or CPU that another run has. ``resume``: the folder of a run of this request, which
    is gone on with. ``find_batch``: look for the largest global batch that trains instead of measuring. Raises
    :class:`RequestError` before anything is written when the request cannot be served, and :class:`Interrupted` after
    sealing what was done.
    """
    check_writable(out)
    machine.refuse_blocking_launches(request.device)
    _refuse_if_nothing_runs({found.name: _obstacle(found, request) for found in scenarios})
    with (
        _alone(request, wait=wait, console=console) as (locks, here),
        _host(request, locks.descriptors) as host,
        interrupts.heeded(),
    ):
        with console.waiting("importing torch, once for all launches"):
            host.wait_until_ready()
        if host.description["fresh"] and not request.fresh:
            why = f"importing torch started {host.description['threads'] - 1} threads, which no fork would have"
            console.line(f"ranks are started as with --fresh: {why}")
        _check_model(request, host.description["models"])
        obstacles = {found.name: _obstacle(found, request, host.description) for found in scenarios}
        _refuse_if_nothing_runs(obstacles)
        slow_half = _slow_half(request, scenarios, host.description)
        if slow_half:
            console.line(slow_half)
        about = _circumstances(request, scenarios, here, host)
        writer = RunWriter(out, about) if resume is None else _go_on(resume, about)
        done = resuming.done(writer.document)
        if not find_batch:
            _announce(request, obstacles, done, console)
        try:
            with _launching(request, scenarios, obstacles, done, host, writer, console) as launching:
                _find_batches(launching) if find_batch else _do_all(launching)
            _keep_log(host, writer)
            judged = _judged(writer)
            writer.finish(complete=True, digest=None if find_batch else _digest(judged), end=machine.state())
        except (KeyboardInterrupt, HostError) as error:
            with interrupts.held():
                _keep_log(host, writer)
                _judged(writer)
                writer.finish(complete=False, end=machine.state())
            if isinstance(error, HostError):
                raise
            raise Interrupted(f"interrupted; what was done is in {writer.path}") from error
        except OSError as error:
            remedy = f"make room and go on with --resume {os.path.basename(writer.path)}"
            raise BenchError(f"{writer.path} cannot be written: {error.strerror or error}; {remedy}") from error
    return Finished(path=writer.path, document=writer.document)


def _slow_half(request: Request, scenarios: tuple[Found, ...], description: dict[str, Any]) -> str | None:
    """What to know of this CPU before an hour has gone by; None where there is nothing."""
    half = [found.name for found in scenarios if found.scenario.precision != "O0"]
    if request.device != "cpu" or description["bf16_instructions"] is not False or not half:
        return None
    known = discover.names()  # by path where the name alone would not be found
    full = ",".join(one.name if one.name in known else one.file for one in scenarios if one.name not in half)
    remedy = f"leave them out with --scenario {full}, or take" if full else "take"
    return (
        f"this CPU has no instructions for bf16, so in half ({', '.join(half)}) a step takes many times as long as in "
        f"fp32; {remedy} less work, such as --model resnet18 --image-size 32"
    )


def _circumstances(
    request: Request, scenarios: tuple[Found, ...], here: dict[str, Any], host: WorkerHost
) -> dict[str, Any]:
    """What a run says of itself before its first launch."""
    return {
        "bench": bench.__version__,
        "command": redact.command_line(sys.argv[1:]),
        "request": asdict(request),
        "workload": {**asdict(request.workload), "hash": request.workload.hash()},
        "machine": here,
        "versions": {name: host.description[name] for name in ("python", "executable", "torch", "torchvision")},
        "fresh": host.description["fresh"],
        "apex": host.description["apex"],
        "sources": {found.name: {"file": found.file, "sha256": sha256(found.file)} for found in scenarios},
        "start": machine.state(),
    }


def _go_on(path: str, about: dict[str, Any]) -> RunWriter:
    """The run in this folder, to be gone on with under the same circumstances."""
    resuming.check_same(verified(path, allow_incomplete=True), about)
    writer = RunWriter.reopen(path)
    resuming.supersede_failures(writer)
    resumed = {"launch": next_launch(writer.document), "force": about["request"]["force"], **machine.state()}
    writer.document["resumed"].append(resumed)
    writer.seal(complete=False)
    return writer


def _keep_log(host: WorkerHost, writer: RunWriter) -> None:
    """What the worker host printed, behind what that of an earlier part of the run did."""
    with open(host.log, "rb") as log, open(os.path.join(writer.logs, "worker-host.log"), "ab") as kept:
        shutil.copyfileobj(log, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the launches of a run have in common."""

    request: Request
    scenarios: tuple[Found, ...]
    obstacles: dict[str, str | None]
    done: resuming.Done
    host: WorkerHost
    sampler: Sampler
    writer: RunWriter
    progress: RunProgress
    precision: Precision | None

    @property
    def runnable(self) -> list[Found]:
        """The scenarios that can run here."""
        return [found for found in self.scenarios if self.obstacles[found.name] is None]

    @property
    def successful(self) -> set[str]:
        """The scenarios with a measured launch that ended well."""
        return {launch["scenario"] for launch in self.writer.document["launches"] if launch["status"] == "ok"}

    def next_launch(self) -> int:
        """The number of the next launch of any kind."""
        return next_launch(self.writer.document)


@contextmanager
def _launching(
    request: Request,
    scenarios: tuple[Found, ...],
    obstacles: dict[str, str | None],
    done: resuming.Done,
    host: WorkerHost,
    writer: RunWriter,
    console: Console,
) -> Iterator[_Run]:
    """A sampler and a display of progress for as long as launches follow each other."""
    progress = RunProgress(console, steps=request.warmup + request.iters, global_batch=request.global_batch)
    progress.expect(_expected(request, obstacles, done))
    sampler = Sampler.start(
        device=request.device,
        gpus=request.devices,
        spool=writer.scratch,
        host=writer.document["machine"]["host"],
        interval_s=request.sample_interval_s,
    )
    precision = None
    if request.until_precision is not None:
        assert request.budget_s is not None
        precision = Precision(request.until_precision, request.budget_s)
        _remember(precision, writer)
    try:
        with progress:
            yield _Run(
                request=request,
                scenarios=scenarios,
                obstacles=obstacles,
                done=done,
                host=host,
                sampler=sampler,
                writer=writer,
                progress=progress,
                precision=precision,
            )
    finally:
        sampler.stop()


def _expected(request: Request, obstacles: dict[str, str | None], done: resuming.Done) -> list[str]:
    """The launches that are sure to come, by what the display calls them."""
    runnable = [name for name, reason in obstacles.items() if reason is None]
    diagnosed = [name for name in runnable if name not in done.diagnosed] * request.diagnose
    return done.missing(request, runnable) + diagnosed + [REFERENCE] * (request.parity and not done.reference)


def _remember(precision: Precision, writer: RunWriter) -> None:
    """The launches that a resumed run has already."""
    steps = writer.frames().steps
    for launch in writer.document["launches"]:
        if launch["status"] == "ok":
            mine = steps[(steps["launch"] == launch["launch"]) & ~steps["warmup"]]
            median_ms = float(mine.groupby("step")["step_ms"].max().median())
            precision.add(launch["scenario"], median_ms, launch["wall_s"])


def _do_all(run: _Run) -> None:
    """Measure in rounds, then look where the time went, then compute what the numerics are held against."""
    for planned in _rounds(run):
        _measure(planned, run)
    if run.precision is not None:
        run.writer.document["precision"] = run.precision.outcome([found.name for found in run.runnable])
    if run.request.diagnose:
        for found in run.runnable:
            if found.name in run.done.diagnosed:
                continue
            if found.name in run.successful:
                _diagnose(found, run)
            else:
                run.progress.drop(found.name)
    if run.request.parity and not resuming.done(run.writer.document).reference:
        _compute_reference(run)


def _rounds(run: _Run) -> Iterator[Planned]:
    """The planned launches, one round after the other; then rounds over the scenarios that are not precise enough.

    Where a budget is stated, what would exceed it is left out, except the first launch of each scenario.
    """
    request, precision, cores = run.request, run.precision, machine.cores()
    lacking = list(run.scenarios)
    for repeat in itertools.count():
        if repeat >= request.launches:
            lacking = _lacking(run, precision) if precision else []
            run.progress.expect([found.name for found in lacking if (found.name, repeat) not in run.done.launches])
        if not lacking:
            return
        for planned in one_round(request, lacking, repeat, 0, cores):
            if (planned.found.name, repeat) in run.done.launches:
                continue
            if repeat and precision and not precision.affords(planned.found.name):
                run.progress.drop(planned.found.name)
                continue
            yield replace(planned, launch=run.next_launch(), job=replace(planned.job, launch=run.next_launch()))


def _lacking(run: _Run, precision: Precision) -> list[Found]:
    """The scenarios that get another round: not precise enough, and not too long for what is left of the budget."""
    names = precision.lacking([found.name for found in run.runnable])
    return [found for found in run.runnable if found.name in names and precision.affords(found.name)]


def _measure(planned: Planned, run: _Run) -> None:
    """One measured launch: run it, watch its memory, and put it on disk."""
    job = planned.job
    reason = run.obstacles[job.scenario]
    if reason is not None:
        run.writer.add(asdict(replace(collect.blank_record(planned), status="unsupported", reason=reason)))
        return

    def on_event(event: collect.Event) -> None:
        run.sampler.hear(job, event)
        run.progress.hear(event)

    run.progress.begin(job.scenario)
    run.sampler.begin(job.launch)
    done = collect.execute(job, run.host, run.writer.scratch, run.writer.logs, on_event)
    memory, device = run.sampler.finish(job.launch)
    steps = collect.step_rows(job, done.results) + collect.partial_step_rows(job, done.partial)
    noticed = {"sampling": run.sampler.cost, **checks(run.sampler.findings, device, steps)}
    record = collect.record(planned, done, noticed)
    host = run.writer.document["machine"]["host"]
    memory += allocator_rows(memory, record.ranks, launch=job.launch, scenario=job.scenario, host=host)
    numerics = collect.gradient_rows(job, done.results)
    with interrupts.held():
        run.writer.add(asdict(record), steps=steps, memory=memory, device=device, numerics=numerics)
    median_ms = _median_step_ms(steps) if record.status == "ok" else None
    if run.precision is not None:
        run.precision.add(job.scenario, median_ms, done.wall_s)
    run.progress.end(status=record.status, text=_how_it_went(record, median_ms, run))
    _stop_if_interrupted(done.interrupted)


def _diagnose(found: Found, run: _Run) -> None:
    """One diagnostic launch, kept apart from the measured ones."""
    launch = run.next_launch()
    trace = os.path.join(run.writer.path, "traces", f"{found.name}-rank{{rank}}.json.gz") if run.request.trace else ""
    planned = diagnostic(run.request, found, launch, machine.cores(), trace)
    run.progress.begin(found.name, "diagnosing")
    done = collect.execute(planned.job, run.host, run.writer.scratch, run.writer.logs, run.progress.hear)
    record = asdict(collect.record(planned, done, {}))
    about = ("pairs_reason", "logger_reason", "data_parallel_reason", "profile")
    record["looks"] = [{name: result[name] for name in about} for result in done.results]
    rows = collect.diagnostic_rows(planned.job, done.results)
    with interrupts.held():
        run.writer.add_diagnostic(record, diagnostics=rows)
    run.progress.end(status=record["status"], text=_where_to_look(record) or "where the time goes is recorded")
    _stop_if_interrupted(done.interrupted)


def _compute_reference(run: _Run) -> None:
    """The training that every recipe is held against, for the numbers of replicas that the launches really had."""
    good = [launch for launch in run.writer.document["launches"] if launch["status"] == "ok"]
    counts = tuple(sorted({launch["effective"]["replicas"] for launch in good}))
    if not counts:
        return
    launch = run.next_launch()
    job = reference(run.request, counts, launch, machine.cores())
    run.progress.begin(REFERENCE, "training")
    done = collect.execute(job, run.host, run.writer.scratch, run.writer.logs, run.progress.hear)
    record = {
        "launch": launch,
        "replica_counts": counts,
        "status": done.outcome.status,
        "reason": done.outcome.reason,
        "wall_s": done.wall_s,
        "half": job.half,
        "unit_roundoff": done.results[0]["unit_roundoff"] if done.results else None,
    }
    with interrupts.held():
        run.writer.add_reference(record, numerics=collect.reference_rows(job, done.results))
    run.progress.end(status=done.outcome.status, text=done.outcome.reason or f"fp32 in {done.wall_s:.0f} s")
    _stop_if_interrupted(done.interrupted)


def _find_batches(run: _Run) -> None:
    """For each scenario the largest global batch that trains, each try a launch of few steps.

    A budget is shared evenly among those that are still to come.
    """
    search: dict[str, Any] = {
        "launches": [],
        "scenarios": {},
        "capacity_mib": _capacity_mib(run),
        "kept_free": KEPT_FREE,
    }
    run.writer.document["batch_search"] = search
    run.progress.drop_all()
    end_s = None if run.request.budget_s is None else time.monotonic() + run.request.budget_s
    for position, found in enumerate(run.runnable):
        now_s = time.monotonic()
        share_s = None if end_s is None else now_s + (end_s - now_s) / (len(run.runnable) - position)
        _find_batch(found, search, share_s, run)


def _find_batch(found: Found, search: dict[str, Any], end_s: float | None, run: _Run) -> None:
    """The search of one scenario, which has one try at least and begins none that would end after ``end_s``.

    ``stopped_by`` in its outcome: None where the largest is known, otherwise ``budget`` or ``failure``, which a try is
    too that trains but of whose memory nobody knows.
    """
    on_gpu, capacity_mib = run.request.device == "cuda", search["capacity_mib"]
    unit, first = found.scenario.replicas(run.request.replicas), run.request.global_batch if on_gpu else None
    tries: list[Try] = []
    took_s: list[tuple[int, float]] = []
    stopped_by = None
    while True:
        failed = stopped_by == "failure"
        search["scenarios"][found.name] = {**outcome(tries), "failed": failed, "stopped_by": stopped_by}
        known = {one.global_batch: one.why_not is None for one in tries}
        expected = expected_batch(tries, capacity_mib) if on_gpu else None
        batch = next_batch(known, unit, first=first, expected=expected)
        if stopped_by is not None or batch is None:
            return
        if tries and end_s is not None and time.monotonic() + expected_s(took_s, batch) > end_s:
            stopped_by = "budget"
            continue
        need_mib = None if on_gpu else predicted_mib(tries, batch)
        if need_mib is not None and need_mib > (1.0 - KEPT_FREE) * capacity_mib:
            why = f"would need about {need_mib:,.0f} MiB of {capacity_mib:,.0f}; not tried"
            tries.append(Try(global_batch=batch, why_not=why))  # the kernel would end somebody, perhaps another
            continue
        started_s = time.monotonic()
        record, one = _try_batch(found, batch, capacity_mib, run)
        took_s.append((batch, time.monotonic() - started_s))
        told = record.status == "oom" or (record.status == "ok" and one.peak_mib is not None)
        stopped_by = None if told else "failure"
        tries.append(one)
        _stop_if_interrupted(record.status == "killed" and record.reason == "interrupted")


def _try_batch(found: Found, batch: int, capacity_mib: float, run: _Run) -> tuple[LaunchRecord, Try]:
    """One launch with this global batch."""
    request = replace(run.request, global_batch=batch, warmup=TRY_WARMUP, iters=TRY_ITERS)
    (planned,) = one_round(request, [found], 0, run.next_launch(), machine.cores())
    job = planned.job

    def on_event(event: collect.Event) -> None:
        run.sampler.hear(job, event)
        run.progress.hear(event)

    run.progress.expect([found.name])
    run.progress.global_batch, run.progress.steps = batch, job.steps
    run.progress.begin(found.name, "trying")
    run.sampler.begin(job.launch)
    done = collect.execute(job, run.host, run.writer.scratch, run.writer.logs, on_event)
    memory, device = run.sampler.finish(job.launch)
    steps = collect.step_rows(job, done.results) + collect.partial_step_rows(job, done.partial)
    record = collect.record(planned, done, {"sampling": run.sampler.cost})
    peak_mib = max(fullest_mib(memory) or 0.0, reserved_mib(record.ranks) or 0.0) or None
    why_not = record.reason or record.status if record.status != "ok" else None
    if why_not is None and peak_mib is None:
        why_not = "it trains, but neither the driver nor torch tells how much memory it leaves free"
    elif why_not is None and peak_mib is not None and peak_mib > (1.0 - KEPT_FREE) * capacity_mib:
        why_not = f"leaves less than {100 * KEPT_FREE:.0f} % free: {peak_mib:,.0f} MiB of {capacity_mib:,.0f}"
    speed = 1000 * batch / _median_step_ms(steps) if record.status == "ok" else None
    one = Try(global_batch=batch, why_not=why_not, peak_mib=peak_mib, throughput_img_s=speed)
    about = {"global_batch": batch, "warmup": TRY_WARMUP, "iters": TRY_ITERS, "peak_mib": peak_mib, "why_not": why_not}
    run.writer.document["batch_search"]["launches"].append({**asdict(record), **about})
    with interrupts.held():
        run.writer.put(steps=steps, memory=memory, device=device)
    run.progress.end(status="ok", text=f"global batch {batch}: {why_not or f'trains, {speed:.1f} img/s'}")
    return record, one


def _capacity_mib(run: _Run) -> float:
    """The memory of the smallest chosen GPU, or what is free on the host."""
    gpus = run.writer.document["machine"]["gpus"]
    known = [gpu["memory_total_mib"] for gpu in gpus if gpu["uuid"] in run.request.devices]
    if None in known:
        raise RequestError("--find-batch", "the driver does not tell how much memory there is", "choose another GPU")
    return float(min(known)) if known else machine.available_memory_bytes() / 2**20


def _stop_if_interrupted(interrupted: bool) -> None:
    """Go on with an interruption once the launch that it ended is on disk."""
    if interrupted:
        raise KeyboardInterrupt


def _median_step_ms(steps: collect.Rows) -> float:
    """Of the measured steps of the slowest rank."""
    slowest: dict[int, float] = {}
    for row in steps:
        if not row["warmup"]:
            slowest[row["step"]] = max(slowest.get(row["step"], 0.0), row["step_ms"])
    return statistics.median(slowest.values())


def _how_it_went(record: LaunchRecord, median_ms: float | None, run: _Run) -> str:
    """One line when a launch ends: its throughput, or its reason and where to look."""
    if median_ms is None:
        return _where_to_look(asdict(record))
    return f"{1000 * run.request.global_batch / median_ms:.1f} img/s, {median_ms:.1f} ms a step"


def _where_to_look(record: dict[str, Any]) -> str:
    """Why a launch failed, and the log that has more; empty for one that did not."""
    if record["status"] == "ok":
        return ""
    logs = {rank["rank"]: rank["log"] for rank in record["ranks"]}
    return f"{record['reason']} (see {logs.get(record['first_failed_rank'] or 0, 'logs/worker-host.log')})"


def _judged(writer: RunWriter) -> Run:
    """The run as it is now, analysed. Its document says what the figures are worth and which scenario to train with."""
    from bench.analyse import verdicts
    from bench.analyse.analysed import Analysed

    run = Analysed.of(writer.frames())
    writer.document.update(verdicts.of(run))
    return run


def _digest(run: Run) -> dict[str, Any]:
    """What a comparison with other runs needs of this one."""
    from bench.analyse.digest import of_run

    return of_run(run)


def _announce(request: Request, obstacles: dict[str, str | None], done: resuming.Done, console: Console) -> None:
    workload = request.workload
    where = count(len(request.devices), "GPU") if request.device == "cuda" else f"CPU, {machine.cores()} cores"
    launches = len(done.missing(request, [name for name, reason in obstacles.items() if reason is None]))
    console.line(
        f"{count(launches, 'launch', 'launches')} of {request.warmup} warm-up and {request.iters} "
        f"measured steps: {workload.model}, {workload.image_size} px, global batch {workload.global_batch} in "
        f"{count(workload.replicas, 'part')}, {where}"
    )
    extra = []
    if request.until_precision is not None:
        extra.append(
            f"more until every median is known within ±{100 * request.until_precision:g} % or "
            f"{duration(request.budget_s or 0.0)} are spent"
        )
    if request.diagnose:
        extra.append("one of each scenario that shows where the time goes")
    if request.parity:
        extra.append("one of the reference that the numerics are held against")
    if extra:
        console.line(f"then {'; '.join(extra)}")
    load = machine.load()
    if load > machine.cores() / 2:
        console.line(
            f"warning: other work is on this machine (load {load:.1f} on {machine.cores()} cores in the last minute); "
            "wait until it is done, or its share will be in the figures"
        )


@contextmanager
def _alone(request: Request, *, wait: bool, console: Console) -> Iterator[tuple[Locks, dict[str, Any]]]:
    """The locks of the devices, which nobody else is on either once they are held, and what this machine is then."""
    with acquire(request.devices, wait=wait, say=console.line) as locks:
        _, gpus, left_out = machine.choose_device(request.device)
        foreign.refuse(gpus, request.devices, force=request.force)
        if left_out is not None:
            console.line(f"warning: {left_out}")
        yield locks, machine.describe(gpus, left_out)


@contextmanager
def _host(request: Request, locks: tuple[int, ...]) -> Iterator[WorkerHost]:
    """The worker host with its log in a temporary file, since there is no run folder yet."""
    descriptor, log = tempfile.mkstemp(prefix="bench-worker-host-", suffix=".log")
    os.close(descriptor)
    try:
        with WorkerHost(
            python=request.python,
            fresh=request.fresh,
            apex_path=request.apex_path,
            log=log,
            device=request.device,
            locks=locks,
        ) as host:
            yield host
    finally:
        os.unlink(log)


def _check_model(request: Request, models: list[str]) -> None:
    if request.model not in models:
        from difflib import get_close_matches

        close = get_close_matches(request.model, models, n=3, cutoff=0.4) or models[:3]
        raise RequestError(
            "--model", f"torchvision has no model {request.model!r}", f"did you mean {' or '.join(close)}?"
        )


def _obstacle(found: Found, request: Request, host: dict[str, Any] | None = None) -> str | None:
    """Why the scenario cannot run here, from the machine and, once it is there, from what the worker host imported."""
    reason = machine.obstacle(
        found.scenario, device=request.device, impl=request.impl, apex_path=request.apex_path, packages=False
    )
    if reason is not None or host is None:
        return reason
    if request.device == "cuda" and host["cuda_built"] is None:
        return "this torch was built without CUDA; install a build with CUDA, or use --device cpu"
    if found.scenario.distributed and not host["distributed"]:
        return "this torch was built without torch.distributed; use another build"
    backend = "nccl" if request.device == "cuda" else "gloo"
    if found.scenario.distributed and not host[backend]:
        return f"this torch was built without {backend}; use another build"
    wanted = {need for need in found.scenario.needs if need.startswith("apex.")}
    if request.impl == "apex":
        wanted |= machine.apex_modules(found.scenario)
    return next((host["apex"]["problems"][need] for need in sorted(wanted) if host["apex"]["problems"][need]), None)


def _refuse_if_nothing_runs(obstacles: dict[str, str | None]) -> None:
    reasons = [reason for reason in obstacles.values() if reason is not None]
    if len(reasons) == len(obstacles):
        raise RequestError("--scenario", f"none of {', '.join(obstacles)} can run here", reasons[0])
