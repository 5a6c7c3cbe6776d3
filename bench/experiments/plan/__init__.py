"""From a request to the launches of a run, in order. Pure: everything is checked before anything runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, TypeVar

from bench.core.codec import Between, Named, OneOf
from bench.core.dtypes import HALF_ON
from bench.core.errors import RequestError
from bench.core.job import EXAMPLES, SMALL_STEPS, Computation, Job, Placement, Task, Training
from bench.core.records import Host
from bench.runs.fields import Amount, Batch, Count, DeviceKind, Several
from bench.seams import experiment
from bench.seams.discover import REFERENCE, STRATEGY, Found, names
from bench.seams.switching import load_switch
from bench.seams.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much is measured: launches per scenario, warm-up and measured steps of each."""

    launches: int
    warmup: int
    iters: int


PROFILES: dict[tuple[str, str], Profile] = {
    ("quick", "cpu"): Profile(launches=1, warmup=2, iters=3),
    ("quick", "cuda"): Profile(launches=1, warmup=10, iters=30),
    ("standard", "cpu"): Profile(launches=5, warmup=5, iters=30),
    ("standard", "cuda"): Profile(launches=5, warmup=50, iters=100),
    ("nightly", "cpu"): Profile(launches=7, warmup=5, iters=40),
    ("nightly", "cuda"): Profile(launches=7, warmup=50, iters=200),
}

RANKS = "--ranks/--nproc"
"""The option of :mod:`bench.verbs.asked` that counts ranks, under both of its names as argparse writes them."""

BYTES_PER_RANK = 128 * 2**20  # at least: a rank forked for a small model has 140 MiB of private memory

KEPT_SHARE = 0.6
"""Of a GPU's memory, for what autograd keeps of a default batch: the rest is for the CUDA context, weights and their
gradients, what the backward pass makes, and cuDNN's search."""

MANY_GPUS = 4
"""From this many on, shares of the default batch would be so small that all scenarios tie on the speed of Python."""

