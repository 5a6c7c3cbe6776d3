"""How long an all-reduce takes, by the size of what is reduced: alone, and with others at the same time.

A sample is several all-reduces one after the other, as in NCCL's own tests: the time of one of them alone would be
mostly that of the clock and of the barrier before it. Some sizes are also handed over two and three at a time, as DDP
does with its buckets.
"""

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from bench.core.files import text_from
from bench.worker.ceilings import timed
from bench.worker.loop import slowest
from bench.worker.plan import Plan, Report

SIZES = tuple(1024 * 4**power for power in range(9))
"""Bytes: 1 KiB to 64 MiB."""

SEVERAL = {SIZES[power]: (2, 3) for power in (0, 3, 5, 6, 7)}
"""How many at a time, besides one: 1 KiB to 16 MiB. DDP's buckets have up to 25 MiB."""

PLAN = tuple((at_once, size) for size in SIZES for at_once in (1, *SEVERAL.get(size, ())))

SAMPLE_MS, MOST_CALLS = 20.0, 100
"""A sample takes about this long, unless that is more calls, or less than one."""

SAMPLES, FEWEST_SAMPLES = 7, 3
SIZE_LIMIT_MS = 4000.0
"""For the samples of one size, unless there would be fewer than the fewest."""

MOST_MS = 6000.0
"""All-reduces that are expected to take longer are left out."""


def perform(plan: Plan, report: Report) -> dict[str, object]:
    """Time everything of :data:`PLAN`, and train nothing. Of each of ``sizes`` ``bytes`` and ``at_once``, how many, and
    ``times_ms``, its samples: the time of all at once over their number as this rank saw it. ``left_out``: why larger
    ones are missing. All ranks take the same steps.
    """
    device, on_turn = plan.parts.device, report("measure", of=len(PLAN))
    sizes: list[dict[str, object]] = []
    left_out = None
    alone_ms: dict[int, float] = {}
    all_reduce_ms([torch.zeros(SIZES[0] // 4, device=device)], MOST_CALLS, device)
    for turn, (at_once, size) in enumerate(PLAN, start=1):
        if at_once * alone_ms.setdefault(size, 4 * alone_ms.get(size // 4, 0.0)) > MOST_MS:
            what = f"{at_once} at once" if at_once > 1 else "one"
            takes = f"{what} of {size >> 10:,} KiB would take about {at_once * alone_ms[size] / 1000:,.1f} s"
            left_out = left_out or f"some all-reduces were left out: {takes}"
            continue
        tensors = [torch.zeros(size // 4, device=device) for _ in range(at_once)]
        all_reduce_ms(tensors, 1, device)
        if at_once == 1:
            alone_ms[size] = slowest(all_reduce_ms(tensors, 2, device), device)
        expected_ms = at_once * alone_ms[size]
        calls = max(1, min(MOST_CALLS, round(SAMPLE_MS / expected_ms)))
        samples = max(FEWEST_SAMPLES, min(SAMPLES, int(SIZE_LIMIT_MS / (calls * expected_ms))))
        times_ms = [all_reduce_ms(tensors, calls, device) for _ in range(samples)]
        sizes.append({"bytes": size, "at_once": at_once, "times_ms": times_ms})
        on_turn(turn)
    return {"bandwidth": {"sizes": sizes, "left_out": left_out}, "transport": transport(os.environ)}


def once(device: torch.device) -> None:
    """Reduce each size once, untimed: NCCL's log then says which algorithm it takes for each."""
    for size in SIZES:
        dist.all_reduce(torch.zeros(size // 4, device=device))


def all_reduce_ms(tensors: list[torch.Tensor], calls: int, device: torch.device) -> float:
    """Milliseconds of these calls, all tensors at once, over calls and tensors; all ranks begin together."""

    def reduce() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return 1e3 * timed(reduce, device, calls, begin=dist.barrier) / (calls * len(tensors))


def transport(environment: Mapping[str, str]) -> dict[str, object]:
    """Over what the ranks of this process group talk, as far as it tells, and what that link is nominally capable of:
    ``backend``; ``library``: whose version; ``interface``: the one that gloo was told to use; ``nominal_mbit``: what
    the interface says of itself, of several the slowest; ``reason``: why something is unknown.
    """
    backend = str(dist.get_backend())
    known: dict[str, object] = {"backend": backend, "library": None, "interface": None, "nominal_mbit": None}
    if backend.startswith("nccl"):
        version = ".".join(map(str, torch.cuda.nccl.version()))
        why = "NCCL does not report its path; NCCL_DEBUG=INFO writes it to the logs of the ranks"
        return known | {"library": f"NCCL {version}", "reason": why}
    if not (interface := environment.get("GLOO_SOCKET_IFNAME")):
        return known | {"reason": "GLOO_SOCKET_IFNAME is not set, and gloo does not report which interface it chose"}
    speeds = {name: nominal_mbit(name) for name in interface.split(",")}
    unknown = [name for name, mbit in speeds.items() if mbit is None]
    return known | {
        "interface": interface,
        "nominal_mbit": None if unknown else min(filter(None, speeds.values())),
        "reason": f"{', '.join(unknown)} has no nominal speed" if unknown else None,
    }


def nominal_mbit(interface: str, root: str = "/sys/class/net") -> float | None:
    """The nominal speed of an interface (Mbit/s); None where it has none, as a loopback."""
    speed = text_from(f"{root}/{interface}/speed", 0).strip()
    return float(speed) if speed.isdigit() and int(speed) else None
