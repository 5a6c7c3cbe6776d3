"""A run from plan to sealed folder, to be read as a method section.

Everything that can be wrong with the request is found before the first launch and before anything is written. Then
each launch is one isolated set of processes; its figures are on disk before the next one starts.
"""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

import bench
from bench import machine
from bench.console import Console, RunProgress, count
from bench.discover import Found
from bench.errors import BenchError, HostError, Interrupted, RequestError
from bench.launch.local import Outcome, WorkerHost
from bench.plan import Planned, Request, launches
from bench.records import PHASES, LaunchRecord
from bench.sample import Sampler
from bench.sample.noticed import allocator_rows
from bench.sample.noticed import checks as noticed
from bench.store import RunWriter, check_writable

CONSERVATION_LIMIT = 0.005
"""By how much the steps of a window may differ from the host's wall time for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that is on disk: its folder, its ``run.json``, and how many launches failed."""

    path: str
    document: dict[str, Any]

    @property
    def failed(self) -> int:
        """Launches that should have run and did not end well."""
        return sum(launch["status"] not in ("ok", "unsupported") for launch in self.document["launches"])


def run(request: Request, scenarios: tuple[Found, ...], *, out: str, console: Console) -> Finished:
    """Measure every scenario of ``request`` and write a run folder under ``out``.

    Raises :class:`RequestError` before anything is written when the request cannot be served, and
    :class:`Interrupted` after sealing what was done.
    """
    check_writable(out)
    plan = launches(request, scenarios, machine.cores())
    _refuse_if_nothing_runs({found.name: _obstacle(found, request) for found in scenarios})
    with _host(request) as host, _sigterm_interrupts():
        with console.waiting("importing torch, once for all launches"):
            host.wait_until_ready()
        _check_model(request, host.description["models"])
        obstacles = {found.name: _obstacle(found, request, host.description) for found in scenarios}
        _refuse_if_nothing_runs(obstacles)
        _, gpus = machine.choose_device(request.device)
        _announce(request, plan, console)
        writer = RunWriter(
            out,
            {
                "bench": bench.__version__,
                "request": asdict(request),
                "workload": {**asdict(request.workload), "hash": request.workload.hash()},
                "machine": machine.describe(gpus),
                "versions": {name: host.description[name] for name in ("python", "executable", "torch", "torchvision")},
                "apex": host.description["apex"],
                "start": machine.state(),
            },
        )
        try:
            _do_all(plan, obstacles, request, host, writer, console)
        except (KeyboardInterrupt, HostError) as error:
            writer.finish(complete=False, end=machine.state())
            if isinstance(error, HostError):
                raise
            raise Interrupted(f"interrupted; what was done is in {writer.path}") from error
        except OSError as error:
            raise BenchError(f"{writer.path} cannot be written: {error.strerror}; make room and run again") from error
        shutil.copyfile(host.log, os.path.join(writer.logs, "worker-host.log"))
        writer.finish(complete=True, end=machine.state())
    return Finished(path=writer.path, document=writer.document)


def _do_all(
    plan: tuple[Planned, ...],
    obstacles: dict[str, str | None],
    request: Request,
    host: WorkerHost,
    writer: RunWriter,
    console: Console,
) -> None:
    """Execute the launches one after the other, and put each on disk as soon as it ends."""
    runnable = sum(obstacles[planned.found.name] is None for planned in plan)
    progress = RunProgress(
        console, launches=runnable, steps=request.warmup + request.iters, global_batch=request.global_batch
    )
    sampler = Sampler.start(
        device=request.device,
        gpus=request.devices,
        spool=writer.scratch,
        host=writer.document["machine"]["host"],
        interval_s=request.sample_interval_s,
    )
    try:
        with progress:
            for planned in plan:
                reason = obstacles[planned.found.name]
                if reason is not None:
                    writer.add(asdict(replace(_blank_record(planned), status="unsupported", reason=reason)))
                    continue
                progress.begin(progress.done, planned.found.name)
                record, tables = _do(planned, host, sampler, writer, progress)
                writer.add(asdict(record), **tables)
                progress.end(status=record.status, text=_how_it_went(record, tables["steps"], request.global_batch))
    finally:
        sampler.stop()