PREFETCH = 2  # batches that each process of a loader makes ahead, as torch's default is
WINDOW_S = 1.0  # how long the fastest loader is timed, at the least; a slower one takes longer for the same batches
MOST_BATCHES = 2000  # that a loader is timed with
BYTES_PER_STEP = 2048  # of one rank until the run is sealed: marks, loss, and its row on the way to the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request with every default filled in.

    ``devices``: the chosen GPUs' UUIDs in the order given; empty on the CPU. ``replicas``: how many devices (CPU:
    ranks) share the global batch. ``until_precision``: the relative half-width of the 95 % interval of the step time
    for which launches are added; ``budget_s``: from the first launch on.
    ``per_rank``: whether the batch was asked for by ``--batch-per-rank``. ``set``: the set of scenarios, if one was
    named. ``site``: its name or file. ``workers``: as in :class:`~bench.core.job.Training`; ``input_sweep``: they
    are None until the sweep has chosen them. ``pythons``: of several interpreters the path of each by the name that its
    scenarios end in; empty where there is one, ``python``. ``experiments``: by name what their options ask for.
    """

    scenarios: tuple[str, ...]
    device: DeviceKind
    devices: tuple[str, ...]
    replicas: Several
    task: Task
    global_batch: Batch
    warmup: Count
    iters: Several
    launches: Several = 1
    profile: str = "quick"
    impl: Annotated[str, OneOf(("auto", "native", "apex"))] = "auto"
    apex_path: str | None = None
    python: str | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    fresh: bool = False
    stall_timeout_s: Amount
    label: str | None = None
    until_precision: Amount | None = None
    budget_s: Amount | None = None
    diagnose: bool = False
    trace: bool = False
    parity: bool = True
    force: bool = False
    per_rank: bool = False
    set: str | None = None
    site: str = "local"
    workers: Count | None = None
    input_sweep: bool = False
    experiments: Annotated[Mapping[str, object], Named(experiment.asked)] = field(default_factory=dict)

    @property
    def workload(self) -> Training:
        return Training(
            **asdict(self.task),
            global_batch=self.global_batch,
            replicas=self.replicas,
            device=self.device,
            warmup=self.warmup,
            seed=self.seed,
            workers=self.workers,
            prefetch=PREFETCH if self.workers else None,
        )


def global_batch(
    asked: int | None,
    per_rank: int | None,
    workload: Workload,
    device: str,
    scenarios: Sequence[Found],
    replicas: int,
    gpu_mib: float | None = None,
) -> int:
    """As asked, or ``per_rank`` on every device, or the workload's own rounded to what the replicas can share.

    On :data:`MANY_GPUS` and more the workload's own is what each GPU gets, not what they share. It is halved until
    what autograd keeps of it fits :data:`KEPT_SHARE` of ``gpu_mib``, the memory of the smallest GPU (None: unknown), in
    the scenario with the fewest replicas. Raises :class:`RequestError` when the devices' parts would not be equal, or
    those of no scenario would; one that cuts the devices' parts again may have unequal ones, which are its obstacle.
    """
    parts_of = {found.name: found.strategy.replicas(replicas) for found in scenarios} or {"": 1}
    most, counts = max(parts_of, key=lambda name: parts_of[name]), parts_of.values()
    parts = parts_of[most]
    devices = max((found.strategy.training_devices(replicas) for found in scenarios), default=1)
    if asked is None and per_rank is None:
        batch = workload.batch_on(device) * (devices if device == "cuda" and devices >= MANY_GPUS else 1)
        room_mib = math.inf if gpu_mib is None else KEPT_SHARE * gpu_mib
        while batch > parts and batch / min(counts) * workload.example_mib > room_mib:
            batch //= 2
        return max(1, batch // parts) * parts
    each, given = (1, asked) if per_rank is None else (devices, per_rank)
    assert given is not None
    of_devices = max(min(count, devices) for count in counts)
    if given * each % of_devices or all(given * each % count for count in counts):
        step = parts // math.gcd(parts, each)
        below, above = given // step * step, (given // step + 1) * step
        unit = workload.unit if workload.units_per_example == 1 else "examples"
        problem = f"{given * each} {unit} are not divisible by {parts}, the equal parts that {most} cuts them into"
        option = "--global-batch" if per_rank is None else "--batch-per-rank"
        raise RequestError(option, problem, f"use {below} or {above}" if below else f"use {above}")
    return given * each


def check_memory(request: Request, scenarios: Sequence[Found], available_bytes: int) -> None:
    """Refuse what cannot fit: ranks of more than is free, timings of more than a quarter.

    Raises :class:`RequestError` that names the largest option and the most that it can be.
    """
    ranks = [found.strategy.processes(request.replicas) for found in scenarios]
    steps = request.warmup + request.iters
    most_ranks = max(1, available_bytes // BYTES_PER_RANK)
    if max(ranks, default=1) > most_ranks:
        option = RANKS if request.device == "cpu" else "--gpus"
        take = f"{max(ranks):,} ranks take {max(ranks) * BYTES_PER_RANK >> 20:,} MiB of memory at the least"
        raise RequestError(option, f"{take} and {available_bytes >> 20:,} MiB are free", f"use at most {most_ranks:,}")
    needed, budget = request.launches * steps * sum(ranks) * BYTES_PER_STEP, available_bytes // 4
    if needed > budget:
        asked = {"--launches": request.launches, "--iters": request.iters, "--warmup": request.warmup}
        option, largest = max(asked.items(), key=lambda item: item[1])
        others = 0 if option == "--launches" else steps - largest  # which stay as they are
        most = (largest + others) * budget // needed - others
        raise RequestError(
            option,
            f"the timings of {request.launches} launches of {steps} steps on up to {max(ranks)} ranks take "
            f"{needed >> 30} GiB of memory and {available_bytes >> 30} GiB are free",
            f"use at most {most}" if most > 0 else "ask for less",
        )


def check_examples(request: Request, example_bytes: int | None, available_bytes: int) -> None:
    """Refuse examples of more than half of the memory. ``example_bytes``: of one; None: of more than all of that.

    Raises :class:`RequestError` that names the batch, or the settings where the smallest batch would not fit either.
    """
    workload = request.workload
    held = workload.pool_batches if workload.workers is None else 1 + workload.workers * (workload.prefetch or 0)
    most = 0 if example_bytes is None else available_bytes // 2 // example_bytes // held
    free = f"more than half of the memory, and {available_bytes >> 30} GiB are free"
    if most < workload.replicas:
        option = "--image-size" if "image_size" in workload.settings else "--setting"
        raise RequestError(option, f"{workload.title}: the smallest batch would take {free}", "use smaller examples")
    if most < workload.global_batch:
        option, fits = ("--batch-per-rank", most // workload.replicas) if request.per_rank else ("--global-batch", most)
        raise RequestError(option, f"{held} batches of {workload.global_batch} take {free}", f"use at most {fits}")


def in_turns(items: Sequence[T], rounds: int) -> list[tuple[T, int]]:
    """Each of ``items`` with the number of the round, round by round. Every other round goes backwards, so that drift
    of the machine hits all alike."""
    return [(one, repeat) for repeat in range(rounds) for one in in_turn(items, repeat)]


def in_turn(items: Sequence[T], repeat: int) -> Sequence[T]:
    return items[:: -1 if repeat % 2 else 1]


def loading(
    request: Request, found: Found, workers: int, repeat: int, launch: int, hosts: Sequence[Host], batches: int
) -> Job:
    """A launch in which the ranks of a scenario load ``batches`` and train nothing. Those before them, which
    fill the queues, are its warm-up."""
    job = job_of(replace(request, workers=workers), found, launch, repeat, hosts)
    filling = replace(job.workload, warmup=max(1, workers * (PREFETCH + 1)))
    return replace(job, purpose="loading", workload=filling, iters=batches)


def worker_counts(request: Request, found: Found, hosts: Sequence[Host]) -> tuple[int, ...]:
    """Workers of each rank: 0, 1, 2, 4, ... up to the cores that a rank may use."""
    cores = min(rank.threads for rank in job_of(request, found, 0, 0, hosts).ranks)
    return (0, *(1 << power for power in range(cores.bit_length())))


def batches(per_s: float, counts: Sequence[int]) -> int:
    """How many batches each launch loads. ``per_s``: how many the most workers load.

    A multiple of each of ``counts``: workers deliver in turn, so that the batches of a turn come together. It begins
    with :func:`fewest_batches`.
    """
    turn = max(1, *counts)
    return max(fewest_batches(counts), turn * -(-int(min(MOST_BATCHES, WINDOW_S * per_s)) // turn))


def fewest_batches(counts: Sequence[int]) -> int:
    return 2 * max(1, *counts)


def in_double(request: Request, found: Found, launch: int, hosts: Sequence[Host], probe_seed: int) -> Job:
    """The launch in which the numerics of a scenario are judged: in double precision, so without what its level casts,
    and without switches that cannot be had there."""
    job = job_of(request, found, launch, 0, hosts)
    return replace(
        job,
        purpose="probe",
        precision="O0",
        switches=tuple(one for one in job.switches if load_switch(one.name, one.file).double),
        workload=job.workload.in_small(probe_seed, EXAMPLES * job.replicas),
        iters=SMALL_STEPS - 1,
    )


def reference(
    request: Request,
    computations: tuple[Computation, ...],
    launch: int,
    hosts: Sequence[Host],
    probe_seed: int | None,
    environment: str | None = None,
) -> Job:
    """The launch that all numerics are compared with, on the first chosen device. On the CPU, processes that know
    nothing of each other share the computations and the cores."""
    first = host_of_each(request, hosts)[0]
    fewest = min(one.threads for one in computations) or first.cores
    at_once = min(len({(one.replicas, one.examples) for one in computations}), max(1, first.cores // fewest))
    threads, devices = max(1, first.cores // at_once), request.devices[:1]
    ranks = tuple(
        Placement(role="replica", replicas=1, host=first.name, local_rank=rank, threads=threads, devices=devices)
        for rank in range(at_once)
    )
    return Job(
        launch=launch,
        scenario=REFERENCE,
        repeat=0,
        strategy="single",
        strategy_file=names(STRATEGY)["single"],
        precision="O0",
        half=HALF_ON[request.device],
        ranks=ranks,
        group=False,
        impl="native",
        workload=request.workload,
        iters=request.iters,
        stall_timeout_s=request.stall_timeout_s,
        purpose="reference",
        computations=computations,
        probe_seed=probe_seed,
        environment=environment,
    )


def job_of(request: Request, found: Found, launch: int, repeat: int, hosts: Sequence[Host]) -> Job:
    slow = [load_switch(one.name, one.file).slow_start for one in found.switches]
    return Job(
        launch=launch,
        scenario=found.name,
        repeat=repeat,
        strategy=found.strategy_name,
        strategy_file=found.strategy_file,
        precision=found.scenario.precision,
        half=found.half_on(request.device),
        ranks=_placements(request, found, hosts),
        group=found.strategy.group,
        impl=request.impl,
        workload=request.workload,
        iters=request.iters,
        options=dict(found.scenario.options),
        switches=found.switches,
        slow_start=max([found.strategy.slow_start, *slow]),
        apex_path=request.apex_path,
        stall_timeout_s=request.stall_timeout_s,
        environment=found.environment,
        rendezvous_timeout_s=max(300.0, 10.0 * request.stall_timeout_s),  # the supervisor acts first: it knows who
    )


def _placements(request: Request, found: Found, hosts: Sequence[Host]) -> tuple[Placement, ...]:
    """Where each rank of a scenario runs, on each host with its share of the threads. One that would drive two hosts'
    devices is an obstacle (:mod:`bench.experiments.obstacles`)."""
    host_of, ranks = host_of_each(request, hosts), found.strategy.ranks(request.replicas)
    hosts_of_ranks = [host_of[rank.devices[0]] for rank in ranks]
    return tuple(
        Placement(
            role=rank.role,
            replicas=rank.replicas if request.devices or rank.on_cpu is None else rank.on_cpu,
            host=host.name,
            local_rank=hosts_of_ranks[:number].count(host),
            threads=max(1, host.cores // hosts_of_ranks.count(host)),
            devices=tuple(request.devices[device] for device in rank.devices) if request.devices else (),
        )
        for number, (rank, host) in enumerate(zip(ranks, hosts_of_ranks, strict=True))
    )


def host_of_each(request: Request, hosts: Sequence[Host]) -> list[Host]:
    """The host of each chosen GPU; on the CPU the ranks are shared evenly, neighbours on the same host."""
    if request.devices:
        return [next(host for host in hosts if uuid in host.devices) for uuid in request.devices]
    return [hosts[position * len(hosts) // request.replicas] for position in range(request.replicas)]
