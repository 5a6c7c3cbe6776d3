"""What launches trained: each way of training once more in double precision, and the reference that it is held against.

Scenarios that differ in their precision level alone share a launch in double precision, which leaves out what a level
casts.
"""

from collections.abc import Sequence
from dataclasses import replace

from bench.core.codec import decode
from bench.core.job import Computation, Job
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform
from bench.experiments.plan import Request, in_double, reference
from bench.experiments.resume import DONE
from bench.experiments.rows import Results, Rows, numbers, update_rows
from bench.runs.document import RunDocument
from bench.runs.experiments import Limits, Numerics, Work
from bench.runs.launches import DoubleRecord, LaunchRecord, ReferenceRecord
from bench.seams.discover import REFERENCE, Found
from bench.seams.experiment import Experiment

STOPPED = ("killed", "timeout")
"""A launch in double precision that ended so is done again; one that failed would fail again."""


def judge(lab: Lab, launches: Sequence[LaunchRecord] | None = None, scenarios: Sequence[Found] | None = None) -> None:
    """Do what is missing to judge these launches (default: the run's) of these scenarios (default: the lab's)."""
    good = lab.writer.document.good if launches is None else [one for one in launches if one.status == "ok"]
    measured = {one.scenario for one in good}
    lacking = _lacking(lab, [one for one in scenarios or lab.scenarios if one.name in measured])
    wanted = _computations(good)
    without = [one for one in wanted if not has_reference(lab.writer.document, one, wanted[one])]
    lab.progress.unnamed = 0
    lab.progress.expect([*(job.scenario for job, _ in lacking), *[REFERENCE] * len(without)])
    for job, same in lacking:
        _in_double(lab, job, same)
    for environment in without:
        _reference(lab, environment, wanted[environment])


def about(lab: Lab) -> int:
    """About how many launches :func:`judge` will do, before any is measured."""
    begun = lab.writer.document.begun(Numerics)
    references = len({one.environment for one in lab.runnable})
    return max(0, len(ways(lab, lab.runnable)) + references - len(begun.doubles) - len(begun.references))


def ways(lab: Lab, scenarios: Sequence[Found]) -> list[tuple[Job, list[Found]]]:
    """The launches in double precision of these scenarios, each with those that it stands for."""
    seed = lab.writer.document.probe_seed
    assert seed is not None
    jobs: list[tuple[Job, list[Found]]] = []
    for one in scenarios:
        job = in_double(lab.request, one, 0, lab.site.hosts, seed)
        same = next((found for other, found in jobs if replace(other, scenario=job.scenario) == job), None)
        if same is None:
            jobs.append((job, [one]))
        else:
            same.append(one)
    return jobs


def _lacking(lab: Lab, scenarios: Sequence[Found]) -> list[tuple[Job, list[Found]]]:
    """The ways that were not trained in double precision yet. Scenarios that share one that was are noted with it."""
    judged, lacking = in_double_already(lab.writer.document), []
    for job, same in ways(lab, scenarios):
        names = tuple(one.name for one in same)
        numerics = lab.writer.document.begun(Numerics)
        known = next((one for one in numerics.doubles if {*names} & {*one.scenarios} & judged), None)
        if known is None:
            lacking.append((job, same))
            continue
        more = replace(known, scenarios=tuple(dict.fromkeys((*known.scenarios, *names))))
        lab.writer.note(replace(numerics, doubles=tuple(more if one is known else one for one in numerics.doubles)))
    return lacking


def _in_double(lab: Lab, job: Job, same: Sequence[Found]) -> None:
    def keep(done: Performed) -> str:
        about = DoubleRecord.of(
            done.record,
            scenarios=tuple(one.name for one in same),
            left_out=tuple(one.spec for one in same[0].switches if one not in job.switches),
        )
        lab.writer.add_to(Numerics, about, "doubles", **done.tables)
        return about.reason or f"in double precision, {about.wall_s:.0f} s"

    perform(replace(job, launch=lab.next_launch()), lab, "judging", keep, double_rows)