def _do(
    planned: Planned, host: WorkerHost, sampler: Sampler, writer: RunWriter, progress: RunProgress
) -> tuple[LaunchRecord, dict[str, list[dict[str, Any]]]]:
    """One launch: run it, watch its memory, and collect what its ranks wrote."""
    scratch = os.path.join(writer.scratch, f"launch-{planned.launch:03d}")
    os.makedirs(scratch)
    problems = host.description["apex"]["problems"]
    job = replace(planned.job, scratch=scratch, logs=writer.logs, apex_problems=problems)

    def on_event(event: dict[str, Any]) -> None:
        sampler.hear(job, event)
        progress.hear(event)

    started_utc, started = machine.utc_now(), time.monotonic()
    outcome = host.run(job, on_event)
    memory, device = sampler.finish(job.launch)
    results = _read_results(scratch, job.processes)
    ranks = _ranks(outcome, results, job.launch, job.scenario)
    host_name = writer.document["machine"]["host"]
    memory += allocator_rows(memory, ranks, launch=job.launch, scenario=job.scenario, host=host_name)
    tables = {"steps": _step_rows(planned, results), "memory": memory, "device": device}
    record = replace(
        _blank_record(planned),
        status=outcome.status,
        reason=outcome.reason,
        first_failed_rank=outcome.first_failed_rank,
        effective=results[0]["effective"] if results else None,
        checks={**_checks(results), "sampling": sampler.cost, **noticed(sampler.findings, device, tables["steps"])},
        ranks=ranks,
        started_utc=started_utc,
        ended_utc=machine.utc_now(),
        wall_s=time.monotonic() - started,
        first_forward_s=max((result["first_forward_s"] for result in results), default=None),
    )
    shutil.rmtree(scratch)
    return record, tables


def _blank_record(planned: Planned) -> LaunchRecord:
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


def _read_results(scratch: str, processes: int) -> list[dict[str, Any]]:
    """What each rank that came to its end wrote, in the order of ranks."""
    results = []
    for rank in range(processes):
        path = os.path.join(scratch, f"rank{rank}.json")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                results.append(json.load(file))
    return results


def _step_rows(planned: Planned, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of steps.parquet of one launch: warm-up steps first, numbered on."""
    job = planned.job
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


def _checks(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What can be verified about a launch's figures.

    ``conservation_error``: the largest relative difference between the steps of a rank's measured window and the host's
    wall time for it. ``ranks_differ``: keys of ``effective`` in which the ranks are unlike.
    """
    if not results:
        return {}
    errors = [abs(sum(result["measured"]["step_ms"]) / result["measured"]["wall_ms"] - 1.0) for result in results]
    expected_to_differ = {"device"}
    first = results[0]["effective"]
    differ = sorted(
        {
            key
            for result in results[1:]
            for key in first
            if key not in expected_to_differ and result["effective"][key] != first[key]
        }
    )
    return {
        "conservation_error": max(errors),
        "conservation_ok": max(errors) <= CONSERVATION_LIMIT,
        "ranks_differ": differ,
        "skipped_steps": max((result["skipped_steps"] or 0 for result in results), default=0),
        "finite_loss": all(_finite(loss) for result in results for loss in result["measured"]["loss"]),
    }


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _ranks(outcome: Outcome, results: list[dict[str, Any]], launch: int, scenario: str) -> list[dict[str, Any]]:
    by_rank = {result["rank"]: result for result in results}
    return [
        {
            **rank,
            "log": f"logs/launch-{launch:03d}-{scenario}-rank{rank['rank']}.log",
            "device": by_rank[rank["rank"]]["effective"]["device"] if rank["rank"] in by_rank else None,
            "allocator": by_rank[rank["rank"]]["allocator"] if rank["rank"] in by_rank else None,
        }
        for rank in outcome.ranks
    ]


def _how_it_went(record: LaunchRecord, steps: list[dict[str, Any]], global_batch: int) -> str:
    """One line when a launch ends: its throughput, or its reason and where to look."""
    if record.status != "ok":
        rank = record.first_failed_rank or 0
        return f"{record.reason} (see {record.ranks[rank]['log']})"
    slowest: dict[int, float] = {}
    for row in steps:
        if not row["warmup"]:
            slowest[row["step"]] = max(slowest.get(row["step"], 0.0), row["step_ms"])
    ordered = sorted(slowest.values())
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return f"{1000 * global_batch / median:.1f} img/s, {median:.1f} ms a step"


def _announce(request: Request, plan: tuple[Planned, ...], console: Console) -> None:
    workload = request.workload
    where = count(len(request.devices), "GPU") if request.device == "cuda" else f"CPU, {machine.cores()} cores"
    console.line(
        f"{count(len(plan), 'launch', 'launches')} of {request.warmup} warm-up and {request.iters} measured steps: "
        f"{workload.model}, {workload.image_size} px, global batch {workload.global_batch} in {workload.replicas} "
        f"parts, {where}"
    )
    load = machine.load()
    if load > machine.cores() / 2:
        console.line(
            f"warning: other work is on this machine (load {load:.1f} on {machine.cores()} cores in the last minute); "
            "wait until it is done, or its share will be in the figures"
        )


@contextmanager
def _host(request: Request) -> Iterator[WorkerHost]:
    """The worker host with its log in a temporary file, since there is no run folder yet."""
    descriptor, log = tempfile.mkstemp(prefix="bench-worker-host-", suffix=".log")
    os.close(descriptor)
    try:
        with WorkerHost(
            python=request.python, fresh=request.fresh, apex_path=request.apex_path, log=log, device=request.device
        ) as host:
            yield host
    finally:
        os.unlink(log)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Within this context SIGTERM does what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
