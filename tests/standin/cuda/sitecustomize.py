"""A CUDA to test against: torch's own, pretended on the CPU, for the code that runs only where there are GPUs.

With this folder on ``PYTHONPATH`` and the UUIDs of the GPUs in ``BENCH_STANDIN_CUDA``, ``import torch`` in a new
process finds that many GPUs. What is asked for on ``cuda`` is made on the CPU; events are host clocks, NCCL is gloo,
and under ``set_sync_debug_mode("error")`` the calls that synchronise raise. Convolutions and linear layers in fp16 sum
in fp32 and round the result, as tensor cores do. It shows that the code runs and says what it ran; it shows nothing
about time, memory, streams or a real driver. (``nvml.c`` pretends the driver's figures.)
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

UUIDS = [uuid for uuid in os.environ.get("BENCH_STANDIN_CUDA", "").split(",") if uuid]
MEMORY_BYTES, HELD_BYTES = 80 << 30, 3 << 30


class Finder(importlib.abc.MetaPathFinder):
    """Lets torch be imported as ever, and changes it then."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def and_pretend(module: ModuleType) -> None:
            sys.meta_path.remove(self)  # only now: others look whether torch is there before they import it
            execute(module)
            pretend()

        spec.loader.exec_module = and_pretend  # type: ignore[method-assign]
        return spec


def pretend() -> None:
    devices()
    tensors()
    precision()
    parallel()


