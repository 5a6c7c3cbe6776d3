"""A rank under torchrun, which may be killed: ``torchrun --max-restarts 1 -m bench.worker.restarted FOLDER``.

It trains from the last whole checkpoint in the folder on, or from the beginning, and writes down when it got how far
(:mod:`bench.worker.restart` reads that). Weights that are loaded must be those that were saved.
"""

import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.core.children import die_with_launcher
from bench.core.codec import decode
from bench.core.errors import BenchError
from bench.core.job import Checkpoint, Job
from bench.worker.plan import Identity, Plan
from bench.worker.restart import DIARY, LATEST, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is whole: after which step, where, and the checksum of the weights."""

    step: int
    folder: str
    weights: str


class Diary:
    """A rank's notes (:class:`bench.worker.restart.Note`), for whoever watches."""

    def __init__(self, folder: str, turn: int, rank: int) -> None:
        self.about = {"turn": turn, "rank": rank, "pid": os.getpid()}
        path = os.path.join(folder, DIARY.format(turn=turn, rank=rank))
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, step: int = 0, **more: object) -> None:
        line = {**self.about, "what": what, "step": step, "ns": time.monotonic_ns(), **more}
        os.write(self.fd, json.dumps(line).encode() + b"\n")


def main(folder: str) -> None:
    turn = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    diary = Diary(folder, turn, int(os.environ["RANK"]))
    with open(Checkpoint(every=1, folder=folder).job_file, encoding="utf-8") as file:
        job = decode(Job, json.load(file))
    import torch
    import torch.distributed as dist

    from bench.worker import checkpoint, fingerprint, live, loop, rank

    diary.note("up")
    me = Identity.from_environment(os.environ)
    torch.set_num_threads(job.ranks[me.rank].threads)
    device = rank.device_of(job, me)
    if job.group:
        store = dist.FileStore(os.path.join(folder, f"ranks-{turn}"), me.world_size)
        rank.join(job, me, device, store)
    diary.note("joined")
    plan = Plan.of(job, me, device)
    load, session = plan.load(), plan.build()
    watch = live.TypeWatch(session.model)
    assert job.checkpoint is not None
    keeper = checkpoint.Torch(session, job.checkpoint)
    saved = latest(folder)
    if saved is not None:
        keeper.folder = saved.folder
        keeper.load()
        if saved.weights != fingerprint.checksum(session.weights()):
            raise BenchError("the weights that were loaded after the restart are not those that were saved")
    first = saved.step if saved is not None else 0
    for _ in range(first):
        load()  # training goes on with the batch after those that it has seen
    diary.note("loaded", first)
    every, last = job.checkpoint.steps, Steps.of(job.checkpoint.steps).last
    for step in range(first + 1, last + 1):
        loss = session.forward(load())
        session.backward(loss)
        session.optimize()
        loop.finish(device)
        diary.note("step", step, loss=float(loss.detach()))
        if step == first + 1 and not session.compiled:
            watch.stop()
        if step % every == 0:
            save(keeper, folder, step, fingerprint.checksum(session.weights()), me.rank)
    diary.note("ran", last, ran=plan.what_ran(session, watch))
    rank.leave()


def latest(folder: str) -> Saved | None:
    """The last one; None if there is none yet."""
    path = os.path.join(folder, LATEST)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return Saved(**json.load(file))


def save(keeper: Any, folder: str, step: int, weights: str, rank: int) -> None:
    """Into a folder for itself, which counts as soon as it is whole; the one before goes then."""
    before = latest(folder) if rank == 0 else None
    keeper.folder = os.path.join(folder, f"step-{step}")
    os.makedirs(keeper.folder, exist_ok=True)
    keeper.save()
    if rank == 0:
        about = asdict(Saved(step=step, folder=keeper.folder, weights=weights))
        path = os.path.join(folder, LATEST)
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(about, file)
        os.replace(file.name, path)
        if before is not None:
            shutil.rmtree(before.folder, ignore_errors=True)


if __name__ == "__main__":
    die_with_launcher()
    main(sys.argv[1])
