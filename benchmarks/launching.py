"""Launches for the benchmarks, made as ``bench run`` makes them: its plan, its worker host, its ranks."""

import json
import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import paired  # also puts bench on the path

from bench import discover, machine
from bench.console import Console, RunProgress
from bench.launch.local import WorkerHost
from bench.plan import DEFAULT_GLOBAL_BATCH, DEFAULT_IMAGE_SIZE, Request, launches
from bench.records import Job

QUIET = 0.05
"""The share of the machine's cores that other work may take during a round for it to count."""


def plan(
    scenario: str,
    *,
    device: str = "cpu",
    ranks: int = 2,
    model: str,
    image_size: int | None = None,
    global_batch: int | None = None,
    warmup: int,
    iters: int,
) -> Job:
    """The job of one launch of ``scenario``, without its folders. ``ranks`` counts on the CPU; on GPUs all are used."""
    device, gpus = machine.choose_device(device)
    devices = machine.choose_gpus(None, gpus)
    found = discover.load(*discover.resolve(scenario))
    request = Request(
        scenarios=(found.name,),
        device=device,
        devices=devices,
        replicas=len(devices) or ranks,
        model=model,
        image_size=image_size or DEFAULT_IMAGE_SIZE[device],
        global_batch=global_batch or DEFAULT_GLOBAL_BATCH[device],
        warmup=warmup,
        iters=iters,
        launches=1,
        profile="quick",
        impl="native",
        apex_path=None,
        python=None,
        seed=0,
        fresh=False,
        stall_timeout_s=120.0,
        label=None,
    )
    return launches(request, (found,), machine.cores())[0].job


@contextmanager
def folder() -> Iterator[str]:
    """A folder for what ranks write, gone afterwards."""
    path = tempfile.mkdtemp(prefix="bench-benchmark-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def host(where: str, *, device: str = "cpu", fresh: bool = False) -> Iterator[WorkerHost]:
    """A worker host that is ready, with its log in the folder ``where``."""
    log = os.path.join(where, f"worker-host-{'fresh' if fresh else 'forked'}.log")
    with WorkerHost(python=None, fresh=fresh, apex_path=None, log=log, device=device) as started:
        started.wait_until_ready()
        yield started


def launch(on: WorkerHost, job: Job, where: str) -> str:
    """Do one launch and return the folder its ranks wrote into. Raises ``RuntimeError`` with the reason when it fails.

    Progress is followed as ``bench run`` follows it when standard error is no terminal, and goes nowhere.
    """
    scratch = tempfile.mkdtemp(dir=where)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        following = RunProgress(
            Console(stream=nowhere), launches=1, steps=job.steps, global_batch=job.workload.global_batch
        )
        with following:
            following.begin(0, job.scenario)
            outcome = on.run(replace(job, scratch=scratch, logs=scratch), following.hear)
    if outcome.status != "ok":
        raise RuntimeError(f"the launch of {job.scenario} failed: {outcome.reason}{_log(scratch)}")
    return scratch


def read(scratch: str, processes: int, name: str = "rank") -> list[dict[str, Any]]:
    """The files ``<name><R>.json`` of a launch, in the order of ranks."""
    results = []
    for rank in range(processes):
        with open(os.path.join(scratch, f"{name}{rank}.json"), encoding="utf-8") as file:
            results.append(json.load(file))
    return results


def _log(scratch: str) -> str:
    """What the first rank that left a log said, from the end."""
    for entry in sorted(os.listdir(scratch)):
        if entry.endswith(".log"):
            with open(os.path.join(scratch, entry), encoding="utf-8", errors="replace") as file:
                text = file.read()
            if text.strip():
                return "\n" + text[-2000:]
    return ""


def torch_version(on: WorkerHost) -> str:
    """Of the interpreter that computes."""
    return str(on.description["torch"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What the ranks of a launch of ``blocks.py`` measured.

    ``results``: the file of each rank. ``rounds``: a block counts as long as its slowest rank. ``quiet``: those of
    ``rounds`` during which other work took at most :data:`QUIET` of the machine. That is decided by what other
    processes used, never by how long a block took, so it favours neither side.
    """

    results: list[dict[str, Any]]
    rounds: list[paired.Round]
    quiet: list[paired.Round]
    torch: str

    @property
    def steps(self) -> int:
        """Of each block."""
        return int(self.results[0]["steps"])

    def said(self) -> list[str]:
        """For people: how many rounds counted, and what all of them would have given."""
        lines = [
            f"{len(self.quiet)} of {len(self.rounds)} rounds counted: in the others, other work took more than "
            f"{QUIET:.0%} of the machine"
        ]
        if len(self.rounds) > len(self.quiet):
            middle = statistics.median(one.log_ratio for one in self.rounds)
            lines.append(f"(over all rounds, the median of the ratio would be {math.exp(middle):.4f})")
        return lines


def blocks(job: Job, what: str, *, seconds: float, block_ms: float) -> Blocks:
    """Do blocks of ``job``'s steps in turn for so long; see ``blocks.py``. A failed launch raises ``RuntimeError``."""
    ask = {"what": what, "strategy": job.strategy, "seconds": seconds, "block_ms": block_ms}
    os.environ["BENCH_BLOCKS"] = json.dumps(ask)  # the ranks inherit it
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.py")
    with folder() as where, host(where, device=job.workload.device) as started:
        scratch = launch(started, replace(job, strategy="custom", scenario_file=file), where)
        results = read(scratch, job.processes, "blocks")
        version = torch_version(started)
    measured, quiet = [], []
    for ranks in zip(*(result["rounds"] for result in results), strict=True):
        blocks_of_ranks = zip(*(rank["blocks"] for rank in ranks), strict=True)
        one = paired.Round.of([(same[0]["kind"], max(block["s"] for block in same)) for same in blocks_of_ranks])
        measured.append(one)
        others_s = ranks[0]["machine_busy_s"] - sum(rank["own_cpu_s"] for rank in ranks)
        if others_s <= QUIET * ranks[0]["wall_s"] * (os.cpu_count() or 1):
            quiet.append(one)
    return Blocks(results=results, rounds=measured, quiet=quiet, torch=version)
