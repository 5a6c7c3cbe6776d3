"""What a launch and a training step take on a GPU, and what the GPU can do: for ``gpu_acceptance.py``.

    python benchmarks/gpu_probe.py step --global-batch 128
    python benchmarks/gpu_probe.py rates

``step``: one launch of ``ddp`` in fp32 on one device, by bench's own worker host. What it takes besides its steps has
everything that a launch of a run has: fork, CUDA context, NCCL, the loading of cuDNN and cuBLAS, cuDNN's search,
checksums and the numerics probe. Besides, the step, both peaks of memory, and why it failed. ``rates``: those of large
matrix products and of copies, and how many floating-point operations and bytes a step asks for, counted operator by
operator. Each prints one JSON line.

Operations: ``torch.utils.flop_counter.FlopCounterMode`` around one step, forward and backward: two for each
multiply-add of convolutions and linear layers, nothing for the rest. Bytes: what every operator of one step reads and
writes in the memory of the device when none is fused and no cache helps; a lower bound of what eager kernels move
(layout changes within cuDNN and workspaces are not in it) unless a cache serves some of it. Both are linear in the
batch, so they are counted at two small ones.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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

WARMUP, MEASURED = 3, 5
"""Steps of the launch."""

LEVELS = ("O0", "O1", "O2", "O3")
UNTOUCHED = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
"""Operators that make memory and leave it as it is."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "rates"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", default="resnet101")
    parser.add_argument("--image-size", type=int, default=224, metavar="PX")
    parser.add_argument("--global-batch", type=int, default=128, metavar="N")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.what == "step":
        found = a_launch(options)
    else:
        found = {"rates": measured_rates(device), "counts": counts(options, device)}
    print("\n" + json.dumps(found), flush=True)
    return 0


def a_launch(options: argparse.Namespace) -> dict[str, Any]:
    """``host_s``: until the worker host was ready. ``launch_s``: of the launch besides all steps but the first, and
    ``first_s`` that step. ``step_s``: the median of the measured ones. ``peak_mib``: reserved over the whole launch,
    with cuDNN's search, and ``steady_mib`` once warm. ``oom``, ``problem``: why there are none of these.
    """
    import launching

    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    about |= {"problem": None, "oom": None}
    began_s = time.perf_counter()
    with launching.folder() as where, launching.host(where, device=options.device) as host:
        host_s = time.perf_counter() - began_s
        job = a_job("ddp", options, options.global_batch, warmup=WARMUP, iters=MEASURED)
        began_s = time.perf_counter()
        outcome = host.perform(replace(job, probe_seed=0, logs=where), lambda event: None)
        took_s = time.perf_counter() - began_s
    if outcome.status == "oom":
        return {**about, "oom": outcome.reason}
    if outcome.status != "ok":
        problem = problem_of_torch() if options.device == "cuda" else None
        return {**about, "problem": problem or outcome.reason}
    result = outcome.results[0]
    all_ms: list[float] = [*result["warmup"]["step_ms"], *result["measured"]["step_ms"]]
    reserved = {
        name: [mib for key, mib in result["allocator"].items() if key.startswith(f"{kind}_reserved_mib.")]
        for name, kind in (("peak_mib", "max"), ("steady_mib", "steady"))
    }
    return {
        **about,
        "host_s": host_s,
        "launch_s": took_s - sum(all_ms[1:]) / 1e3,
        "first_s": all_ms[0] / 1e3,
        "step_s": statistics.median(result["measured"]["step_ms"]) / 1e3,
        **{name: max(found, default=None) for name, found in reserved.items()},
    }


def problem_of_torch() -> str | None:
    """Why this torch cannot compute on the first visible GPU, in one line; None if a matrix product is right."""
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    try:
        ones = torch.ones(64, 64, device="cuda")
        right = bool(torch.equal(ones @ ones, torch.full_like(ones, 64.0)))
        return None if right else "a product of matrices of ones came out wrong"
    # torch's kinds for no driver, an old one, no kernel for this GPU
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]


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
        rates[name] = 2 * size**3 / seconds_each(partial(torch.mm, a, b, out=out), device) / 1e12
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
    from bench.worker.session import Parts

    job = a_job("single", options, batch, warmup=1, iters=1)
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


def a_job(scenario: str, options: argparse.Namespace, batch: int, **steps: int) -> Any:
    """Of one rank, on the first visible device."""
    import launching

    return launching.plan(
        scenario,
        device=options.device,
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES") if options.device == "cuda" else None,
        ranks=1,
        model=options.model,
        image_size=options.image_size,
        global_batch=batch,
        **steps,
    )


if __name__ == "__main__":
    raise SystemExit(main())
