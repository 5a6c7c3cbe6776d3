"""A rank under torchrun, which may be killed: ``torchrun --max-restarts 1 -m bench.worker.restarted FOLDER``.

It trains from the checkpoint in the folder on, or from the beginning, and writes down when it got how far
(:mod:`bench.worker.restart` reads that). Weights that are loaded must be those that were saved.
"""

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from bench.core.children import die_with_launcher
from bench.core.codec import decode
from bench.core.errors import BenchError
from bench.core.job import Checkpoint, Job
from bench.worker.plan import Plan
from bench.worker.restart import DIARY, STEPS_AFTER, killed_step

if TYPE_CHECKING:
    from bench.worker.checkpoint import Torch


class Diary:
    """A rank's notes (:class:`bench.worker.restart.Note`), for whoever watches."""

    def __init__(self, folder: str, turn: int, rank: int) -> None:
        self.about = {"turn": turn, "rank": rank, "pid": os.getpid()}
        self.fd = os.open(os.path.join(folder, DIARY), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, step: int = 0, **more: object) -> None:
        line = {**self.about, "what": what, "step": step, "ns": time.monotonic_ns(), **more}
        os.write(self.fd, json.dumps(line).encode() + b"\n")


def main(folder: str) -> None:
    turn, number = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    diary = Diary(folder, turn, number)
    with open(Checkpoint(every=1, folder=folder).job_file, encoding="utf-8") as file:
        job = decode(Job, json.load(file))
    import torch.distributed as dist

    from bench.worker import by_fp32, rank

    diary.note("up")
    device = rank.settle(job, number)
    if job.group:
        rank.join(job, number, device, dist.FileStore(os.path.join(folder, f"ranks-{turn}"), job.processes))
    diary.note("joined")
    with by_fp32.by_fp32(job):
        train(Plan.of(job, number, device), job.checkpoint, diary)
    rank.leave()


def train(plan: Plan, saves: Checkpoint | None, diary: Diary) -> None:
    from bench.worker import checkpoint, fingerprint, live, loop

    assert saves is not None
    load, session = plan.load(), plan.build()
    watch = live.TypeWatch(session.model)
    keeper = checkpoint.Torch(session, saves)
    first = 0
    if os.path.exists(keeper.file):
        saved = keeper.load()
        if saved["weights"] != fingerprint.checksum(session.weights()):
            raise BenchError("the weights that were loaded after the restart are not those that were saved")
        first = saved["step"]
    for _ in range(first):
        load()  # training goes on with the batch after those that it has seen
    diary.note("loaded", first)
    killed = killed_step(saves.steps)
    for step in range(first + 1, killed + STEPS_AFTER + 1):
        loss = session.forward(load())
        session.backward(loss)
        session.optimize()
        loop.finish(plan.parts.device)
        diary.note("step", step, loss=float(loss.detach()))
        if first == 0 and step == killed and plan.parts.rank == plan.parts.world_size - 1:
            signal.pause()  # until it is killed, which must not be after the last step
        if step == first + 1 and not session.compiled:
            watch.stop()
        if step % saves.steps == 0:
            save(keeper, step, fingerprint.checksum(session.weights()))
    diary.note("ran", step, ran=plan.what_ran(session, watch))


def save(keeper: "Torch", step: int, weights: str) -> None:
    """Into a file beside the one before, whose place it takes once it is whole. ``weights``: their checksum."""
    whole = keeper.file
    keeper.file = f"{whole}.part"
    keeper.save(step=step, weights=weights)
    if keeper.rank == 0:
        os.replace(keeper.file, whole)
    keeper.file = whole


if __name__ == "__main__":
    die_with_launcher()
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that drops a tensor while Python ends would abort the process
