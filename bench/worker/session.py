"""One rank's training step in four calls: load, forward, backward, optimize."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.core.dtypes import HALVES
from bench.core.errors import BenchError
from bench.core.job import Job, Training
from bench.core.records import Setting
from bench.seams import discover
from bench.seams.switching import load_switch, switch_module
from bench.worker.precision import Amp, ApexAmp, Optimizers, held_by, optimizers_in, precision_of, zero_momentum
from bench.worker.workload import (
    Around,
    Batch,
    build_in_double,
    build_model,
    build_optimizer,
    cut,
    loss_of,
    tensors_in,
    weight_of,
    wrong_loss,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A job as one rank sees it, from which a strategy builds.

    ``device``: where this rank computes, the first of its :attr:`devices`. ``implementation``: which of the strategy's
    was chosen, if it has any; ``amp``: whose precision level (``native`` or ``apex``).
    """

    job: Job
    rank: int
    device: torch.device
    implementation: str | None
    amp: str

    @property
    def workload(self) -> Training:
        return self.job.workload

    @property
    def local_rank(self) -> int:
        return self.job.ranks[self.rank].local_rank

    @property
    def world_size(self) -> int:
        return self.job.processes

    @property
    def devices(self) -> tuple[str, ...]:
        """UUIDs of this rank's GPUs; empty on the CPU."""
        return self.job.ranks[self.rank].devices

    @property
    def half(self) -> torch.dtype:
        """The type that "half" means here."""
        return getattr(torch, HALVES[self.job.half])

    def build_model(self) -> nn.Module:
        """The workload's model on the host, in fp32, with the weights that the seed gives on every rank; in double
        precision where numerics are judged."""
        return build_in_double(self.workload)[0] if self.job.purpose == "probe" else build_model(self.workload)

    def build_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The workload's optimizer, with what switches set in all of its groups of parameters."""
        optimizer = build_optimizer(self.workload, parameters)
        for keywords in self.from_switches("optimizer"):
            for group in (optimizer.defaults, *optimizer.param_groups):
                group.update((name, value) for name, value in keywords.items() if name in group)
            if "fused" in keywords:
                optimizer._step_supports_amp_scaling = keywords["fused"]
        return optimizer

    @property
    def switches(self) -> dict[str, Setting]:
        """The values of the switches that are on, by name; True for one that takes none."""
        return {one.name: one.value for one in self.job.switches}

    @property
    def wrapper(self) -> dict[str, object]:
        """Keywords for the wrapper of the strategy, from the switches that are on."""
        return {name: value for keywords in self.from_switches("wrapper") for name, value in keywords.items()}

    def functions(self, name: str) -> dict[str, Callable[..., Any]]:
        """The functions of this name that switches define, by switch (:mod:`bench.seams.switch`)."""
        modules = {one.name: switch_module(one.name, one.file) for one in self.job.switches}
        return {switch: getattr(module, name) for switch, module in modules.items() if hasattr(module, name)}

    def from_switches(self, name: str) -> list[Any]:
        """The results of the functions of this name, given these parts."""
        return [function(self) for function in self.functions(name).values()]

    def build(self, strategy: str, **options: object) -> "Session":
        """The session that another strategy builds, by its name: for one that changes something of it."""
        _, module = discover.load_strategy(strategy, discover.names(discover.STRATEGY)[strategy])
        return module.build(self, **options)

    def session(self, **how: Any) -> "Session":
        """The training step that a strategy describes by the keywords of :class:`Session`."""
        return Session(self, **how)


