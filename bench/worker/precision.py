"""The AMP levels as values, and what a step does under them: native for torch, and apex's own.

===== =============================== ===================================== ========== ============== ==========
level model weights                   torch functions                       batch norm master weights loss scale
===== =============================== ===================================== ========== ============== ==========
O0    fp32                            -                                     fp32       -              1.0
O1    fp32                            autocast to half where safe           fp32       -              dynamic
O2    half; inputs cast to half       -                                     fp32       fp32           dynamic
O3    half, all of it                 -                                     half       none           1.0
===== =============================== ===================================== ========== ============== ==========

After the table of apex's documented properties. The dynamic loss scale is for fp16 only: bf16 has the exponent of fp32
and needs none, so no scaler is built for it. It starts at 2**16, doubles after 2,000 good steps and halves after a bad
one, in apex as in ``torch.amp.GradScaler``.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.core.errors import BenchError
from bench.worker.workload import cast_floats

Optimizers = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
"""Makes the optimizer of these parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The types of a level: for computing, and for keeping and updating weights. ``half``: what "half" means here."""

    level: str
    half: torch.dtype
    autocast: bool = False
    half_weights: bool = False
    half_batch_norm: bool = False
    masters: bool = False
    scaled: bool = False


def precision_of(level: str, half: torch.dtype) -> Precision:
    """The row of the table, with a loss scale where ``half`` needs one."""
    fp16 = half is torch.float16
    rows: dict[str, dict[str, bool]] = {
        "O0": {},
        "O1": {"autocast": True, "scaled": fp16},
        "O2": {"half_weights": True, "masters": True, "scaled": fp16},
        "O3": {"half_weights": True, "half_batch_norm": True},
    }
    return Precision(level=level, half=half, **rows[level])


class Amp:
    """A step under a precision, native for torch: :meth:`cast` the model; once it is wrapped :meth:`prepare` the
    optimizer; then, step by step, ``zero_grad``, ``context``, ``backward``, ``step``.
    """

    def __init__(self, precision: Precision, device: torch.device, optimizers: Optimizers) -> None:
        self.precision, self.device, self._optimizers = precision, device, optimizers
        self.scaler: Any = None
        self.masters: list[Tensor] = []
        self.half_weights: list[Tensor] = []
        self.calls = self.executed = 0
        self._skipped_by_kernel: Tensor | None = None

    def cast(self, model: nn.Module) -> nn.Module:
        """The model with its weights in the type that they are kept in."""
        if self.precision.half_batch_norm:
            return model.to(self.precision.half)
        if self.precision.half_weights:
            half_except_batch_norm(model, self.precision.half)
        return model

    def around(self, module: nn.Module) -> Any:
        """The callable for the loss: the module, between casts of its inputs to half and of its outputs to fp32."""
        if not self.precision.half_weights:
            return module
        half = self.precision.half

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = cast_floats((args, kwargs), half)
            return cast_floats(module(*args, **kwargs), torch.float32)

        return call

    def context(self) -> AbstractContextManager[object]:
        if not self.precision.autocast:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.precision.half)

    def prepare(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, once the parallel module has the parameters that it is to keep."""
        self.model = model
        updated: list[Tensor] = list(model.parameters())
        if self.precision.masters:
            self.half_weights = [p for p in updated if p.dtype is self.precision.half]
            self.masters = [p.detach().float().requires_grad_(p.requires_grad) for p in self.half_weights]
            updated = self.masters + [p for p in updated if p.dtype is torch.float32]
        self.optimizer = self._optimizers(updated)
        if self.precision.scaled:
            self.scaler = torch.amp.GradScaler(self.device.type)
            self._skipped_by_kernel = torch.zeros((), device=self.device)
            self.optimizer.register_step_pre_hook(self._count)
            zero_momentum(self.optimizer)
        return self.optimizer

    def zero_grad(self) -> None:
        """Forget the last step's gradients, also of weights that the optimizer was not given; those of master weights
        are written over."""
        self.model.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, ready: Callable[[], None] | None = None) -> None:
        """Update the weights; master weights first, which are then copied to those that compute. ``ready``: called when
        the gradients of what is updated are there, unscaled."""
        if self.masters:
            self._to_masters()
        if ready is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            ready()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.calls += 1
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.from_masters()

    def from_masters(self) -> None:
        """Copy the master weights, if there are any, to those that compute."""
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.half_weights, self.masters)

    def _to_masters(self) -> None:
        """Copy the gradients; a weight that is frozen, or has no part in the loss, has none, and so has its master."""
        ours, theirs = [master.grad for master in self.masters], [weight.grad for weight in self.half_weights]
        if type(None) in map(type, (*ours, *theirs)):  # as in the first step, and with such weights in each
            for master, gradient in zip(self.masters, theirs, strict=True):
                if gradient is None or master.grad is None:
                    master.grad = None if gradient is None else torch.empty_like(master)
            ours = [master.grad for master in self.masters if master.grad is not None]
            theirs = [gradient for gradient in theirs if gradient is not None]
        torch._foreach_copy_(ours, theirs)

    def _count(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self.executed += 1
        found = getattr(optimizer, "found_inf", None)  # set by GradScaler on fused optimizers, whose kernel skips
        if found is not None:
            assert self._skipped_by_kernel is not None
            found.clamp_(max=1)  # of several GPUs it is the sum, and kernels skip at 1 alone
            self._skipped_by_kernel += found

    def gradients(self) -> list[Tensor | None]:
        """The last step's, unscaled, in the order of the model's parameters, as this rank holds them."""
        masters = iter(self.masters)
        half = self.precision.half if self.masters else None
        return [next(masters).grad if p.dtype is half else p.grad for p in self.model.parameters()]

    def skipped_steps(self) -> Tensor | None:
        """How many steps a gradient that is not finite left out: a copied scalar on the device. None: cannot skip."""
        return None if self._skipped_by_kernel is None else self._skipped_by_kernel + (self.calls - self.executed)


def held_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters that an optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimizers_in(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizer, and those that it is made of, such as the one within ``ZeroRedundancyOptimizer``: each
    an attribute of it, or in a list that is one."""
    held = [one for value in vars(optimizer).values() for one in (value if isinstance(value, list) else [value])]
    return [one for one in (optimizer, *held) if isinstance(one, torch.optim.Optimizer)]


class ApexAmp(Amp):
    """Any level by ``apex.amp``, used as apex documents: initialise before wrapping, scale the loss in a context."""

    def cast(self, model: nn.Module) -> nn.Module:
        from apex import amp

        self.apex = amp
        self.scale = 1.0
        optimizer = self._optimizers(model.parameters())
        optimizer.register_step_post_hook(self._count)
        self.model, self.optimizer = amp.initialize(model, optimizer, opt_level=self.precision.level, verbosity=0)
        self.scaler = amp._amp_state.loss_scalers[0]
        return self.model

    def around(self, module: nn.Module) -> Any:
        return module

    @contextmanager
    def context(self) -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            if "next_functions" not in "".join(traceback.format_exception(error)):
                raise
            why = "apex's O1 fails where a model uses a weight twice (its cached_cast reads next_functions[1])"
            raise BenchError(f"{why}; use --impl native") from error

    def prepare(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.optimizer

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()  # apex's own for O2, which takes no argument

    def backward(self, loss: Tensor) -> None:
        self.scale = float(self.scaler.loss_scale())
        with self.apex.scale_loss(loss, self.optimizer) as scaled:
            scaled.backward()

    def step(self, ready: Callable[[], None] | None = None) -> None:
        if ready is not None:
            ready()
        self.calls += 1
        self.optimizer.step()

    def _count(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self.executed += 1

    def gradients(self) -> list[Tensor | None]:
        # Apex drops the gradients of master weights when the step is done; those of the half ones are still scaled.
        return [
            p.grad.float() / self.scale if p.grad is not None and p.dtype is torch.float16 else p.grad
            for p in self.model.parameters()
        ]

    def skipped_steps(self) -> Tensor | None:
        return torch.tensor(float(self.calls - self.executed))


def zero_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter of an SGD with momentum its buffer now, of zeros, which is what a first step makes of none;
    not with dampening, which torch leaves out of a first step.

    torch's fused step leaves new buffers uninitialised for its kernel to fill, and a kernel that skips the step fills
    nothing: the second step would take what lay there (``_fused_sgd`` in ``torch/optim/sgd.py``, torch 2.6 to 2.15).
    """
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        for parameter in group["params"] if group["momentum"] and not group["dampening"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def use_tf32(convolutions: bool, products: bool) -> None:
    """Have fp32 convolutions and matrix products compute in TF32 or not."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products
    if hasattr(torch.backends.cudnn, "conv"):  # torch 2.9: a setting of all operations outweighs the older ones
        for operations, tf32 in ((torch.backends.cudnn.conv, convolutions), (torch.backends.cuda.matmul, products)):
            operations.fp32_precision = "tf32" if tf32 else "ieee"


@contextmanager
def double_by_default() -> Iterator[None]:
    """Within this context new tensors are in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def half_except_batch_norm(model: nn.Module, half: torch.dtype) -> None:
    """Cast all floating-point parameters and buffers of ``model`` to ``half`` in place, except those of batch norm."""
    for module in model.modules():
        if not isinstance(module, _BatchNorm):
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(half)
