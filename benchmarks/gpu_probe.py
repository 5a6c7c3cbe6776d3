"""What a GPU can do and what a training step asks of it, measured in a process of its own for ``gpu_acceptance.py``.

    python benchmarks/gpu_probe.py look
    python benchmarks/gpu_probe.py measure --batch 128

``look``: whether this torch can compute on the first visible GPU at all, and why not. ``measure``: one training step at
the batch (seconds, peak memory, or that it does not fit), the rates of large matrix products and of copies, and how
many floating-point operations and bytes a step asks for, counted operator by operator. Each prints one JSON line.

Operations: ``torch.utils.flop_counter.FlopCounterMode`` around one step, forward and backward: two for each
multiply-add of convolutions and linear layers, nothing for the rest. Bytes: what every operator of one step reads and
writes in the memory of the device when none is fused and no cache helps; a lower bound of what eager kernels move
(layout changes within cuDNN and workspaces are not in it) unless a cache serves some of it. Both are linear in the
batch, so they are counted at two small ones.
"""

import argparse
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SIZES = {"cpu": 256, "cuda": 8192}
"""Of the square matrices that are multiplied."""

COPIED_BYTES = {"cpu": 1 << 20, "cuda": 1 << 30}
WINDOWS, WINDOW_S = 5, {"cpu": 0.01, "cuda": 0.15}
COUNTED = 4, 8
"""The batches at which operations and bytes are counted."""

