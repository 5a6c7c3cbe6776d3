"""Launches for the benchmarks, made as ``bench run`` makes them: its plan, its worker host, its ranks."""

import argparse
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import paired  # also puts bench on the path

from bench import machine
from bench.console import RunProgress
from bench.core.channel import Channel
from bench.core.job import Job
from bench.experiments.plan import Request, job_of
from bench.seams import discover
from bench.seams.site import Options, Outcome
from bench.sites.local import WorkerHost
from bench.verbs.sets import scenarios_of

QUIET = 0.05
STRETCH_S = 1.0
NOT_QUIET = f"the others are of seconds in which other work took more than {QUIET:.0%} of the machine"
"""What other processes may take of the machine's cores, judged over stretches of so many seconds."""

START_LIMIT_S = 180.0
WARMUP = 12
"""Steps: torch DDP's logger waits for the device in its first ten."""
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment in which glibc keeps what is freed. By default it gives the top of the heap back and takes it again, page
by page, depending on what happens to lie there: three processes with the same hand-written, compiled ResNet-18 (64 px,
batch 16, two cores) had 5,700, 9,000 and 17,300 page faults a step."""


def plan(
    scenario: str,
    *,
    device: str = "cpu",
    gpus: str | None = None,
    ranks: int = 2,
    model: str,
    image_size: int | None = None,
    global_batch: int | None = None,
    warmup: int,
    iters: int,
) -> Job:
    """The job of one launch of ``scenario``, without its folders.

    ``ranks`` counts on the CPU. ``gpus``: those to use, as in ``bench run --gpus``; None for all of them.
    """
    device, here, _ = machine.choose_device(device)
    devices = machine.choose_gpus(gpus, here)
    (found,) = scenarios_of([scenario])
    trained = discover.load_workload(*discover.resolve(discover.DEFAULT_WORKLOAD, discover.WORKLOAD))
    settings = trained.workload.settings_on(device) | {"model": model}
    settings |= {"image_size": image_size} if image_size else {}
    request = Request(
        scenarios=(found.name,),
        device=device,
        devices=devices,
        replicas=len(devices) or ranks,
        task=trained.task(device, settings),
        global_batch=global_batch or trained.workload.batch_on(device),
        warmup=warmup,
        iters=iters,
        impl="native",
        stall_timeout_s=120.0,
    )
    return job_of(request, found, 0, 0, machine.here(devices))


def gpu_options(parser: argparse.ArgumentParser) -> None:
    """Where to measure: ``--device`` and ``--gpus``."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu, 2 gloo ranks")
    parser.add_argument("--gpus", metavar="0,2", help="with --device cuda: which, as in 'bench run' (default: all)")


def size_options(parser: argparse.ArgumentParser) -> None:
    """What to train, each with a default of the script's own."""
    parser.add_argument("--model", help="a classification model of torchvision")
    parser.add_argument("--image-size", type=int, metavar="PX")
    parser.add_argument("--global-batch", type=int, metavar="N")


def planned(options: argparse.Namespace, model: str, image_size: int, batch: int | None = None, ranks: int = 2) -> Job:
    """The job that the options ask for, with these defaults: warm after :data:`WARMUP` steps, and one measured step."""
    return plan(
        options.scenario,
        device=options.device,
        gpus=options.gpus,
        ranks=ranks,
        model=options.model or model,
        image_size=options.image_size or image_size,
        global_batch=options.global_batch or batch,
        warmup=WARMUP,
        iters=1,
    )


def folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for what ranks write, gone afterwards."""
    return tempfile.TemporaryDirectory(prefix="bench-benchmark-")


@contextmanager
def host(
    where: str, *, device: str = "cpu", fresh: bool = False, command: Callable[[Job, str], list[str]] | None = None
) -> Iterator[WorkerHost]:
    """A worker host that is ready, with its log in the folder ``where``."""
    log = os.path.join(where, f"worker-host-{'launcher' if command else 'fresh' if fresh else 'forked'}.log")
    options = Options(device=device, hosts=machine.here(()), log=log, fresh=fresh)
    with WorkerHost(options, command) as started:
        started.wait_until_ready()
        started.prepare(plan("single", device=device, model="resnet18", warmup=1, iters=1).workload)
        yield started


def launch(
    on: WorkerHost, job: Job, where: str, on_event: Callable[[dict[str, Any]], None] = lambda event: None
) -> Outcome:
    """Do one launch. Raises ``RuntimeError`` with the reason when it fails.

    ``where``: the folder for that of its logs, unless the job names one. Progress is followed as ``bench run`` follows
    it when standard error is no terminal, and goes nowhere.
    """
    job = replace(job, logs=job.logs or tempfile.mkdtemp(dir=where))
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        units, unit = job.workload.units, job.workload.unit
        following = RunProgress(steps=job.steps, units=units, unit=unit, stream=nowhere)
        following.expect([job.scenario])
        with following:

            def hear(event: dict[str, Any]) -> None:
                on_event(event)
                following.hear(event)

            following.begin(job.scenario, "measuring")
            outcome = on.perform(job, hear)
    if outcome.status != "ok":
        raise RuntimeError(f"the launch of {job.scenario} failed: {outcome.reason}{_log(job.logs)}")
    return outcome


def read(job: Job) -> list[Any]:
    """What the ranks of a job of :func:`block_job` left, in the order of ranks."""
    return [json.loads(Path(job.logs, f"blocks{rank}.json").read_text()) for rank in range(job.processes)]


def _log(folder: str) -> str:
    """What the first rank that left a log said, from the end."""
    logs = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path(folder).glob("*.log")))
    return next((f"\n{text[-2000:]}" for text in logs if text.strip()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What the ranks of a launch of ``blocks.py`` measured.

    ``results``: the file of each rank. ``rounds``: a block takes as long as on its slowest rank. ``quiet``: those of
    ``rounds`` that count. ``device``: of the job.
    """

    results: list[dict[str, Any]]
    rounds: list[paired.Round]
    quiet: list[paired.Round]
    torch: str
    device: str = "cpu"

    def said(self, candidate: str = "B") -> list[str]:
        """For people: how many rounds count, and what all of them would give."""
        if self.device == "cuda":
            return [f"all {len(self.rounds)} rounds count: other work on the cores of a server is not on its GPU"]
        lines = [f"{len(self.quiet)} of {len(self.rounds)} rounds count; {NOT_QUIET}"]
        if len(self.rounds) > len(self.quiet):
            middle = paired.middle(paired.log_ratio(one, candidate) for one in self.rounds)
            lines.append(f"(over all rounds the ratio of the blocks is {math.exp(middle):.4f})")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is asked of a launch of ``blocks.py``: ``what`` (``overhead``, ``sampler`` or ``gate``), in blocks of so
    many ``steps``, for so many ``seconds``. ``times``: how many times over the overhead is laid on each step.
    ``peace_s``: how long a sampler then samples at its own pace.
    """

    what: str
    steps: int
    seconds: float = 0.0
    times: int = 1
    peace_s: float = 20.0


def blocks(job: Job, *measures: Measure) -> list[Blocks]:
    """Do blocks of ``job``'s steps in turn, in one launch for all ``measures``.

    On a GPU every round counts: in a container the kernel's account is of the whole server, whose other work is on its
    cores and not on this GPU. Raises ``RuntimeError`` when the launch fails.
    """
    with folder() as where, host(where, device=job.workload.device) as started:
        asked = block_job(job, where, *measures)
        launch(started, asked, where)
        of_ranks = read(asked)
        version = str(started.description["torch"])
    return [_blocks(list(results), job.workload.device, version) for results in zip(*of_ranks, strict=True)]


def _blocks(results: list[dict[str, Any]], device: str, version: str) -> Blocks:
    """Of one measure, from what each rank left."""
    ranks = [result["rounds"] for result in results]
    measured = [
        paired.round_of((same[0][0], max(taken for _, taken in same)) for same in zip(*blocks, strict=True))
        for blocks in zip(*([one["blocks"] for one in of_rank] for of_rank in ranks), strict=True)
    ]
    loads = [
        Load(t_s=of_all[0]["t_s"], machine_s=of_all[0]["machine_s"], own_s=sum(one["own_s"] for one in of_all))
        for of_all in zip(*ranks, strict=True)
    ]
    counted = measured if device == "cuda" else quiet(measured, loads)
    return Blocks(results=results, rounds=measured, quiet=counted, torch=version, device=device)


def block_job(job: Job, where: str, *measures: Measure) -> Job:
    """The job with ``blocks.py`` around its scenario, and a folder under ``where`` that says what is asked of it."""
    folder = tempfile.mkdtemp(dir=where)
    asked = {"strategy": job.strategy, "measures": [asdict(one) for one in measures]}
    Path(folder, "ask.json").write_text(json.dumps(asked))
    strategy_file = os.path.join(paired.ROOT, "benchmarks", "blocks.py")
    return replace(job, strategy="blocks", strategy_file=strategy_file, logs=folder)


class Turns:
    """A launch that lives in the background and does a block of steps each time it is asked for one."""

    def __init__(self, on: WorkerHost, job: Job, where: str, steps: int = 1) -> None:
        self.job = block_job(job, where, Measure(what="gate", steps=steps))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(self.job.logs, "gate"))
        self.listener.listen(1)
        self.listener.settimeout(START_LIMIT_S)
        self.pids: dict[int, int] = {}
        self.error: RuntimeError | None = None
        self.background = Thread(target=self._launch, args=(on, where), daemon=True)
        self.background.start()

    def _launch(self, on: WorkerHost, where: str) -> None:
        try:
            launch(on, self.job, where, self._hear)
        except RuntimeError as error:
            self.error = error
            with suppress(OSError), socket.socket(socket.AF_UNIX) as knock:  # whoever waits for it to be warm need not
                knock.connect(self.listener.getsockname())

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "up":
            self.pids[event["rank"]] = event["pid"]

    def wait_until_warm(self) -> None:
        """Raises ``RuntimeError`` with the reason when the launch failed before it was warm."""
        connection, _ = self.listener.accept()
        if self.error is not None:
            connection.close()
            raise self.error
        connection.settimeout(START_LIMIT_S)
        self.channel = Channel(connection)

    def step(self) -> None:
        """Do one block. Raises ``ConnectionError`` when the launch is gone."""
        self.channel.send(event="turn", go_on=True)
        self.channel.wait_for("done")

    def finish(self) -> "list[list[Turn]]":
        """End it; for each rank, its turns."""
        self.channel.send(event="turn", go_on=False)
        self.background.join()
        self.channel.close()
        self.listener.close()
        results = read(self.job)
        return [[Turn(**turn) for turn in result["blocks"]] for (result,) in results]


def in_turns(launched: Turns, name: str, other: Callable[[], float], seconds: float, least: int) -> list[paired.Round]:
    """Rounds of a launch, which is the ``name`` of A and B, and something else that does a block and returns its
    seconds: for so many seconds, and at least so many rounds. A block takes as long as on the slowest rank."""
    orders: list[str] = []
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(orders) < least:
        orders.append(paired.LONG[len(orders) % 2])
        for kind in orders[-1]:
            if kind == name:
                launched.step()
            else:
                taken.append(other())
    turns, others = iter(slowest(launched.finish())), iter(taken)
    return [paired.round_of((kind, next(turns if kind == name else others)) for kind in order) for order in orders]


def stay_on_cores(job: Job, pids: Mapping[int, int]) -> None:
    """Bind each rank, once warm, to as many cores as it has threads: the same ones in every launch of the job.

    Of processes that take turns each is woken on the core where it ran last. On a virtual machine, where other guests
    are behind some cores and not behind others, this alone made their steps differ by up to 5 %.
    """
    cores, threads = sorted(os.sched_getaffinity(0)), job.ranks[0].threads
    for rank, pid in pids.items():
        mine = {cores[(rank * threads + thread) % len(cores)] for thread in range(threads)}
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(task), mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """At the start of a round: the time, and the CPU seconds used so far by the machine and by what is measured."""

    t_s: float
    machine_s: float
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Load):
    """A block that was asked for: the load at its start, and how long it took on one rank."""

    seconds: float


def slowest(ranks: list[list[Turn]]) -> list[float]:
    """For each turn, its seconds on the slowest rank."""
    return [max(turn.seconds for turn in same) for same in zip(*ranks, strict=True)]


def quiet(measured: Sequence[paired.Round], loads: Sequence[Load]) -> list[paired.Round]:
    """The rounds that count: those in a stretch of a second or more in which other work took at most :data:`QUIET`.

    That is decided by what other processes used, and never by how long a block took, so it favours neither side. A
    second, because the kernel's account of the whole machine is in hundredths. The last stretch has no end: left out.
    """
    counted: list[paired.Round] = []
    start = 0
    for end in range(1, len(measured)):
        first, last = loads[start], loads[end]
        if last.t_s - first.t_s >= STRETCH_S:
            others_s = last.machine_s - first.machine_s - (last.own_s - first.own_s)
            if others_s <= QUIET * (last.t_s - first.t_s) * (os.cpu_count() or 1):
                counted += measured[start:end]
            start = end
    return counted


def enough(done: Blocks, pairs: int) -> paired.Check:
    """Whether there is a round for each pair, and more than one where other work is on the cores that compute."""
    rounds = pairs if done.device == "cuda" else 2 * pairs
    text = f"at least {rounds} rounds" + " while nothing else ran" * (done.device != "cuda")
    return paired.Check(text, len(done.quiet) >= rounds, by_noise=True)


def describe(job: Job) -> str:
    """What is measured, in a few words."""
    workload = job.workload
    ranks = paired.count(job.processes, "rank")
    return f"{job.scenario}, {ranks}, {workload.device}, {workload.title}, global batch {workload.global_batch}"
