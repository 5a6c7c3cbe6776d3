"""Sessions in a test's own process: of a scenario's only rank, on the CPU; and one that sleeps in place of training."""

import gc
from dataclasses import replace
from typing import Any

import torch
from conftest import launches, one_host, request_for
from torch import nn

from bench.seams import Strategy, discover, switching
from bench.worker import data, effective, live, loop
from bench.worker.session import Parts, Session

CPU = torch.device("cpu")
SINGLE = switching.load(*discover.resolve("single"))


def parts_of(found: discover.Found = SINGLE, *, precision: str = "", half: str = "", **changes: Any) -> Parts:
    """``changes``: to :func:`conftest.request_for`; two images, where they do not matter."""
    asked = request_for((found,), **({"replicas": 1, "global_batch": 2} | changes))
    job = launches(asked, (found,), one_host(1))[0].job
    job = replace(job, ranks=job.ranks[:1], precision=precision or job.precision, half=half or job.half)
    return Parts(job=job, rank=0, device=CPU, implementation="torch", amp="native")


def load_of(parts: Parts) -> Any:
    return data.feeds(parts.workload, 1, [range(1)], CPU)


def train(
    session: Session, steps: int = 1, strategy: Strategy = SINGLE.strategy
) -> tuple[dict[str, Any], loop.Timings]:
    watch = live.TypeWatch(session.model)
    timings = loop.run_window(session, load_of(session.parts), steps, device=CPU)
    watch.stop()
    return effective.read(session, strategy, watch), timings


class Idle(Session):
    kept = staticmethod(torch.Tensor.detach)

    def __init__(self) -> None:
        self.gc_enabled: set[bool] = set()
        self.objects = nn.Parameter(torch.ones(()))

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1), torch.zeros(1)

    def forward(self, batch: object) -> torch.Tensor:
        self.gc_enabled.add(gc.isenabled())
        return self.objects * 2

    def backward(self, loss: torch.Tensor) -> None:
        pass

    def optimize(self) -> None:
        pass
