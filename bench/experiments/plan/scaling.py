"""How ``bench scale`` is laid out: which numbers of devices, which batch on each, and which launches. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.core.errors import RequestError
from bench.core.job import Job
from bench.core.records import Host
from bench.experiments.plan import Request, job_of
from bench.runs.experiments import Scaling
from bench.seams.discover import Found

MODES = ("weak", "strong")
EACH = "each"  # the mode in which every device is measured by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A number of devices with a global batch."""

    count: int
    global_batch: int


def default_counts(devices: int) -> tuple[int, ...]:
    """Powers of two up to all devices, and all of them."""
    return tuple(dict.fromkeys((*(1 << power for power in range(devices.bit_length())), devices)))


def points(counts: Sequence[int], batch_per_rank: int, modes: Sequence[str]) -> tuple[Point, ...]:
    """The points that are measured, the smallest number of devices first. The last is all devices with the run's own
    batch: both curves end there.

    Raises :class:`RequestError` where the batch in all is not divisible by a number of devices.
    """
    whole = max(counts) * batch_per_rank
    made: list[Point] = []
    for count in sorted({1, *counts}):
        for mode in modes:
            if mode == "strong" and whole % count:
                step = math.lcm(*counts)
                what = f"{whole} examples are not divisible by {count} devices"
                fits = step * max(1, round(whole / step))
                raise RequestError("--counts", what, f"with --global-batch {fits} they are, or use --weak")
            made.append(Point(count=count, global_batch=whole if mode == "strong" else count * batch_per_rank))
    return tuple(dict.fromkeys(made))


def without_exchanges(scaling: Scaling) -> tuple[tuple[int, int], ...]:
    """Numbers of ranks that are to compute side by side, each with the batch of a rank: what predictions need. Of more
    devices than are measured, as many as are."""
    pairs = {
        (min(count, max(scaling.counts)), scaling.batch_of_rank(mode, count))
        for mode in ("weak", *scaling.modes)
        for count in (1, *scaling.counts, *scaling.to_predict)
    }
    return tuple(sorted((count, batch) for count, batch in pairs if batch is not None))


def job_at(
    request: Request, found: Found, point: Point, launch: int, hosts: Sequence[Host], purpose: str, repeat: int = 0
) -> Job:
    """A launch at a point. On the CPU each rank has as many threads as with all of them, whatever their number: a rank
    stands for a device, and one device does not become faster when others are left out."""
    devices = request.devices[: point.count]
    of_point = replace(request, replicas=point.count, devices=devices, global_batch=point.global_batch)
    job = job_of(of_point, found, launch, repeat, hosts)
    threads = min(rank.threads for rank in job_of(request, found, 0, 0, hosts).ranks)
    ranks = tuple(replace(rank, threads=min(rank.threads, threads)) for rank in job.ranks)
    return replace(job, ranks=ranks, purpose=purpose)


def alone_on(
    request: Request, found: Found, slot: int, batch: int, repeat: int, launch: int, hosts: Sequence[Host]
) -> Job:
    """A launch on one of the chosen devices and nothing else; on the CPU a rank bound to its part of the cores."""
    ranks = job_of(request, found, 0, 0, hosts).ranks
    placed = ranks[slot]
    (host,) = (host for host in hosts if host.name == placed.host)
    devices = request.devices[slot : slot + 1]
    job = job_of(replace(request, replicas=1, devices=devices, global_batch=batch), found, launch, repeat, [host])
    bound = None if devices else (placed.local_rank, sum(rank.host == placed.host for rank in ranks))
    return replace(job, ranks=(replace(job.ranks[0], threads=placed.threads, core_set=bound),))