class Session:
    """The training step of one rank, under any strategy and any precision level.

    ``wrap``: from the model, already in its precision, to the parallel module, which may hold other parameters.
    ``places``: whether it takes the model from the host to the device itself.
    ``optimizer``: makes the one that updates them; default: the workload's own. ``after_step``: called after each step
    of the optimizer. ``quiet``: from the module to a context in which each rank keeps its own gradients, or why there
    is none. ``micro_batches``: how many parts of the batch go forward and backward one after the other before the
    optimizer's step, all but the last in the context ``quiet``, unless ``exchange_each``; their backward passes are in
    the forward phase.
    ``whole``: from a gradient or a weight as this rank holds it to all of it; every rank calls it.
    ``replicas``: from the module to the parts that a batch is cut into; default: one a rank of the group. ``serve``: of
    a rank without a part of the batch, in place of its passes: sets the gradients and returns the loss. ``updates``:
    whether this rank's optimizer makes the step, so that what a workload does around one is done here.

    ``capture``: keep the gradients as they are before a workload changes them, for :meth:`gradients`.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
        places: bool = False,
        optimizer: Optimizers | None = None,
        after_step: Callable[[], None] | None = None,
        quiet: Callable[[object], AbstractContextManager[object]]
        | str = "this strategy has no step without synchronisation to compare with",
        micro_batches: int = 1,
        exchange_each: bool = False,
        whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        replicas: Callable[[object], int] | None = None,
        serve: Callable[[], Tensor] | None = None,
        updates: bool = True,
    ) -> None:
        self._serve = serve
        self.parts, self.micro_batches, self.exchange_each = parts, micro_batches, exchange_each
        self.quiet, self.whole, self._after_step, self._replicas = quiet, whole, after_step, replicas
        cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
        parts.from_switches("begin")
        bound, chosen = os.sched_getaffinity(0), torch.get_num_threads()
        self.bound_cores = None if bound == cores else len(bound)
        self.chosen_threads = None if chosen == threads else chosen
        overwrites = any(load_switch(one.name, one.file).overwrites for one in parts.job.switches)
        # a copy of a loss where the next step writes to where it lay
        self.kept: Callable[[Tensor], Tensor] = (lambda loss: loss.detach().clone()) if overwrites else Tensor.detach
        self._batch = [partial(change, parts) for change in parts.functions("batch").values()]
        self._loss, self._weight = loss_of(parts.workload), weight_of(parts.workload)
        amp = ApexAmp if parts.amp == "apex" else Amp
        self.amp = amp(precision_of(parts.job.precision, parts.half), parts.device, optimizer or parts.build_optimizer)
        model = parts.build_model() if places else parts.build_model().to(parts.device)
        for change in parts.functions("model").values():
            model = change(parts, model)
        self.model = self.amp.cast(model)
        self.module = wrap(self.model)
        self.optimizer = self.amp.prepare(self.model)
        self.scaler, self.skipped_steps = self.amp.scaler, self.amp.skipped_steps
        self.around = Around(parts.workload, self.model, self.optimizer, self.updated(), steps=updates)
        self._begin = list[list[dict[str, Any]]]()
        self.steps, self.capture, self._captured = 0, False, list[Tensor | None]()
        for change in parts.functions("module").values():
            self.module = change(parts, self.module)
        self._call = self.amp.around(self.module)

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss of this process's part of the batch: a scalar on the device, times what it counts among the
        ranks. The last step's gradients are dropped only now, so that they can be read after the last step.
        """
        self.amp.zero_grad()
        if not self.steps:  # until then a strategy may change what it has built
            self._begin = [
                [{name: group[name] for name in group if name != "params"} for group in one.param_groups]
                for one in optimizers_in(self.optimizer)
            ]
        self._captured = []
        if self._serve is not None:
            return self._serve()
        for change in self._batch:
            batch = change(batch)
        if self.micro_batches > 1:
            return self._accumulated(batch)
        loss = self._loss_of(batch)
        return loss if self._weight is None else loss * self._shares([batch])[0]

    def _loss_of(self, batch: Batch) -> Tensor:
        with self.amp.context():
            loss = self._loss(self._call, batch)
        if (refused := wrong_loss(self.parts.workload, loss)) is not None:
            raise BenchError(f"{refused.problem}; {refused.remedy}")
        return loss

    def _shares(self, batches: list[object]) -> Tensor | list[float]:
        """The share of each of this rank's batches in the mean over the ranks, so that it is the mean over
        the global batch."""
        if self._weight is None:
            return [1.0 / len(batches)] * len(batches)
        kind = {"dtype": torch.get_default_dtype(), "device": self.parts.device}
        mine = torch.stack([torch.as_tensor(self._weight(batch), **kind) for batch in batches])
        total, ranks = mine.sum(), 1
        if dist.is_initialized():
            dist.all_reduce(total)
            ranks = dist.get_world_size()
        return mine * ranks / total.clamp(min=torch.finfo(total.dtype).tiny)

    def _accumulated(self, batch: Batch) -> Tensor:
        """All micro-batches forward, and all but the last backward."""
        job, pieces = self.parts.job, self.micro_batches
        held = job.batch_per_replica * len(job.parts_of(self.parts.rank))
        *early, last = parts = cut(batch, held, pieces)
        if not self.steps and list(map(id, tensors_in(last))) == list(map(id, tensors_in(batch))):
            raise BenchError(f"nothing in the batch has an entry for each of its {held} examples: it cannot be cut up")
        shares = self._shares(parts)
        assert not isinstance(self.quiet, str)
        total: Any = 0.0
        for part, share in zip(early, shares, strict=False):
            with nullcontext() if self.exchange_each else self.quiet(self.module):
                loss = self._loss_of(part) * share
                self.amp.backward(loss)
            total = total + loss.detach()
        return total + self._loss_of(last) * shares[-1]

    def backward(self, loss: Tensor) -> None:
        """Gradients in ``.grad``, averaged over the ranks by the wrapper."""
        if self._serve is None:
            self.amp.backward(loss)

    def optimize(self) -> None:
        """One step of the optimizer, what the strategy does after it, and what the workload does around it."""
        self.amp.step(self._ready if self.capture or self.around.before_step is not None else None)
        if self._after_step is not None:
            self._after_step()
        self.around.after()
        if self.around.after_step is not None:  # which may change what is updated
            self.amp.from_masters()
        self.steps += 1

    @property
    def changes_gradients(self) -> bool:
        """Whether the workload does, before a step of the optimizer or in a hook of it, or may in an optimizer that is
        not torch's: some work in place, such as schedule-free ones."""
        hooks = len(getattr(self.optimizer, "_optimizer_step_pre_hooks", ()))
        own = self.scaler is not None and not isinstance(self.amp, ApexAmp)  # which counts steps
        foreign = any(not type(one).__module__.startswith("torch.") for one in optimizers_in(self.optimizer))
        return hooks > own or foreign or self.around.before_step is not None

    def _ready(self) -> None:
        if self.capture:
            self._captured = [None if one is None else one.clone() for one in self.amp.gradients()]
        self.around.before()

    def held_gradients(self) -> list[Tensor | None]:
        """The last step's gradients as this rank holds them."""
        return self._captured or self.amp.gradients()

    def kept_gradients(self) -> list[Tensor]:
        """The tensors that hold gradients between a backward pass and the optimizer's step."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def gradients(self) -> list[Tensor | None]:
        """The last step's gradients, whole, unscaled and on the CPU, in the order of the model's parameters."""
        return [None if gradient is None else self.whole(gradient).cpu() for gradient in self.held_gradients()]

    def weights(self) -> Iterator[Tensor]:
        """The weights that the optimizer updates and those that compute, one at a time and whole: where there are
        master weights, both."""
        both = dict.fromkeys((*held_by(self.optimizer), *self.model.parameters()))
        yield from (self.whole(parameter.detach()) for parameter in both)

    @property
    def masters(self) -> list[Tensor]:
        """The master weights: what the optimizer updates and the model does not have."""
        ours = {id(parameter) for parameter in self.model.parameters()}
        return [parameter for parameter in held_by(self.optimizer) if id(parameter) not in ours]

    def updated(self) -> list[Tensor]:
        """The tensor that the optimizer updates for each parameter, as this rank holds it: itself, or its master."""
        if masters := dict(zip(map(id, self.amp.half_weights), self.amp.masters, strict=True)):  # whatever their groups
            return [masters.get(id(parameter), parameter) for parameter in self.model.parameters()]
        held, of_apex = {id(parameter) for parameter in held_by(self.optimizer)}, iter(self.masters)
        return [one if id(one) in held else next(of_apex, one) for one in self.model.parameters()]

    def fill(self, weights: Iterable[Tensor]) -> None:
        """Set all parameters, masters too, to these values, which are whole and on the CPU."""
        with torch.no_grad():
            for parameter, updated, weight in zip(self.model.parameters(), self.updated(), weights, strict=True):
                for tensor in (parameter,) if updated is parameter else (parameter, updated):
                    tensor.copy_(sharded(weight, tensor))

    def forget(self) -> None:
        """Bring the optimizer, and those that it is made of, to the state before its first step."""
        scheduled = self.around.scheduled(self.steps)
        for one in optimizers_in(self.optimizer):
            one.state.clear()
        for one, begin in zip(optimizers_in(self.optimizer), self._begin, strict=False):
            for group, values in zip(one.param_groups, begin, strict=True):
                for name in {*group} - {"params"} - scheduled:  # some count their steps here
                    del group[name]
                group.update((name, value) for name, value in values.items() if name not in scheduled)
        if isinstance(self.scaler, torch.amp.GradScaler):
            zero_momentum(self.optimizer)

    @property
    def compiled(self) -> bool:
        """Whether ``torch.compile`` makes graphs of the module, which begin anew when a hook comes or goes."""
        return self.module._compiled_call_impl is not None

    def replicas(self) -> int:
        if self._replicas is not None:
            return self._replicas(self.module)
        return dist.get_world_size() if dist.is_initialized() else 1


def sharded(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor in shards as ``like`` is, where that is torch's DTensor."""
    if not hasattr(like, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device, like.dtype), like.device_mesh, like.placements)
