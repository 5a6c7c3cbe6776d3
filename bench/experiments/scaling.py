"""``bench scale``: the same training on 1, 2, 4, ... devices, and where the lost time goes.

Rounds over all numbers of devices, with the batch of each rank kept (weak) and with the global batch kept (strong).
Then for each number a diagnostic launch, which separates communication from computation, one of all-reduces alone, and
one whose ranks compute and exchange nothing. The last two predict numbers that were not measured.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.analyse.algorithms import Algorithms
from bench.console import count, say
from bench.core.codec import decode
from bench.experiments import bandwidth, measure, resume
from bench.experiments.diagnose import diagnostic_rows, looks
from bench.experiments.lab import Finished, Lab, Start, opened
from bench.experiments.launch import Performed, perform, where_to_look
from bench.experiments.plan import Request, in_turns
from bench.experiments.plan import scaling as plan
from bench.runs.document import RunDocument, launches_of
from bench.runs.experiments import Exchange, ExchangesRecord, PointDiagnostic, PointRecord, Scaling
from bench.seams.discover import Found
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material


def _missing(document: RunDocument, request: Request) -> bool:
    return any(one.status not in resume.DONE for one in (*document.launches, *launches_of(document.of(Scaling))))


def chapter(of: "Material") -> "Chapter":
    from bench.analyse.all_reduce import samples, sentences
    from bench.analyse.scaling import foreseen
    from bench.report import all_reduce
    from bench.report.blocks import Grid, chapter_of, fold
    from bench.report.scaling import each_table, prediction_table, predictions_title, scaling_table
    from bench.words import scaling as scaling_words

    scaling = of.run.document.begun(Scaling)
    if scaling.by_itself:
        return chapter_of("each", "Is a device slow?", of.plots.get("each"), Grid("Each device", each_table(of.run)))
    algorithms = Algorithms.of(of.run.document)
    reduced = all_reduce.bandwidth_table(samples(scaling.bandwidth, algorithms))
    return chapter_of(
        "scaling",
        "What do more devices bring?",
        of.plots.get("scaling"),
        Grid("Efficiency by number of devices", scaling_table(of.run)),
        *scaling_words.sentences(of.run),
        Grid(predictions_title(scaling.what_if_mbit), prediction_table(*foreseen(of.run))),
        *scaling_words.about_predictions(of.run),
        of.plots.get("all-reduces"),
        fold("All-reduces by size", Grid("All-reduces", reduced)),
        *sentences(scaling.bandwidth, algorithms),
    )


EXPERIMENT = Experiment(record=Scaling, verb="scale", missing=_missing, alone=True, chapter=chapter, leads=True)


def scale(request: Request, found: Found, asked: Scaling, start: Start) -> Finished:
    """Write a run folder that begins with the record ``asked``, or go on with one; see
    :func:`bench.experiments.pipeline.run`."""
    points = () if asked.by_itself else plan.points(asked.counts, asked.batch_per_rank, asked.modes)
    with opened(request, (found,), start, begun=asked) as lab, lab.progress:
        before = lab.writer.document.begun(Scaling)
        lab.writer.note(replace(before, predict=asked.predict, what_if_mbit=asked.what_if_mbit))
        if lab.obstacles[found.name] is None and points:
            _curves(lab, found, points)
        elif lab.obstacles[found.name] is None:
            _each_alone(lab, found)
    return Finished(run=lab.sealed())


def _curves(lab: Lab, found: Found, points: tuple[plan.Point, ...]) -> None:
    """Do the launches that are left."""
    request, document = lab.request, lab.writer.document
    done = document.begun(Scaling)
    measured = {(one.replicas, request.global_batch, one.repeat) for one in document.launches}
    measured |= {(one.replicas, one.global_batch, one.repeat) for one in done.launches}
    turns = in_turns(points, request.launches)
    todo = [("measure", *one) for one in turns if (one[0].count, one[0].global_batch, one[1]) not in measured]
    several = [point for point in points if point.count > 1]
    diagnosed = {(one.replicas, one.global_batch) for one in done.diagnostics}
    todo += [("diagnose", one, 0) for one in several if (one.count, one.global_batch) not in diagnosed]
    if found.strategy.group:
        counts = sorted({point.count for point in several} - {one.processes for one in done.bandwidth})
        todo += [("bandwidth", plan.Point(count=number, global_batch=number), 0) for number in counts]
        computed = {(one.processes, one.global_batch) for one in done.exchanges}
        apart = [plan.Point(count=ranks, global_batch=ranks * batch) for ranks, batch in plan.without_exchanges(done)]
        todo += [("exchanges", one, 0) for one in apart if (one.count, one.global_batch) not in computed]
    lab.progress.expect([found.name] * len(todo))
    devices = ", ".join(str(one) for one in sorted({point.count for point in points}))
    say(f"{count(len(todo), 'launch', 'launches')} of {found.name} on {devices} devices")
    for purpose, point, repeat in todo:
        job = plan.job_at(request, found, point, lab.next_launch(), lab.site.hosts, purpose, repeat)
        at = f"{point.count} x {point.global_batch // point.count}"
        doing = {
            "measure": at,
            "diagnose": f"diagnosing {at}",
            "bandwidth": f"all-reduces over {point.count}",
            "exchanges": f"{at} without exchanging",
        }[purpose]
        rows_of = diagnostic_rows if purpose == "diagnose" else None
        perform(job, lab, doing, partial(_kept, lab, point, doing), rows_of)


def _kept(lab: Lab, point: plan.Point, doing: str, done: Performed) -> str:
    request, record, batch = lab.request, done.record, point.global_batch
    if done.job.purpose == "measure":
        if (point.count, batch) == (request.replicas, request.global_batch):
            lab.writer.add(record, **done.tables)
        else:
            lab.writer.add_to(Scaling, PointRecord.of(record, global_batch=batch), **done.tables)
        return f"{doing}: {measure.how_fast(done)}"
    if done.job.purpose == "diagnose":
        diagnostic, text = PointDiagnostic.of(record, global_batch=batch, looks=looks(done)), "profiled"
        lab.writer.add_to(Scaling, diagnostic, "diagnostics", **done.tables)
    elif done.job.purpose == "bandwidth":
        reduced = bandwidth.of(done.job, record, done.results)
        lab.writer.add_to(Scaling, reduced, "bandwidth")
        text = f"all-reduces of {count(len(reduced.sizes), 'size')}"
    else:
        slowest = max(done.results, key=lambda one: max(one["ends_ms"].values(), default=0.0), default=None)
        reported = slowest if record.status == "ok" and slowest else {"ends_ms": {}, "exchanges": ()}
        exchanged = ExchangesRecord.of(
            record,
            global_batch=batch,
            ends_ms=reported["ends_ms"],
            exchanges=decode(tuple[Exchange, ...], reported["exchanges"], "exchanges"),
            why_not=reported.get("why_not"),
        )
        lab.writer.add_to(Scaling, exchanged, "exchanges")
        text = exchanged.why_not or f"{count(len(exchanged.exchanges), 'exchange')} a step"
    return f"{doing}: {where_to_look(record) or text}"


def _each_alone(lab: Lab, found: Found) -> None:
    """Every device by itself, in rounds."""
    scaling = lab.writer.document.begun(Scaling)
    done = {(one.slot, one.repeat) for one in scaling.launches}
    rounds = [one for one in in_turns(range(lab.request.replicas), lab.request.launches) if one not in done]
    lab.progress.expect([found.name] * len(rounds))
    say(f"{count(len(rounds), 'launch', 'launches')} of {found.name}, on one device each")
    batch = scaling.batch_per_rank
    for slot, repeat in rounds:

        def keep(done: Performed, slot: int = slot) -> str:
            lab.writer.add_to(Scaling, PointRecord.of(done.record, global_batch=batch, slot=slot), **done.tables)
            return f"device {slot}: {measure.how_fast(done)}"

        job = plan.alone_on(lab.request, found, slot, batch, repeat, lab.next_launch(), lab.site.hosts)
        perform(job, lab, "measuring", keep)
