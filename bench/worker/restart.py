"""The cost of a lost rank: torchrun trains, a rank is killed, torchrun starts all of them again.

One process of the worker host stands in for the launch. It starts torchrun, watches the diary that the ranks keep
(:mod:`bench.worker.restarted`), kills the last rank between two checkpoints, and waits until all have gone on from the
last one, past the step that they had reached. Ranks meet over files, so that nothing listens.
"""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from bench.core.children import become_launcher
from bench.core.codec import decode
from bench.core.errors import BenchError
from bench.core.job import Job

ENGINE = "torch.distributed.run"
LOOK_EVERY_S = 0.002
STEPS_AFTER = 2
"""Steps of training after the one of the kill."""
DIARY = "diary"
"""In the folder of a launch: what the ranks of both starts write down, a line of JSON each."""

Tell = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line of the diary: what a rank of a ``turn`` of the engine did, in or after which step, and when
    (``ns``: CLOCK_MONOTONIC). ``ran``: at the end, what trained."""

    turn: int
    rank: int
    pid: int
    what: str
    step: int
    ns: int
    loss: float = math.nan
    ran: Mapping[str, object] | None = None


def killed_step(every: int) -> int:
    """The step after which a rank is killed, between two checkpoints."""
    return every + max(1, every // 2)


def run(job: Job, tell: Tell) -> dict[str, object]:
    """For :class:`bench.experiments.restart.RestartLook`."""
    assert job.checkpoint is not None
    folder = job.checkpoint.folder
    path = job.checkpoint.job_file  # where the ranks under the engine find it
    with open(path, encoding="utf-8") as file:
        inner = replace(decode(Job, json.load(file)), logs=job.logs, apex_problems=job.apex_problems)
    with open(path, "w", encoding="utf-8") as file:  # with what is known only now
        json.dump(asdict(inner), file)
    victim, killed = inner.processes - 1, killed_step(job.checkpoint.steps)
    tell("phase", phase="restart")
    begin = partial(become_launcher, os.getpid(), _environment())
    engine = subprocess.Popen(_command(folder, inner.processes), preexec_fn=begin)
    killed_ns, reached, notes = None, 0, list[Note]()
    for note in _until_over(engine, folder):
        notes.append(note)
        reached = max(reached, note.step)
        tell("step", step=reached, of=killed + STEPS_AFTER)
        if killed_ns is None and (note.what, note.rank, note.step) == ("step", victim, killed):
            killed_ns = time.monotonic_ns()
            os.kill(note.pid, signal.SIGKILL)
    ran = next((note.ran for note in notes if (note.turn, note.rank) == (1, 0) and note.ran), None)
    if engine.returncode != 0 or killed_ns is None:
        raise BenchError(f"torchrun ended with status {engine.returncode} before training was over; see the log")
    return {**found(notes, killed_ns, killed), "effective": ran}


def _command(folder: str, processes: int) -> list[str]:
    meet = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", f"{folder}/engine"]
    ranks = ["--nnodes", "1", "--nproc-per-node", str(processes), "--max-restarts", "1"]
    ranks += ["--log-dir", f"{folder}/logs"]  # else it makes one among the temporary files, and leaves it
    return [sys.executable, "-m", ENGINE, *ranks, *meet, "-m", "bench.worker.restarted", folder]


def _environment() -> dict[str, str]:
    """That of the ranks without what the worker host gives to its own, and with this package on the path."""
    own = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("BENCH_")}
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (here, kept.get("PYTHONPATH"))))}


def _until_over(engine: "subprocess.Popen[bytes]", folder: str) -> Iterator[Note]:
    """The ranks' notes as they come, until the engine has ended."""
    rest = b""
    with open(os.path.join(folder, DIARY), "ab+") as diary:
        diary.seek(0)
        while True:
            over = engine.poll() is not None
            *lines, rest = (rest + diary.read()).split(b"\n")
            yield from (Note(**json.loads(line)) for line in lines)
            if over:
                return
            time.sleep(LOOK_EVERY_S)


def found(notes: Sequence[Note], killed_ns: int, killed: int) -> dict[str, object]:
    """Times (ms) from the kill to when the last rank was there; and what the steps say that were trained twice."""
    ends: dict[tuple[int, str, int], int] = defaultdict(int)
    losses: dict[int, dict[tuple[int, int], float]] = {0: {}, 1: {}}
    for note in notes:
        at = note.turn, note.what, note.step
        ends[at] = max(ends[at], note.ns)
        if note.what == "step":
            losses[note.turn][note.rank, note.step] = note.loss
    loaded = next(step for turn, what, step in ends if (turn, what) == (1, "loaded"))

    def since_ms(what: str, step: int) -> float:
        return (ends[1, what, step] - killed_ns) / 1e6

    before = [ends[0, "step", step] - ends[0, "step", step - 1] for step in range(3, killed + 1)]
    twice = [at for at in losses[0].keys() & losses[1].keys() if losses[0][at] and math.isfinite(losses[1][at])]
    return {
        "killed_step": killed,
        "resumed_step": loaded,
        "up_ms": since_ms("up", 0),
        "joined_ms": since_ms("joined", 0),
        "loaded_ms": since_ms("loaded", loaded),
        "next_step_ms": since_ms("step", loaded + 1),
        "caught_up_ms": since_ms("step", killed + 1),
        "step_ms": statistics.median(before) / 1e6 if before else None,
        "loss_error": max((abs(losses[1][at] / losses[0][at] - 1) for at in twice), default=None),
    }
