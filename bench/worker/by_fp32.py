"""bf16 by way of fp32, on a CPU without instructions for it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.core.job import Job
from bench.worker.live import bf16_instructions

PRODUCTS = (
    *("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
)


class ByFp32(TorchDispatchMode):
    """Within this context what adds up products of bf16 does so in fp32 and rounds the result to bf16, forward and
    backward: what instructions for bf16 do. All else stays as it is, so memory and what ranks exchange are those of
    bf16. ``used``: whether anything was computed so in this process.
    """

    used = False

    def __init__(self) -> None:
        super().__init__()
        known = (getattr(torch.ops.aten, name, None) for name in PRODUCTS)
        self.products = {one.default for one in known if one is not None}

    def __torch_dispatch__(
        self, operator: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        call: Callable[..., Any] = lambda *given: operator(*given, **(kwargs or {}))  # noqa: E731
        if operator not in self.products or args[0].dtype is not torch.bfloat16:
            return call(*args)
        ByFp32.used = True
        made = call(*(_cast(one, torch.bfloat16, torch.float32) for one in args))
        if operator is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            attended, logsumexp = made  # the latter is fp32 in any case: rounded, gradients would be off by a percent
            return _cast(attended, torch.float32, torch.bfloat16), logsumexp
        narrow = [_cast(one, torch.float32, torch.bfloat16) for one in (made if isinstance(made, tuple) else (made,))]
        return tuple(narrow) if isinstance(made, tuple) else narrow[0]


def _cast(value: object, given: torch.dtype, wanted: torch.dtype) -> object:
    return value.to(wanted) if isinstance(value, Tensor) and value.dtype is given else value


def by_fp32(job: Job) -> AbstractContextManager[ByFp32 | None]:
    """:class:`ByFp32` for a launch in half on a CPU without instructions for it. Compiled graphs take no such mode."""
    half = job.workload.device == "cpu" and job.precision != "O0" and job.half == "bf16"
    compiled = any(one.name == "compile" for one in job.switches)
    return ByFp32() if half and not compiled and bf16_instructions() is False else nullcontext()