LEVELS = ("O0", "O1", "O2", "O3")
MIB = 2**20
UNTOUCHED = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
"""Operators that make memory and leave it as it is."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("look", "measure"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", default="resnet101")
    parser.add_argument("--image-size", type=int, default=224, metavar="PX")
    parser.add_argument("--batch", type=int, default=128, metavar="N")
    options = parser.parse_args()
    found = look() if options.what == "look" else measure(options)
    print("\n" + json.dumps(found), flush=True)
    return 0


def look() -> dict[str, Any]:
    """``problem`` is None where a matrix product on the first GPU comes out right, and otherwise one line."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "problem": None,
    }
    if torch.version.cuda is None:
        return {**found, "problem": "torch was built without CUDA"}
    try:
        torch.cuda.init()
        device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        about = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "architectures": torch.cuda.get_arch_list(),
            "free_mib": free / MIB,
            "total_mib": total / MIB,
            "cudnn": torch.backends.cudnn.version(),
            "devices": torch.cuda.device_count(),
        }
        found |= about
        ones = torch.ones(64, 64, device=device)
        right = bool(torch.equal(ones @ ones, torch.full_like(ones, 64.0)))
        return found if right else {**found, "problem": "a product of matrices of ones came out wrong"}
    # torch's kinds for no driver, an old one, no kernel for this GPU
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        return {**found, "problem": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The step, the rates and the counts."""
    device = torch.device(options.device)
    counted = counts(options, device)
    rates = measured_rates(device)
    return {"step": one_step(options, device), "rates": rates, "counts": counted}


def one_step(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """``step_s``: the faster of two steps in fp32 once warm; ``first_s``: all that came before the second, of which
    cuDNN's choice of algorithms is most on a GPU; ``oom``: the line that torch raised, or None.
    """
    import handwritten

    gc.collect()  # sessions that were counted with: hooks tie them to themselves
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    asked = ["--device", device.type, "--model", options.model, "--image-size", str(options.image_size)]
    start = time.perf_counter()
    try:
        train = handwritten.training(handwritten.options_of([*asked, "--batch", str(options.batch)]))
        train(1)
        first_s = time.perf_counter() - start
        train(1)
        step_s = min(train(1), train(1))
    except RuntimeError as error:  # of which torch's own kind for it is one
        from bench.worker.rank import kind_of

        if kind_of(error) != "oom":
            raise
        return {"step_s": None, "first_s": None, "peak_mib": None, "oom": " ".join(str(error).split())[:300]}
    peak = torch.cuda.max_memory_reserved(device) / MIB if device.type == "cuda" else None
    return {"step_s": step_s, "first_s": first_s, "peak_mib": peak, "oom": None}


def measured_rates(device: torch.device) -> dict[str, Any]:
    """``matrix_tflops``: by the precision of the factors; ``copy_gb_s``: bytes read and written by a copy, a second.

    The median over windows of back-to-back calls. ``tf32`` is fp32 with TF32 allowed, the same as fp32 on a device that
    has none (and on the CPU, where it is left out).
    """
    size = SIZES[device.type]
    rates: dict[str, float] = {}
    kinds = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    if device.type == "cpu":
        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    before = torch.backends.cuda.matmul.allow_tf32
    for name, dtype in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        rates[name] = 2 * size**3 / seconds_each(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device) / 1e12
        del a, b, out
    torch.backends.cuda.matmul.allow_tf32 = before
    amount = COPIED_BYTES[device.type]
    source = torch.zeros(amount, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * amount / seconds_each(lambda: target.copy_(source), device) / 1e9
    return {"matrix_tflops": rates, "matrix_size": size, "copy_gb_s": copy, "copied_bytes": amount}


def seconds_each(call: Callable[[], object], device: torch.device) -> float:
    """Of one call: the median over windows of as many as take about :data:`WINDOW_S`, after a window to warm up."""
    call()
    once = window(call, 1, device)
    number = max(1, math.ceil(WINDOW_S[device.type] / max(once, 1e-6)))
    window(call, number, device)
    return statistics.median(window(call, number, device) for _ in range(WINDOWS)) / number


def window(call: Callable[[], object], number: int, device: torch.device) -> float:
    """Seconds of so many calls, back to back: by CUDA events on a GPU, by the clock elsewhere."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        for _ in range(number):
            call()
        return time.perf_counter() - start_s
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(number):
        call()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1e3


class Traffic(TorchDispatchMode):
    """Adds up the bytes that operators read and write on ``device``. ``bytes``: so far."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = func._schema
        aliases = [one.alias_info for one in schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        if view or schema.name in UNTOUCHED:
            return result
        given = [*zip(schema.arguments, args, strict=False), *((one, kwargs.get(one.name)) for one in schema.arguments)]
        for argument, value in given:
            written = argument.alias_info is not None and argument.alias_info.is_write
            self.bytes += (1 + written) * sum(map(self._size, tree_leaves(value)))
        made = result if isinstance(result, tuple | list) else (result,)
        for alias, value in zip(aliases, made, strict=False):
            if alias is None:
                self.bytes += sum(map(self._size, tree_leaves(value)))
        return result

    def _size(self, value: object) -> int:
        """Of what a tensor holds; an expanded one holds less than it shows."""
        if not isinstance(value, Tensor) or value.device.type != self.device.type:
            return 0
        return int(min(value.numel() * value.element_size(), value.untyped_storage().nbytes()))


def counts(options: argparse.Namespace, device: torch.device) -> dict[str, dict[str, float]]:
    """By AMP level, of one step: ``flops_per_image``, and ``bytes_fixed`` + batch x ``bytes_per_image``."""
    found = {}
    small, large = COUNTED
    for level in LEVELS:
        session, images, labels = a_session(options, device, level, large)
        (_, fewer), (operations, more) = (
            count(session, images[:batch], labels[:batch], device) for batch in (small, large)
        )
        per_image = (more - fewer) / (large - small)
        found[level] = {
            "flops_per_image": operations / large,
            "bytes_per_image": per_image,
            "bytes_fixed": fewer - small * per_image,
        }
    return found


def count(session: Any, images: Tensor, labels: Tensor, device: torch.device) -> tuple[float, float]:
    """Floating-point operations and bytes of one step of this session on these images, on one device."""
    from torch.utils.flop_counter import FlopCounterMode

    def step() -> None:
        session.backward(session.forward((images, labels)))
        session.optimize()

    step()  # the optimizer makes its state in the first
    with FlopCounterMode(display=False) as operations:
        step()
    with Traffic(device) as traffic:
        step()
    return float(operations.get_total_flops()), float(traffic.bytes)


def a_session(options: argparse.Namespace, device: torch.device, level: str, batch: int) -> tuple[Any, Tensor, Tensor]:
    """A training step as ``bench run`` has it, its images and its labels."""
    import launching

    from bench.worker.session import Parts

    job = launching.plan(
        "single",
        device=device.type,
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES") if device.type == "cuda" else None,
        model=options.model,
        image_size=options.image_size,
        global_batch=batch,
        warmup=1,
        iters=1,
    )
    parts = Parts(
        job=replace(job, precision=level),
        rank=0,
        local_rank=0,
        world_size=1,
        device=device,
        implementation="torch",
        amp="native",
    )
    size = options.image_size
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(job.workload.settings["classes"], (batch,), device=device)
    return parts.session(), images, labels


if __name__ == "__main__":
    raise SystemExit(main())
