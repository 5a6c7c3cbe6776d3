"""The AMP levels O1, O2 and O3, native for torch, after the table of apex's documented properties; and apex's own.

===== =============================== ===================================== ========== ============== ==========
level model weights                   torch functions                       batch norm master weights loss scale
===== =============================== ===================================== ========== ============== ==========
O0    fp32                            -                                     fp32       -              1.0
O1    fp32                            autocast to half where safe           fp32       -              dynamic
O2    half; inputs cast to half       -                                     fp32       fp32           dynamic
O3    half, all of it                 -                                     half       none           1.0
===== =============================== ===================================== ========== ============== ==========

The dynamic loss scale is for fp16 only: bf16 has the exponent of fp32 and needs none, so no scaler is built for it.
It starts at 2**16, doubles after 2,000 good steps and halves after a bad one, in apex as in ``torch.amp.GradScaler``.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.worker.session import RankJob, Session


class LossScaling:
    """``torch.amp.GradScaler`` around a fused optimizer, with a count of skipped steps that stays on the device.

    Does nothing for bf16: ``scaler`` is None there.
    """

    def __init__(self, job: RankJob, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.scaler: torch.amp.GradScaler | None = None
        self.skipped: Tensor | None = None
        if job.half is torch.float16:
            self.scaler = torch.amp.GradScaler(job.device.type)
            self.skipped = torch.zeros((), device=job.device)
            optimizer.register_step_pre_hook(self._count)
            begin_momentum_at_zero(optimizer)

    def _count(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        assert self.skipped is not None
        self.skipped += optimizer.found_inf  # set by GradScaler on fused optimizers

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def skipped_steps(self) -> Tensor | None:
        """A copy, since the count goes on in its place."""
        return None if self.skipped is None else self.skipped.clone()


class AutocastSession(Session):
    """O1: fp32 weights; ``torch.autocast`` runs what is safe in half."""

    def prepare(self) -> torch.optim.Optimizer:
        optimizer = super().prepare()
        self.scaling = LossScaling(self.job, optimizer)
        self.scaler = self.scaling.scaler
        return optimizer

    def forward(self, batch: Any) -> Tensor:
        self.zero_grad()
        with torch.autocast(self.job.device.type, dtype=self.job.half):
            return self.criterion(self.module, batch)

    def backward(self, loss: Tensor) -> None:
        self.scaling.backward(loss)

    def optimize(self) -> None:
        self.scaling.step()

    def skipped_steps(self) -> Tensor | None:
        return self.scaling.skipped_steps()


class HalfSession(Session):
    """O3: weights, gradients, batch norm and optimizer state in half; the loss in fp32, unscaled."""

    def prepare(self) -> torch.optim.Optimizer:
        self.model.to(self.job.half)
        return super().prepare()

    def forward(self, batch: Any) -> Tensor:
        self.zero_grad()
        return self.criterion(self._in_half, batch)

    def _in_half(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs.to(self.job.half))
        return outputs.float()


class MasterWeightsSession(HalfSession):
    """O2: half weights but fp32 batch norm; the optimizer updates an fp32 copy, which is copied back."""

    def prepare(self) -> torch.optim.Optimizer:
        half_except_batch_norm(self.model, self.job.half)
        parameters = list(self.model.parameters())
        self.half_weights = [p for p in parameters if p.dtype is self.job.half]
        self.masters = [p.detach().float() for p in self.half_weights]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        fp32_weights = [p for p in parameters if p.dtype is torch.float32]
        optimizer = self.job.build_optimizer(self.masters + fp32_weights)
        self.scaling = LossScaling(self.job, optimizer)
        self.scaler = self.scaling.scaler
        return optimizer

    def zero_grad(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        self.scaling.backward(loss)

    def optimize(self) -> None:
        torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.half_weights])
        self.scaling.step()
        with torch.no_grad():
            torch._foreach_copy_(self.half_weights, self.masters)

    def gradients(self) -> list[Tensor | None]:
        masters = iter(self.masters)
        return [next(masters).grad if p.dtype is self.job.half else p.grad for p in self.model.parameters()]

    def skipped_steps(self) -> Tensor | None:
        return self.scaling.skipped_steps()


class ApexSession(Session):
    """Any level by ``apex.amp``, used as apex documents: initialise before wrapping, scale the loss in a context."""

    def prepare(self) -> torch.optim.Optimizer:
        from apex import amp

        self.amp = amp
        optimizer = super().prepare()
        self.executed = 0
        self.calls = 0
        self.scale = 1.0
        optimizer.register_step_post_hook(self._count)
        self.model, optimizer = amp.initialize(self.model, optimizer, opt_level=self.job.job.precision, verbosity=0)
        self.scaler = amp._amp_state.loss_scalers[0]
        return optimizer

    def _count(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.executed += 1

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()  # apex's own for O2, which takes no argument

    def backward(self, loss: Tensor) -> None:
        self.scale = float(self.scaler.loss_scale())
        with self.amp.scale_loss(loss, self.optimizer) as scaled:
            scaled.backward()

    def optimize(self) -> None:
        self.calls += 1
        self.optimizer.step()

    def gradients(self) -> list[Tensor | None]:
        # Apex drops the gradients of master weights when the step is done; those of the half ones are still scaled.
        return [
            p.grad.float() / self.scale if p.grad is not None and p.dtype is torch.float16 else p.grad
            for p in self.model.parameters()
        ]

    def skipped_steps(self) -> Tensor | None:
        return torch.tensor(float(self.calls - self.executed))


def begin_momentum_at_zero(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter of an SGD with momentum its buffer now, of zeros, which is what a first step makes of none.

    torch's fused step makes the buffers uninitialised, for its kernel to fill, and a kernel that is told to skip the
    step fills nothing: where the first loss scale is too high, what lay in that memory would be the momentum of the
    second step (``torch/optim/sgd.py``, ``_fused_sgd``, torch 2.6 to 2.15).
    """
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def half_except_batch_norm(model: nn.Module, half: torch.dtype) -> None:
    """Cast all floating-point parameters and buffers of ``model`` to ``half`` in place, except those of batch norm."""
    for module in model.modules():
        if not isinstance(module, _BatchNorm):
            for tensors in (module._parameters, module._buffers):
                for tensor in tensors.values():
                    if tensor is not None and tensor.is_floating_point():
                        tensor.data = tensor.data.to(half)


NATIVE: dict[str, type[Session]] = {
    "O0": Session,
    "O1": AutocastSession,
    "O2": MasterWeightsSession,
    "O3": HalfSession,
}


def session_class(job: RankJob) -> type[Session]:
    """The session of the job's precision level, in the implementation that was resolved for it."""
    return ApexSession if job.precision_impl == "apex" else NATIVE[job.job.precision]
