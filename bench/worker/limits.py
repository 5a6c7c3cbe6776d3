"""What the parts of one scenario's step are, in a launch of its own: none of this is in a measured window.

Plain steps, timed as measured ones are; steps with and without synchronisation in turn; a few under the profiler; and
then, on the first rank, each operator of a step with its own shapes, alone and warm.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from bench.core.records import PHASES
from bench.worker import ceilings, live, loop
from bench.worker.diagnose import EXCHANGES, STEP_MARK, Load, a_step, category, paired, phase_of
from bench.worker.plan import Plan, Report
from bench.worker.session import Session
from bench.worker.work import Counter, flops_of, of_training
from bench.worker.workload import map_tensors, tensors_in

ARITHMETIC = ("convolutions", "matrix products", "attention")
"""Categories of the profile whose operators have FLOPs; the others move memory."""
AROUND, NO_OPERATORS = ("autograd::", "torch::"), ("c10d", "_c10d_functional", "profiler", "prim")
"""How names of what is around operators begin, and namespaces of what computes nothing."""
CLASSES = ("arithmetic", "memory", "optimizer", "communication", "host")
FEWEST_STEPS = 5
FEWEST_PROFILED, MOST_PROFILED, PROFILED_MS = 3, 20, 400.0
OPERATOR_S, LONGEST_S = 0.01, 40.0
"""How long each operator is repeated, and all of them together at most."""
SMALL = 1
"""Elements of a tensor whose value is kept: a scale, a learning rate, a flag."""
HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


def perform(plan: Plan, report: Report) -> dict[str, Any]:
    """For :class:`bench.runs.experiments.LimitsLaunch`, with the rows of the plain and the paired steps."""
    from bench.worker.rank import barrier, leave

    load, session, job = plan.load(), plan.build(), plan.parts.job
    device, half = plan.parts.device, max(FEWEST_STEPS, job.iters // 2)
    watch = live.TypeWatch(session.model)
    loop.run_window(session, load, job.workload.warmup, device=device, on_step=report("warmup"))
    if not session.compiled:
        watch.stop()
    found: dict[str, Any] = {"effective": plan.what_ran(session, watch)}
    barrier()
    plain = loop.run_window(session, load, half, device=device, on_step=report("measure", of=3 * half))
    pairs, found["pairs_reason"] = paired(session, load, max(2, half // 2), report("pairs", half, of=3 * half))
    barrier()
    found |= profiled(session, load, median(plain.step_ms))
    barrier()
    plain.extend(loop.run_window(session, load, half, device=device, on_step=report("plain", 2 * half, of=3 * half)))
    found["lead_ms"] = median(plain.lead_ms) if plain.lead_ms else None
    found["pairs"] = pairs
    found["plain"] = [
        {f"{phase}_ms": getattr(plain, f"{phase}_ms")[step] for phase in PHASES} for step in range(len(plain.step_ms))
    ]
    found["all_reduce_ms"] = all_reduce_ms(session, device) if dist.is_initialized() else None
    reason = "a compiled step has other kernels than its operators" if session.compiled else None
    operators = [] if reason or job.repeat else captured(session, load)
    leave()  # what follows is done by one rank, which must not wait for the others
    if plan.parts.rank == 0 and not job.repeat:
        tick = report("operators", of=len(operators))
        found["operators"], left_out = replayed(operators, device, tick)
        found["operators_reason"] = reason or left_out
        counter, examples = Counter(session.model), job.batch_per_replica * len(job.parts_of(0))
        for one in operators:
            flops = one.count * one.flops
            counter.forward += flops * (one.phase == "forward")
            counter.backward += flops * (one.phase != "forward")
        found["work"] = of_training(counter, plan.parts, examples) if operators and examples else None
    return found


def without_exchange(session: Session) -> Any:
    """A context in which each rank keeps its gradients, where there is one."""
    return (
        nullcontext() if isinstance(session.quiet, str) or not dist.is_initialized() else session.quiet(session.module)
    )


def profiled(session: Session, load: Load, step_ms: float) -> dict[str, Any]:
    """Milliseconds of a step by :data:`CLASSES`: self times, less what the profiler itself takes for each event."""
    device = session.parts.device
    steps = int(min(MOST_PROFILED, max(FEWEST_PROFILED, PROFILED_MS / step_ms)))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    own_us = cost_of_event_us() if device.type == "cpu" else 0.0
    with profile(activities=activities) as profiler:
        for step in range(steps):
            with record_function(f"{STEP_MARK}{step}"):
                a_step(session, load, record_function, without_exchange(session))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    spent = by_class(profiler.events(), device.type, own_us)
    return {"spent_ms": {name: ms / steps for name, ms in spent.items()}, "profiled_steps": steps}


def by_class(events: Iterable[Any], device: str, own_us: float) -> dict[str, float]:
    """Self times of all events by class. ``own_us``: what the profiler adds to the parent of each event."""
    spent, known = dict.fromkeys(CLASSES, 0.0), [event for event in events if event.device_type == DeviceType.CPU]
    threads = {event.thread for event in known if event.name == "forward"}
    for event in known:
        if (device == "cpu" and event.thread not in threads) or phase_of(event) == "data":
            continue  # what other threads do at the same time takes no time of the step
        self_us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        spent[class_of(event)] += (self_us - own_us * len(event.cpu_children)) / 1e3
    return {name: max(0.0, ms) for name, ms in spent.items()}


def class_of(event: Any) -> str:
    """An operator computes, moves memory, or is the optimizer's; what is around operators is Python and torch."""
    name, spent = event.name, category(event)
    if spent == "communication" or name.startswith(EXCHANGES):
        return "communication"
    if ("::" not in name or name.startswith(AROUND)) and "CompiledFxGraph" not in name:
        return "host"
    if spent in ARITHMETIC:
        return "arithmetic"
    return "optimizer" if phase_of(event) == "optimizer" else "memory"


