"""The ceilings of this rank's device: arithmetic, memory, copies, launches; all ranks measure at the same time.

A ceiling is what holds for seconds, not what shows for an instant: clocks fall under load. Of some sizes the fastest is
measured for :data:`SUSTAINED_S`, and the median of its samples counts. All kinds take turns, and the best of
:data:`TURNS` counts: whoever else uses the machine only ever makes it slower.
"""

from collections.abc import Callable, Iterator
from itertools import product
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from bench.worker.loop import clock_for, finish
from bench.worker.plan import Plan, Report
from bench.worker.precision import use_tf32
from bench.worker.rank import barrier

TRIAL_S, SUSTAINED_S, SAMPLE_S = 0.1, 1.0, 0.05
TURNS = 2
TYPES = {
    "cpu": {"fp32": torch.float32, "bf16": torch.bfloat16},
    "cuda": {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16},
}
EDGES = {"cpu": (256, 512, 1024), "cuda": (2048, 4096, 8192)}
"""Of square matrices."""
IMAGES = {"cpu": ((8, 64, 56), (8, 128, 28), (8, 256, 14)), "cuda": ((128, 64, 56), (128, 128, 28), (128, 256, 14))}
"""Of 3x3 convolutions with as many channels out as in: images, channels, pixels of an edge."""
BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Of what is read and written: more than any cache holds."""
LAUNCHES = 200

NO_COPY = "on the CPU a batch is where it is needed"

Call = Callable[[], object]


def perform(plan: Plan, report: Report) -> dict[str, Any]:
    """For :class:`bench.runs.experiments.Ceilings`: TFLOP/s by kind, GiB/s by way, microseconds of a launch."""
    device = plan.parts.device
    tasks = TURNS * list(_tasks(device))
    tick = report("measure", of=len(tasks))
    found: dict[str, Any] = {"tflops": {}, "gib_per_s": {}, "reasons": {}}
    for number, (group, name, amount, calls) in enumerate(tasks, start=1):
        barrier()
        found[group][name] = max(found[group].get(name, 0.0), amount / sustained(calls(), device))
        tick(number)
    use_tf32(False, False)
    barrier()
    found["launch_us"] = launch_us(device)
    if device.type == "cpu":
        found["reasons"] = {"to_device": NO_COPY, "fp16": "fp16 is not trained on the CPU", "tf32": "a CPU has no TF32"}
    return {"ceilings": found}


def _tasks(device: torch.device) -> Iterator[tuple[str, str, float, Callable[[], list[tuple[float, Call]]]]]:
    """Group, name, and what is done: ``calls()`` gives candidates, each with its work over that of the amount."""
    for (name, dtype), kind in product(TYPES[device.type].items(), (matrix_products, convolutions)):

        def calls(name: str = name, dtype: torch.dtype = dtype, kind: Any = kind) -> list[tuple[float, Call]]:
            use_tf32(name == "tf32", name == "tf32")
            return list(kind(dtype, device))

        yield "tflops", f"{kind.__name__.replace('_', ' ')} {name}", 1e-12, calls
    for way in (read, write, optimizer, *([to_device] if device.type == "cuda" else [])):
        yield "gib_per_s", way.__name__, 2.0**-30, lambda way=way: [way(device)]  # type: ignore[misc]


def matrix_products(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[float, Call]]:
    for edge in EDGES[device.type]:
        a, b = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        yield 2.0 * edge**3, lambda a=a, b=b, out=out: torch.mm(a, b, out=out)  # type: ignore[misc]


def convolutions(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[float, Call]]:
    layouts = (torch.contiguous_format, torch.channels_last)
    for (images, channels, edge), layout in product(IMAGES[device.type], layouts):
        x = torch.randn(images, channels, edge, edge, device=device).to(dtype).contiguous(memory_format=layout)
        w = torch.randn(channels, channels, 3, 3, device=device).to(dtype).contiguous(memory_format=layout)
        flops = 2.0 * 9 * channels**2 * images * edge**2
        yield flops, lambda x=x, w=w: conv2d(x, w, padding=1)  # type: ignore[misc]


def read(device: torch.device) -> tuple[float, Call]:
    tensor = torch.ones(BYTES[device.type] // 4, device=device)
    return float(tensor.nbytes), tensor.sum


def write(device: torch.device) -> tuple[float, Call]:
    tensor = torch.ones(BYTES[device.type] // 4, device=device)
    return float(tensor.nbytes), lambda: tensor.fill_(1.0)


def optimizer(device: torch.device) -> tuple[float, Call]:
    """A fused step of SGD with momentum: reads gradient, weight and momentum, and writes the latter two."""
    weight = torch.ones(BYTES[device.type] // 16, device=device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    return 5.0 * weight.nbytes, torch.optim.SGD([weight], lr=1e-3, momentum=0.9, fused=True).step


def to_device(device: torch.device) -> tuple[float, Call]:
    batch = torch.ones(2**26, pin_memory=True)
    there = torch.empty_like(batch, device=device)
    return float(batch.nbytes), lambda: there.copy_(batch, non_blocking=True)


def sustained(candidates: list[tuple[float, Call]], device: torch.device) -> float:
    """Seconds for a unit of work, of the candidate that was fastest in a short trial."""
    trials = [(seconds(call, device, TRIAL_S) / work, work, call) for work, call in candidates]
    _, work, call = min(trials, key=lambda one: one[0])
    return seconds(call, device, SUSTAINED_S) / work


def seconds(call: Call, device: torch.device, for_s: float) -> float:
    """Of a call, warm: the median of samples of :data:`SAMPLE_S` or one call."""
    once = max(1e-7, min(timed(call, device, 1) for _ in range(2)))
    calls = max(1, int(min(SAMPLE_S, for_s / 3) / once))
    samples, end_ns = list[float](), perf_counter_ns() + for_s * 1e9
    while not samples or perf_counter_ns() < end_ns:
        samples.append(timed(call, device, calls) / calls)
    return median(samples)


def timed(call: Call, device: torch.device, calls: int, begin: Call = lambda: None) -> float:
    """Seconds of this many calls, after ``begin``; on a GPU by CUDA events."""
    clock = clock_for(device)
    clock.prepare(2)
    begin()
    clock.mark()
    for _ in range(calls):
        call()
    clock.mark()
    clock.wait()
    _, (span,) = clock.read()
    return span / 1e3


def launch_us(device: torch.device) -> float:
    """Microseconds that the host takes to call an operator on a tiny tensor, and a GPU's kernel is not waited for."""
    tiny: Tensor = torch.ones(1, device=device)
    samples = []
    for _ in range(20):
        start_ns = perf_counter_ns()
        for _ in range(LAUNCHES):
            tiny.add_(1.0)
        samples.append((perf_counter_ns() - start_ns) / LAUNCHES / 1e3)
        finish(device)
    return median(samples)
