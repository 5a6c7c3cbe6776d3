"""The cost of a checkpoint: cycles of steps that begin with a save, between cycles of as many steps without one.

The order is ABBA, so that drift hits both alike. Weights, optimizer state, master weights and the loss scale are saved,
by ``torch.save`` of rank 0 or by ``torch.distributed.checkpoint``; loaded again, they must be what was saved.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.job import Checkpoint
from bench.worker import fingerprint, loop
from bench.worker.plan import Plan, Report
from bench.worker.precision import ApexAmp
from bench.worker.rank import barrier
from bench.worker.session import Session, sharded
from bench.worker.workload import map_tensors

FEWEST_PAIRS, FEWEST_STEPS = 2, 6
"""Of cycles with and without a save; and of steps of either kind."""
NO_ROOM = ("no space left", "disk quota", "file too large")
LEFT_MIB = 4.0
"""A disk with less than this is full: what failed there failed for want of room."""


def pairs_of(wanted: Checkpoint) -> int:
    return max(FEWEST_PAIRS, -(-FEWEST_STEPS // wanted.every))


def steps_of(wanted: Checkpoint) -> int:
    """How many steps there are after the warm-up."""
    return 2 * pairs_of(wanted) * wanted.steps + 2


def perform(plan: Plan, report: Report) -> dict[str, Any]:
    """For :class:`bench.runs.experiments.CheckpointLook` (ms), and ``size_mib`` of the files. Every rank calls it."""
    wanted = plan.parts.job.checkpoint
    assert wanted is not None
    load, session, _, ran = plan.warmed_up(report)
    tick = report("checkpoint", of=steps_of(wanted))
    keeper: Torch | Distributed = Torch(session, wanted) if wanted.how == "torch" else Distributed(session, wanted)
    times: dict[str, list[float]] = {"saving_ms": [], "plain_ms": [], "save_ms": []}
    done = 0

    def step() -> None:
        nonlocal done
        session.backward(session.forward(load()))
        session.optimize()
        done += 1
        tick(done)

    with _room(wanted.folder):
        keeper.save()  # for what the first one alone does, such as imports
        keeper.finish()
        with loop.uncollected():
            for cycle in range(2 * pairs_of(wanted)):
                saves = cycle % 4 in (0, 3)
                begin = _now(session)
                if saves:
                    keeper.save()
                    times["save_ms"].append(_now(session) - begin)
                for _ in range(wanted.steps):
                    step()
                if saves:
                    keeper.finish()
                times["saving_ms" if saves else "plain_ms"].append(_now(session) - begin)
        saved = fingerprint.checksum(session.weights())
        keeper.save()
        keeper.finish()
    step()
    begin = _now(session)
    keeper.load()
    loaded = _now(session)
    if fingerprint.checksum(session.weights()) != saved and session.parts.rank == 0:
        raise BenchError("the weights that were loaded from the checkpoint are not those that were saved")
    next_step = _now(session)
    step()
    resumed = {"load_ms": loaded - begin, "next_step_ms": _now(session) - next_step}
    size_mib = sum(entry.stat().st_size for entry in os.scandir(wanted.folder)) / 2**20
    return {"effective": ran, "checkpoint": {**times, **resumed, "size_mib": size_mib}}


class Keeper:
    """The state of a session that is saved, and how."""

    def __init__(self, session: Session, wanted: Checkpoint) -> None:
        if hasattr(session.module, "save_checkpoint"):
            own = f"{type(session.module).__name__} saves its state in files of its own"
            raise BenchError(f"{own}; leave its scenario out of --checkpoint")
        self.session, self.folder, self.rank = session, wanted.folder, session.parts.rank
        self.wait = wanted.how == "dcp"
        self.masters = session.masters
        self.scaler = session.amp.apex if isinstance(session.amp, ApexAmp) else session.scaler  # apex saves its scalers
        self.dealt_out = hasattr(session.optimizer, "consolidate_state_dict")  # ZeRO-1: each rank has a part of it
        os.makedirs(self.folder, exist_ok=True)

    def state(self, optimizer: Any) -> dict[str, object]:
        masters = {str(number): master for number, master in enumerate(self.masters)}
        scaler = {} if self.scaler is None else self.scaler.state_dict()
        return {"model": self.session.model.state_dict(), "optimizer": optimizer, "masters": masters, "scaler": scaler}

    def put_back(self, state: dict[str, Any], optimizer: Any) -> None:
        self.session.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for number, master in enumerate(self.masters):
                master.copy_(state["masters"][str(number)])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def finish(self) -> None:
        """Wait for what goes on in the background."""


class Torch(Keeper):
    """``torch.save`` of everything, whole, on rank 0, and a barrier; all ranks load the file with ``map_location``."""

    def __init__(self, session: Session, wanted: Checkpoint) -> None:
        super().__init__(session, wanted)
        self.file = os.path.join(wanted.folder, "checkpoint.pt")

    def save(self, **more: object) -> None:
        """``more``: what else is to be in the file."""
        optimizer = self.session.optimizer
        if self.dealt_out:
            optimizer.consolidate_state_dict(to=0)
        mine = {} if self.dealt_out and self.rank else optimizer.state_dict()
        state = map_tensors(lambda one: one.full_tensor() if hasattr(one, "full_tensor") else one, self.state(mine))
        if self.rank == 0:
            torch.save({**state, **more}, self.file)
        barrier()

    def load(self) -> dict[str, Any]:
        """Put back what the file has, and return it."""
        state: dict[str, Any] = torch.load(self.file, map_location=self.session.parts.device, weights_only=True)
        optimizer = {} if self.dealt_out else self.session.optimizer.state_dict()
        now = {"model": self.session.model.state_dict(), "optimizer": optimizer}
        self.put_back({**state, **_dealt_out(now, {name: state[name] for name in now})}, self.session.optimizer)
        barrier()
        return state


class Distributed(Keeper):
    """``torch.distributed.checkpoint``: each rank writes its part; with ``dcp_async`` while training goes on."""

    def __init__(self, session: Session, wanted: Checkpoint) -> None:
        super().__init__(session, wanted)
        grouped = not self.wait and dist.is_initialized()
        self.group = dist.new_group(backend="gloo") if grouped else None  # its own: training goes on in the other
        self.pending: Any = None
        self.optimizer = session.optimizer.optim if self.dealt_out else session.optimizer

    def parts(self) -> dict[str, object]:
        state = self.state(self.optimizer.state_dict())
        if self.dealt_out:
            state[f"optimizer of rank {self.rank}"] = state.pop("optimizer")
        return {name: part for name, part in state.items() if part}

    def save(self) -> None:
        from torch.distributed import checkpoint

        if self.wait:
            checkpoint.save(self.parts(), checkpoint_id=self.folder)
        else:
            self.finish()
            self.pending = checkpoint.async_save(self.parts(), checkpoint_id=self.folder, process_group=self.group)

    def finish(self) -> None:
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def load(self) -> None:
        from torch.distributed import checkpoint

        state = self.parts()
        checkpoint.load(state, checkpoint_id=self.folder)
        if self.dealt_out:
            state["optimizer"] = state.pop(f"optimizer of rank {self.rank}")
        self.put_back(state, self.optimizer)
        barrier()


def _dealt_out(now: Any, whole: Any) -> Any:
    """The tree ``whole`` with shards where the tree ``now`` has some; a key is in both, or ``whole`` is taken."""
    if isinstance(now, Tensor):
        return sharded(whole, now)
    if isinstance(whole, dict):
        return {key: _dealt_out(now.get(key), one) if isinstance(now, dict) else one for key, one in whole.items()}
    return whole


def _now(session: Session) -> float:
    """The time (ms) when the device has done all that it was given, on all ranks."""
    loop.finish(session.parts.device)
    barrier()
    return time.perf_counter_ns() / 1e6


@contextmanager
def _room(folder: str) -> Iterator[None]:
    """Say it in one line where a checkpoint does not fit on the disk."""
    try:
        yield
    except BaseException as error:  # torch's CheckpointException is no Exception
        if shutil.disk_usage(folder).free / 2**20 < LEFT_MIB or any(sign in str(error).lower() for sign in NO_ROOM):
            remedy = "free space there, or give another disk with --out"
            raise BenchError(f"the disk of {folder} is full: a checkpoint does not fit; {remedy}") from error
        raise
