"""The parts of one scenario's step, in a launch of its own: none of this is in a measured window.

Steps as they are measured, steps without an exchange and steps under the profiler, in turns; and then, on the first
rank, each operator of a step with its own shapes, alone and warm.
"""

import mmap
import resource
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import profile, record_function

from bench.core.dtypes import short
from bench.worker import bandwidth, ceilings, diagnose, loop
from bench.worker.diagnose import PHASE_COLUMNS, STEP_MARK, Load, Tick, a_step, phase_of, profiling, without_exchange
from bench.worker.plan import Plan, Report
from bench.worker.rank import barrier, leave
from bench.worker.session import Session
from bench.worker.work import Counter, Operators, flops_of, of_training
from bench.worker.workload import map_tensors, tensors_in

ARITHMETIC = ("convolutions", "matrix products", "attention")
"""Categories of the profile whose operators have FLOPs; the others move memory."""
AROUND, NO_OPERATORS = ("autograd::", "torch::"), ("c10d", "_c10d_functional", "profiler", "prim")
"""How names of what is around operators begin, and namespaces of what computes nothing."""
CLASSES = ("arithmetic", "memory", "optimizer", "communication", "host")
SETTLING = "settling"
"""The name of a step that is not counted."""
FEWEST_STEPS, MOST_STEPS, IN_TURNS_S = 10, 100, 6.0
"""Of each way to take them, and how long all may take where they may be more."""
MOST_PROFILED = 5  # of a block: reading thousands of events a step must not take as long as a rank may be silent
FRESH_BYTES = 2**23
"""Of memory whose first touch is timed: a weight's gradient may have as much."""
OPERATOR_S, LONGEST_S = 0.01, 40.0
"""How long each operator is repeated, and all of them together at most."""


def perform(plan: Plan, report: Report) -> dict[str, Any]:
    """For :class:`bench.runs.experiments.LimitsLaunch`, with the rows of the plain and the paired steps."""
    job, device = plan.parts.job, plan.parts.device
    load, session, warm, ran = plan.warmed_up(report)
    found: dict[str, Any] = {"effective": ran}
    room = 1e3 * IN_TURNS_S / (2 * 3) / loop.slowest(min(warm.step_ms), device)  # three ways, and as many that settle
    steps = max(job.iters, int(min(MOST_STEPS, max(FEWEST_STEPS, room))))
    found |= in_turns(session, load, steps, report("measure", of=3 * steps))
    found["all_reduce_ms"] = all_reduce_ms(session, device) if dist.is_initialized() else None
    reason = "a compiled step has other kernels than its operators" if session.compiled else None
    operators = [] if reason or job.repeat else captured(session, load)
    leave()  # what follows is done by one rank, which must not wait for the others
    if plan.parts.rank == 0 and not job.repeat:
        found["operators"], left_out = replayed(operators, device, report("operators", of=len(operators)))
        found["operators_reason"] = reason or left_out
        counter, examples = Counter(session.model), job.batch_per_replica * len(job.parts_of(0))
        for one in operators:
            flops = one.count * one.flops
            counter.forward += flops * (one.phase == "forward")
            counter.backward += flops * (one.phase != "forward")
            counter.convolutions += flops * ("convolution" in one.function.name())
        found["work"] = of_training(counter, plan.parts, examples) if operators and examples else None
    return found


@dataclass(slots=True)
class Seen:
    """Blocks of steps without an exchange: each step's phases (ms), or the profile of all; by block, where the host was
    least ahead of a GPU. ``faults``: pages of memory that were new to the process in a step, by block;
    ``first_touch_us``: what one takes."""

    quiet: list[list[float]] = field(default_factory=list)
    lead_ms: list[float] = field(default_factory=list)
    profiles: list[profile] = field(default_factory=list)
    quiet_faults: list[float] = field(default_factory=list)
    profiled_faults: list[float] = field(default_factory=list)
    first_touch_us: list[float] = field(default_factory=list)


