"""``bench run --find-batch``: the largest global batch of each scenario that trains; each try is a short launch."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench import machine
from bench.core.errors import RequestError
from bench.core.job import Job
from bench.core.records import Host
from bench.experiments.lab import Finished, Lab, Start, opened
from bench.experiments.launch import Performed, perform
from bench.experiments.measure import median_step_ms
from bench.experiments.plan import Request, job_of
from bench.experiments.plan import batch_search as search
from bench.runs.experiments import BatchSearch, TryRecord
from bench.runs.frames import TableRow
from bench.runs.launches import LaunchRecord, RankRecord
from bench.seams.discover import Found
from bench.seams.experiment import Experiment

EXPERIMENT = Experiment(
    record=BatchSearch,
    no_resume=("that run looked for the largest batch", "start it again with --find-batch"),
    failed=lambda record: sum(one.failed for one in record.scenarios.values()),
    instead="looked for the largest batch",
)


def find_batches(request: Request, scenarios: tuple[Found, ...], start: Start) -> Finished:
    """Search for each scenario and write a run folder; see :func:`bench.experiments.pipeline.run`."""
    gpus = machine.choose_device(request.device)[1]
    if any(gpu.memory_total_mib is None for gpu in gpus if gpu.uuid in request.devices):  # as where it is the host's
        problem = "the driver does not report how much memory there is"
        raise RequestError("--find-batch", problem, "choose another GPU, or try a --global-batch")
    with opened(request, scenarios, start) as lab, lab.progress:
        lab.progress.counted = False
        search_each(lab)
    return Finished(run=lab.sealed())


def search_each(lab: Lab) -> None:
    """Search for one scenario after the other. A budget is shared evenly among those that are still to come."""
    gpus = [gpu for gpu in lab.writer.document.machine.gpus if gpu.uuid in lab.request.devices]
    sizes = [gpu.memory_total_mib or 0.0 for gpu in gpus] or [machine.available_memory_bytes() / 2**20]
    lab.writer.note(BatchSearch())
    end_s = None if lab.request.budget_s is None else lab.began_s + lab.request.budget_s
    for position, found in enumerate(lab.runnable):
        now_s = time.monotonic()
        share_s = None if end_s is None else now_s + (end_s - now_s) / (len(lab.runnable) - position)
        _find_batch(found, min(sizes), share_s, lab)


def _find_batch(found: Found, capacity_mib: float, end_s: float | None, lab: Lab) -> None:
    """The search of one scenario: at least one try, and none that would end after ``end_s``.

    A try that trains is a ``failure`` too if nothing reports its memory.
    """
    on_gpu = lab.request.device == "cuda"
    unit, first = found.strategy.replicas(lab.request.replicas), lab.request.global_batch if on_gpu else None
    tries: list[search.Try] = []
    took_s: list[tuple[int, float]] = []
    stopped_by = None
    while True:
        begun = lab.writer.document.begun(BatchSearch)
        lab.writer.note(replace(begun, scenarios={**begun.scenarios, found.name: search.outcome(tries, stopped_by)}))
        trains = {one.global_batch: one.why_not is None for one in tries}
        expected = search.expected_batch(tries, capacity_mib)
        batch = search.next_batch(trains, unit, first=first, expected=expected if on_gpu else None)
        if stopped_by is not None or batch is None:
            return
        if tries and end_s is not None and time.monotonic() + search.expected_s(took_s, batch) > end_s:
            stopped_by = "budget"
            continue
        if not on_gpu and expected is not None and batch > expected:
            why = f"not tried: about {expected:,.0f} should fit into {capacity_mib:,.0f} MiB"
            tries.append(search.Try(global_batch=batch, why_not=why))  # the kernel might kill another process
            continue
        started_s = time.monotonic()
        record, one = _try_batch(found, batch, capacity_mib, lab)
        took_s.append((batch, time.monotonic() - started_s))
        known_why = record.status == "oom" or (record.status == "ok" and one.peak_mib is not None)
        stopped_by = None if known_why else "failure"
        tries.append(one)


def planned_try(request: Request, found: Found, batch: int, launch: int, hosts: Sequence[Host]) -> Job:
    """A launch with this global batch, of which there is one: making more takes seconds, and memory is the same."""
    tried = replace(request, global_batch=batch, warmup=search.TRY_WARMUP, iters=search.TRY_ITERS)
    job = job_of(tried, found, launch, 0, hosts)
    return replace(job, workload=replace(job.workload, pool_batches=1))


def _try_batch(found: Found, batch: int, capacity_mib: float, lab: Lab) -> tuple[LaunchRecord, search.Try]:
    job = planned_try(lab.request, found, batch, lab.next_launch(), lab.site.hosts)

    def keep(done: Performed) -> str:
        one, unit = _judged(done, capacity_mib), job.workload.unit_short
        verdict = {"global_batch": batch, "peak_mib": one.peak_mib, "why_not": one.why_not}
        tried = TryRecord.of(done.record, **verdict, warmup=search.TRY_WARMUP, iters=search.TRY_ITERS)
        lab.writer.add_to(BatchSearch, tried, **{name: done.tables[name] for name in ("steps", "memory", "device")})
        return f"global batch {batch}: {one.why_not or f'trains, {one.throughput_per_s:,.1f} {unit}/s'}"

    done = perform(job, lab, "trying", keep)
    return done.record, _judged(done, capacity_mib)


def _judged(done: Performed, capacity_mib: float) -> search.Try:
    """The verdict of a launch on its global batch."""
    work = done.job.workload
    peak_mib = steady_mib(done.tables["memory"], done.record.ranks)
    median_ms = median_step_ms(done)
    why_not = None if median_ms is not None else done.record.reason or done.record.status
    if why_not is None and peak_mib is None:
        why_not = "it trains, but neither the driver nor torch reports how much memory it leaves free"
    elif why_not is None and peak_mib is not None and peak_mib > (1.0 - search.KEPT_FREE) * capacity_mib:
        why_not = f"leaves less than {100 * search.KEPT_FREE:.0f} % free: {peak_mib:,.0f} MiB of {capacity_mib:,.0f}"
    speed = None if median_ms is None else 1000 * work.units / median_ms
    return search.Try(global_batch=work.global_batch, why_not=why_not, peak_mib=peak_mib, throughput_per_s=speed)


def steady_mib(memory: Iterable[TableRow], ranks: Sequence[RankRecord]) -> float | None:
    """The most that measured steps need of a device: what processes held there (rows of memory.parquet), or torch
    reserved if that is more, without what torch only keeps reserved since cuDNN's search."""
    reserved, in_use = peaks_mib(ranks, "max_reserved_mib"), peaks_mib(ranks, "steady_allocated_mib")
    held = fullest_mib(memory)
    levels = {device: max(held.get(device, 0.0), reserved.get(device, 0.0)) for device in held | reserved}
    spare = {device: max(0.0, reserved[device] - in_use[device]) for device in reserved.keys() & in_use}
    return max((level - spare.get(device, 0.0) for device, level in levels.items()), default=None)


def fullest_mib(memory: Iterable[TableRow]) -> dict[str, float]:
    """By device the most that it held at one moment, over all processes of the launch (rows of memory.parquet)."""
    held: dict[tuple[str, int], float] = defaultdict(float)
    for row in memory:
        if row["used_mib"] is not None:
            held[row["device"], row["t_ns"]] += row["used_mib"]
    return {device: max(mib for (on, _), mib in held.items() if on == device) for device in {on for on, _ in held}}


def peaks_mib(ranks: Iterable[RankRecord], kind: str) -> dict[str, float]:
    """By device a peak of torch's allocator, over all ranks of a launch, without CUDA's contexts."""
    held: dict[str, float] = defaultdict(float)
    for rank in ranks:
        for name, peak_mib in (rank.allocator or {}).items():
            if name.startswith(f"{kind}."):
                held[name.removeprefix(f"{kind}.")] += peak_mib
    return dict(held)
