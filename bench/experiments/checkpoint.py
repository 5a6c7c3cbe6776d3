"""Launches that save checkpoints, in rounds over the scenarios and apart from the measured ones."""

import os
import shutil
from dataclasses import replace

from bench.core.codec import decode
from bench.core.records import Job
from bench.experiments import record, resume
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform, where_to_look
from bench.plan import checkpointed
from bench.runs.document import RunDocument
from bench.runs.experiments import CheckpointLook, CheckpointRecord, Checkpoints
from bench.runs.launches import LaunchRecord
from bench.seams.experiment import Experiment

EXPERIMENT = Experiment(record=Checkpoints)

SPARE_MIB = 64.0
"""What must be left on the disk for the run itself."""
OVERHEAD = 1.1
"""Of the files over what is in them."""


def in_rounds(lab: Lab) -> None:
    """As many launches of each scenario as were measured of it."""
    request, done = lab.request, resume.done(lab.writer.document).checkpoints
    for found, repeat in lab.rounds(lab.runnable, done, request.launches):
        folder = os.path.join(lab.writer.scratch, "checkpoint")
        _save(checkpointed(request, found, lab.next_launch(), repeat, lab.site.hosts, folder), folder, lab)


def _save(job: Job, folder: str, lab: Lab) -> None:
    assert job.checkpoint is not None
    wanted = {"every": job.checkpoint.every, "steps": job.checkpoint.steps, "how": job.checkpoint.how}
    if any(rank.role == "server" for rank in job.ranks):
        why = "its optimizer state is on the server, and rank 0, which saves, has none of it"
        blank = replace(record.blank(job), status="unsupported", reason=why)
        lab.progress.drop(job.scenario)
        lab.writer.add_to(Checkpoints, CheckpointRecord.of(blank, size_mib=None, **wanted))
        return
    reason = no_room(lab, job.scenario)
    if reason is not None:
        blank = replace(record.blank(job), status="error", reason=reason)
        lab.progress.begin(job.scenario, "saving", job.launch)
        lab.progress.end(status="error", text=reason)
        lab.writer.add_to(Checkpoints, CheckpointRecord.of(blank, size_mib=None, **wanted))
        return

    def keep(done: Performed) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        seen = [result["checkpoint"] for result in done.results if "checkpoint" in result]
        size = max((one.pop("size_mib") for one in seen), default=None)
        looks = tuple(decode(CheckpointLook, one, "checkpoint") for one in seen)
        lab.writer.add_to(Checkpoints, CheckpointRecord.of(done.record, size_mib=size, saves=looks, **wanted))
        return where_to_look(done.record) or f"{size:,.0f} MiB saved"

    perform(job, lab, "saving", keep)


def no_room(lab: Lab, scenario: str, copies: int = 1) -> str | None:
    """Why so many checkpoints of a scenario do not fit on the disk of the run, with the remedy; None if they do."""
    needed_mib = size_mib(lab.writer.document, scenario)
    free_mib = shutil.disk_usage(lab.writer.path).free / 2**20
    if copies * OVERHEAD * needed_mib + SPARE_MIB <= free_mib:
        return None
    many = "a checkpoint takes" if copies == 1 else f"{copies} checkpoints take"
    needs = f"{many} about {copies * OVERHEAD * needed_mib:,.0f} MiB, the run keeps {SPARE_MIB:.0f} MiB for itself"
    what = f"{needs}, and {free_mib:,.0f} MiB are free on the disk of the run"
    return f"{what}; free space there, or give another disk with --out"


def size_mib(document: RunDocument, scenario: str) -> float:
    """About what a checkpoint of a scenario takes, by what its measured launches hold."""
    launch = next(launch for launch in document.good if launch.scenario == scenario)
    held = [rank.memory for rank in launch.ranks if rank.memory is not None]
    if not held:
        return 0.0
    optimizer = [one.optimizer_mib for one in held]
    if _sharded(launch):
        return sum(one.parameters_mib for one in held) + sum(optimizer)
    dealt_out = launch.effective is not None and launch.effective.optimizer.endswith("ZeroRedundancyOptimizer")
    state = sum(optimizer) if dealt_out else max(optimizer)
    return held[0].parameters_mib + held[0].masters_mib / 2 + held[0].buffers_mib + state


def _sharded(launch: LaunchRecord) -> bool:
    return launch.effective is not None and launch.effective.weights == "sharded"
