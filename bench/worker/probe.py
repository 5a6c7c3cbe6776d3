"""The probe: a few whole steps from weights that nobody could foresee, after the measured ones and outside of windows.

What was measured does them: the same session, with its wrapper and its optimizer. Every tensor has a gradient there: of
residual networks that begin with idle branches, and of whatever else begins at 0, the branches are awake. Each step
begins at the same weights, so that a rounding does not grow from step to step, and only the optimizer's state goes on.

The gradients are compared, tensor by tensor, with those of one process that has the whole batch
(``bench.worker.reference``); what the step did to the weights with what the workload's own optimizer does with these
gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.worker import data, fingerprint
from bench.worker.session import Parts, Session
from bench.worker.workload import build_model

STEPS = 2
"""Momentum shows in the second one."""

AWAKE = (0.1, 0.3)
"""Between these are the elements of a parameter that the workload's model begins with at 0."""

MOST_SKIPPED = 24
"""Steps that a loss scaler may skip until its scale is small enough."""

ROUNDINGS = 2
"""Of a weight in a step of the optimizer, at most: those of what is added to it, and of the sum."""


@dataclass(frozen=True, slots=True)
class State:
    """Where each step begins: all parameters and floating-point buffers of the model, whole, fp32 and on the CPU."""

    weights: list[Tensor]
    buffers: list[Tensor]

    @classmethod
    def of(cls, parts: Parts) -> "State":
        """``parts``: as from :func:`drawn`."""
        model = build_model(parts.workload)
        generator = torch.Generator().manual_seed(parts.workload.seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if not parameter.any():
                    parameter.uniform_(*AWAKE, generator=generator)
        return cls([parameter.detach() for parameter in model.parameters()], floating(model))

    def fill_buffers(self, model: nn.Module) -> None:
        for buffer, begin in zip(floating(model), self.buffers, strict=True):
            buffer.copy_(begin)

    def changes(self, model: nn.Module) -> list[Tensor]:
        """What a step did to each buffer."""
        return [now.cpu().float() - begin for now, begin in zip(floating(model), self.buffers, strict=True)]


def drawn(parts: Parts, seed: int) -> Parts:
    """The same workload with other weights and other batches: those of ``seed``."""
    return replace(parts, job=replace(parts.job, workload=replace(parts.workload, seed=seed, pool_batches=STEPS)))


def loader(parts: Parts) -> Callable[[], data.Batch]:
    """What gives the batches of this process; it makes them itself."""
    job = parts.job
    return data.loader(data.batches(job.workload, job.replicas, job.parts_of(parts.rank), pin=False), parts.device)


def floating(model: nn.Module) -> list[Tensor]:
    """The buffers that a step may change by a little, such as the statistics of batch norm."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def trained(session: Session, parts: Parts) -> list[list[float]]:
    """Sketches of what all steps so far did to each tensor, on rank 0; all ranks call it."""
    now = [session.whole(tensor.detach()).cpu() for tensor in session.updated()]
    if parts.rank:
        return []
    begin = list(build_model(parts.workload).parameters())
    if [tensor.shape for tensor in now] != [weight.shape for weight in begin]:
        return []
    return sketches([ours.float() - weight.detach() for ours, weight in zip(now, begin, strict=True)])


def sketches(tensors: Sequence[Tensor | None]) -> list[list[float]]:
    return [fingerprint.sketch(tensor, position) for position, tensor in enumerate(tensors)]


@contextmanager
def alike(seed: int, device: torch.device) -> Iterator[None]:
    """Within this context all processes draw the same at random (dropout), and cuDNN chooses its algorithms by shape
    and not by trial, which two processes may see end differently."""
    by_trial = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield
    finally:
        torch.backends.cudnn.benchmark = by_trial


def run(session: Session, parts: Parts, tick: Callable[[int], None]) -> dict[str, Any]:
    """Do the probe as this rank. ``parts``: as from :func:`drawn`. All ranks call it.

    ``gradients``: of each step a sketch of each tensor. Of rank 0 besides, by step and tensor: ``buffers``, sketches of
    how they changed, and ``updates``, pairs of an error and its bound (:meth:`Plain.step`). ``reason``: why there are
    none of these.
    """
    model, job = session.model, parts.job
    begin = State.of(parts)
    held = [parameter.shape for parameter in model.parameters()]
    if held != [weight.shape for weight in begin.weights]:
        return {"reason": "what it trains has other tensors than the workload's model"}
    session.forget()
    plain = Plain(session, parts, begin) if parts.rank == 0 else None
    load = loader(parts)
    found: dict[str, Any] = {"reason": None, "gradients": [], "buffers": [], "updates": []}
    for step in range(STEPS):
        batch = load()
        for _ in range(MOST_SKIPPED):
            session.fill(begin.weights)
            begin.fill_buffers(model)
            skipped = session.skipped_steps()
            with alike(job.workload.seed + step, parts.device), _first_changes(session, begin) as buffers:
                session.backward(session.forward(batch))
                session.optimize()
            if skipped is None or session.skipped_steps() == skipped:
                break
        gradients = session.gradients()
        updated = [session.whole(tensor.detach()).cpu() for tensor in session.updated()]
        computing = [session.whole(tensor.detach()).cpu() for tensor in model.parameters()]
        found["gradients"].append(sketches(gradients))
        if plain is not None:
            found["buffers"].append(sketches(buffers or begin.changes(model)))
            found["updates"].append(plain.step(gradients, updated, computing))
        tick(step + 1)
    return found


@contextmanager
def _first_changes(session: Session, begin: State) -> Iterator[list[Tensor]]:
    """What the first of several micro-batches within this context does to each buffer; empty if there is one batch."""
    found: list[Tensor] = []
    if session.micro_batches == 1:
        yield found
        return

    def look(*_: Any) -> None:
        if not found:
            found.extend(begin.changes(session.model))

    watch = session.model.register_forward_hook(look)
    try:
        yield found
    finally:
        watch.remove()


class Plain:
    """The workload's own optimizer on copies of the weights, on the CPU and in the types that the session updates."""

    def __init__(self, session: Session, parts: Parts, begin: State) -> None:
        types = [tensor.dtype for tensor in session.updated()]
        self.begin = [weight.to(dtype) for weight, dtype in zip(begin.weights, types, strict=True)]
        self.copies = [nn.Parameter(weight.clone()) for weight in self.begin]
        self.optimizer = parts.build_optimizer(self.copies)

    def step(
        self, gradients: Sequence[Tensor | None], updated: Sequence[Tensor], computing: Sequence[Tensor]
    ) -> list[tuple[float, float]]:
        """For each tensor ||u - p|| / ||p||, where these gradients make u of the session's weights and p of the copies;
        and what it is at most if the two round differently. Weights that only compute must be those that are updated.
        """
        with torch.no_grad():
            for copy, begin, gradient in zip(self.copies, self.begin, gradients, strict=True):
                copy.copy_(begin)
                # in the weight's own strides: torch's fused step takes others for these
                copy.grad = None if gradient is None else torch.empty_like(copy).copy_(gradient)
        self.optimizer.step()
        found = []
        for copy, begin, ours, used in zip(self.copies, self.begin, updated, computing, strict=True):
            unit = torch.finfo(copy.dtype).eps / 2
            moved = float((copy.detach().float() - begin.float()).norm())
            rounding = ROUNDINGS * unit * (float(begin.float().norm()) + 2 * moved)
            off = float((ours.float() - copy.detach().float()).norm())
            stale = float((used.float() - ours.to(used.dtype).float()).norm())
            length = max(moved, rounding) or 1.0
            found.append(((off + stale) / length, rounding / length))
        return found
