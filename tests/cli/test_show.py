"""What there is, and the answer of a run again."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from standin.runs import DDP, FINITE, Launch, write_run

from bench.analyse import verdicts
from bench.analyse.analysed import Analysed
from bench.cli import main
from bench.runs.writer import RunWriter
from bench.verbs import runs

BROKEN = "20260101T000000Z-00000000"


def judge(writer: RunWriter) -> None:
    writer.judge(**verdicts.of(Analysed.of(writer.frames())))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    slow = [Launch("ddp", [[9, ms, ms]], [[100.0]]) for ms in (40, 41, 42)]
    fast = [Launch("ddp_o2", [[9, ms, ms]], [[90.0]], precision="O2") for ms in (20, 20, 21)]
    write_run(tmp_path / "results", [*slow, *fast], label="three of each", also=judge)
    (tmp_path / "results" / BROKEN).mkdir()
    (tmp_path / "results" / BROKEN / "run.json").write_text("{")
    return tmp_path


def test_show_says_what_the_run_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = [path.name for path in (here / "results").iterdir() if path.name != BROKEN]
    assert main(["show", run]) == 0
    answer, _, heading, _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert answer.startswith("Fastest: ddp_o2, ") and "times as fast as ddp" in answer
    assert heading.split()[:2] == ["scenario", "img/s"] and "what ran" not in heading
    assert (first.split()[0], second.split()[0]) == ("ddp_o2", "ddp")
    assert main(["show", run, "-v"]) == 0
    assert "what ran" in capsys.readouterr().out
    assert main(["show", run, "--json"]) == 0
    assert [row["scenario"] for row in json.loads(capsys.readouterr().out)["summary"]] == ["ddp", "ddp_o2"]


def test_runs_are_listed_with_their_answers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(here / "results", [DDP, replace(FINITE, scenario="x")], complete=False)
    assert main(["runs"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"three of each +resnet18, 32 px +2 +6  (ddp_o2$|-)", table, re.M)
    assert BROKEN in table and "incomplete" in table
    assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert {one["label"] for one in found} == {"three of each", "-"} and len(found) == 3
    assert main(["runs", "--results", "absent"]) == 2
    said = capsys.readouterr().err
    assert "--results: there is no run in absent; make one with 'python -m bench run'" in said


def test_the_latest_runs_are_listed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LATEST", 1)
    for more, listed in ((), 1), (("--all",), 2):
        assert main(["runs", *more]) == 0
        shown = capsys.readouterr().out
        assert len(re.findall(r"^(?:\d{8}T\d{6}Z|" + BROKEN + ")", shown, re.M)) == listed
        assert ("and 1 earlier run: --all lists them" in shown) == (listed == 1)
