"""Where the time of a step goes: a launch of its own, whose steps are never mixed with measured ones.

Three probes, one after the other, because each disturbs what it measures: *pairs* of steps with and without
synchronisation of the gradients; the strategy's own, such as the logger of torch DDP; and a few steps under
``torch.profiler``, for the shares of casts and loss scaling and, on request, for a trace.
"""

import gzip
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from bench.core.records import PHASES
from bench.worker import bandwidth, loop
from bench.worker.data import Batch
from bench.worker.loop import MARKS_PER_STEP, clock_for
from bench.worker.plan import Plan, Report
from bench.worker.rank import barrier, leave
from bench.worker.session import Session
from bench.worker.work import RECURRENT

Load = Callable[[], Batch]
Tick = Callable[[int], None]
Passes = AbstractContextManager[object]

PHASE_COLUMNS = tuple(f"{phase}_ms" for phase in PHASES)

FEWEST_PAIRS, MOST_PAIRS = 4, 20
PROFILED_STEPS = 3

ATTENTIONS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
CATEGORIES = {
    "casts": ("aten::_to_copy",),
    "loss scaling": ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"),
    "convolutions": ("aten::convolution", "aten::convolution_backward"),
    "matrix products": (
        *("aten::linear", "aten::matmul", "aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm"),
        *(f"aten::{name}{way}" for name in RECURRENT for way in ("", "_backward")),
    ),
    "attention": (
        "aten::scaled_dot_product_attention",
        *(f"aten::_scaled_dot_product_{kind}{way}" for kind in ATTENTIONS for way in ("", "_backward")),
    ),
    "layer norm": (
        *("aten::layer_norm", "aten::native_layer_norm", "aten::native_layer_norm_backward"),
        *("aten::rms_norm", "aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"),
    ),
    "batch norm": (
        *("aten::batch_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"),
        *("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", "aten::batch_norm_backward"),
    ),
    "bucket copies": (
        *("aten::flatten_dense_tensors", "aten::unflatten_dense_tensors"),
        *("fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat"),
    ),
    "gradients of replicas": ("BroadcastBackward", "ReduceAddCoalesced"),
    "communication": ("record_param_comms",),
    "optimizer": (),
    "input": ("data",),
}
"""Names of profiler events by what they are spent on; an event counts for the nearest name around it."""

COPY_OF_MANY = "aten::_foreach_copy_"
"""In the optimizer phase from and to master weights (a cast), in the backward pass from buckets to gradients."""

EXCHANGES = (
    *("nccl:", "nccl2:", "gloo:", "c10d::", "_c10d_functional::"),
    *("FSDP::", "Optimizer.step#ZeroRedundancyOptimizer", "rpc:"),
)
"""How the names of collectives begin, whoever communicates, and of what waits for some."""

STEP_MARK = "ProfilerStep#"
"""Begins the name of a step in a trace, as tools that read the profiler's traces expect; in events it ends in ``*``."""

_CATEGORY_OF = {name: category for category, names in CATEGORIES.items() for name in names}


