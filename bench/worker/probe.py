"""Whole steps outside of windows that show what a session trains.

:func:`perform` is a launch of its own: the strategy, its options and its switches are built once more, around the
model in double precision, and trained for a few steps, from weights and on batches that nobody could foresee. Rounding
is 1e-9 there, so its gradients and buffers are those of one process (:mod:`bench.worker.reference`) or it trains
something else. Each step begins at the same weights, so that a rounding does not grow; the optimizer's state goes on.

:func:`own_step` is one more step of the session that was measured, in its own types, right after its window: it shows
in which types every layer computes, and whether the update is what the workload's optimizer makes of the gradients.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.core.errors import BenchError
from bench.worker import data, fingerprint
from bench.worker.memory_parts import Look
from bench.worker.plan import Plan, Report
from bench.worker.precision import double_by_default
from bench.worker.session import Session
from bench.worker.workload import Around, cast_floats, tiny

MOST_SKIPPED = 24
"""Steps that a loss scaler may skip until its scale is small enough."""

TIMES_TWIN = 3.0
"""FSDP2's Muon was up to 1.3 times as far off as the twin."""

ROUNDINGS = 2
"""Of a weight in a step of the optimizer, at most: those of what is added to it, and of the sum."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, KEPT_BYTES = -1, -3, 2**30
"""For glibc's ``mallopt``, from malloc.h, and the largest block that is kept."""

Updates = list[tuple[float, float]]
"""Of each tensor by how much its update is off, relative, and by how much rounding may take it off."""


def floating(model: nn.Module) -> list[Tensor]:
    """The buffers that a step may change by a little, such as the statistics of batch norm."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


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


@dataclass(frozen=True, slots=True)
class State:
    """Where each step begins: all parameters and floating-point buffers of the model, whole and on the CPU."""

    weights: list[Tensor]
    buffers: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module, whole: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> "State":
        weights = [whole(parameter).detach().cpu().clone() for parameter in model.parameters()]
        return cls(weights, [buffer.cpu().clone() for buffer in floating(model)])

    def fill_buffers(self, model: nn.Module) -> None:
        for buffer, begin in zip(floating(model), self.buffers, strict=True):
            buffer.copy_(begin)

    def changes(self, model: nn.Module) -> list[Tensor]:
        """How a step changed each buffer."""
        return [now.cpu() - begin for now, begin in zip(floating(model), self.buffers, strict=True)]


def keep_freed() -> None:
    """Let glibc keep the memory that is freed: to fetch it anew, page by page, takes as long as the arithmetic. What
    is measured does without, as a training script does."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(parameter, KEPT_BYTES)


def perturb(weights: Sequence[Tensor], relative: float, seed: int) -> None:
    """Multiply every element by 1 + ``relative`` * x, x uniform in [-1, 1): what rounding does, at its worst."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in weights:
            noise = torch.rand(weight.shape, generator=generator) * 2 - 1
            weight.mul_((1 + relative * noise).to(weight.device))


@double_by_default()
def perform(plan: Plan, report: Report) -> dict[str, Any]:
    """Train in double precision. All ranks call it.

    ``gradients``: of each step a sketch of each tensor. Of rank 0 besides, by step and tensor: ``buffers``, sketches of
    how they changed, and ``updates`` (:data:`Updates`).
    """
    keep_freed()
    session, parts = plan.build(), plan.parts
    model = session.model
    if (seen := {parameter.dtype for parameter in model.parameters()}) != {torch.float64}:
        raise BenchError(f"it made the model {' and '.join(map(str, seen))}, and not float64")
    tick, load = report("measure", of=parts.workload.pool_batches), plan.load()
    session.capture = session.changes_gradients
    begin = State.of(model, session.whole)
    plain = Plain(session, begin.weights) if parts.rank == 0 else None
    gradients, buffers, updates = [], [], []
    for step in range(parts.workload.pool_batches):
        batch = cast_floats(load(), torch.float64)
        session.fill(begin.weights)
        begin.fill_buffers(model)
        seed = parts.workload.seed + step
        with alike(seed, parts.device), _micro_batches(session, begin, seed) as first:
            session.backward(session.forward(batch))
            session.optimize()
        made, after = session.gradients(), _whole(session)
        gradients.append(sketches(made))
        if plain is not None:
            buffers.append(sketches(first or begin.changes(model)))
            updates.append(plain.step(begin.weights, made, *after))
        tick(step + 1)
    return {"double": {"gradients": gradients, "buffers": buffers, "updates": updates}}


def own_step(session: Session, batch: data.Batch, look: Look, *, main: bool) -> Updates:
    """Take a step of the measured session with its optimizer as new. All ranks call it; the ``main`` one gets rows."""
    keep_freed()
    session.forget()
    session.capture = session.changes_gradients
    begin = [tensor.clone() if main else tensor for tensor in _whole(session)[0]]
    gradients = _stepped(session, batch, look)
    after = _whole(session)
    return Plain(session, begin).step(begin, gradients, *after) if main else []


def own_gradients(session: Session, batch: data.Batch) -> list[list[list[float]]]:
    """Sketches of the gradients of two steps in the session's own types, to be held against those of another
    interpreter: from the weights that the seed gives, and from those moved by a rounding of these types. All ranks call
    it."""
    parts, made = session.parts, []
    whole = parts.job.precision == "O0"
    weights = [one.detach() for one in parts.build_model().parameters()]
    for rounding in (0.0, torch.finfo(torch.float32 if whole else parts.half).eps / 2):
        perturb(weights, rounding, parts.workload.seed)
        session.forget()
        session.fill(weights)
        with alike(parts.workload.seed, parts.device):
            made.append(sketches(_stepped(session, batch, session)))
    return made


def _stepped(session: Session, batch: data.Batch, first: Look | Session) -> list[Tensor | None]:
    """The gradients of a step that the loss scaler does not skip. ``first``: what makes the passes of the first try."""
    steps: list[Look | Session] = [first, *[session] * MOST_SKIPPED]
    for one in steps:
        skipped = session.skipped_steps()
        one.backward(one.forward(batch))
        session.optimize()
        if skipped is None or session.skipped_steps() == skipped:
            break
    return session.gradients()


def _whole(session: Session) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that are updated, and those that compute, on the CPU."""
    updated = [session.whole(tensor).detach().cpu() for tensor in session.updated()]
    return updated, [session.whole(tensor).detach().cpu() for tensor in session.model.parameters()]


