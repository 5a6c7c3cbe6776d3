"""What there is, and the answer of a run again."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench
from standin.runs import DDP, FINITE, timed, write_run

from bench.analyse import verdicts
from bench.runs.experiments import BatchSearch, LargestBatch
from bench.runs.writer import RunWriter
from bench.verbs import runs

BROKEN = "20260101T000000Z-00000000"


def judge(writer: RunWriter) -> None:
    writer.judge(verdicts.judged(writer.frames()))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    launches = timed({"ddp": (40, 41, 42), "ddp_o2": (20, 20, 21)})
    write_run(tmp_path / "results", launches, label="three of each", also=judge)
    (tmp_path / "results" / BROKEN).mkdir()
    (tmp_path / "results" / BROKEN / "run.json").write_text("{")
    return tmp_path


def test_show_says_what_the_run_said(here: Path, bench: Bench) -> None:
    (run,) = [path.name for path in (here / "results").iterdir() if path.name != BROKEN]
    code, said, _ = bench("show", run)
    answer, _, heading, _, first, second, *_ = said.splitlines()
    assert code == 0 and answer.startswith("Fastest: ddp_o2, ") and "times as fast as ddp" in answer
    assert heading.split()[:2] == ["scenario", "img/s"] and "what ran" not in heading
    assert (first.split()[0], second.split()[0]) == ("ddp_o2", "ddp")
    assert "what ran" in bench("show", run, "-v")[1]
    assert [row["scenario"] for row in bench("show", run, "--json").document["summary"]] == ["ddp", "ddp_o2"]


def test_show_has_the_largest_batches_again(here: Path, bench: Bench) -> None:
    rest: dict[str, Any] = {"too_large": None, "why_not": None, "tries": 11, "failed": False}
    ended = LargestBatch(largest=2048, throughput_per_s=90.0, peak_mib=400.0, stopped_by="budget", **rest)
    search = BatchSearch(scenarios={"ddp": ended})
    run = write_run(here / "results", [], scenarios=["ddp"], also=lambda writer: writer.note(search))
    said = bench("show", str(run))[1]
    assert re.search(r"^ddp +at least 2,048 \(stopped by the budget\) +90 +400  -$", said, re.M), said


def test_runs_are_listed_with_their_answers(here: Path, bench: Bench) -> None:
    write_run(here / "results", [DDP, replace(FINITE, scenario="x")], complete=False)
    code, table, _ = bench("runs")
    assert code == 0 and re.search(r"three of each +resnet18, 32 px +2 +6  (ddp_o2$|-)", table, re.M)
    assert BROKEN in table and "incomplete" in table
    found = bench("runs", "--json").document["runs"]
    assert {one["label"] for one in found} == {"three of each", "-"} and len(found) == 3
    for more in ((), ("--json",)):
        code, _, said = bench("runs", "--results", "absent", *more)
        assert code == 2 and "--results: there is no run in absent; make one with 'python -m bench run'" in said


def test_the_latest_runs_are_listed(here: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LATEST", 1)
    for more, listed in ((), 1), (("--all",), 2):
        shown = bench("runs", *more)[1]
        assert len(re.findall(r"^(?:\d{8}T\d{6}Z|" + BROKEN + ")", shown, re.M)) == listed
        assert ("and 1 earlier run: --all lists them" in shown) == (listed == 1)
