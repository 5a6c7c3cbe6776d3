"""Launches in which a rank is killed, of the strategies that declare it: how long until training goes on."""

import json
import os
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from bench.console import count
from bench.core.codec import decode
from bench.core.job import Checkpoint, Job
from bench.core.records import Host
from bench.core.text import by_key
from bench.experiments.checkpoint import no_room
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, leave_out, perform, where_to_look
from bench.experiments.plan import Request, job_of
from bench.runs.document import RunDocument
from bench.runs.fields import Amount, Count, Several
from bench.runs.frames import TableRow
from bench.runs.launches import LaunchRecord
from bench.seams.discover import Found
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material
    from bench.report.tables import Table

COPIES = 2  # of a checkpoint: the one before goes when the next one is whole
EVERY = Checkpoint(every=4)  # the checkpoints if nothing else is asked for
PARTS = ("up_s", "joined_s", "loaded_s", "step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLook:
    """The consequence of killing a rank after its step ``killed_step``: all went on from the checkpoint of
    ``resumed_step``.

    Times (ms) run from the kill until the last rank was there: its new interpreter had imported torch (``up_ms``), it
    had met the others (``joined_ms``) and loaded the checkpoint (``loaded_ms``), its next step was over
    (``next_step_ms``), and the first step that had not been trained before (``caught_up_ms``). ``step_ms``: the median
    step before. ``loss_error``: how far the losses of steps that were trained twice are apart, relative.
    """

    killed_step: Count
    resumed_step: Count
    up_ms: Amount
    joined_ms: Amount
    loaded_ms: Amount
    next_step_ms: Amount
    caught_up_ms: Amount
    step_ms: Amount | None
    loss_error: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRecord(LaunchRecord):
    """A launch in which a rank was killed, with a checkpoint after each ``every`` steps."""

    timed: ClassVar[bool] = False
    every: Several
    restart: RestartLook | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    launches: tuple[RestartRecord, ...] = ()


def jobs(
    request: Request, found: Found, launch: int, repeat: int, hosts: Sequence[Host], folder: str
) -> tuple[Job, Job]:
    """The launch ``repeat`` of a scenario: what one process does that stands in for it, and what the ranks train that
    an engine starts in its place, with checkpoints in ``folder``."""
    wished = request.experiments.get("checkpoint", EVERY)
    assert isinstance(wished, Checkpoint)
    saves = replace(wished, how="torch", folder=folder)
    job = replace(job_of(request, found, launch, repeat, hosts), purpose="restart", checkpoint=saves)
    first, all_devices = job.ranks[0], dict.fromkeys(uuid for rank in job.ranks for uuid in rank.devices)
    alone = replace(first, replicas=job.replicas, devices=tuple(all_devices))
    return replace(job, ranks=(alone,), group=False), job


def launch(found: Found, repeat: int, lab: Lab) -> None:
    folder = os.path.join(lab.writer.scratch, "restart")
    kill_one(*jobs(lab.request, found, lab.next_launch(), repeat, lab.site.hosts, folder), folder, lab)


def kill_one(job: Job, inner: Job, folder: str, lab: Lab) -> None:
    assert job.checkpoint is not None
    every, hosts = job.checkpoint.steps, {rank.host for rank in inner.ranks}
    reason, status = no_room(lab, job.scenario, COPIES), "error"
    if reason is None and len(hosts) > 1:
        reason = f"torchrun would start ranks on this host alone, and there are {len(hosts)}; use one host"
        status = "unsupported"

    def keep(done: Performed) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        launch = replace(done.record, processes=inner.processes)
        (seen,) = done.results or [{}]
        times = {name: seen[name] for name in RestartLook.__dataclass_fields__ if name in seen}
        look = decode(RestartLook, times, "restart") if times else None
        lab.writer.add_to(Restarts, RestartRecord.of(launch, every=every, restart=look))
        after_s = times.get("next_step_ms", 0.0) / 1e3
        return where_to_look(launch) or f"the next step is over {after_s:.1f} s after a rank is killed"

    if reason is not None:
        leave_out(inner, lab, "restarting", keep, status, reason)
        return
    os.makedirs(folder)
    with open(job.checkpoint.job_file, "w", encoding="utf-8") as file:
        json.dump(asdict(inner), file)
    perform(job, lab, "restarting", keep)


def restarts(document: RunDocument) -> list[TableRow]:
    """One row per scenario with an ``ok`` launch in which a rank was killed.

    ``next_step_s``: from the kill until the next step is over on all ranks, mean over launches with its 95 % interval
    (Student's t, null below two). It is the sum of ``up_s`` (the engine notices, new interpreters import torch),
    ``joined_s`` (they meet), ``loaded_s`` (each builds the model and loads the checkpoint) and ``step_s``.
    ``caught_up_s``: until the first step is over that had not been trained before. ``loss_error``: the largest.
    """
    import numpy as np

    from bench.analyse.intervals import mean_interval

    rows: list[TableRow] = []
    good = (one for one in document.begun(Restarts).launches if one.status == "ok" and one.restart)
    for scenario, measured in by_key((one.scenario, one) for one in good).items():
        looks = [one.restart for one in measured if one.restart is not None]
        mean, low, high = mean_interval(np.array([one.next_step_ms for one in looks]) / 1e3)
        until_s = np.array([(0.0, one.up_ms, one.joined_ms, one.loaded_ms, one.next_step_ms) for one in looks]) / 1e3
        plain_ms = [one.step_ms for one in looks if one.step_ms is not None]
        rows.append(
            {
                "scenario": scenario,
                "launches": len(looks),
                "every": measured[0].every,
                "killed_step": looks[0].killed_step,
                "resumed_step": looks[0].resumed_step,
                "next_step_s": mean,
                "next_step_low_s": low,
                "next_step_high_s": high,
                **dict(zip(PARTS, np.diff(until_s).mean(axis=0).tolist(), strict=True)),
                "caught_up_s": statistics.mean(one.caught_up_ms for one in looks) / 1e3,
                "plain_step_ms": statistics.median(plain_ms) if plain_ms else None,
                "loss_error": max((one.loss_error for one in looks if one.loss_error is not None), default=None),
            }
        )
    return rows


def sentences(document: RunDocument) -> list[str]:
    """A sentence for each scenario, and why there is none for one whose launches failed."""
    lines, rows = [], restarts(document)
    for row in rows:
        low, high = row["next_step_low_s"], row["next_step_high_s"]
        bounds = "" if low is None else f" ({low:.1f} to {high:.1f})"
        lost = row["killed_step"] - row["resumed_step"]
        lines.append(
            f"When a rank of {row['scenario']} is killed, the next step is over {row['next_step_s']:.1f} s{bounds} "
            f"later: {row['up_s']:.1f} s until new interpreters have torch, {row['joined_s']:.1f} s to meet, "
            f"{row['loaded_s']:.1f} s to build the model and load the checkpoint, {row['step_s']:.1f} s for the step. "
            f"{count(lost, 'step')} trained again, caught up after {row['caught_up_s']:.1f} s."
        )
    restarted = {row["scenario"] for row in rows}
    failed = {one.scenario: one.reason for one in document.begun(Restarts).launches if one.scenario not in restarted}
    return lines + [f"{scenario} was not restarted: {reason}." for scenario, reason in failed.items()]


def restart_table(document: RunDocument) -> "Table | None":
    """How long training stands still, by what it waits for; None if no rank was killed."""
    from bench.report.tables import numeric, ranged, tabulate, text

    rows = restarts(document)
    if not rows:
        return None
    parts = (("torch is imported", "up_s"), ("ranks meet", "joined_s"), ("checkpoint is loaded", "loaded_s"))
    columns = (
        text("scenario", "scenario"),
        numeric("launches", "launches", "d"),
        numeric("checkpoint every steps", "every", ",d"),
        ranged("next step is over (s)", ("next_step_s", "next_step_low_s", "next_step_high_s"), ",.2f"),
        *(numeric(heading, name, ",.2f", group="of that, seconds until") for heading, name in parts),
        numeric("step is over", "step_s", ",.2f", group="of that, seconds until"),
        numeric("caught up (s)", "caught_up_s", ",.2f"),
        numeric("step before (ms)", "plain_step_ms", ",.1f"),
        numeric("loss differs by", "loss_error", ".2g"),
    )
    notes = [
        "From launches under torchrun --max-restarts 1, in which the last rank is killed (SIGKILL) between two "
        "checkpoints. Times run from the kill until the last rank is there; below, the 95 % interval over launches. "
        "torch is imported: torchrun has noticed, ended the other ranks and started new interpreters. caught up: the "
        "first step is over that had not been trained before. loss differs by: of steps that were trained twice, "
        "relative; 0 if training went on as if nothing had happened."
    ]
    return tabulate(columns, rows, notes)


def chapter(of: "Material") -> "Chapter":
    from bench.report.blocks import Grid, chapter_of

    table = Grid("Cost of a lost rank", restart_table(of.run.document))
    return chapter_of("restarts", "What does the loss of a rank cost?", *sentences(of.run.document), table)


EXPERIMENT = Experiment(
    record=Restarts,
    rounds=lambda request, strategy: request.launches if strategy.restarts else 0,
    launch=launch,
    launches="in which a rank is killed",
    order=3,
    chapter=chapter,
    sentences=lambda run: sentences(run.document),
    tables=lambda run: {"restarts": restarts(run.document)},
)
