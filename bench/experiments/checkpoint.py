"""Launches that save checkpoints, in rounds over the scenarios and apart from the measured ones: what one costs."""

import argparse
import os
import re
import shutil
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as brief
from typing import TYPE_CHECKING, Annotated, ClassVar

from bench.core.codec import OneOf, decode
from bench.core.job import CHECKPOINTS, MOST_CHECKPOINT_STEPS, Checkpoint
from bench.core.text import by_key, digits
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, leave_out, perform, where_to_look
from bench.experiments.plan import job_of
from bench.runs.document import RunDocument
from bench.runs.fields import Amount, Several
from bench.runs.frames import TableRow
from bench.runs.launches import LaunchRecord
from bench.seams.discover import Found
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material
    from bench.report.tables import Table

SPARE_MIB = 64.0  # left on the disk for the run itself
OVERHEAD = 1.1  # of the files over what is in them
HOW = {
    "torch": "torch: rank 0 saves everything, whole, by torch.save, and the others wait",
    "dcp": "dcp: each rank writes its part by torch.distributed.checkpoint, and waits until it is on the disk",
    "dcp_async": "dcp_async: the same in the background, after a copy to the host's memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLook:
    """A rank's times of checkpoints: cycles of steps that begin with a save, and as many without (ms).

    ``save_ms``: until training goes on. ``next_step_ms``: the first step after a checkpoint was loaded.
    """

    saving_ms: tuple[Amount, ...]
    plain_ms: tuple[Amount, ...]
    save_ms: tuple[Amount, ...]
    load_ms: Amount
    next_step_ms: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord(LaunchRecord):
    """``steps``: of a cycle; a save is planned for each ``every`` of them. ``how``: of ``bench.core.job.CHECKPOINTS``.

    ``saves``: what each rank saw of them. ``size_mib``: of the files of one.
    """

    timed: ClassVar[bool] = False
    every: Several
    steps: Several
    how: Annotated[str, OneOf(CHECKPOINTS)]
    size_mib: Amount | None
    saves: tuple[CheckpointLook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    launches: tuple[CheckpointRecord, ...] = ()


def asked(text: str) -> Checkpoint:
    """``every=N``, or with a way to save, ``every=N,how=dcp``."""
    parts = re.fullmatch(rf"every=([1-9][0-9]{{0,8}})(?:,how=({'|'.join(CHECKPOINTS)}))?", text)
    if parts is None:
        usage = f"give every=N, such as every=100, or every=100,how=dcp (how: {', '.join(CHECKPOINTS)})"
        raise argparse.ArgumentTypeError(f"{brief(text)} does not say how often to save, or how; {usage}")
    return Checkpoint(every=int(parts[1]), how=parts[2] or CHECKPOINTS[0])


def launch(found: Found, repeat: int, lab: Lab) -> None:
    wished = lab.request.experiments["checkpoint"]
    assert isinstance(wished, Checkpoint)
    folder = os.path.join(lab.writer.scratch, "checkpoint")
    job = job_of(lab.request, found, lab.next_launch(), repeat, lab.site.hosts)
    job = replace(job, purpose="checkpoint", checkpoint=replace(wished, folder=folder))
    wanted = {"every": wished.every, "steps": wished.steps, "how": wished.how}
    status, reason = "error", no_room(lab, job.scenario)
    if any(rank.role == "server" for rank in job.ranks):
        status = "unsupported"
        reason = "its optimizer state is on the server, and rank 0, which saves, has none of it"

    def keep(done: Performed) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        seen = [result["checkpoint"] for result in done.results if "checkpoint" in result]
        size = max((one.pop("size_mib") for one in seen), default=None)
        looks = tuple(decode(CheckpointLook, one, "checkpoint") for one in seen)
        lab.writer.add_to(Checkpoints, CheckpointRecord.of(done.record, size_mib=size, saves=looks, **wanted))
        return where_to_look(done.record) or f"{size:,.0f} MiB saved"

    if reason is None:
        perform(job, lab, "saving", keep)
    else:
        leave_out(job, lab, "saving", keep, status, reason)


def no_room(lab: Lab, scenario: str, copies: int = 1) -> str | None:
    """Why this many checkpoints of a scenario do not fit on the disk of the run, with the remedy; None if they do."""
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
    optimizer = [one.optimizer_mib or 0.0 for one in held]
    if launch.effective is not None and launch.effective.weights == "sharded":
        return sum(one.parameters_mib or 0.0 for one in held) + sum(optimizer)
    dealt_out = launch.effective is not None and launch.effective.optimizer.endswith("ZeroRedundancyOptimizer")
    state = sum(optimizer) if dealt_out else max(optimizer)
    first = held[0]
    return (first.parameters_mib or 0.0) + (first.masters_mib or 0.0) / 2 + (first.buffers_mib or 0.0) + state


def checkpoints(document: RunDocument) -> list[TableRow]:
    """One row per scenario with an ``ok`` launch that saved. Of ranks the slowest, of launches the mean.

    ``save_ms``: how long training stands still for a save. ``cost_ms``: what saving every N steps adds to each
    step, mean over launches of the paired differences of cycles with and without, with its 95 % interval (Student's t
    over launches; of a single one, over its pairs); ``cost_percent`` of a step. ``resume_s``: to load, and to train the
    first step after that.
    """
    import numpy as np

    from bench.analyse.intervals import mean_interval

    rows: list[TableRow] = []
    good = (one for one in document.begun(Checkpoints).launches if one.status == "ok" and one.saves)
    for scenario, measured in by_key((one.scenario, one) for one in good).items():
        first, extra = measured[0], [_extra_ms(one) for one in measured]
        cost, low, high = mean_interval(np.array(extra[0] if len(extra) == 1 else [*map(statistics.mean, extra)]))
        plain = [statistics.mean(_slowest([rank.plain_ms for rank in one.saves])) / one.steps for one in measured]
        save_ms = [statistics.median(_slowest([rank.save_ms for rank in one.saves])) for one in measured]
        load_ms = [max(rank.load_ms for rank in one.saves) for one in measured]
        resume_ms = [max(rank.load_ms + rank.next_step_ms for rank in one.saves) for one in measured]
        rows.append(
            {
                "scenario": scenario,
                "how": first.how,
                "every": first.every,
                "launches": len(measured),
                "size_mib": max(one.size_mib or 0.0 for one in measured),
                "save_ms": statistics.mean(save_ms),
                "cost_ms": cost,
                "cost_low_ms": low,
                "cost_high_ms": high,
                "cost_percent": 100 * cost / statistics.mean(plain),
                "load_s": statistics.mean(load_ms) / 1e3,
                "resume_s": statistics.mean(resume_ms) / 1e3,
            }
        )
    return rows


def _slowest(times_ms: Iterable[Sequence[float]]) -> list[float]:
    """Of the slowest rank each time."""
    return [max(times) for times in zip(*times_ms, strict=True)]


def _extra_ms(one: CheckpointRecord) -> list[float]:
    """The time that a save adds to each of ``every`` steps, by pair of cycles."""
    saving, plain = (_slowest([getattr(rank, name) for rank in one.saves]) for name in ("saving_ms", "plain_ms"))
    return [(a - b) / one.every for a, b in zip(saving, plain, strict=True)]


def sentences(document: RunDocument) -> list[str]:
    """A sentence for each scenario, and why there is none for one whose launches failed."""
    from bench.report.tables import is_cost

    lines, rows = [], checkpoints(document)
    for row in rows:
        bounds = "" if row["cost_low_ms"] is None else f" ({row['cost_low_ms']:,.2f} to {row['cost_high_ms']:,.2f})"
        costs = f"{row['cost_ms']:,.2f} ms{bounds} a step, {row['cost_percent']:+.1f} %"
        if not is_cost(row["cost_ms"], row["cost_low_ms"]):
            costs = f"nothing that is distinguishable from 0{bounds and f'{bounds[:-1]} ms a step)'}"
        every = "step" if row["every"] == 1 else f"{row['every']:,} steps"
        lines.append(
            f"A checkpoint of {row['scenario']} every {every} ({row['how']}) costs {costs}; it has "
            f"{row['size_mib']:,.1f} MiB, and training goes on {digits(row['resume_s'])} s after loading begins."
        )
    saved = {row["scenario"] for row in rows}
    failed = {one.scenario: one.reason for one in document.begun(Checkpoints).launches if one.scenario not in saved}
    return lines + [f"{scenario} has no checkpoint: {reason}." for scenario, reason in failed.items()]


def checkpoint_table(document: RunDocument) -> "Table | None":
    """Cost, size, and the time to resume; None if no launch saved."""
    from bench.report.tables import UNKNOWN, is_cost, numeric, ranged, tabulate, text

    def percent(row: TableRow) -> str:
        return f"{row['cost_percent']:+.2f}" if is_cost(row["cost_ms"], row["cost_low_ms"]) else UNKNOWN

    rows = checkpoints(document)
    if not rows:
        return None
    columns = (
        text("scenario", "scenario"),
        text("how", "how"),
        numeric("every steps", "every", ",d"),
        numeric("launches", "launches", "d"),
        numeric("size MiB", "size_mib", ",.1f"),
        numeric("training stands still (ms)", "save_ms", ",.1f"),
        ranged("ms", ("cost_ms", "cost_low_ms", "cost_high_ms"), ",.2f", group="cost per step", cost=True),
        numeric("%", percent, group="cost per step"),
        numeric("load (s)", "load_s", ",.2f"),
        numeric("load and next step (s)", "resume_s", ",.2f"),
    )
    notes = [
        "From launches of their own, in which cycles of steps with one save and without take turns (ABBA). cost per "
        "step: what saving adds to a cycle, over the steps between two saves; below it the 95 % interval over "
        "launches, of a single one over its pairs of cycles. The files go through the system's page cache. Processes "
        "run already when they load.",
        f"{'; '.join(HOW[how] for how in dict.fromkeys(row['how'] for row in rows))}.",
    ]
    if any(row["every"] > MOST_CHECKPOINT_STEPS for row in rows):
        notes.append(f"A cycle has at most {MOST_CHECKPOINT_STEPS} steps; the cost is that of a save over all steps.")
    return tabulate(columns, rows, notes)


def chapter(of: "Material") -> "Chapter":
    from bench.report.blocks import Grid, chapter_of

    table = Grid("Cost of checkpoints", checkpoint_table(of.run.document))
    return chapter_of("checkpoints", "What does a checkpoint cost?", *sentences(of.run.document), table)


EXPERIMENT = Experiment(
    record=Checkpoints,
    option={
        "type": asked,
        "metavar": "every=N[,how=H]",
        "help": "launches that save a checkpoint every N steps: its cost per step, its size, the time to resume; "
        "how=torch (default), dcp or dcp_async (torch.distributed.checkpoint)",
    },
    asked=Checkpoint,
    one_host="hosts need not share a folder",
    rounds=lambda request, strategy: request.launches if "checkpoint" in request.experiments else 0,
    launch=launch,
    launches="with checkpoints",
    order=2,
    chapter=chapter,
    sentences=lambda run: sentences(run.document),
    tables=lambda run: {"checkpoints": checkpoints(run.document)},
)
