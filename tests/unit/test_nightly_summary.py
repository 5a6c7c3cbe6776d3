"""What the summary of a night says, on nights whose values are known."""

import json
from pathlib import Path
from typing import Any

import pytest
from standin import gated
from standin.documents import document

from bench.analyse.history.gate import Outcome, judge, measured
from bench.analyse.history.rule import Rule
from bench.report.gate import as_markdown, for_programs
from bench.runs.writer import RunWriter
from nightly import summary
from nightly.summary import bars

LATEST = "20260120T013000Z-00000000"


def digest(run: str, step_ms: float | None, image_size: int = 224, status: str = "ok") -> dict[str, Any]:
    """A night of one scenario with three launches around ``step_ms``; none where it is None."""
    times = [] if step_ms is None else [step_ms * factor for factor in (0.5, 1.0, 2.0)]
    ddp_o2 = gated.scenario("ddp_o2", times, status=status)
    speeds, peaks = [128_000 / one for one in times], [1000 + one for one in times]
    ddp_o2["launches"] |= {"throughput_per_s": speeds, "peak_pid_mib": peaks}
    return gated.digest(
        0,
        [ddp_o2],
        run=run,
        git={"commit": "0123456789abcdef", "dirty": True},
        workload=gated.trained("resnet101", "x", image_size=image_size),
        hardware=["A | B", "A | B"],
        conditions={"driver": "580.1", "torch": "2.9.0", "cuda": "13.0", "nccl": None, "power_limit_w": []},
    )


