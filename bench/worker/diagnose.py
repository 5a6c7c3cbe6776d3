"""Where the time of a step goes: a launch of its own, whose steps are never mixed with measured ones.

Three probes, one after the other, because each disturbs what it measures:

- *pairs*: steps with and without synchronisation of the gradients, in the order ABBA, for every distributed strategy;
- the *logger* of torch DDP, which tells communication and its overlap with the backward pass apart, and for
  DataParallel the parts of its forward pass;
- a few steps under ``torch.profiler``, for the shares of casts and loss scaling and, on request, for a trace.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from bench.core.records import PHASES
from bench.worker.data import Batch
from bench.worker.loop import MARKS_PER_STEP, clock_for
from bench.worker.parallel import LOGGED_EVERY, without_synchronisation
from bench.worker.session import Session

Load = Callable[[], Batch]
Tick = Callable[[int], None]
Report = Callable[..., Tick]
"""Says that a probe begins, so that nobody thinks the rank has stalled; what it returns is told of each step."""

FEWEST_PAIRS, MOST_PAIRS = 4, 20
SETTLING_STEPS = 1
PROFILED_STEPS = 3

CATEGORIES = {
    "casts": ("aten::_to_copy",),
    "loss scaling": ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"),
    "convolutions": ("aten::convolution", "aten::convolution_backward", "aten::linear", "aten::addmm", "aten::mm"),
    "batch norm": (
        *("aten::batch_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"),
        *("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", "aten::batch_norm_backward"),
    ),
    "bucket copies": ("aten::flatten_dense_tensors", "aten::unflatten_dense_tensors"),
    "gradients of replicas": ("BroadcastBackward", "ReduceAddCoalesced"),
    "optimizer": ("aten::_fused_sgd_", "Optimizer.step#SGD.step"),
    "input": ("data",),
}
"""Names of profiler events by what they are spent on; an event counts for the nearest name around it."""

COPY_OF_MANY = "aten::_foreach_copy_"
"""In the optimizer phase from and to master weights (a cast), in the backward pass from buckets to gradients."""

_CATEGORY_OF = {name: category for category, names in CATEGORIES.items() for name in names}


def run(session: Session, load: Load, report: Report) -> dict[str, Any]:
    """All probes. Every rank takes the same steps. Times in milliseconds; see each function for its part."""
    pairs = min(MOST_PAIRS, max(FEWEST_PAIRS, session.job.job.iters // 3))
    steps, pairs_reason = paired(session, load, pairs, report("pairs", of=2 * pairs))
    logged, logger_reason = ddp_logger(session, load, pairs, report("logger", of=pairs + SETTLING_STEPS + 1))
    parts, parts_reason = data_parallel(session, load, pairs, report("parts", of=pairs))
    return {
        "pairs": steps,
        "pairs_reason": pairs_reason,
        "logger": logged,
        "logger_reason": logger_reason,
        "data_parallel": parts,
        "data_parallel_reason": parts_reason,
        "profile": profiled(session, load, report("profile", of=PROFILED_STEPS)),
    }


def paired(session: Session, load: Load, pairs: int, tick: Tick) -> tuple[list[dict[str, Any]], str | None]:
    """``2 * pairs`` steps, with and without synchronisation in the order ABBA, and why there are none.

    One row a step: ``pair``, ``synchronised`` and the phases. The ranks' weights drift apart in the steps without; the
    time of a step does not depend on them.
    """
    if not dist.is_initialized():
        return [], "one process: there is nothing to synchronise"
    quiet = without_synchronisation(session.module)
    if quiet is None:
        return [], f"{type(session.module).__name__} has no no_sync() or its like, so there is nothing to compare with"
    order = [step % 4 in (0, 3) for step in range(2 * pairs)]
    clock = clock_for(session.job.device)
    clock.prepare(len(order) * MARKS_PER_STEP + 1)
    for step, synchronised in enumerate(order):
        clock.mark()
        batch = load()
        clock.mark()
        with nullcontext() if synchronised else quiet():
            loss = session.forward(batch)
            clock.mark()
            session.backward(loss)
        clock.mark()
        session.optimize()
        tick(step + 1)
    clock.mark()
    clock.wait()
    _, spans = clock.read()
    rows = []
    for step, synchronised in enumerate(order):
        phases = spans[step * MARKS_PER_STEP : (step + 1) * MARKS_PER_STEP]
        times = {f"{phase}_ms": value for phase, value in zip(PHASES, phases, strict=True)}
        rows.append({"pair": step // 2, "synchronised": synchronised, **times})
    return rows, None


def ddp_logger(session: Session, load: Load, steps: int, tick: Tick) -> tuple[list[dict[str, float]], str | None]:
    """What torch DDP's own logger says of ``steps`` steps, and why there is nothing.

    One row a step: ``compute_ms`` (backward computation), ``comm_ms`` (from the first bucket's start to the last one's
    end) and ``overlap_ms`` (the part of it while gradients were still computed). The logger describes the iteration
    before, so each is read after the next forward pass.
    """
    module = session.module
    if not isinstance(module, nn.parallel.DistributedDataParallel):
        return [], f"{type(module).__name__} is not torch DDP, which has a logger"
    module._set_ddp_runtime_logging_sample_rate(1)
    rows = []
    for step in range(steps + SETTLING_STEPS + 1):
        loss = session.forward(load())
        said = module._get_ddp_logging_data()
        if step > SETTLING_STEPS:
            rows.append(
                {
                    "compute_ms": said["backward_compute_time"] / 1e6,
                    "comm_ms": said["backward_comm_time"] / 1e6,
                    "overlap_ms": said["backward_compute_comm_overlap_time"] / 1e6,
                }
            )
        session.backward(loss)
        session.optimize()
        tick(step + 1)
    module._set_ddp_runtime_logging_sample_rate(LOGGED_EVERY)
    return rows, None


DATA_PARALLEL_PARTS = ("scatter", "replicate", "parallel_apply", "gather")


def data_parallel(session: Session, load: Load, steps: int, tick: Tick) -> tuple[list[dict[str, float]], str | None]:
    """The parts of DataParallel's forward pass in ``steps`` steps (ms, with the devices idle in between).

    One row a step: ``scatter_ms``, ``replicate_ms`` (weights to all GPUs), ``parallel_apply_ms``, ``gather_ms``.
    """
    module = session.module
    if not isinstance(module, nn.DataParallel):
        return [], f"{type(module).__name__} is not DataParallel"
    if len(module.device_ids) < 2:
        return [], "DataParallel on one device or on the CPU is a pass-through: nothing is replicated"
    rows: list[dict[str, float]] = []
    with timed_parts(module, rows):
        for step in range(steps):
            rows.append({})
            session.backward(session.forward(load()))
            session.optimize()
            tick(step + 1)
    return rows, None


@contextmanager
def timed_parts(module: nn.Module, rows: list[dict[str, float]]) -> Iterator[None]:
    """Within this context each of :data:`DATA_PARALLEL_PARTS` of ``module`` puts its time (ms) into the last row."""

    def timed(part: str) -> Callable[..., Any]:
        call = getattr(module, part)

        def measured(*args: Any, **kwargs: Any) -> Any:
            _wait_for_all_devices()
            start = time.perf_counter_ns()
            result = call(*args, **kwargs)
            _wait_for_all_devices()
            rows[-1][f"{part}_ms"] = (time.perf_counter_ns() - start) / 1e6
            return result

        return measured

    wrappers = {part: timed(part) for part in DATA_PARALLEL_PARTS}
    for part, wrapper in wrappers.items():
        object.__setattr__(module, part, wrapper)
    try:
        yield
    finally:
        for part in DATA_PARALLEL_PARTS:
            object.__delattr__(module, part)


def _wait_for_all_devices() -> None:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


def profiled(session: Session, load: Load, tick: Tick) -> dict[str, Any]:
    """A few steps under the profiler: what the time of a step is spent on (``*_ms`` a step, self times).

    ``categories``: the time of operators by :data:`CATEGORIES`, and ``other``; on a GPU the time of their kernels.
    ``step_ms``: the profiled step, which the profiler makes longer. ``trace``: the file that was kept, or None.
    """
    device = session.job.device
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities) as profiler:
        start = time.perf_counter_ns()
        for step in range(PROFILED_STEPS):
            with record_function("data"):
                batch = load()
            with record_function("forward"):
                loss = session.forward(batch)
            with record_function("backward"):
                session.backward(loss)
            with record_function("optimizer"):
                session.optimize()
            tick(step + 1)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        wall_ms = (time.perf_counter_ns() - start) / 1e6
    trace = session.job.job.trace.format(rank=session.job.rank)
    if trace:
        os.makedirs(os.path.dirname(trace), exist_ok=True)
        profiler.export_chrome_trace(trace)
    spent = {name: self_ms / PROFILED_STEPS for name, self_ms in spent_ms(profiler.events(), device.type).items()}
    return {"steps": PROFILED_STEPS, "step_ms": wall_ms / PROFILED_STEPS, "categories": spent, "trace": trace or None}


def spent_ms(events: Iterable[Any], device: str) -> dict[str, float]:
    """Self times by category. On a GPU those of the kernels, each of which belongs to the operator that launched it.

    The profiler lists each kernel besides as an event of the device, and on the device a range around those of every
    annotation: both are in the operators' figures already (``torch.autograd.profiler_util.FunctionEvent``).
    """
    spent = dict.fromkeys((*CATEGORIES, "other"), 0.0)
    for event in events:
        if event.name not in PHASES and event.device_type == DeviceType.CPU:
            self_us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
            spent[category(event)] += self_us / 1e3
    return spent


def _phase(event: Any) -> str | None:
    """The phase around an event; None in autograd's own threads, which work for the backward pass."""
    while event is not None and event.name not in PHASES:
        event = event.cpu_parent
    return None if event is None else str(event.name)


def category(event: Any) -> str:
    """What an event of the profiler is spent on: that of the nearest known name, itself first, then its parents."""
    if event.name == COPY_OF_MANY:
        return "casts" if _phase(event) == "optimizer" else "bucket copies"
    if _phase(event) == "data":
        return "input"  # a copy to the device is a _to_copy, as a cast is
    while event is not None:
        found = _CATEGORY_OF.get(event.name)
        if found is not None:
            return found
        event = event.cpu_parent
    return "other"
