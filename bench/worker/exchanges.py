"""The exchanges of a step, by size and time: one rank, in a group in which nothing takes any time.

The rank computes as it would among many: wrapper, hooks, buckets and casts are the scenario's own, and every collective
is noted with its size and the moment of its call. What it would take is reckoned elsewhere, for any number of ranks
(``bench.analyse.predicted``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.core.records import PHASES
from bench.worker.diagnose import a_step
from bench.worker.plan import Plan, Report

BACKEND = "silent"
SETTLING = 3
"""Steps before those that are noted: DDP makes its buckets anew after the first one."""
FEWEST = 5


@dataclass(slots=True)
class Notes:
    """The marks of a step and its collectives, in order: what, how many bytes, at which moment."""

    device: torch.device
    moments: list[tuple[str, int, Any]] = field(default_factory=list)

    def add(self, what: str, size: int = 0) -> None:
        self.moments.append((what, size, self._now()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield
        self.add(name)

    def _now(self) -> object:
        if self.device.type == "cpu":
            return perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self) -> list[tuple[str, int, float]]:
        """The same with milliseconds since the first."""
        first = self.moments[0][2]
        if self.device.type == "cpu":
            return [(what, size, (at - first) / 1e6) for what, size, at in self.moments]
        torch.cuda.synchronize(self.device)
        return [(what, size, first.elapsed_time(at)) for what, size, at in self.moments]


class Silent(dist.ProcessGroup):
    """A group of one rank, in which collectives are over at once. Of what it lacks, torch raises RuntimeError."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.notes: Notes | None = None

    def getBackendName(self) -> str:
        return BACKEND

    def allreduce(self, tensors: list[Tensor], opts: object = None) -> object:
        return self._done("all_reduce", tensors)

    def broadcast(self, tensors: list[Tensor], opts: object = None) -> object:
        return self._done("broadcast", tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: object = None) -> object:
        """As DDP compares the shapes of parameters before the first step; in a step it is refused."""
        if self.notes is not None:
            raise RuntimeError(f"{BACKEND} does not support allgather in a step")
        for output, one in zip(outputs, inputs, strict=True):
            for tensor in output:
                tensor.copy_(one)
        return self._done("allgather", [])

    def barrier(self, opts: object = None) -> object:
        return self._done("barrier", [])

    def _done(self, kind: str, tensors: list[Tensor]) -> Any:
        from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined, unused-ignore]
        from torch.futures import Future

        if self.notes is not None and tensors:
            self.notes.add(kind, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
        future: Any = Future()
        future.set_result(tensors)
        return _create_work_from_future(future)


def join() -> None:
    """Make the default group of this process a silent one."""
    if BACKEND.upper() not in dir(dist.Backend):
        dist.Backend.register_backend(
            BACKEND, lambda store, rank, size, timeout: Silent(rank, size), devices=["cpu", "cuda"]
        )
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)


def perform(plan: Plan, report: Report) -> dict[str, object]:
    """Train, and note what is exchanged. ``ends_ms``: when each phase ended, medians over the steps; ``exchanges``:
    kind, phase, bytes and moment of each collective; ``why_not``: why nothing is known of them.
    """
    load, session = plan.load(), plan.build()
    steps = SETTLING + max(FEWEST, plan.parts.job.iters)
    tick = report("measure", of=steps)
    group: Any = dist.group.WORLD
    seen = []
    for step in range(steps):
        group.notes = notes = Notes(plan.parts.device)
        notes.add("begin")
        try:
            a_step(session, load, notes.phase)
        except RuntimeError as error:
            if f"{BACKEND} does not support" not in str(error):
                raise
            what = str(error).partition("does not support")[2].split()[0]
            return {"ends_ms": {}, "exchanges": [], "why_not": f"it exchanges by {what}, of which nothing is predicted"}
        group.notes = None
        if step >= SETTLING:
            seen.append(notes.read())
        tick(step + 1)
    return summed(seen)


def summed(steps: list[list[tuple[str, int, float]]]) -> dict[str, object]:
    """Medians over those steps that exchange the same as the last one, which a later rebuilding of buckets changes."""
    shape = [(what, size) for what, size, _ in steps[-1]]
    alike = [step for step in steps if [(what, size) for what, size, _ in step] == shape]
    times_ms = [median(step[place][2] for step in alike) for place in range(len(shape))]
    ends_ms: dict[str, float] = {}
    exchanges = []
    for (what, size), at_ms in zip(shape, times_ms, strict=True):
        if what in PHASES:
            ends_ms[what] = at_ms
        elif what != "begin":
            exchanges.append({"kind": what, "phase": PHASES[len(ends_ms)], "bytes": size, "ready_ms": at_ms})
    return {"ends_ms": ends_ms, "exchanges": exchanges, "why_not": None}