@pytest.fixture
def night(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    finding = {"about": "GPU 1", "consequence": "consequence", "remedy": "remedy"}
    levels = [{**finding, "level": level, "finding": f"{level} found"} for level in ("problem", "warning", "note")]
    gpus = [{"index": index, "uuid": f"GPU-{index}"} for index in range(2)]
    (tmp_path / "out" / "doctor.json").write_text(json.dumps({"gpus": gpus, "findings": levels}))
    (tmp_path / "history").mkdir()
    return tmp_path


def written(night: Path, code: int = 0, gate: str = "0", kept: bool = True, tonight: Any = None) -> str:
    if not (night / "out" / "results").exists():
        gated.write(night / "out" / "results", tonight or digest(LATEST, 100.0))
    return summary.summary(night / "out", code, gate, night / "history", kept=kept)


def row(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("| ddp")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_bars_show_a_change_and_little_of_noise() -> None:
    assert bars([100.0, 100.3, 99.9]) == "▁▂▁", "noise is one step"
    assert (bars([100.0, 100.0, 105.0]), bars([100.0, None, 200.0, 150.0])) == ("▁▁█", "▁·█▅")
    assert (bars([None, None]), bars([None, 7.0])) == ("··", "·▁")


def test_figures_are_means_and_the_largest_process(night: Path) -> None:
    text = written(night)
    assert row(text) == ["ddp\\_o2", "1,280.0", "100.00", "1,200", "ok", "▁"]
    plot = text.partition("```mermaid\n")[2].partition("```")[0]
    assert '    x-axis ["ddp_o2"]\n    y-axis 0 --> 1344\n    bar [1280]\n' in plot


def test_the_unit_and_many_digits_of_a_rate(night: Path) -> None:
    tokens = digest(LATEST, 1.0)
    tokens["workload"]["unit_short"] = "tok"
    text = written(night, tonight=tokens)
    assert "| scenario | tok/s | step ms |" in text and row(text)[1] == "128,000.0"
    assert 'title "Throughput (tok/s)"' in text and "    y-axis 0 --> 134400\n    bar [128000]\n" in text


def test_the_nights_before_are_of_the_same_work(night: Path) -> None:
    history = night / "history"
    for day, step_ms in ((18, 110.0), (17, None), (16, 104.0)):
        gated.write(history, digest(f"202601{day}T013000Z-00000000", step_ms, status="ok" if step_ms else "oom"))
    gated.write(history, digest("20260119T013000Z-00000000", 500.0, image_size=64))
    gated.write(history, digest("20260121T013000Z-00000000", 500.0))  # later than tonight
    gated.write(history, digest(LATEST, 100.0))  # tonight itself, kept already
    (history / "accepted").mkdir()
    (history / "20260115T013000Z-00000000").mkdir()
    (history / "20260115T013000Z-00000000" / "digest.json").write_text('{"run": ')
    assert row(written(night))[-1] == bars([104.0, None, 110.0, 100.0])
    for day in range(1, 32):
        gated.write(history, digest(f"202512{day:02d}T013000Z-00000000", 200.0))
    assert len(row(written(night))[-1]) == 20


def test_a_failed_scenario_says_how(night: Path) -> None:
    text = written(night, code=12, gate="12", tonight=digest(LATEST, None, status="oom"))
    assert row(text) == ["ddp\\_o2", "-", "-", "-", "oom", "·"]
    assert "mermaid" not in text, "there is nothing to draw"


def test_the_top_says_what_ran_and_if_it_was_kept(night: Path) -> None:
    top = written(night).split("\n\n")[1]
    for fact in (LATEST, "`0123456789ab` with local changes", "2 × A \\| B", "driver 580.1", "torch 2.9.0"):
        assert fact in top
    assert top.endswith("kept in the history") and "nccl" not in top
    assert "not kept in the history" in written(night, kept=False)


def test_an_invalid_night_on_a_cpu_tells_one_story(night: Path) -> None:
    """As it is measured and gated: two ranks share one CPU, and the launches of one scenario do not count."""
    invalid = gated.scenario("ddp", gated.STEADY, validity="invalid", invalid=["phases"])
    scenarios = [invalid, gated.scenario("dp", gated.STEADY)]
    tonight = gated.digest(0, scenarios, run=LATEST, device="cpu", hardware=["AMD EPYC"])
    rows = judge(measured(LATEST, tonight), {}, Rule())
    outcome = Outcome(run=LATEST, rows=tuple(rows), rule=Rule(), against="DIR", folder="DIR")
    (night / "out" / "gate.md").write_text(as_markdown(outcome))
    (night / "out" / "gate.json").write_text(json.dumps(for_programs(outcome)))
    text = written(night, code=12, gate="12", tonight=tonight)
    assert " · 2 CPU ranks on AMD EPYC · " in text
    assert "kept in the history, but as no base for ddp\n" in text
    assert "Missing or not comparable: ddp (measured, and invalid)" in text
    tonight_ms = text.partition("## Tonight")[2]
    assert " | invalid (phases) | " in tonight_ms and tonight_ms.count(" | ok | ") == 1, "that of dp"
    assert "no base" not in written(night, code=12, gate="12", kept=False)


def test_the_headline_is_how_the_night_ended(night: Path) -> None:
    for code, gate, headline in (
        (0, "0", "no regression found"),
        (0, "11", "inconclusive, allowed"),
        (10, "10", "regressed"),
        (1, "0", "no regression found (exit code 1: failed)"),
        (1, "11", "inconclusive (exit code 1: failed)"),
        (2, "none", "the request is wrong"),
        (3, "none", "not measured: the doctor found what spoils it"),
        (137, "none", "failed with exit code 137"),
    ):
        assert written(night, code, gate).splitlines()[0] == f"# Nightly benchmark: {headline}"


def test_errors_are_told_once_and_inert(night: Path) -> None:
    (night / "out" / "night.log").write_text("[1/2] ddp\nbench: error: a <b> failed\nbench: error: a <b> failed\n")
    assert written(night, 1, "none").count("- bench: error: a \\<b\\> failed") == 1


def test_a_night_that_left_nothing_has_a_summary(tmp_path: Path) -> None:
    (tmp_path / "doctor.json").write_text('{"gpus": [')
    text = summary.summary(tmp_path, 130, "none", tmp_path, kept=False)
    assert text == "# Nightly benchmark: interrupted\n\nNo launch was measured.\n"


def test_ends(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = str(night / "out" / "doctor.json")
    for stop_at, gpus, code, told in (
        *(("problem", gpus, 3, True) for gpus in ("", "1,0", "GPU-1")),
        *(("problem", "0", 0, False), ("never", "", 0, True)),
    ):
        assert summary.main(["doctor", doctor, "--stop-at", stop_at, "--gpus", gpus]) == code
        said = capsys.readouterr().out
        assert ("nightly: error: doctor: GPU 1: problem found: consequence; remedy" in said) is (code == 3)
        assert ("doctor: warning: GPU 1: warning found" in said) is told and "note" not in said


def test_a_run_is_kept_only_as_it_was_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RunWriter(str(tmp_path), document())
    assert summary.main(["sealed", writer.path]) == 1
    assert "nightly: error: " in (said := capsys.readouterr().out) and "is incomplete" in said
    writer.finish(complete=True)
    assert summary.main(["sealed", writer.path]) == 0
    (Path(writer.path) / "steps.parquet").write_bytes(b"")
    assert summary.main(["sealed", writer.path]) == 1
    assert "steps.parquet was changed after it was sealed" in capsys.readouterr().out
