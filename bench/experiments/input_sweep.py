"""``bench run --input-sweep``: does the loader keep up with training, and how many workers are enough?

Three rates, over all ranks: of the loader alone with 0, 1, 2, 4, ... workers for each rank; of training alone, with its
batches ready in memory; and of both together, with as many workers as are enough. The launches of the first two are
interleaved in rounds. They all load the same batches, which are read once before: that first reading may come from the
disk, like a first epoch, and the later ones come from memory.
"""

import statistics
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.experiments import plan
from bench.experiments.lab import Lab, recorded
from bench.experiments.launch import Performed, perform, where_to_look
from bench.experiments.measure import slowest_ms
from bench.experiments.rows import step_rows
from bench.runs.experiments import InputRecord, InputSweep
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material


def chapter(of: "Material") -> "Chapter":
    from bench.report.blocks import Grid, chapter_of
    from bench.report.loader import loader_table, loader_words

    table = Grid("The loader alone, training alone, and both together", loader_table(of.run))
    return chapter_of("loader", "Is it the loader?", of.plots.get("loader"), table, *loader_words(of.run)[1:])


EXPERIMENT = Experiment(record=InputSweep, chapter=chapter)

TRAINING = None  # instead of a number of workers: nothing loads, and the ranks train


def with_enough_workers(lab: Lab) -> Lab | None:
    """Sweep, and return the lab whose launches use as many workers as are enough; None if that is unknown because
    launches failed. A resumed run keeps what it has."""
    from bench.analyse.loader import found_by

    if lab.request.workers is not None:
        return lab
    (found,) = lab.scenarios
    sweep = lab.writer.document.of(InputSweep)
    sweep = sweep or InputSweep(counts=plan.worker_counts(lab.request, found, lab.site.hosts))
    lab.writer.note(sweep)
    done = {(one.workers, one.repeat) for one in sweep.good if not one.first_reading}
    rounds = [one for one in plan.in_turns((*sweep.counts, TRAINING), lab.request.launches) if one not in done]
    lab.progress.expect([found.name] * len(rounds))
    batches = _read_first(sweep, lab)
    if batches is None:
        return None
    for workers, repeat in rounds:
        _launch(workers, repeat, batches, lab)
    swept = found_by(lab.writer.document)
    if swept is None:
        return None
    request = replace(lab.request, workers=swept.workers)
    lab.writer.note_request(*recorded(request))
    return replace(lab, request=request)


def _read_first(sweep: InputSweep, lab: Lab) -> int | None:
    """Read once what every launch will, with the most workers. Returns how many batches that is, or None if it fails.

    A few batches show how many are needed.
    """
    batches, done = plan.fewest_batches(sweep.counts), [one for one in sweep.good if one.first_reading]
    if done:
        return done[-1].iters
    for _ in range(2):
        lab.progress.expect([found.name for found in lab.scenarios])
        read = _launch(max(sweep.counts), 0, batches, lab, first_reading=True)
        if read.throughput_per_s is None:
            return None
        wanted = plan.batches(read.throughput_per_s / lab.request.workload.units, sweep.counts)
        if wanted <= batches:
            break
        batches = wanted
    return batches


def _launch(workers: int | None, repeat: int, batches: int, lab: Lab, *, first_reading: bool = False) -> InputRecord:
    """A launch of the loader alone, or of training alone, which is on disk then."""
    (found,) = lab.scenarios
    if workers is TRAINING:
        job = plan.job_of(lab.request, found, lab.next_launch(), repeat, lab.site.hosts)
        doing, what = "training", "training alone"
    else:
        job = plan.loading(lab.request, found, workers, repeat, lab.next_launch(), lab.site.hosts, batches)
        doing = "first reading" if first_reading else "loading"
        what = f"the loader alone, {'first reading, ' * first_reading}--workers {workers}"

    def keep(done: Performed) -> str:
        per_s = 1000 * job.workload.units / _took_ms(done) if done.record.status == "ok" else None
        read = [result.get("disk_bytes") for result in done.results]
        disk_mib = sum(filter(None, read)) / 2**20 if read and None not in read else None
        about = {"workers": workers, "first_reading": first_reading, "throughput_per_s": per_s, "disk_mib": disk_mib}
        record = InputRecord.of(done.record, warmup=job.workload.warmup, iters=job.iters, **about)
        lab.writer.add_to(InputSweep, record, **done.tables)
        return f"{what}: {where_to_look(record) or f'{per_s:,.1f} {lab.request.task.unit_short}/s'}"

    perform(job, lab, doing, keep, lambda job, results, partial: {"steps": step_rows(job, results)})
    return lab.writer.document.begun(InputSweep).launches[-1]


def _took_ms(done: Performed) -> float:
    """A batch, on the mean: of a step the slowest rank, and of a loader, which waits for nobody, the slowest of all."""
    if done.job.purpose != "loading":
        return statistics.fmean(slowest_ms(done.tables["steps"]))
    by_rank: dict[int, float] = defaultdict(float)
    for row in done.tables["steps"]:
        if not row["warmup"]:
            by_rank[row["rank"]] += row["step_ms"]
    return max(by_rank.values()) / done.job.iters