@contextmanager
def _micro_batches(session: Session, begin: State, seed: int) -> Iterator[list[Tensor]]:
    """Within this context each of several micro-batches draws the same at random and begins with the same buffers, as
    the chunks of the reference do.

    Gives what the first of them does to each buffer; empty if there is one batch.
    """
    changes: list[Tensor] = []
    if session.micro_batches == 1:
        yield changes
        return

    def draw_again(*_: object) -> None:
        torch.manual_seed(seed)
        begin.fill_buffers(session.model)

    def look(*_: Any) -> None:
        if not changes:
            changes.extend(begin.changes(session.model))

    hooks = [session.model.register_forward_pre_hook(draw_again), session.model.register_forward_hook(look)]
    try:
        yield changes
    finally:
        for hook in hooks:
            hook.remove()


class Coarsest(TorchDispatchMode):
    """The coarsest type in which something is computed, by its ``eps``."""

    eps = 0.0

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.is_floating_point() and made.dim():
            self.eps = max(self.eps, torch.finfo(made.dtype).eps)
        return made


def steps_on_cpu(session: Session) -> bool:
    """Whether the workload's optimizer makes steps there: some have kernels for a GPU alone."""
    if session.parts.device.type == "cpu":
        return True
    weights = tiny(session.model)
    try:
        optimizer = session.parts.build_optimizer(weights)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    except Exception:  # noqa: BLE001  # whatever it says of the CPU
        return False
    return True


class Plain:
    """The workload's own optimizer on copies of the weights, in the types that the session updates: on the CPU, unless
    the optimizer makes steps on a GPU alone."""

    def __init__(self, session: Session, begin: Sequence[Tensor]) -> None:
        place = {"device": torch.device("cpu") if steps_on_cpu(session) else session.parts.device}
        self.copies = [nn.Parameter(torch.zeros(one.shape, dtype=one.dtype, **place)) for one in begin]
        self.optimizer = session.parts.build_optimizer(self.copies)
        self.around = Around(session.parts.workload, session.model, self.optimizer, [*self.copies])
        self.around.skip(session.steps - 1)
        self.session, self.coarse = session, Coarsest()
        self.twin: Plain | None = None

    def step(self, begin: Sequence[Tensor], gradients: Sequence[Tensor | None], *after: Sequence[Tensor]) -> Updates:
        """For each tensor ||u - p|| / ||p||, where these gradients make u of the session's weights and p of the copies;
        and what it is at most if the two round differently. ``after``: as from :func:`_whole`; weights that only
        compute must be those that are updated.

        Where the optimizer computes in a coarser type, as Muon does, that is :data:`TIMES_TWIN` times what moving the
        gradients by a rounding of that type does.
        """
        with self.coarse:
            self._take(begin, gradients)
        amplified = [0.0] * len(self.copies)
        if self.coarse.eps > max(torch.finfo(copy.dtype).eps for copy in self.copies):
            self.twin = self.twin or Plain(self.session, begin)
            near = [None if one is None else one.clone() for one in gradients]
            perturb([one for one in near if one is not None], self.coarse.eps / 2, self.session.parts.workload.seed)
            self.twin._take(begin, near)
            pairs = zip(self.copies, self.twin.copies, strict=True)
            amplified = [TIMES_TWIN * float((copy.detach() - twin.detach()).norm()) for copy, twin in pairs]
        rows = []
        copies = [copy.detach().cpu() for copy in self.copies]
        for copy, start, ours, used, more in zip(copies, begin, *after, amplified, strict=True):
            wide = torch.promote_types(copy.dtype, torch.float32)
            moved = float((copy.to(wide) - start.to(wide)).norm())
            rounding = ROUNDINGS * torch.finfo(copy.dtype).eps / 2 * (float(start.to(wide).norm()) + 2 * moved)
            off = float((ours.to(wide) - copy.to(wide)).norm())
            same = used.data_ptr() == ours.data_ptr()
            stale = 0.0 if same else float((used.to(wide) - ours.to(used.dtype).to(wide)).norm())
            length = max(moved, rounding) or 1.0
            rows.append(((off + stale) / length, (rounding + more) / length))
        return rows

    def _take(self, begin: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        with torch.no_grad():
            for copy, start, gradient in zip(self.copies, begin, gradients, strict=True):
                copy.copy_(start)
                gradient = None if gradient is None else gradient.to(copy.device)
                form = copy.dtype, copy.stride()
                if gradient is None or gradient.is_sparse or (gradient.dtype, gradient.stride()) == form:
                    copy.grad = gradient
                else:  # torch's fused step takes the strides of a gradient for the weight's
                    copy.grad = torch.empty_like(copy).copy_(gradient)
        self.around.before()
        self.optimizer.step()
        self.around.after()
