"""Facts read off live objects with torch and the standard library alone, in any Python from 3.8 on: a script that
bench is attached to (``bench/worker/attached``) may run in an interpreter that has nothing else.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
"""False before torch 2.1."""

_last: deque[TypeWatch] = deque(maxlen=1)
"""The watch of this process."""


def _note_while_compiling(context: Any) -> None:
    """The hook while a graph is made: one that changed the watch in each step would be compiled twice."""
    _last[0].see(context.get_local("output").as_fake())


def _computing(model: nn.Module) -> list[nn.Module]:
    """Convolutions and linear layers; without any, recurrent ones."""
    # The last layer of nn.MultiheadAttention is never called: its weights are taken out of it.
    never_called = nn.modules.linear.NonDynamicallyQuantizableLinear
    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    layers = [m for m in model.modules() if isinstance(m, kinds) and not isinstance(m, never_called)]
    return layers or [m for m in model.modules() if isinstance(m, nn.RNNBase)]


def _product(output: object) -> object:
    """The first value in it. Layers in the style of Megatron return their bias beside it."""
    while isinstance(output, (tuple, list, dict)) and len(output):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


class TypeWatch:
    """Notes in which dtypes and memory format the first convolution of images (if there is none, another layer that
    computes) does so, and from :meth:`all_layers` on the dtypes of every one: weights do not show it.
    Without such layers it is what the model returns, but of a script, which may compute in half all the same.
    ``outside``: by a hook of all modules: one of the layer's own is in what a script copies, saves or scripts of it.
    """

    def __init__(self, model: nn.Module, *, outside: bool = False) -> None:
        layers = _computing(model) or ([] if outside else [model])
        layers.sort(key=lambda layer: not isinstance(layer, nn.Conv2d))
        self.outputs: set[torch.dtype] = set()
        self.memory_format = "contiguous"
        self.first = layers[0] if layers else None
        if outside:
            self.hooks = [nn.modules.module.register_module_forward_hook(self._note_first)]
        else:
            self.hooks = [layer.register_forward_hook(self._note) for layer in layers[:1]]
        _last.append(self)

    def all_layers(self, model: nn.Module) -> None:
        layers = _computing(model) or [model]
        self.hooks += [layer.register_forward_hook(lambda *call: self.add(_product(call[2]))) for layer in layers]

    def _note_first(self, layer: nn.Module, args: object, output: object) -> None:
        if layer is self.first and not _is_compiling():
            self.see(_product(output))

    def _note(self, layer: nn.Module, args: object, output: object) -> None:
        output = _product(output)
        if _is_compiling():
            from torch._dynamo.comptime import comptime

            comptime(_note_while_compiling)
        else:
            self.see(output)

    def add(self, output: object) -> None:
        if isinstance(output, Tensor):
            self.outputs.add(output.dtype)

    def see(self, output: object) -> None:
        self.add(output)
        # either weights or input in channels_last suffice
        if isinstance(output, Tensor) and output.dim() == 4 and not output.is_contiguous():
            last = output.is_contiguous(memory_format=torch.channels_last)
            self.memory_format = "channels_last" if last else "contiguous"

    def stop(self) -> None:
        for hook in self.hooks:
            hook.remove()


def of_training(
    model: nn.Module | None, wrapper: Any, optimizer: Any, device: torch.device, replicas: int
) -> dict[str, Any]:
    """The fields of :class:`bench.runs.launches.Effective` that are read alike in a launch of bench's and in a script.
    Dtypes map to the number of elements that have them. Without a ``model``, its weights are what the optimizer has.
    """
    import torch.distributed as dist
    from torch.nn.modules.batchnorm import _BatchNorm

    cuda, group = device.type == "cuda", dist.is_available() and dist.is_initialized()
    held = [parameter for one in optimizer.param_groups for parameter in one["params"]]
    parameters = held if model is None else list(model.parameters())
    norms = [] if model is None else [m for m in model.modules() if isinstance(m, _BatchNorm)]
    return {
        "model": None if model is None else class_name(model),
        "wrapper": "unknown" if wrapper is None else class_name(wrapper),
        "replicas": replicas,
        "norm_parts": 1 if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms) else replicas,
        "parameter_dtypes": dtypes(parameters),
        "gradient_dtypes": dtypes(p.grad for p in parameters if p.grad is not None),
        "batch_norm_dtypes": dtypes(p for norm in norms for p in norm.parameters(recurse=False)),
        "optimizer": class_name(optimizer),
        "optimizer_fused": bool(optimizer.defaults.get("fused")),
        "optimizer_dtypes": dtypes(held),
        "backend": dist.get_backend() if group else None,
        "world_size": dist.get_world_size() if group else 1,
        "device": device_facts(device),
        "tf32": tf32(device, model) if cuda else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark if cuda else None,
        "threads": torch.get_num_threads(),
        "affinity": len(os.sched_getaffinity(0)),
    }


def peaks(device: torch.device) -> dict[str, float]:
    """Peaks in MiB: torch's allocator per GPU of this process, or this process's resident set on the CPU."""
    if device.type == "cpu":
        return {"max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    kinds = {"max_allocated": torch.cuda.max_memory_allocated, "max_reserved": torch.cuda.max_memory_reserved}
    return {
        f"{kind}_mib.{device_uuid(torch.device('cuda', index))}": read(index) / 2**20
        for index in range(torch.cuda.device_count())
        for kind, read in kinds.items()
    }


def bf16_instructions() -> bool | None:
    """Whether oneDNN computes convolutions in bf16 here (AVX-512 and later, or Arm's); elsewhere they take dozens of
    times longer than in fp32. None where this torch does not say: its question is not a documented API.
    """
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return None


def observed_level(effective: dict[str, Any]) -> str | None:
    """The AMP level that these dtypes are, or None where they are no level of the table."""
    weights, norms = set(effective["parameter_dtypes"]), set(effective["batch_norm_dtypes"])
    compute, updated = set(effective["compute_dtypes"]), set(effective["optimizer_dtypes"])
    fp32 = {"float32"}
    half = compute - fp32  # a model may keep some layers in fp32
    if weights == compute == fp32:
        return "O0"
    if half not in ({"float16"}, {"bfloat16"}):
        return None
    if weights == fp32:
        return "O1"
    if weights == half | norms and norms <= fp32 and updated == fp32:
        return "O2"
    return "O3" if weights == half == updated and norms <= half else None


def tf32(device: torch.device, model: nn.Module | None) -> dict[str, bool | None]:
    """For :class:`bench.runs.launches.Tf32`: whether torch allows it, the GPU has it (from compute capability 8.0 on)
    and ``NVIDIA_TF32_OVERRIDE=0`` does not forbid it to NVIDIA's libraries.
    """
    there = torch.cuda.get_device_properties(device).major >= 8 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    if hasattr(cudnn, "conv"):  # from torch 2.9 on; then allow_tf32 raises where this was set
        allowed = {"cudnn": cudnn.conv.fp32_precision == "tf32", "matmul": matmul.fp32_precision == "tf32"}
    else:
        allowed = {"cudnn": cudnn.allow_tf32, "matmul": matmul.allow_tf32}
    of_cudnn = (nn.modules.conv._ConvNd, nn.RNNBase)
    none = model is not None and not any(isinstance(one, of_cudnn) for one in model.modules())
    return {"cudnn": None if none else there and allowed["cudnn"], "matmul": there and allowed["matmul"]}


def device_facts(device: torch.device) -> dict[str, object]:
    if device.type != "cuda":
        return {"type": device.type}
    properties = torch.cuda.get_device_properties(device)
    return {"type": "cuda", "name": properties.name, "uuid": device_uuid(device), "index": device.index}


def device_uuid(device: torch.device) -> str:
    """The GPU's UUID as NVML writes it (``GPU-...``)."""
    properties = torch.cuda.get_device_properties(device)
    uuid = str(properties.uuid) if hasattr(properties, "uuid") else _uuid_from_driver(device.index)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _uuid_from_driver(index: int) -> str:
    """For torch before 2.4 (pytorch/pytorch#125083), which a script may have."""
    import ctypes
    from uuid import UUID

    driver, handle, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetUuid(uuid, handle)
    return str(UUID(bytes=bytes(uuid)))


def dtypes(tensors: Iterable[Tensor]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[dtype_name(tensor.dtype)] += tensor.numel()
    return dict(sorted(counts.items()))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[-1]


def class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