def cost_of_event_us() -> float:
    """What the profiler adds to the time of an event, in microseconds."""
    tiny, calls = torch.ones(1), 2000

    def once() -> float:
        start_ns = perf_counter_ns()
        for _ in range(calls):
            tiny.add_(1.0)
        return (perf_counter_ns() - start_ns) / calls / 1e3

    once()
    plain = min(once() for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU]):
        watched = min(once() for _ in range(3))
    return max(0.0, watched - plain)


@dataclass(slots=True)
class Operator:
    """An operator with its arguments; of tensors their form alone, unless they are small or have no fraction."""

    function: Any
    args: Any
    kwargs: Any
    phase: str
    type: str
    flops: int
    bytes: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor without its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self) -> Tensor:
        reach = 1 + sum((edge - 1) * stride for edge, stride in zip(self.size, self.stride, strict=True))
        storage = torch.rand(max(1, reach) if 0 not in self.size else 1, device=self.device).to(self.dtype)
        return storage.as_strided(self.size, self.stride)


class Capture(TorchDispatchMode):
    """Notes each operator of a step once for each form of its arguments. ``phase``: the one that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.operators = "forward", dict[tuple[Any, ...], Operator]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in([args, kwargs])
        forms = (*map(form, tensors), repr(map_tensors(lambda tensor: None, [args, kwargs])))
        key = (func, self.phase, forms)
        if key in self.operators or getattr(func, "is_view", False) or func.namespace in NO_OPERATORS:
            out = func(*args, **kwargs)
        else:
            kept = [map_tensors(remembered, one) for one in ([*args], kwargs)]
            out = func(*args, **kwargs)
            moved = sum(tensor.nbytes for tensor in {id(one): one for one in [*tensors, *tensors_in([out])]}.values())
            kind = next((HALVES[one.dtype] for one in tensors if one.dtype in HALVES), "none")
            flops = flops_of(func, args, kwargs, out)
            self.operators[key] = Operator(func, kept[0], kept[1], self.phase, kind, flops, moved)
        if key in self.operators:
            self.operators[key].count += 1
        return out


def form(tensor: Tensor) -> Form:
    return Form(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def remembered(tensor: Tensor) -> Tensor | Form:
    """Indices, flags and scales are kept as they are: an operator may fail with other values."""
    if tensor.numel() <= SMALL or not tensor.is_floating_point():
        return tensor.detach().clone()
    return form(tensor)


def made(tree: Any) -> Any:
    """Arguments with tensors in place of forms."""
    if isinstance(tree, Form):
        return tree.made()
    if isinstance(tree, dict):
        return {key: made(value) for key, value in tree.items()}
    return type(tree)(made(value) for value in tree) if isinstance(tree, tuple | list) else tree


def captured(session: Session, load: Load) -> list[Operator]:
    capture = Capture()

    def enter(phase: str) -> Any:
        capture.phase = phase
        return nullcontext() if phase == "data" else capture

    a_step(session, load, enter, without_exchange(session))
    return list(capture.operators.values())


def replayed(
    operators: list[Operator], device: torch.device, tick: Callable[[int], None]
) -> tuple[list[dict[str, object]], str | None]:
    """Each operator alone and warm, and why some were left out."""
    found, failed, end_ns = list[dict[str, object]](), list[str](), perf_counter_ns() + LONGEST_S * 1e9
    for number, one in enumerate(operators, start=1):
        ms: float | None = None
        if perf_counter_ns() < end_ns:
            try:
                with torch.no_grad():
                    args, kwargs = made(one.args), made(one.kwargs)
                    ms = 1e3 * ceilings.seconds(partial(one.function, *args, **kwargs), device, OPERATOR_S)
            except (RuntimeError, ValueError, IndexError) as error:  # what it computes on is not what it was
                failed.append(f"{one.function} ({type(error).__name__})")
        about: dict[str, object] = {"name": str(one.function).removeprefix("aten."), "phase": one.phase}
        about |= {"type": one.type, "count": one.count, "flops": one.flops, "bytes": one.bytes, "alone_ms": ms}
        found.append(about)
        tick(number)
    late = sum(one["alone_ms"] is None for one in found) - len(failed)
    reasons = [f"failed alone: {', '.join(dict.fromkeys(failed))}"[:200]] if failed else []
    reasons += [f"{late} operators were not reached within {LONGEST_S:.0f} s"] if late else []
    return found, "; ".join(reasons) or None


def all_reduce_ms(session: Session, device: torch.device) -> float:
    """All gradients exchanged alone, in buckets as large as DDP's (or in one, where there are none)."""
    size = sum(one.numel() * one.element_size() for one in session.model.parameters() if one.requires_grad)
    bucket = int(getattr(session.module, "bucket_bytes_cap", size)) or size
    tensors = [torch.zeros(max(1, min(bucket, size - at) // 4), device=device) for at in range(0, size, bucket)]

    def exchange() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    samples = []
    for _ in range(5):
        dist.barrier()
        samples.append(1e3 * ceilings.timed(exchange, device, 1))
    return median(samples[1:])
