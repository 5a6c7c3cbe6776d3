"""The night as a scheduler sees it: nightly.sh is run for real, on the CPU, with scenarios that mostly sleep."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from standin import ROOT
from standin.planted import sleeping
from standin.processes import wait_for

from bench.runs.reader import verified

SCRIPT = ROOT / "nightly" / "nightly.sh"

LIMITS = "--early-threshold 50%"
"""Wide enough for a night during which other work has the cores: what is planted is ten times as long."""
PAGES = ("report/index.html", "report/step-times.png", "history/history.html", "history.json")
WORKLOAD = {"model": "resnet18", "image-size": 32, "global-batch": 2, "warmup": 1, "iters": 4, "launches": 3}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "of the night"
    (folder / "history").mkdir(parents=True)
    for name in ("steady", "changed"):
        (folder / f"{name}.py").write_text(sleeping(0.1))
    return folder


def command(folder: Path, *options: str, run: list[str] | None = None) -> list[str]:
    both = ",".join(str(folder / f"{name}.py") for name in ("steady", "changed"))
    workload = [f"--{name}={value}" for name, value in WORKLOAD.items()]
    usual = ["--device", "cpu", "--scenario", both, *workload, "--no-parity", "--no-diagnose"]
    mine = ["--history", folder / "history", "--out", folder / "out", "--thresholds", LIMITS]
    return [*map(str, (SCRIPT, *mine, "--interpreter", sys.executable, *options)), "--", *(run or usual)]


def environment(**changes: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTLY_", "PYTHONPATH"))}
    return ours | changes


def a_night(folder: Path, *options: str, run: list[str] | None = None, **changes: str) -> tuple[int, str]:
    asked = command(folder, *options, run=run)
    done = subprocess.run(asked, cwd=folder, env=environment(**changes), capture_output=True, text=True)
    summary = folder / "out" / "summary.md"
    print(done.stdout, done.stderr, sep="\n")  # pytest shows it where a test fails
    return done.returncode, summary.read_text() if summary.is_file() else ""


def kept(folder: Path) -> list[str]:
    ids = sorted(file.parent.name for file in (folder / "history").glob("*/run.json"))
    for run in ids:
        assert verified(str(folder / "history" / run), allow_incomplete=False).run == run
    assert not (folder / "history" / ".incoming").exists()
    return ids


def row(summary: str, scenario: str) -> list[str]:
    (line,) = [line for line in summary.splitlines() if line.startswith(f"| {scenario} |") and "▁" in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_first_night_second_night_slower_night(here: Path) -> None:
    code, summary = a_night(here)
    assert code == 11 and summary.startswith("# Nightly benchmark: inconclusive\n")
    assert "there is no earlier night" in summary.casefold() and len(kept(here)) == 1

    code, summary = a_night(here)
    assert code == 0 and summary.startswith("# Nightly benchmark: no regression found\n")
    assert len(kept(here)) == 2 and len(row(summary, "steady")[-1]) == 2

    (here / "changed.py").write_text(sleeping(1.0))
    code, summary = a_night(here, "--no-keep")
    assert code == 10 and summary.startswith("# Nightly benchmark: regressed\n")
    cases = ET.parse(here / "out" / "junit.xml").getroot().iter("testcase")
    failed = [(case.get("classname"), case.get("name")) for case in cases if case.find("failure") is not None]
    assert failed == [("bench.gate.changed", "step time")]
    rows = json.loads((here / "out" / "gate.json").read_text())["rows"]
    assert [row["scenario"] for row in rows if row["verdict"] == "regressed"] == ["changed"]
    assert "Regressed: changed step time +" in summary and "Regressed: steady" not in summary
    assert all((here / "out" / name).stat().st_size for name in ("doctor.json", "gate.md", "night.log", *PAGES))
    assert row(summary, "changed")[-1].endswith("█"), "the last bar of its row is the highest"
    assert len(kept(here)) == 2, "a trial is not kept"

    (here / "changed.py").write_text(sleeping(0.1).replace("    session =", "    assert False\n    session ="))
    code, summary = a_night(here)
    assert code == 12 and summary.startswith("# Nightly benchmark: missing or not comparable\n")
    assert "changed" in summary and len(kept(here)) == 3, "the values of the other scenario are kept"


@pytest.mark.slow
def test_an_inconclusive_night_can_be_allowed(here: Path) -> None:
    code, summary = a_night(here, "--allow-inconclusive")
    assert code == 0 and summary.startswith("# Nightly benchmark: inconclusive, allowed\n")
    assert len(kept(here)) == 1


@pytest.mark.parametrize(
    ("options", "run", "code", "title", "says"),
    [
        ((), None, 3, "not measured", ""),
        (("--stop-at", "never"), ["--scenario", "ddpp"], 2, "the request is wrong", "error: --scenario: there is no "),
    ],
)
def test_what_the_doctor_finds(
    here: Path, options: tuple[str, ...], run: list[str] | None, code: int, title: str, says: str
) -> None:
    (here / "broken").mkdir()
    (here / "broken" / "torch.py").write_text("raise ImportError('no libcudart')\n")
    ended, summary = a_night(here, *options, run=run, PYTHONPATH=str(here / "broken"))
    assert ended == code and summary.startswith(f"# Nightly benchmark: {title}")
    assert says in summary and "no libcudart" in summary and kept(here) == []
    assert json.loads((here / "out" / "doctor.json").read_text())["findings"][0]["level"] == "problem"
    assert not any((here / "out").glob("results/*"))


def end(folder: Path, when: str) -> None:
    night = subprocess.Popen(command(folder), cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    wait_for(lambda: any((folder / "out").glob(when)) or night.poll() is not None)
    night.send_signal(signal.SIGTERM)
    assert night.wait(60) == 130
    assert (folder / "out" / "summary.md").read_text().startswith("# Nightly benchmark: interrupted\n")
    assert kept(folder) == []


def test_a_night_that_is_ended_at_once_says_so(here: Path) -> None:
    end(here, "doctor.json")
    assert not (here / "out" / "results").exists()


@pytest.mark.slow
def test_a_night_ended_while_measuring_keeps_nothing(here: Path) -> None:
    (here / "steady.py").write_text(sleeping(3.0))
    end(here, "results/*/logs/launch-*.log")
    (run,) = (here / "out" / "results").iterdir()
    assert json.loads((run / "run.json").read_text())["complete"] is False


def refused(folder: Path, *arguments: str, code: int = 2) -> str:
    done = subprocess.run([SCRIPT, *arguments], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == code and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("nightly: error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--history: no folder is named"),
        (["--history", "absent"], "mkdir -p"),
        (["--history"], "--history: it needs a value"),
        (["--history", "history", "--scenario", "ddp"], "options of 'bench run' stand behind '--'"),
        (["--history", "history", "--stop-at", "once"], "choose problem, warning or never"),
        (["--history", "history", "--thresholds", "--threshold slow"], "--threshold: 'slow' is not a percentage"),
        (["--history", "history", "--interpreter", "./python4"], "--interpreter: there is no ./python4"),
        (["--history", "history", "--out", "."], "--out: the history lies in"),
        (["--history", "history", "--out", "mine"], "holds what no night has written"),
        (["--history", "history", "--", "--device", "cpu", "--out=there"], "--out: a night decides that"),
        (["--history", "history", "--", "--resume", "latest"], "--resume: a night decides that"),
    ],
)
def test_a_wrong_request_touches_nothing(here: Path, arguments: list[str], words: str) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("years of work")
    before = sorted(here.rglob("*"))
    assert words in refused(here, *arguments)
    assert sorted(here.rglob("*")) == before


def test_two_nights_do_not_overlap(here: Path) -> None:
    with open(here / "history" / ".nightly.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = refused(here, "--history", "history", "--out", "out", code=4)
    assert "another night" in line and not (here / "out").exists()
