"""How much arithmetic a training step is, counted in a step that the reference takes anyway.

The first step of the reference in fp32 is in no result, so nothing is measured longer. Torch's formulas are those of
``torch.utils.flop_counter``; bench has one of recurrent layers. Convolutions, matrix products and attention count, two
operations for a multiplication and an addition; attention counts all pairs of tokens, whether a causal mask hides half
of them or not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from bench.worker.precision import optimizers_in
from bench.worker.session import Parts
from bench.worker.workload import tensors_in

RECURRENT = ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer")  # torch has no formula of them


def flops_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    """Of a call of an operator; 0 of one that computes next to nothing."""
    name = function._overloadpacket.__name__
    if name.removesuffix("_backward") in RECURRENT:  # each element of each sequence is multiplied by each matrix
        weights = args[1:3] if isinstance(args[1], Tensor) else args[1]
        elements, matrices = args[0].numel() // args[0].shape[-1], sum(one.numel() for one in weights if one.ndim == 2)
        return int(2 * elements * matrices * (2 if name.endswith("_backward") else 1))
    formula = flop_registry.get(function._overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


class Operators(TorchDispatchMode):
    """Calls :meth:`see` for each operator, to do it: for what computes, not for what is made of such."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one.__module__.startswith("torch.nested") for one in types):
            return NotImplemented  # it comes again as what it does to the tensor of all values
        if any(one.is_nested for one in tensors_in([args, kwargs])):  # in the older layout, which has no size
            return func(*args, **(kwargs or {}))
        with self:
            made = func.decompose(*args, **(kwargs or {})) if func.namespace == "aten" else NotImplemented
        return self.see(func, args, kwargs or {}) if made is NotImplemented else made

    def see(self, func: Any, args: Any, kwargs: dict[str, object]) -> object:
        raise NotImplementedError


class Counter(Operators):
    """Counts ``forward`` and ``backward`` FLOPs of a ``model`` while it is entered, and those of ``convolutions``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.forward = self.backward = self.convolutions = 0
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def see(self, func: Any, args: Any, kwargs: dict[str, object]) -> object:
        out = func(*args, **kwargs)
        flops = flops_of(func, args, kwargs, out)
        self.convolutions += flops * ("convolution" in func.name())
        if torch._C._current_autograd_node() is None:
            self.forward += flops
        else:
            self.backward += flops
        return out


def of_training(counter: Counter, parts: Parts, examples: int) -> dict[str, object]:
    """For :class:`bench.runs.experiments.Work`. ``examples``: of the step that was counted."""
    trained = counter.trained
    probes = [torch.ones((2,) * one.ndim, device=parts.device, requires_grad=True) for one in trained]
    for probe, parameter in zip(probes, trained, strict=True):  # one for each, as an optimizer may go by its dimensions
        sparse = parameter.grad is not None and parameter.grad.is_sparse
        probe.grad = torch.ones_like(probe).to_sparse(1) if sparse else torch.ones_like(probe)
    optimizer = parts.build_optimizer(probes)
    optimizer.step()
    moved_bytes = sum(one.nbytes * (3 + 2 * kept(optimizer, probe)) for one, probe in zip(trained, probes, strict=True))
    return {
        "forward_flops": counter.forward / examples,
        "backward_flops": counter.backward / examples,
        "convolution_flops": counter.convolutions / examples,
        "parameters": sum(parameter.numel() for parameter in trained),
        "exchanged_bytes": sum(parameter.nbytes for parameter in trained),
        "optimizer_bytes": moved_bytes,  # reads gradient, weight and state; writes weight and state
    }


def kept(optimizer: torch.optim.Optimizer, parameter: Tensor) -> int:
    """How many tensors of its shape an optimizer keeps of a parameter: itself, or one that it is made of."""
    states = [one.state[parameter].values() for one in optimizers_in(optimizer) if parameter in one.state]
    return sum(isinstance(value, Tensor) and value.shape == parameter.shape for state in states for value in state)
