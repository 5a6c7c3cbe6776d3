"""The reference of all launches: one process that accumulates the replicas' chunks, without any strategy.

For each way in which launches cut a batch into chunks (:class:`bench.core.job.Computation`) it does the steps of
:func:`bench.worker.probe.perform`, in double precision, the first of them once more with weights that were moved by a
rounding. It also trains the first steps of the run in fp32, without TF32, on as many threads as a launch's rank has.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import count, pairwise
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from bench.core.job import SMALL_STEPS, Computation
from bench.worker import data, probe, work
from bench.worker.plan import Plan, Report
from bench.worker.precision import double_by_default, use_tf32
from bench.worker.session import Parts
from bench.worker.workload import Around, Loss, build_in_double, cast_floats, loss_of, tensors_in, weight_of

LOSSES = 2
"""Steps in fp32: the loss of the first shows the forward pass, that of the second what the first update did."""

TIMED, LONG_NS = 8, 100_000_000
"""Steps in fp32 while they are short, for the time of the quickest: a busy machine may hold up each."""

EPSILON = 2.0**-52
"""The distance from 1 to the next number in double precision."""

Batch = tuple[int, int]
"""Replicas, and examples of all of them."""
Sketches = list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Double:
    """The results of training in double precision.

    By step and tensor, ``gradients``, and ``buffers``, how those of the first replica changed. ``alone``: of the first
    step, what the first chunk gives by itself, as if a replica forgot the others. ``twin_*``: the same from weights
    that were moved by a rounding. ``narrow``: whether the model is the workload's narrow one.
    """

    narrow: bool

    gradients: list[Sketches] = field(default_factory=list)
    buffers: list[Sketches] = field(default_factory=list)
    alone: list[Sketches] = field(default_factory=list)
    twin_gradients: list[Sketches] = field(default_factory=list)
    twin_buffers: list[Sketches] = field(default_factory=list)


def own(job: Parts) -> dict[Batch, list[Computation]]:
    """The computations of this process, which shares them with the launch's others, by what they do in double
    precision: the number of threads makes a difference in fp32 alone."""
    by_batch: dict[Batch, list[Computation]] = {}
    for one in job.job.computations:
        by_batch.setdefault((one.replicas, one.examples), []).append(one)
    return dict(list(by_batch.items())[job.rank :: len(job.job.ranks)])


def steps(job: Parts) -> int:
    """How many steps all passes of this process have together."""
    return sum(len(same) * LOSSES + SMALL_STEPS + 1 for same in own(job).values())


def perform(plan: Plan, report: Report) -> dict[str, Any]:
    """Compute what every scenario is held against. ``passes``: for each computation of this process the ``loss`` of the
    global batch in fp32, for the first steps, ``step_ms``, the quickest of those after the first, and the fields of
    :class:`Double`. ``work``: from rank 0, what the first step is in FLOPs and bytes.
    """
    assert plan.probe_seed is not None
    job = plan.parts
    on_step, done = report("measure", of=steps(job)), count(1)

    def tick() -> None:
        on_step(next(done))

    probe.keep_freed()
    use_tf32(False, False)
    passes, counted = [], dict[str, object]()
    for (replicas, examples), same in own(job).items():
        small = replace(job, job=replace(job.job, workload=job.workload.in_small(plan.probe_seed, examples)))
        with double_by_default():
            double = _in_double(small, replicas, tick)
        for computation in same:
            if computation.threads:
                torch.set_num_threads(computation.threads)
            losses, step_ms, counter = _train(job, computation, tick, job.rank == 0 and not counted)
            if counter:
                counted = work.of_training(counter, job, job.workload.global_batch)
            passes.append({"computation": asdict(computation), "loss": losses, "step_ms": step_ms, **asdict(double)})
    return {"passes": passes, "work": counted}


Chunks = list[tuple[data.Batch, float]]
"""Each chunk of a batch with what its loss is divided by in the mean of the batch."""


def _loader(job: Parts, replicas: int) -> Callable[[], Chunks]:
    weight = weight_of(job.workload) or (lambda batch: 1.0)
    load = data.feeds(job.workload, replicas, [range(chunk, chunk + 1) for chunk in range(replicas)], job.device)

    def chunks() -> Chunks:
        parts = [load() for _ in range(replicas)]
        weights = [float(weight(part)) for part in parts]
        return [(part, sum(weights) / one if one else math.inf) for part, one in zip(parts, weights, strict=True)]

    return chunks


def _train(
    job: Parts, computation: Computation, tick: Callable[[], None], counts: bool
) -> tuple[list[float], float, work.Counter | None]:
    """The losses of the first steps in fp32, the quickest of those after the first (ms), and, where it ``counts`` them,
    the operations of the first."""
    load, criterion = _loader(job, computation.replicas), loss_of(job.workload)
    model = job.build_model().to(job.device)
    optimizer = job.build_optimizer(model.parameters())
    around = Around(job.workload, model, optimizer, list(model.parameters()))
    counter = work.Counter(model) if counts else None
    losses, marks = list[float](), list[int]()
    for step in range(TIMED):
        if step >= LOSSES and marks[-1] - marks[0] > LONG_NS:
            break
        model.zero_grad()
        with counter if counter and not step else nullcontext():  # whose time is in no result
            losses.append(torch.stack(list(_chunks(model, criterion, load()))).sum().item())  # waits for a GPU
        around.before()
        optimizer.step()
        around.after()
        marks.append(perf_counter_ns())
        if step < LOSSES:
            tick()
    return losses[:LOSSES], min(after - before for before, after in pairwise(marks)) / 1e6, counter


def _chunks(model: nn.Module, criterion: Loss, parts: Chunks) -> Iterator[Tensor]:
    """The share of each chunk in the mean loss, after its gradient was added to ``.grad``. All draw the same at random
    (dropout), as ranks do that began with one seed."""
    devices = list({tensor.device for batch, _ in parts for tensor in tensors_in(batch) if tensor.is_cuda})
    for number, (batch, divisor) in enumerate(parts, start=1):
        with torch.random.fork_rng(devices, enabled=number < len(parts)):
            loss = criterion(model, batch) / divisor
        loss.backward()
        yield loss.detach()


def _in_double(job: Parts, replicas: int, tick: Callable[[], None]) -> Double:
    """Train in double precision. ``job``: with the workload in small."""
    model, narrow = build_in_double(job.workload)
    exact, model, seed = Double(narrow=narrow), model.to(job.device), job.workload.seed
    criterion, load = loss_of(job.workload), _loader(job, replicas)
    begin, parameters = probe.State.of(model), list(model.parameters())

    def chunk(part: tuple[data.Batch, float], number: int) -> None:
        """Add the gradient of this part of step ``number``, from the buffers at the beginning."""
        batch, divisor = part
        begin.fill_buffers(model)
        with probe.alike(seed + number, job.device):
            (criterion(model, cast_floats(batch, torch.float64)) / divisor).backward()

    def first_of(chunks: Chunks, number: int) -> Sketches:
        """Begin a step with its first chunk. Returns what that does to the buffers."""
        model.zero_grad(set_to_none=True)
        chunk(chunks[0], number)
        return probe.sketches(begin.changes(model))

    def gradients(times: float = 1.0) -> Sketches:
        made = probe.sketches([parameter.grad for parameter in parameters])
        return [[times * value for value in values] for values in made]

    batches = [load() for _ in range(job.workload.pool_batches)]
    of_first = batches[0][0][1]  # inf where a chunk has nothing to learn from
    whole = of_first if math.isfinite(of_first) else 1.0
    for number, chunks in enumerate(batches):
        exact.buffers.append(first_of(chunks, number))
        if number == 0:
            exact.alone.append(gradients(whole))
        for part in chunks[1:]:
            chunk(part, number)
        exact.gradients.append(gradients())
        tick()
    probe.perturb(parameters, EPSILON, seed)
    exact.twin_buffers.append(first_of(batches[0], 0))
    exact.twin_gradients.append(gradients(whole))
    tick()
    return exact
