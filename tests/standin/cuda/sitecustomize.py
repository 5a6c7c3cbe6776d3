"""What kernels compute, for the CUDA that ``runtime.c`` pretends: on the CPU, over the same memory.

With this folder on ``PYTHONPATH`` and the UUIDs of the GPUs in ``STANDIN_CUDA``, each operator that has a kernel
for CUDA has another one after ``import torch``. Convolutions and products in half sum in fp32 and round the result, as
tensor cores do. Under ``set_sync_debug_mode("error")`` copies that wait for the GPU raise.
"""

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

IN_FP32 = ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
ALSO = ("convolution", "convolution_backward", "copy_")
"""Of these torch has no kernel for CUDA: they choose how first."""
ON_MEMORY = ("empty", "empty_strided", "is_pinned", "is_set_to", "record_stream", "resize_", "resize_as_", "set_")
ON_MEMORY += ("_efficientzerotensor", "_local_scalar_dense", "_pin_memory", "_reshape_alias", "view")
"""Torch's kernels of these, and of other views, run no kernel of CUDA."""
LARGE = 2**22
"""Elements of operands that are not computed with where kernels take a time: those that a ceiling is measured with."""
LIBRARIES: list[Any] = []
"""What a library has registered is undone with it."""
RUNTIME = ctypes.CDLL(None)
NAMES: dict[str, bytes] = {}
"""Of kernels: the profiler asks for them later."""


class Finder(importlib.abc.MetaPathFinder):
    """Lets torch be imported as ever, and changes its kernels then."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def and_compute(module: ModuleType) -> None:
            sys.meta_path.remove(self)  # only now: others look whether torch is there before they import it
            execute(module)
            compute_on_the_host()

        spec.loader.exec_module = and_compute  # type: ignore[method-assign]
        return spec


def compute_on_the_host() -> None:
    import torch

    for kernels in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kernels}_sdp")(False)  # attention in operators that the CPU has
    library = torch.library.Library("aten", "IMPL", "CUDA")
    LIBRARIES.append(library)
    own: dict[str, Callable[..., Any]] = {
        "cudnn_batch_norm": batch_norm,
        "cudnn_batch_norm_backward": batch_norm_backward,
        "copy_": copy,
    }
    with no_warning():  # that there is a kernel already
        for name in torch._C._dispatch_get_all_op_names():
            space, _, full = name.partition("::")
            plain, _, overload = full.partition(".")
            if space != "aten" or plain in ON_MEMORY:
                continue
            if plain not in ALSO and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
                continue
            operator = getattr(getattr(torch.ops.aten, plain), overload or "default")
            if any(one.alias_info and not one.alias_info.is_write for one in operator._schema.returns):
                continue  # a view
            library.impl(full, own.get(plain) or kernel(operator, plain in IN_FP32))


@contextmanager
def no_warning() -> Iterator[None]:
    """Nothing is written to the standard error."""
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def host(value: Any, *, in_fp32: bool = False, place: str = "cpu") -> Any:
    """A tensor on the CPU with the memory of one on a GPU; other values as they are."""
    import torch

    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, torch.Generator):
        return None
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = value.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device("cpu"), storage.nbytes())
    made = torch.empty(0, dtype=value.dtype).set_(memory, value.storage_offset(), value.size(), value.stride())
    made = made.to(place)
    return made.float() if in_fp32 and value.dtype in (torch.float16, torch.bfloat16) else made


def on_gpu(value: Any, device: Any, dtype: Any = None) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or value.is_cuda:
        return value
    value = value.to(dtype) if dtype is not None and value.is_floating_point() else value
    sizes, strides = value.size(), value.stride()
    if value.numel() and 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) != value.numel():
        strides = value.contiguous().stride()
    made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=device)
    if not value.is_meta:
        host(made).copy_(value)
    return made


def kernel(operator: Any, in_fp32: bool) -> Callable[..., Any]:
    """An operator over the memory of its arguments, which it may write to; results are made on their GPU."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    schema = operator._schema
    places = {
        min(one.alias_info.before_set, default=""): at for at, one in enumerate(schema.arguments) if one.alias_info
    }
    timed = in_fp32 and "STANDIN_KERNEL_MS" in os.environ
    written = [min(one.alias_info.before_set) if one.alias_info else None for one in schema.returns]

    def compute(*given: Any, **named: Any) -> Any:
        leaves = tree_leaves((given, named))
        there = [one for one in leaves if isinstance(one, torch.Tensor) and one.is_cuda]
        devices = [one.device for one in there] + [one for one in leaves if isinstance(one, torch.device)]
        device = devices[0] if devices and devices[0].index is not None else torch.cuda.current_device()
        rounded = next((one.dtype for one in there if one.dtype in (torch.float16, torch.bfloat16)), None)
        in_half = in_fp32 and rounded is not None
        outs = {one.name: named[one.name] for one in schema.arguments if one.is_out}
        place = "meta" if timed and sum(one.numel() for one in there) > LARGE else "cpu"
        empty = tree_map(lambda one: torch.empty(0, dtype=torch.float32 if in_half else one.dtype, device=place), outs)
        there_too = partial(host, in_fp32=in_half, place=place)
        results = operator(*tree_map(there_too, given), **tree_map(there_too, named) | empty)
        launched(devices, operator)
        for one, made in zip(tree_leaves(outs), tree_leaves(empty), strict=True):
            if one.size() != made.size():
                one.resize_(made.size())
            if not made.is_meta:
                host(one).copy_(made)

        def as_result(result: Any, alias: Any) -> Any:
            if alias is None:
                return tree_map(lambda one: on_gpu(one, device, rounded if in_half else None), result)
            at = places[alias]
            return given[at] if at < len(given) else named[schema.arguments[at].name]

        if len(written) == 1:
            return as_result(results, written[0])
        return tuple(as_result(*pair) for pair in zip(results, written, strict=True)) if written else None

    return compute


