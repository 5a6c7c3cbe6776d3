"""How much arithmetic a training step is, counted in a step that the reference takes anyway.

The first step of the reference in fp32 is in no figure, so nothing is measured longer. Torch's formulas are those of
``torch.utils.flop_counter``: convolutions, matrix products and attention count, two operations for a multiplication and
an addition; attention counts all pairs of tokens, whether a causal mask hides half of them or not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def flops_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    """Of a call of an operator; 0 of one that computes next to nothing."""
    formula = flop_registry.get(function._overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


class Counter(TorchDispatchMode):
    """Counts ``forward`` and ``backward`` FLOPs while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.backward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flops = flops_of(func, args, kwargs or {}, out)
        if torch._C._current_autograd_node() is None:
            self.forward += flops
        else:
            self.backward += flops
        return out

    def work(self, examples: int) -> dict[str, float]:
        """For :class:`bench.runs.experiments.Work`. ``examples``: of the step that was counted."""
        return {"forward_flops": self.forward / examples, "backward_flops": self.backward / examples}