def visible() -> list[str]:
    """The UUIDs that CUDA_VISIBLE_DEVICES leaves, up to the first that is none."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return UUIDS
    named = [UUIDS[int(one)] if one.isdigit() and int(one) < len(UUIDS) else one for one in chosen.split(",")]
    unknown = next((place for place, one in enumerate(named) if one not in UUIDS), len(named))
    return named[:unknown]


STATE: dict[str, Any] = {"initialised": False, "current": 0, "synchronising": "default", "bound": False, "used": set()}
"""``bound``: whether the group is bound to one device. ``used``: the devices that modules were moved to. ``asked``:
whether CUDA was, if only how many devices there are, so that it is ``lost`` to forks."""
STATE |= {"asked": False, "lost": False}


def asked() -> list[str]:
    STATE["asked"] = True
    return visible()


def initialise(*arguments: Any) -> None:
    if STATE["lost"]:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    STATE.update(initialised=True, asked=True)


def synchronise(*arguments: Any) -> None:
    initialise()
    if STATE["synchronising"] == "error":
        raise RuntimeError("called a synchronizing CUDA operation")


def index_of(device: Any) -> int:
    """Raises as torch does for a GPU that is not there."""
    import torch

    if isinstance(device, str):
        device = torch.device(device)
    found = device if isinstance(device, int) else getattr(device, "index", None)
    found = STATE["current"] if found is None else found
    if found >= len(visible()):
        raise AssertionError("Invalid device id")
    return int(found)


class Event:
    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self.timing, self.at_s = enable_timing, None

    def record(self, stream: Any = None) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        synchronise()

    def elapsed_time(self, other: "Event") -> float:
        if not (self.timing and other.timing and self.at_s and other.at_s):
            raise RuntimeError("both events must be recorded, with timing")
        return (other.at_s - self.at_s) * 1e3


def devices() -> None:
    import torch

    def properties(device: Any = None) -> Any:
        initialise()
        uuid = visible()[index_of(device)].removeprefix("GPU-")
        return SimpleNamespace(name="Stand-in", major=9, minor=0, total_memory=MEMORY_BYTES, uuid=uuid)

    def choose(device: Any) -> None:
        initialise()
        STATE["current"] = index_of(device)

    for name, answer in {
        "is_available": lambda: bool(asked()),
        "device_count": lambda: len(asked()),
        "_is_in_bad_fork": lambda: STATE["lost"],
        "get_device_properties": properties,
        "init": initialise,
        "_lazy_init": initialise,
        "is_initialized": lambda: STATE["initialised"],
        "current_device": lambda: STATE["current"],
        "set_device": choose,
        "synchronize": synchronise,
        "mem_get_info": lambda device=None: (MEMORY_BYTES - HELD_BYTES, MEMORY_BYTES),
        "max_memory_allocated": lambda device=None: HELD_BYTES,
        "max_memory_reserved": lambda device=None: HELD_BYTES,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "manual_seed_all": lambda seed: None,
        "set_sync_debug_mode": lambda mode: STATE.update(synchronising=mode),
        "Event": Event,
    }.items():
        setattr(torch.cuda, name, answer)
    if torch.version.cuda:
        flags = torch._C._cuda_getArchFlags
        torch._C._cuda_getArchFlags = lambda: flags() * bool(asked())  # this counts, too
    torch.accelerator.synchronize = synchronise
    torch.cuda.nccl.version = lambda: (2, 0, 0)
    torch.backends.cudnn.version = lambda: 90000


def tensors() -> None:
    """Tensors that are asked for on ``cuda`` are made on the CPU; what would wait for a GPU is told."""
    import torch
    from torch.overrides import TorchFunctionMode

    cpu = torch.device("cpu")
    convolution, linear = torch.conv2d, torch.nn.functional.linear
    waits = {getattr(torch.Tensor, name) for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__")}
    half_convolution, half_linear = layers_in_half()

    def here(value: Any) -> Any:
        return cpu if isinstance(value, str | torch.device) and str(value).startswith("cuda") else value

    def in_half(tensor: Any) -> bool:
        under = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16
        return bool(under or tensor.dtype == torch.float16)

    class Pretence(TorchFunctionMode):
        def __torch_function__(self, called: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            named = dict(named or {})
            if called is torch.device:
                return called(*given, **named)
            if called in waits and STATE["initialised"]:  # no tensor is on a GPU before
                synchronise()
            if called is torch.Tensor.pin_memory:
                return given[0].clone()
            if called is convolution and in_half(given[0]):
                return half_convolution(*given)
            if called is linear and in_half(given[0]):
                return half_linear(*given)
            if "device" in named:
                named["device"] = here(named["device"])
            return called(*(here(value) for value in given), **named)

    parse = torch._C._nn._parse_to

    def parse_to(*given: Any, **named: Any) -> Any:
        device, *rest = parse(*given, **named)
        if device is not None and device.type == "cuda":
            STATE["used"].add(index_of(device))
        return (None if device is None else here(device), *rest)

    torch._C._nn._parse_to = parse_to  # behind nn.Module.to
    Pretence().__enter__()


def layers_in_half() -> tuple[Any, Any]:
    """A convolution and a linear layer that take and give fp16, and sum in fp32, forward and backward."""
    import torch

    convolution, linear, autocast = torch.conv2d, torch.nn.functional.linear, torch.autocast

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, layer: Any, *tensors: Any) -> Any:
            context.layer = layer
            context.save_for_backward(*tensors)
            with autocast("cpu", enabled=False):
                return layer(*(tensor.float() for tensor in tensors)).half()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            with torch.enable_grad(), autocast("cpu", enabled=False):
                tensors = [tensor.float().requires_grad_() for tensor in context.saved_tensors]
                gradients = torch.autograd.grad(context.layer(*tensors), tensors, gradient.float())
            return None, *(one.half() for one in gradients)

    def rounded(layer: Any) -> Any:
        def call(inputs: Any, weight: Any, bias: Any = None, *options: Any) -> Any:
            tensors = [tensor.half() for tensor in (inputs, weight, bias) if tensor is not None]
            filled = (None,) * (3 - len(tensors))
            return Rounded.apply(lambda *given: layer(*given, *filled, *options), *tensors)

        return call

    return rounded(convolution), rounded(linear)


def precision() -> None:
    import torch

    class Autocast(torch.autocast):  # type: ignore[misc]
        def __init__(self, device_type: str, **options: Any) -> None:
            super().__init__("cpu", **options)

    torch.autocast = torch.amp.autocast = Autocast
    scaler = torch.amp.grad_scaler.GradScaler
    make = scaler.__init__
    scaler.__init__ = lambda self, device="cuda", *given, **named: make(self, "cpu", *given, **named)


def parallel() -> None:
    """NCCL is gloo, which says it is NCCL; DDP and DataParallel train on the CPU where they were given GPUs."""
    import torch
    import torch.distributed as dist
    from torch import nn

    join, wrap = dist.init_process_group, nn.parallel.DistributedDataParallel.__init__

    def init_process_group(backend: str, *given: Any, **named: Any) -> None:
        if backend.startswith("nccl"):
            STATE["bound"] = named.pop("device_id", None) is not None or backend == "nccl"  # NCCL2 binds by itself
            called = backend
            dist.get_backend = lambda group=None: called
            backend = "gloo"
        join(backend, *given, **named)

    def distributed(self: Any, module: Any, device_ids: Any = None, **named: Any) -> None:
        for device in device_ids or []:
            index_of(device)
        if STATE["bound"] and len(STATE["used"]) > 1:
            raise RuntimeError("the group is bound to one device, and the module has several")
        wrap(self, module, **named)

    def data_parallel(self: Any, module: Any, device_ids: Any = None, *given: Any, **named: Any) -> None:
        nn.Module.__init__(self)
        self.module, self.dim = module, 0
        self.device_ids = [index_of(device) for device in (range(len(visible())) if device_ids is None else device_ids)]
        self.output_device = self.device_ids[0]

    def forward(self: Any, *inputs: Any) -> Any:
        first, *others = zip(*(tensor.chunk(len(self.device_ids)) for tensor in inputs), strict=True)
        outputs = [self.module(*first)]
        kept = [buffer.clone() for buffer in self.module.buffers()]
        outputs += [self.module(*part) for part in others]
        for buffer, first_one in zip(self.module.buffers(), kept, strict=True):
            buffer.data.copy_(first_one)  # what other replicas do to their copies is lost
        return torch.cat(outputs)

    dist.init_process_group = init_process_group
    nn.parallel.DistributedDataParallel.__init__ = distributed
    nn.DataParallel.__init__, nn.DataParallel.forward = data_parallel, forward


if UUIDS:
    sys.meta_path.insert(0, Finder())
    os.register_at_fork(after_in_child=lambda: STATE.update(lost=STATE["asked"]))
