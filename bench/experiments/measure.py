"""Measured launches: rounds over the scenarios, and more rounds until the answer is precise enough."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from bench.core.job import Job
from bench.experiments import record, resume
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform, where_to_look
from bench.experiments.plan import in_turn, job_of
from bench.experiments.plan.interval_target import IntervalTarget
from bench.runs.experiments import IntervalTargetRecord
from bench.runs.frames import RankSteps, TableRow
from bench.runs.reader import Run
from bench.seams.experiment import Experiment

EXPERIMENT = Experiment(record=IntervalTargetRecord)

Affords = Callable[[Sequence[str]], bool]


def in_rounds(lab: Lab, affords: Affords = lambda scenarios: True, later: int = 0) -> None:
    """``affords``: whether there is time for one more launch of each of these; asked before each round but the first,
    and before a launch that other work held up is done again. ``later``: how many launches come after these."""
    target = _target(lab, later)
    for job in _rounds(lab, target, affords):
        _measure(job, lab, target, affords if target is None else target.affords)
    if target is not None:
        lab.writer.note(target.outcome([found.name for found in lab.runnable]))


def _rounds(lab: Lab, target: IntervalTarget | None, affords: Affords) -> Iterator[Job]:
    """The planned launches, round by round; then rounds until all scenarios are precise enough.

    What would exceed a budget is left out, except the first launch of each scenario, and what a run whose budget was
    spent is resumed for.
    """
    resumed = lab.writer.document.of(IntervalTargetRecord) is not None
    request, hosts, done = lab.request, lab.site.hosts, resume.ended(lab.writer.document.launches)
    lacking = list(lab.scenarios)
    for repeat in itertools.count():
        if repeat >= request.launches:
            names = target.next_round([found.name for found in lab.runnable]) if target else []
            names = names if target and target.affords(names) else []
            lacking = [one for one in lab.runnable if one.name in names]
            lab.progress.expect([found.name for found in lacking if (found.name, repeat) not in done])
        if not lacking or (repeat and not affords([found.name for found in lacking])):
            return
        for found in in_turn(lacking, repeat):
            if (found.name, repeat) in done:
                continue
            if 0 < repeat < request.launches and target and not resumed and not target.affords([found.name]):
                lab.progress.drop(found.name)
                continue
            seed = lab.writer.document.probe_seed if request.parity else None
            yield replace(job_of(request, found, lab.next_launch(), repeat, hosts), probe_seed=seed)


def _measure(job: Job, lab: Lab, target: IntervalTarget | None, affords: Affords) -> None:
    """One measured launch, or a record of why there cannot be one; once more if other work held it up."""
    if (reason := lab.obstacles[job.scenario]) is not None:
        lab.writer.add(replace(record.blank(job), status="unsupported", reason=reason))
        return
    done = perform(job, lab, "measuring", partial(_kept, lab))
    cores = lab.writer.document.machine.cores_usable
    if done.record.checks.held_up(cores) and affords([job.scenario]):
        again, first = replace(job, launch=lab.next_launch()), done.record
        apart = 100 * (first.checks.conservation_error or 0.0)
        slow = f"launch {first.launch} of {first.scenario}, whose steps and wall time differ by {apart:.1f} %"
        busy = f"others kept {first.checks.foreign_cores:.1f} of the {cores} cores busy"
        # It is not chosen by its speed, and both are recorded.
        lab.writer.supersede(first, f"{slow} while {busy}; launch {again.launch} replaces it")
        lab.progress.expect([job.scenario])
        done = perform(again, lab, "measuring again", partial(_kept, lab))
    if target is not None:
        target.add(job.scenario, median_step_ms(done), done.record.wall_s or 0.0)


def _kept(lab: Lab, done: Performed) -> str:
    lab.writer.add(done.record, **done.tables)
    return how_fast(done)


def how_fast(done: Performed) -> str:
    """A line for people: how fast a launch was, or why it failed."""
    median_ms = median_step_ms(done)
    if median_ms is None:
        return where_to_look(done.record)
    work = done.job.workload
    return f"{1000 * work.units / median_ms:,.1f} {work.unit_short}/s, {median_ms:,.1f} ms a step"


def _target(lab: Lab, later: int) -> IntervalTarget | None:
    """The target of ``--until-precision``, with the launches that a resumed run already has."""
    if lab.request.until_precision is None:
        return None
    assert lab.request.budget_s is not None
    target = IntervalTarget(lab.request.until_precision, lab.request.budget_s, started=lab.began_s, later=later)
    medians_ms = medians_of(lab.writer.frames())
    for launch in lab.writer.document.good:
        target.add(launch.scenario, medians_ms[launch.launch], launch.wall_s or 0.0)
    return target


def medians_of(run: Run) -> dict[int, float]:
    """:func:`median_step_ms` of each launch of a run, from its tables."""
    from bench.analyse.steps import per_iteration, per_launch

    assert isinstance(run.timed, RankSteps)
    stats = per_launch(per_iteration(run.timed)).frame
    return dict(zip(stats["launch"].tolist(), stats["median_ms"].tolist(), strict=True))


def median_step_ms(done: Performed) -> float | None:
    """Of the measured steps of the slowest rank; None for a launch that failed."""
    return statistics.median(slowest_ms(done.tables["steps"])) if done.record.status == "ok" else None


def slowest_ms(steps: Iterable[TableRow]) -> list[float]:
    """Each measured step of a launch, of its slowest rank."""
    slowest: dict[int, float] = defaultdict(float)
    for row in steps:
        if not row["warmup"]:
            slowest[row["step"]] = max(slowest[row["step"]], row["step_ms"])
    return list(slowest.values())