def launched(devices: list[Any], what: Any) -> None:
    """The kernel is on the current stream of its device, for as long as one takes."""
    import torch

    at = next((one.index for one in devices if one.index is not None), None)
    at = torch.cuda.current_device() if at is None else at
    stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(at))
    RUNTIME.standin_launched(at, stream, NAMES.setdefault(str(what), f"void at::native::{what}".encode()))


def copy(to: Any, source: Any, non_blocking: bool = False) -> Any:
    import torch

    if to.is_cuda != source.is_cuda and not non_blocking:
        if torch.cuda.get_sync_debug_mode() == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        torch.cuda.current_stream().synchronize()
    host(to).copy_(host(source))
    launched([one.device for one in (to, source) if one.is_cuda], "copy_")
    if to.is_cuda != source.is_cuda and not non_blocking:
        torch.cuda.current_stream().synchronize()
    return to


def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    import torch

    tensors = map(host, (x, weight, bias, mean, variance))
    launched([x.device], "cudnn_batch_norm")
    results = torch.native_batch_norm(*tensors, training, momentum, eps)
    return *(on_gpu(one, x.device) for one in results), torch.empty(0, dtype=torch.uint8, device=x.device)


def batch_norm_backward(
    x: Any, gradient: Any, weight: Any, mean: Any, variance: Any, saved: Any, inverse: Any, eps: float, reserve: Any
) -> Any:
    import torch

    tensors = map(host, (gradient, x, weight, mean, variance, saved, inverse))
    launched([x.device], "cudnn_batch_norm_backward")
    results = torch.ops.aten.native_batch_norm_backward(*tensors, True, eps, [True] * 3)
    return tuple(on_gpu(one, x.device) for one in results)


if os.environ.get("STANDIN_CUDA"):
    sys.meta_path.insert(0, Finder())
