"""What a sweep of the input is worth in words: which bounds which, and how many workers are enough."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from standin.documents import document, launch, with_records
from standin.runs import DDP, write_run

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Estimate, estimate
from bench.analyse.loader import Swept, found_by, rates, remarks, sentence, together, why_open
from bench.analyse.validity import findings
from bench.core.codec import decode, encode
from bench.experiments.input_sweep import TRAINING
from bench.experiments.plan import MOST_BATCHES, batches, in_turns
from bench.report.loader import loader_plot, loader_table
from bench.runs.document import RunDocument
from bench.runs.experiments import InputRecord, InputSweep
from bench.runs.reader import read
from bench.runs.writer import RunWriter


def swept(loader: dict[int, float], training: float, **more: Any) -> Swept:
    by_workers = {workers: estimate([rate]) for workers, rate in loader.items()}
    return Swept(
        unit="img", loader=by_workers, training=estimate([training]), **{"first": None, "first_mib": None, **more}
    )


@pytest.mark.parametrize(
    ("loader", "training", "both", "enough", "says"),
    [
        ({0: 50, 1: 48, 2: 96}, 80, 79, 2, "With fewer than 2 workers * at most 48.0 * both together reach 79.0."),
        ({0: 100, 1: 99}, 80, None, 1, "Without workers * at most 44.4 img/s; --workers 1 is enough: * 99.0 img/s *"),
        ({0: 30, 1: 29, 2: 55, 4: 120}, 300, 118, None, "The loader bounds training with any number *"),
        ({0: 5000, 1: 3000}, 80, 79, 0, "Training bounds the input, * --workers 0 is enough: * gives 5,000 img/s *"),
        ({0: 10, 1: 20, 2: 40, 4: 80}, 60, 59, 4, "With fewer than 4 workers * at most 40.0 img/s; *"),
    ],
)
def test_the_sentence(loader: dict[int, float], training: float, both: Any, enough: int | None, says: str) -> None:
    found = swept(loader, training)
    assert found.enough == enough
    said = sentence(found, estimate([] if both is None else [both]))
    assert fnmatchcase(said, says), said


def test_remarks() -> None:
    near = Estimate(value=80.0, low=70.0, high=90.0, n=3)
    sure = Estimate(value=81.0, low=80.0, high=82.0, n=3)
    found = swept({0: 10.0, 1: 30.0}, 81.0, first=12.0, first_mib=345.6)
    found = replace(found, loader={**found.loader, 2: near}, training=sure)
    cores, alike, first = remarks(found, estimate([60.0]), 2)
    assert cores.startswith("Both together reach 25 % less than the two alone allow") and "share 2 cores" in cores
    assert alike == "With 2 workers the loader may be as fast as training: more --launches would tell."
    assert "With 1 worker the loader may" in remarks(replace(found, loader={0: sure, 1: near}), estimate([60.0]), 2)[1]
    assert "gave 12.0 img/s with 2 workers for each rank (346 MiB of it from a disk); later ones 80.0" in first
    assert "for each rank; later ones" in remarks(replace(found, first_mib=None), estimate([79.0]), 2)[-1]
    assert remarks(swept({0: 10.0, 1: 100.0}, 50.0), estimate([49.0]), 2) == []


def test_rounds_alternate_over_whole_turns() -> None:
    assert in_turns((0, 1, TRAINING), 2) == [(0, 0), (1, 0), (None, 0), (None, 1), (1, 1), (0, 1)]
    assert batches(0.1, (0, 1, 2, 4)) == 8
    assert batches(30.0, (0, 1, 2, 4, 8)) == 32
    assert batches(1e9, (0, 1, 2, 4)) == MOST_BATCHES


def record(number: int, workers: int | None, per_s: float | None, *, first: bool = False) -> InputRecord:
    more = {"workers": workers, "first_reading": first, "throughput_per_s": per_s, "disk_mib": 0.0}
    one = launch(launch=number, status="error" if per_s is None else "ok")
    return replace(InputRecord.of(one, **more), warmup=1, iters=4)


def with_sweep(writer: RunWriter) -> None:
    """The loader gives 100 and 150 images a second, training reaches 250, and the run's launches 200."""
    writer.note(InputSweep(counts=(0, 1)))
    for workers, per_s, first in ((1, 20.0, True), (0, 100.0, False), (1, 150.0, False), (None, 250.0, False)):
        writer.add_to(InputSweep, record(writer.document.next_launch, workers, per_s, first=first))


def run_with_sweep(folder: Path) -> Analysed:
    return Analysed.of(read(str(write_run(folder, [DDP], also=with_sweep))))


def test_a_stored_sweep_is_read_and_shown(tmp_path: Path) -> None:
    run = run_with_sweep(tmp_path)
    assert decode(RunDocument, encode(run.document)) == run.document
    found = found_by(run.document)
    assert found is not None and found.enough is None and found.workers == 1
    assert together(run.document, run.good_stats).value == pytest.approx(1000 * 8 / 42.5)
    table, plot = loader_table(run), loader_plot(run)
    assert table is not None and [row[0].text for row in table.rows][-2:] == ["training alone", "both together"]
    assert plot is not None and 'id="training"' in plot.svg and 'id="both"' in plot.svg
    rows = rates(found, estimate([79.0]))
    assert rows["what"].tolist() == ["loader", "loader", "training", "both"]
    assert rows["workers"].fillna(-1).tolist() == [0, 1, -1, 1] and not rows["enough"].any()
    assert rows["throughput_per_s"].tolist() == [100.0, 150.0, 250.0, 79.0]


def test_a_rate_that_failed_leaves_the_answer_open() -> None:
    launches = (record(0, 0, 10.0), record(1, 1, None), record(2, None, 50.0))
    sweep = InputSweep(counts=(0, 1), launches=launches)
    run = with_records(document(), sweep)
    assert found_by(run) is None
    assert str(why_open(run)).endswith("the loader alone with 1 worker for each rank failed (error: None).")
    assert why_open(document()) is None


def test_input_bound_has_the_number_of_the_sweep(tmp_path: Path) -> None:
    run = run_with_sweep(tmp_path)
    waiting = run.stats.frame.assign(data_share=0.4)
    table = findings(run.document, replace(run.stats, frame=waiting), run.parity)
    (remedy,) = table.loc[table["code"] == "input-bound", "remedy"]
    assert remedy.startswith("the loader gives at most 150 img/s here (--workers 1)")