def _reference(lab: Lab, environment: str | None, computations: tuple[Computation, ...]) -> None:
    document = lab.writer.document
    if known := document.begun(Numerics).reference_of(environment):
        lab.writer.supersede(known)
    job = reference(lab.request, computations, lab.next_launch(), lab.site.hosts, document.probe_seed, environment)

    def keep(done: Performed) -> str:
        passes = [one for result in done.results for one in result["passes"]]
        about = ReferenceRecord.of(
            done.record,
            computations=tuple(Computation(**one["computation"]) for one in passes),
            step_ms=tuple(one["step_ms"] for one in passes),
            narrow=any(one["narrow"] for one in passes),
        )
        for counted in filter(None, [result["work"] for result in done.results]):  # by rank 0, if it came to its end
            lab.writer.note(replace(lab.writer.document.begun(Limits), work=decode(Work, counted, "work")))
        lab.writer.add_to(Numerics, about, "references", **done.tables)
        return about.reason or f"{about.wall_s:.0f} s"

    perform(job, lab, "training", keep, reference_rows)


def double_rows(job: Job, results: Results, partial: Results) -> dict[str, Rows]:
    """The rows of numerics.parquet of a launch in double precision: those of rank 0, and the gradients of each rank
    that differs."""
    rows: Rows = []
    for result in results:
        double, about = result["double"], {"rank": result["rank"]}
        if result["rank"] == 0 or double["gradients"] != results[0]["double"]["gradients"]:
            rows += _by_step(job, "probed", double["gradients"], **about)
        if result["rank"] == 0:
            rows += _by_step(job, "buffer", double["buffers"], **about)
            for step, updates in enumerate(double["updates"]):
                rows += update_rows(job, step, updates)
    return {"numerics": rows}


def reference_rows(job: Job, results: Results, partial: Results) -> dict[str, Rows]:
    """The rows of each pass, by the place of its computation."""
    rows: Rows = []
    for place, done in enumerate(done for result in results for done in result["passes"]):
        about = {"computation": place, "replicas": done["computation"]["replicas"], "twin": False}
        rows += numbers(job, "loss", done["loss"], **about)
        for quantity, name in (("probed", "gradients"), ("buffer", "buffers"), ("alone", "alone")):
            rows += _by_step(job, quantity, done[name], **about)
        for quantity, name in (("probed", "twin_gradients"), ("buffer", "twin_buffers")):
            rows += _by_step(job, quantity, done[name], **about | {"twin": True})
    return {"numerics": rows}


def _by_step(job: Job, quantity: str, steps: list[list[list[float]]], **about: object) -> Rows:
    return [
        row
        for step, tensors in enumerate(steps)
        for tensor, values in enumerate(tensors)
        for row in numbers(job, quantity, values, step=step, tensor=tensor, **about)
    ]


def in_double_already(document: RunDocument) -> set[str]:
    return {name for one in document.begun(Numerics).doubles if one.status not in STOPPED for name in one.scenarios}


def stopped(document: RunDocument) -> bool:
    """Whether one of these launches was stopped, and not done again."""
    known = document.begun(Numerics)
    judged = {name for one in known.doubles for name in one.scenarios}
    return judged != in_double_already(document) or any(one.status in STOPPED for one in known.references)


def _computations(launches: Sequence[LaunchRecord]) -> dict[str | None, tuple[Computation, ...]]:
    """By environment those that these launches are held against."""
    wanted: dict[str | None, dict[Computation, None]] = {}
    for one in launches:
        if one.effective:
            wanted.setdefault(one.environment, {})[one.effective.computation] = None
    return {environment: tuple(computations) for environment, computations in wanted.items()}


def has_reference(document: RunDocument, environment: str | None, wanted: Sequence[Computation]) -> bool:
    known = document.begun(Numerics).reference_of(environment)
    return known is not None and known.status in DONE and {*wanted} <= {*known.computations}


def _missing(document: RunDocument, request: Request) -> bool:
    measured = {launch.scenario for launch in document.good}
    references = all(has_reference(document, *one) for one in _computations(document.good).items())
    return request.parity and bool(measured) and not (references and measured <= in_double_already(document))


def _again(document: RunDocument) -> list[ReferenceRecord]:
    wanted = _computations(document.good)
    known = document.begun(Numerics).references
    return [one for one in known if not has_reference(document, one.environment, wanted.get(one.environment, ()))]


EXPERIMENT = Experiment(
    record=Numerics,
    missing=_missing,
    again=_again,
    failed=lambda record: [one.status in DONE for one in record.references].count(False),
)