def in_turns(session: Session, load: Load, steps: int, tick: Tick) -> dict[str, Any]:
    """Steps as they are measured, steps without an exchange of gradients, and these under the profiler, in the order
    ABCCBA, so that all three meet the machine in the same mood: step by step on the CPU, and by halves on a GPU, which
    must not wait for its host between two steps. Before each block a step of its kind settles caches, uncounted.
    """
    device = session.parts.device
    block = 1 if device.type == "cpu" else -(-steps // 2)
    few = min(block, MOST_PROFILED)
    windows, seen = list[loop.Timings](), Seen()
    done = 0

    def each(step: int) -> None:
        if block > 1:  # which may take as long as a rank may be silent
            tick(done + step - 1)

    ways: list[Callable[[], object]] = [
        lambda: windows.append(loop.run_window(session, load, 1 + block, device=device, on_step=each)),
        lambda: timed_steps(session, load, block, seen, each),
        lambda: profiled_steps(session, load, few, seen, each),
    ]
    with loop.uncollected():
        for turn in range(-(-steps // block)):
            for way in reversed(ways) if turn % 2 else ways:
                barrier()
                way()
                done += block
                tick(done)
            if device.type == "cpu":
                seen.first_touch_us.append(first_touch_us())
    phases = ((one.data_ms, one.forward_ms, one.backward_ms, one.optimizer_ms) for one in windows)
    as_measured = [times for of_window in phases for times in list(zip(*of_window, strict=True))[1:]]
    rows = [
        {"step": step, "pair": step, "synchronised": synchronised, **dict(zip(PHASE_COLUMNS, times, strict=True))}
        for synchronised, steps_ms in ((True, as_measured), (False, seen.quiet))
        for step, times in enumerate(steps_ms)
    ]
    return {
        "steps": rows,
        "pairs_reason": without_exchange(session)[1],
        "lead_ms": median(seen.lead_ms) if device.type == "cuda" else None,
        **spent_ms(seen, few, device.type, lambda: tick(done)),
    }


def timed_steps(session: Session, load: Load, steps: int, seen: Seen, each: Tick) -> None:
    """Steps without an exchange, after one that is not counted."""
    counts: list[int] = []

    def after(step: int) -> None:
        counts.append(faults())
        each(step)

    passes = [without_exchange(session)[0] for _ in range(1 + steps)]
    (_, *counted_ms), lead_ms = diagnose.timed(session, load, passes, after)
    seen.quiet += counted_ms
    seen.lead_ms.append(lead_ms)
    seen.quiet_faults.append((counts[-1] - counts[0]) / steps)


def profiled_steps(session: Session, load: Load, steps: int, seen: Seen, each: Tick) -> None:
    """The same under the profiler."""
    device = session.parts.device
    with profiling(device) as profiler:
        for step in range(1 + steps):
            with record_function(f"{STEP_MARK}{step}" if step else SETTLING):
                a_step(session, load, record_function, without_exchange(session)[0])
                if not step:
                    loop.finish(device)  # or its kernels run after its end
                    before = faults()
            each(step + 1)
        seen.profiled_faults.append((faults() - before) / steps)
        loop.finish(device)
    seen.profiles.append(profiler)


def faults() -> int:
    """Pages that the system has given to this process at their first touch."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def first_touch_us() -> float:
    """The cost of the first touch of a page beside a later one, by as many threads as compute. Of private memory, as
    allocators give it: of a shared page it takes longer."""
    with mmap.mmap(-1, FRESH_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        before, start_ns = faults(), perf_counter_ns()
        memory.fill_(1)
        touched, fresh_ns = faults() - before, perf_counter_ns() - start_ns
        start_ns = perf_counter_ns()
        memory.fill_(1)
        again_ns = perf_counter_ns() - start_ns
        del memory
    return max(0.0, (fresh_ns - again_ns) / max(1, touched) / 1e3)


def counted(profiler: profile) -> list[Any]:
    """The events of all steps but the first."""
    events = profiler.events()
    begins_us = max(event.time_range.end for event in events if event.name == SETTLING)
    return [event for event in events if event.time_range.start >= begins_us]


def spent_ms(seen: Seen, steps: int, device: str, alive: Callable[[], object]) -> dict[str, Any]:
    """``spent_ms``: milliseconds of a step by :data:`CLASSES`, self times: the mean of the profiles in the
    :func:`middle`, of ``steps`` each. On a GPU without the communication that other kernels hide. ``fresh_ms``:
    what first touches of memory take, in a step and in a profiled one; the profiler changes how many there are. None
    on a GPU.

    On the CPU without what the profiler itself takes for each event: by how much profiled steps are longer than those
    between them, with as many first touches.
    """
    of_all = []
    for profiler in seen.profiles:
        alive()  # many operators take seconds to read
        of_all.append(counted(profiler))
    marks = [[one.cpu_time_total for one in events if one.name.startswith(STEP_MARK[:-1])] for events in of_all]
    profiled_ms = [sum(times_us) / 1e3 / steps for times_us in marks]
    half = middle(profiled_ms)
    of_steps = [of_the_step(of_all[at], device) for at in half]
    own_us, fresh = 0.0, None
    if device == "cpu":
        quiet_ms, touch_ms = [sum(phases_ms) for phases_ms in seen.quiet], median(seen.first_touch_us) / 1e3
        quiet = middle(quiet_ms)
        step = touch_ms * mean(seen.quiet_faults[at] for at in quiet)
        profiled = touch_ms * mean(seen.profiled_faults[at] for at in half)
        fresh = {"step": step, "profiled": profiled}
        longer_ms = mean(profiled_ms[at] for at in half) - mean(quiet_ms[at] for at in quiet) + step - profiled
        children = mean(sum(len(one.cpu_children) for one in events) for events in of_steps)
        own_us = max(0.0, 1e3 * longer_ms * steps / max(1.0, children))
    spent = [by_class(events, device, own_us) for events in of_steps]
    of_step = {name: mean(one[name] for one in spent) / steps for name in CLASSES}
    of_step["communication"] = max(0.0, of_step["communication"] - mean(hidden_ms(of_all[at]) for at in half) / steps)
    return {"spent_ms": of_step, "fresh_ms": fresh}


def middle(lengths_ms: Sequence[float]) -> list[int]:
    """Which steps are neither among the shortest nor among the longest quarter; their mean counts. A median would be of
    one kind alone where steps are of two, such as with and without new memory in turns."""
    order = sorted(range(len(lengths_ms)), key=lengths_ms.__getitem__)
    return order[len(order) // 4 : len(order) - len(order) // 4]


def hidden_ms(events: Iterable[Any]) -> float:
    """For how long (ms) kernels run on a GPU beside others, as exchanges and their copies do; 0 on the CPU."""
    on_gpu = [one for one in events if one.device_type == DeviceType.CUDA and not one.is_user_annotation]
    hidden_us, until_us = 0.0, 0.0
    for kernel in sorted((one.time_range for one in on_gpu), key=lambda kernel: kernel.start):
        hidden_us += max(0.0, min(kernel.end, until_us) - kernel.start)
        until_us = max(until_us, kernel.end)
    return hidden_us / 1e3


def of_the_step(events: Iterable[Any], device: str) -> list[Any]:
    """Those that take time of the step: on the CPU not what other threads do meanwhile; nor the wait for data."""
    known = [event for event in events if event.device_type == DeviceType.CPU]
    threads = {event.thread for event in known if event.name == "forward"}
    return [one for one in known if (device != "cpu" or one.thread in threads) and phase_of(one) != "data"]


def by_class(events: Iterable[Any], device: str, own_us: float) -> dict[str, float]:
    """Self times of events :func:`of_the_step` by class. ``own_us``: what the profiler adds to the parent of each."""
    spent = dict.fromkeys(CLASSES, 0.0)
    for event in events:
        self_us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        spent[class_of(event, device)] += (self_us - own_us * len(event.cpu_children)) / 1e3
    return {name: max(0.0, ms) for name, ms in spent.items()}


def class_of(event: Any, device: str) -> str:
    """An operator computes, moves memory, or is the optimizer's; what is around them is Python and torch: no kernel."""
    name, spent = event.name, diagnose.category(event)
    if spent == "communication" or name.startswith(diagnose.EXCHANGES):
        return "communication"
    if device == "cpu" and ("::" not in name or name.startswith(AROUND)) and "CompiledFxGraph" not in name:
        return "host"
    if spent in ARITHMETIC:
        return "arithmetic"
    return "optimizer" if phase_of(event) == "optimizer" else "memory"


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


class Capture(Operators):
    """Notes each operator of a step once for each form of its arguments. ``phase``: the one that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.operators = "forward", dict[tuple[Any, ...], Operator]()

    def see(self, func: Any, args: Any, kwargs: dict[str, object]) -> object:
        tensors = tensors_in([args, kwargs])
        key = (func, self.phase, *map(form, tensors), repr(map_tensors(lambda tensor: None, [args, kwargs])))
        if key in self.operators or getattr(func, "is_view", False) or func.namespace in NO_OPERATORS:
            out = func(*args, **kwargs)
        else:
            kept = [map_tensors(remembered, one) for one in ([*args], kwargs)]
            out = func(*args, **kwargs)
            moved = sum(tensor.nbytes for tensor in {id(one): one for one in [*tensors, *tensors_in([out])]}.values())
            floats = [short(str(one.dtype).removeprefix("torch.")) for one in tensors if one.is_floating_point()]
            flops = flops_of(func, args, kwargs, out)
            self.operators[key] = Operator(func, kept[0], kept[1], self.phase, next(iter(floats), "none"), flops, moved)
        if key in self.operators:
            self.operators[key].count += 1
        return out


def form(tensor: Tensor) -> Form:
    return Form(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def remembered(tensor: Tensor) -> Tensor | Form:
    """Indices, flags and scales (a single element) are kept as they are: an operator may fail with other values."""
    return tensor.detach().clone() if tensor.numel() <= 1 or not tensor.is_floating_point() else form(tensor)


def captured(session: Session, load: Load) -> list[Operator]:
    capture = Capture()

    def enter(phase: str) -> Any:
        capture.phase = phase
        return nullcontext() if phase == "data" else capture

    a_step(session, load, enter, without_exchange(session)[0])
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
                    args, kwargs = map_tensors(Form.made, (one.args, one.kwargs), kind=Form)
                    ms = 1e3 * ceilings.seconds(partial(one.function, *args, **kwargs), device, OPERATOR_S)
            except (RuntimeError, ValueError, IndexError) as error:  # what it computes on is not what it was
                failed.append(f"{one.function} ({type(error).__name__})")
        about = {"name": str(one.function).removeprefix("aten."), "phase": one.phase, "type": one.type}
        found.append({**about, "count": one.count, "flops": one.flops, "bytes": one.bytes, "alone_ms": ms})
        tick(number)
    late = sum(one["alone_ms"] is None for one in found) - len(failed)
    reasons = [f"failed alone: {', '.join(dict.fromkeys(failed))}"[:200]] if failed else []
    reasons += [f"{late} operators were not reached within {LONGEST_S:.0f} s"] if late else []
    return found, "; ".join(reasons) or None


def all_reduce_ms(session: Session, device: torch.device) -> float:
    """All gradients exchanged alone, in buckets as large as DDP's (or in one, where there are none)."""
    size = sum(one.nbytes for one in session.model.parameters() if one.requires_grad)
    bucket = int(getattr(session.module, "bucket_bytes_cap", size)) or size
    tensors = [torch.zeros(max(1, min(bucket, size - at) // 4), device=device) for at in range(0, size, bucket)]
    _, *samples_ms = (len(tensors) * bandwidth.all_reduce_ms(tensors, 1, device) for _ in range(5))
    return median(samples_ms)
