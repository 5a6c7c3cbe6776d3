"""The measured loop: one chain of marks through data, forward, backward and optimizer, with no gaps.

A step runs from the start of its iteration to the start of the next, so whatever lies between phases counts. A mark is
a ``torch.cuda.Event`` on a GPU and ``perf_counter_ns`` on the CPU; nothing in the window waits for the device.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import perf_counter_ns  # as it is before a scenario replaces it

import torch
import torch.distributed as dist
from torch import Tensor

from bench.worker.data import Batch
from bench.worker.session import Session

stack = torch.stack  # as it is before a scenario replaces it
MARKS_PER_STEP = 4
PROGRESS_INTERVAL_NS = 250_000_000


@dataclass(slots=True, kw_only=True)
class Timings:
    """The timings of a window: per step its start (ns, monotonic clock), phases and total (ms), and its loss.
    ``wall_ms``: host time of the window, for the check that the steps add up to it. ``lead_ms``: on a GPU, how far the
    host was ahead at the end of each step: from its last call of the step to the device's end of it.
    """

    start_ns: list[int]
    data_ms: list[float]
    forward_ms: list[float]
    backward_ms: list[float]
    optimizer_ms: list[float]
    step_ms: list[float]
    loss: list[float]
    lead_ms: list[float]
    wall_ms: float


class HostClock:
    """``perf_counter_ns``: right where the device is the CPU."""

    def prepare(self, marks: int) -> None:
        self.ticks: list[int] = []

    def mark(self) -> None:
        self.ticks.append(perf_counter_ns())

    def wait(self, alive: Callable[[], object] = lambda: None) -> None:
        pass

    def read(self) -> tuple[int, list[float]]:
        return self.ticks[0], [(b - a) / 1e6 for a, b in pairwise(self.ticks)]


class CudaClock:
    """CUDA events on the current stream of ``device``, each recorded once beforehand because creation is lazy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, marks: int) -> None:
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(marks)]
        for event in self.events:
            event.record()
        torch.cuda.synchronize(self.device)
        self.used = 0
        self.origin_ns = perf_counter_ns()

    def mark(self) -> None:
        self.events[self.used].record()
        self.used += 1

    def wait(self, alive: Callable[[], object] = lambda: None) -> None:
        due_ns = perf_counter_ns() + PROGRESS_INTERVAL_NS
        for event in self.events[: self.used]:
            event.synchronize()
            if perf_counter_ns() >= due_ns:
                alive()
                due_ns = perf_counter_ns() + PROGRESS_INTERVAL_NS
        torch.cuda.synchronize(self.device)

    def read(self) -> tuple[int, list[float]]:
        # Differences of neighbours, because elapsed_time has the precision of fp32.
        return self.origin_ns, [a.elapsed_time(b) for a, b in pairwise(self.events[: self.used])]


def clock_for(device: torch.device) -> HostClock | CudaClock:
    """What marks points of a window without waiting for the device. ``read``: the time of the first mark (ns, monotonic
    clock) and the distance from each to the next (ms), once ``wait`` has returned. That calls ``alive()`` about
    four times a second while the device comes to more marks: with CUDA graphs the host may be a minute ahead of it.
    """
    return CudaClock(device) if device.type == "cuda" else HostClock()


def finish(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def slowest(time_ms: float, device: torch.device) -> float:
    """Of all ranks, on each of them."""
    times_ms = torch.tensor([time_ms], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(times_ms, op=dist.ReduceOp.MAX)
    return float(times_ms)


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect garbage now, and none within this context, nor at the start of one in it."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run_window(
    session: Session,
    load: Callable[[], Batch],
    steps: int,
    *,
    device: torch.device,
    on_step: Callable[[int], None] = lambda step: None,
    note: Callable[[], None] | None = None,
) -> Timings:
    """Train ``steps`` steps and time each of them.

    Garbage collection is held off within the window. ``on_step(k)`` is called about four times a second with the number
    of steps that were issued, between two steps and while the device does what is left; ``note()`` after each mark (see
    ``bench.worker.beats``).
    """
    clock = clock_for(device)
    losses: list[Tensor] = []
    issued_ns: list[int] = []
    with uncollected():
        clock.prepare(steps * MARKS_PER_STEP + 1)  # takes the time that the first mark is given
        wall_start = perf_counter_ns()
        _chain(session, load, steps, _noted(clock.mark, note), losses, issued_ns, on_step)
        clock.wait(lambda: on_step(steps))
        wall_end = perf_counter_ns()
    first_ns, spans = clock.read()
    data, forward, backward, optimizer = (spans[phase::MARKS_PER_STEP] for phase in range(MARKS_PER_STEP))
    step_ms = list(map(sum, zip(data, forward, backward, optimizer, strict=True)))
    *elapsed_ms, _ = accumulate(step_ms, initial=0.0)
    start_ns = [first_ns + round(ms * 1e6) for ms in elapsed_ms]
    ends = zip(start_ns, step_ms, issued_ns, strict=True) if device.type == "cuda" else ()
    return Timings(
        start_ns=start_ns,
        data_ms=data,
        forward_ms=forward,
        backward_ms=backward,
        optimizer_ms=optimizer,
        step_ms=step_ms,
        loss=stack(losses).float().cpu().tolist() if losses else [],
        lead_ms=[(start - issued) / 1e6 + ms for start, ms, issued in ends],
        wall_ms=(wall_end - wall_start) / 1e6,
    )


def _noted(mark: Callable[[], None], note: Callable[[], None] | None) -> Callable[[], None]:
    if note is None:
        return mark

    def noted() -> None:
        mark()
        note()

    return noted


def _chain(
    session: Session,
    load: Callable[[], Batch],
    steps: int,
    mark: Callable[[], None],
    losses: list[Tensor],
    issued_ns: list[int],
    on_step: Callable[[int], None],
) -> None:
    """The measured code itself, and nothing else."""
    next_report = 0
    for step in range(steps):
        mark()
        batch = load()
        mark()
        loss = session.forward(batch)
        mark()
        session.backward(loss)
        mark()
        session.optimize()
        losses.append(session.kept(loss))
        now = perf_counter_ns()
        issued_ns.append(now)
        if now >= next_report:
            on_step(step + 1)
            next_report = now + PROGRESS_INTERVAL_NS
    mark()
