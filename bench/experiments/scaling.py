"""``bench scale``: the same training on 1, 2, 4, ... devices, and where the lost time goes.

Rounds over all numbers of devices, with the batch of each rank kept (weak) and with the global batch kept (strong).
Then for each number a diagnostic launch, which separates communication from computation, one of all-reduces alone, and
one whose ranks compute and exchange nothing. The last two predict numbers that were not measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.console import count, say
from bench.core.codec import decode
from bench.core.job import Job
from bench.experiments import bandwidth, measure, resume
from bench.experiments.diagnose import diagnostic_rows, looks
from bench.experiments.lab import Finished, Lab, Start, opened
from bench.experiments.launch import Performed, perform, where_to_look
from bench.experiments.plan import Request, in_turns
from bench.experiments.plan import scaling as plan
from bench.experiments.plan.scaling import Point
from bench.experiments.rows import Maker
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
    from bench.analyse.algorithms import Algorithms
    from bench.analyse.all_reduce import samples, sentences
    from bench.analyse.scaling import foreseen
    from bench.report import all_reduce
    from bench.report.blocks import Grid, chapter_of, fold
    from bench.report.scaling import each_table, prediction_table, predictions_title, scaling_table
    from bench.words import scaling as scaling_words

    scaling = of.run.document.begun(Scaling)
    if scaling.by_itself:
        table = Grid("Each device", each_table(of.run))
        return chapter_of("each", "Is a device slow?", of.plots.get("each"), table)
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
            _Curves(lab, found, points).run()
        elif lab.obstacles[found.name] is None:
            _each_alone(lab, found)
    return Finished(run=lab.sealed())


@dataclass(frozen=True, slots=True)
class _Curves:
    lab: Lab
    found: Found
    points: tuple[Point, ...]

    def run(self) -> None:
        """Do the launches that are left."""
        request, document = self.lab.request, self.lab.writer.document
        done = document.begun(Scaling)
        measured = {(one.replicas, request.global_batch, one.repeat) for one in document.launches}
        measured |= {(one.replicas, one.global_batch, one.repeat) for one in done.launches}
        turns = in_turns(self.points, request.launches)
        rounds = [(one, repeat) for one, repeat in turns if (one.count, one.global_batch, repeat) not in measured]
        several = [point for point in self.points if point.count > 1]
        diagnosed = {(one.replicas, one.global_batch) for one in done.diagnostics}
        to_diagnose = [one for one in several if (one.count, one.global_batch) not in diagnosed]
        reduced = {one.processes for one in done.bandwidth}
        computed = {(one.processes, one.global_batch // one.processes) for one in done.exchanges}
        counts = sorted({point.count for point in several} - reduced) if self.found.strategy.group else []
        exchanging = plan.without_exchanges(done) if self.found.strategy.group else ()
        computing = [one for one in exchanging if one not in computed]
        total = len(rounds) + len(to_diagnose) + len(counts) + len(computing)
        self.lab.progress.expect([self.found.name] * total)
        devices = ", ".join(str(one) for one in sorted({point.count for point in self.points}))
        say(f"{count(total, 'launch', 'launches')} of {self.found.name} on {devices} devices")
        for point, repeat in rounds:
            self._measure(point, repeat)
        for point in to_diagnose:
            self._diagnose(point)
        for number in counts:
            self._all_reduce(number)
        for number, batch in computing:
            self._note_exchanges(number, batch)

    def _measure(self, point: Point, repeat: int) -> None:
        lab = self.lab
        at = replace(lab, request=plan.request_at(lab.request, point.count, point.global_batch))
        whole = point.global_batch == lab.request.global_batch and point.count == lab.request.replicas

        def keep(done: Performed) -> str:
            if whole:
                lab.writer.add(done.record, **done.tables)
            else:
                record = PointRecord.of(done.record, global_batch=point.global_batch)
                lab.writer.add_to(Scaling, record, **done.tables)
            return measure.how_fast(at, done)

        lab.progress.units, lab.progress.steps = at.request.workload.units, at.request.warmup + at.request.iters
        job = plan.job_at(lab.request, self.found, point, lab.next_launch(), lab.site.hosts, repeat=repeat)
        self._perform(job, f"{point.count} x {point.global_batch // point.count}", keep)

    def _diagnose(self, point: Point) -> None:
        lab = self.lab

        def keep(done: Performed) -> str:
            record = PointDiagnostic.of(done.record, global_batch=point.global_batch, looks=looks(done))
            lab.writer.add_to(Scaling, record, "diagnostics", **done.tables)
            return where_to_look(done.record) or "profiled"

        job = plan.job_at(lab.request, self.found, point, lab.next_launch(), lab.site.hosts, purpose="diagnose")
        self._perform(job, f"diagnosing {point.count} x {point.global_batch // point.count}", keep, diagnostic_rows)

    def _all_reduce(self, number: int) -> None:
        lab = self.lab

        def keep(done: Performed) -> str:
            record = bandwidth.of(done.job, done.record, done.results)
            lab.writer.add_to(Scaling, record, "bandwidth")
            return where_to_look(done.record) or f"all-reduces of {count(len(record.sizes), 'size')}"

        point = Point(count=number, global_batch=number)
        job = plan.job_at(lab.request, self.found, point, lab.next_launch(), lab.site.hosts, purpose="bandwidth")
        self._perform(job, f"all-reduces over {number}", keep)

    def _note_exchanges(self, number: int, batch: int) -> None:
        lab = self.lab

        def keep(done: Performed) -> str:
            slowest = max(done.results, key=lambda one: max(one["ends_ms"].values(), default=0.0), default=None)
            reported = slowest if done.record.status == "ok" and slowest else {"ends_ms": {}, "exchanges": ()}
            record = ExchangesRecord.of(
                done.record,
                global_batch=number * batch,
                ends_ms=reported["ends_ms"],
                exchanges=decode(tuple[Exchange, ...], reported["exchanges"], "exchanges"),
                why_not=reported.get("why_not"),
            )
            lab.writer.add_to(Scaling, record, "exchanges")
            noted = record.why_not or f"{count(len(record.exchanges), 'exchange')} a step"
            return where_to_look(done.record) or noted

        point = Point(count=number, global_batch=number * batch)
        job = plan.job_at(lab.request, self.found, point, lab.next_launch(), lab.site.hosts, purpose="exchanges")
        self._perform(job, f"{number} x {batch} without exchanging", keep)

    def _perform(self, job: Job, doing: str, keep: Callable[[Performed], str], rows_of: Maker | None = None) -> None:
        perform(job, self.lab, doing, lambda done: f"{doing}: {keep(done)}", rows_of)


def _each_alone(lab: Lab, found: Found) -> None:
    """Every device by itself, in rounds."""
    scaling = lab.writer.document.begun(Scaling)
    done = {(one.slot, one.repeat) for one in scaling.launches}
    rounds = [one for one in in_turns(range(lab.request.replicas), lab.request.launches) if one not in done]
    lab.progress.expect([found.name] * len(rounds))
    say(f"{count(len(rounds), 'launch', 'launches')} of {found.name}, on one device each")
    batch = scaling.batch_per_rank
    at = replace(lab, request=plan.request_at(lab.request, 1, batch))
    lab.progress.units = at.request.workload.units
    for slot, repeat in rounds:

        def keep(done: Performed, slot: int = slot) -> str:
            record = PointRecord.of(done.record, global_batch=batch, slot=slot)
            lab.writer.add_to(Scaling, record, **done.tables)
            return f"device {slot}: {measure.how_fast(at, done)}"

        job = plan.alone_on(lab.request, found, slot, batch, repeat, lab.next_launch(), lab.site.hosts)
        perform(job, lab, "measuring", keep)