def perform(plan: Plan, report: Report) -> dict[str, object]:
    """All probes; every rank takes the same steps. ``probes`` of the result: by name the rows of each, or why there are
    none, of the strategy's own too, where its module has one.
    """
    load, session, _, ran = plan.warmed_up(report)
    barrier()
    pairs, own = min(MOST_PAIRS, max(FEWEST_PAIRS, plan.parts.job.iters // 3)), plan.strategy.probe
    probes = {"pairs": paired(session, load, pairs, report("pairs", of=2 * pairs))}
    if own is not None:
        probes[own] = plan.module.probe(session, load, pairs, report(own, of=2 * pairs))
    spent = profiled(session, load, report("profile", of=PROFILED_STEPS))
    report("record")
    del session
    if plan.parts.job.group and plan.parts.device.type == "cuda":
        bandwidth.once(plan.parts.device)
    leave()
    found = {name: {"rows": rows, "reason": reason} for name, (rows, reason) in probes.items()}
    return {"effective": ran, "probes": found, "profile": spent}


def paired(session: Session, load: Load, pairs: int, tick: Tick) -> tuple[list[dict[str, object]], str | None]:
    """``2 * pairs`` steps, with and without synchronisation in the order ABBA: one row a step, or why there are none.

    The ranks' weights drift apart in the steps without; the time of a step does not depend on them.
    """
    _, reason = without_exchange(session)
    if reason is not None:
        return [], reason
    order = [step % 4 in (0, 3) for step in range(2 * pairs)]
    passes = [nullcontext() if on else without_exchange(session)[0] for on in order]
    steps_ms, _ = timed(session, load, passes, tick)
    return [
        {"pair": step // 2, "synchronised": synchronised, **dict(zip(PHASE_COLUMNS, times, strict=True))}
        for step, (synchronised, times) in enumerate(zip(order, steps_ms, strict=True))
    ], None


def without_exchange(session: Session) -> tuple[Passes, str | None]:
    """A context in which each rank keeps its gradients, and why there is none: then it is one that does nothing."""
    if not dist.is_initialized():
        return nullcontext(), "one process: there is nothing to synchronise"
    return (nullcontext(), session.quiet) if isinstance(session.quiet, str) else (session.quiet(session.module), None)


def timed(session: Session, load: Load, passes: Sequence[Passes], tick: Tick) -> tuple[list[list[float]], float]:
    """The phases (ms) of a step for each of ``passes``, the contexts of forward and backward pass; and how far (ms) the
    host is ahead of the device where a phase begins, at the beginning where it is least ahead (medians over steps)."""
    clock = clock_for(session.parts.device)
    clock.prepare(len(passes) * MARKS_PER_STEP + 1)

    issued_ns: list[int] = []

    def marked(phase: str) -> Passes:
        clock.mark()
        issued_ns.append(time.perf_counter_ns())
        return nullcontext()

    for step, context in enumerate(passes, start=1):
        a_step(session, load, marked, context)
        tick(step)
    clock.mark()
    clock.wait(lambda: tick(len(passes)))
    first_ns, spans = clock.read()
    reached_ms = accumulate(spans[:-1], initial=0.0)
    leads_ms = [ms - (issued - first_ns) / 1e6 for ms, issued in zip(reached_ms, issued_ns, strict=True)]
    least_ms = min(median(leads_ms[phase::MARKS_PER_STEP]) for phase in range(MARKS_PER_STEP))
    return [spans[at : at + MARKS_PER_STEP] for at in range(0, len(spans), MARKS_PER_STEP)], least_ms


def profiled(session: Session, load: Load, tick: Tick) -> dict[str, object]:
    """A few steps under the profiler: what a step's time is spent on (ms, self times; on a GPU of the kernels, on
    several the mean).

    ``step_ms``: the profiled step, which the profiler makes longer. ``trace``: the file that was kept, or None.
    """
    device = session.parts.device
    with profiling(device) as profiler:
        start = time.perf_counter_ns()
        for step in range(PROFILED_STEPS):
            with record_function(f"{STEP_MARK}{step}"):
                a_step(session, load, record_function)
            tick(step + 1)
        loop.finish(device)
        wall_ms = (time.perf_counter_ns() - start) / 1e6
    if trace := session.parts.job.trace.format(rank=session.parts.rank):
        os.makedirs(os.path.dirname(trace), exist_ok=True)
        profiler.export_chrome_trace(trace)
        _name_process(trace, f"{session.parts.job.scenario}, rank {session.parts.rank}", session.parts.rank)
    of = PROFILED_STEPS * max(1, len(session.parts.job.ranks[session.parts.rank].devices))
    spent = {name: self_ms / of for name, self_ms in spent_ms(profiler.events(), device.type).items()}
    return {"steps": PROFILED_STEPS, "step_ms": wall_ms / PROFILED_STEPS, "categories": spent, "trace": trace or None}


def profiling(device: torch.device) -> profile:
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *gpu])


def a_step(session: Session, load: Load, around: Callable[[str], Passes], passes: Passes | None = None) -> None:
    """A step with each phase in what ``around(phase)`` gives, and both passes of it in ``passes``."""
    with around("data"):
        batch = load()
    with passes or nullcontext():
        with around("forward"):
            loss = session.forward(batch)
        with around("backward"):
            session.backward(loss)
    with around("optimizer"):
        session.optimize()


def _name_process(path: str, name: str, rank: int) -> None:
    """Call the process of a Chrome trace by its rank, and sort it by that, where the profiler says ``python``."""
    with gzip.open(path, "rt", encoding="utf-8") as text:
        trace = json.load(text)
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" and event.get("pid") == os.getpid():
            told = {"process_name": {"name": name}, "process_sort_index": {"sort_index": rank}}
            event["args"] = told.get(event["name"], event.get("args"))
    with gzip.open(path, "wt", encoding="utf-8") as text:
        json.dump(trace, text)


def spent_ms(events: Iterable[Any], device: str) -> dict[str, float]:
    """Self times by category. On a GPU those of the kernels, each of which belongs to the operator that launched it.

    The profiler also lists kernels and ranges as events of the device: they are in the operators' times already.
    """
    spent = dict.fromkeys((*CATEGORIES, "other"), 0.0)
    for event in events:
        mark = event.name in PHASES or event.name.startswith(STEP_MARK[:-1])
        if not mark and event.device_type == DeviceType.CPU:
            self_us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
            spent[category(event)] += self_us / 1e3
    return spent


def phase_of(event: Any) -> str | None:
    """The phase around an event; None in autograd's own threads, which work for the backward pass."""
    while event is not None and event.name not in PHASES:
        event = event.cpu_parent
    return None if event is None else str(event.name)


def category(event: Any) -> str:
    """The category of a profiler event: that of the nearest known name, its own first, then its parents'."""
    if event.name == COPY_OF_MANY:
        return "casts" if phase_of(event) == "optimizer" else "bucket copies"
    if phase_of(event) == "data":
        return "input"  # a copy to the device is a _to_copy, as a cast is
    while event is not None:
        if event.name in _CATEGORY_OF:
            return _CATEGORY_OF[event.name]
        if event.name.startswith(EXCHANGES):
            return "communication"
        if event.name == "optimizer" or event.name.startswith("Optimizer.step#"):
            return "optimizer"  # whichever it is, in whatever kernels
        event = event.cpu_parent
    return "other"
