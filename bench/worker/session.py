"""One rank's training step in four calls: load, forward, backward, optimize.

:class:`Session` is the step in fp32; ``bench.worker.precision`` has one subclass for each AMP level. A scenario with a
strategy of its own returns one from ``setup(job)``:

    def setup(job):
        from bench.worker.session import session_for

        return session_for(job, wrap=lambda model, job: MyParallel(model))
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.records import Job, Workload
from bench.worker.parallel import STRATEGIES
from bench.worker.workload import build_model, build_optimizer, loss_of

Wrap = Callable[[nn.Module, "RankJob"], nn.Module]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """A job as one rank sees it: who it is, where it computes, and which implementations were resolved for it.

    ``precision_impl`` and ``parallel_impl``: ``native``, ``apex`` or ``torch`` (nothing of apex is involved).
    """

    job: Job
    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    precision_impl: str
    parallel_impl: str

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self.job.workload

    @property
    def half(self) -> torch.dtype:
        """What "half" means here."""
        return DTYPES[self.job.half]

    def build_model(self) -> nn.Module:
        """The workload's model on this rank's device, in fp32, with the weights that the seed gives on every rank."""
        return build_model(self.workload).to(self.device)

    def build_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The workload's optimizer over ``parameters``."""
        return build_optimizer(self.workload, parameters)


class Session:
    """The training step in fp32 (O0).

    ``wrap`` makes the model parallel; it is called after the weights have their final dtype.
    """

    def __init__(self, job: RankJob, wrap: Wrap) -> None:
        self.job = job
        self.scaler: Any = None
        self.criterion = loss_of(job.workload)
        self.model = job.build_model()
        self.optimizer = self.prepare()
        self.module = wrap(self.model, job)

    def prepare(self) -> torch.optim.Optimizer:
        """Give the model its precision and build the optimizer."""
        return self.job.build_optimizer(self.model.parameters())

    def zero_grad(self) -> None:
        """Forget the last step's gradients. At the start of a step, so that they can be looked at after the last."""
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, batch: Any) -> Tensor:
        """The mean loss of this process's part of the batch: a scalar on the device."""
        self.zero_grad()
        return self.criterion(self.module, batch)

    def backward(self, loss: Tensor) -> None:
        """Gradients in ``.grad``, averaged over the ranks by the wrapper."""
        loss.backward()

    def optimize(self) -> None:
        """One step of the optimizer."""
        self.optimizer.step()

    def gradients(self) -> list[Tensor | None]:
        """The last step's gradients, unscaled, in the order of the model's parameters. To be looked at after a step."""
        return [parameter.grad for parameter in self.model.parameters()]

    def weights(self) -> list[Tensor]:
        """What the optimizer updates and what the model computes with: where there are master weights, both."""
        updated = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        ours = {id(parameter) for parameter in updated}
        return updated + [parameter for parameter in self.model.parameters() if id(parameter) not in ours]

    def skipped_steps(self) -> Tensor | None:
        """How many calls of :meth:`optimize` changed no weight because a gradient was not finite; None: cannot skip."""
        return None


def session_for(job: RankJob, wrap: Wrap | None = None) -> Session:
    """The session of the job's precision level around ``wrap`` (default: the job's own strategy)."""
    from bench.worker.precision import session_class

    wrap = wrap or STRATEGIES.get(job.job.strategy)
    if wrap is None:
        raise BenchError("a custom strategy says how it wraps the model: session_for(job, wrap=lambda model, job: ...)")
    return session_class(job)(job, wrap)
