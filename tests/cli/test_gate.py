"""bench gate and bench accept on nights that were made up: exit codes, what it says and writes, and what it refuses."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench
from standin import Said, gated
from standin.gated import NAMES, sealed_again
from standin.runs import HOSTILE

from bench.analyse.history import nights
from bench.core.codec import encode
from bench.core.records import SCHEMA_VERSION
from bench.runs.document import Attached
from bench.runs.experiments import Scaling
from bench.seams.experiment import name_of
from bench.verbs.check import EPILOG


def rows(said: Said, *verdicts: str) -> set[tuple[str, str]]:
    return {(row["scenario"], row["metric"]) for row in said.document["rows"] if row["verdict"] in verdicts}


@pytest.fixture
def gate(bench: Bench) -> Bench:
    return lambda *arguments: bench("gate", *arguments)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    gated.nights(tmp_path / "history", 10, NAMES)
    return tmp_path / "history"


def tonight(history: Path, factor: float = 1.0, day: int = 10, **changes: Any) -> Path:
    return gated.write(history, gated.night(day, factor) | changes)


def test_a_slowdown_is_named_first_with_what_to_do(gate: Bench, history: Path) -> None:
    conditions = {"host": "host", "torch": "2.10.0", "driver": "550.54.15", "power_limit_w": []}
    path = tonight(history, 1.05, conditions=conditions)
    said = gate(path, "--history", history)
    assert said.code == 10
    first, *rest = said.out.splitlines()
    assert first.startswith("Regressed: ddp step time +4.9 % (bound +") and "ddp_o2" not in first
    assert f"bench accept {path.name} --reason 'WHY' --history {history}" in rest[0]
    assert "warning: different since 20260110T020000Z-00000009: torch: 2.9.0 against 2.10.0" in rest
    said = gate(path.name, "--history", history, "--json")
    assert said.code == 10 and said.document["exit_code"] == 10 and said.document["verdict"] == "regressed"
    assert rows(said, "regressed") == {("ddp", "step_time")} and len(rows(said, "ok")) == 8
    assert said.document["base"] == sorted(one.name for one in history.iterdir() if one != path)
    assert said.document["sentence"] == first and first in said.err, "people's text goes beside it"


def test_the_first_night_is_inconclusive(gate: Bench, tmp_path: Path) -> None:
    new, empty = tonight(tmp_path / "results"), tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, new.parent):  # none, and none but this one
        said = gate(new, "--history", folder)
        first, second, *_ = said.out.splitlines()
        assert said.code == 11 and first.endswith(f" in {folder}: it is the first of its base")
        assert f"keep this run in {folder}" in second


def test_one_run_as_the_base(gate: Bench, history: Path) -> None:
    base, same, slow = tonight(history, 1.0, 20), tonight(history, 1.0, 21), tonight(history, 1.1, 22)
    assert gate(same, "--baseline", base).code == 0
    said = gate(slow.name, "--baseline", base.name, "--results", history, "--json")
    assert (said.code, rows(said, "regressed")) == (10, {("ddp", "step_time")})
    assert said.document["base"] == [base.name] and "accept" not in said.err, "there is no history to accept it in"
    few = gated.write(history, gated.digest(23, [gated.scenario(name, gated.STEADY[:2]) for name in NAMES]))
    said = gate(few, "--baseline", base)
    assert said.code == 11 and "too few launches" in said.out and "--launches 5" in said.out


def test_what_the_one_run_does_not_know_is_not_judged(gate: Bench, history: Path) -> None:
    scenarios = [gated.usual(name, 0, memory=None, parity=None) for name in NAMES]
    base = gated.write(history, gated.digest(20, scenarios))
    said = gate(tonight(history, 1.0, 21), "--baseline", base, "--json")
    assert said.code == 0 and rows(said, "ok") == {(name, "step_time") for name in NAMES}
    assert f"{base.name} says nothing of peak_memory: not judged" in said.document["warnings"]
    few = gated.write(history, gated.digest(22, [gated.scenario(name, gated.STEADY[:2]) for name in NAMES]))
    said = gate(tonight(history, 1.0, 23), "--baseline", few)
    assert said.code == 11 and "2 in the base and a verdict needs 3" in said.out


def test_a_missing_scenario_never_passes(gate: Bench, history: Path) -> None:
    rows = [gated.usual(name, 10, place) for place, name in enumerate(NAMES) if name != "dp"]
    path = gated.write(history, gated.digest(10, rows))
    said = gate(path, "--history", history)
    assert said.code == 12 and said.out.startswith("Missing or not comparable: dp (missing); against")
    assert gate(path, "--history", history, "--scenario", "ddp,ddp_o2").code == 0
    assert gate(path, "--history", history, "--scenario", "ddp,dp").code == 12
    for base in (("--history", history), ("--baseline", min(history.iterdir()))):
        said = gate(path, *base, "--scenario", "ddq")
        said.refused("--scenario: there is no scenario 'ddq'", "did you mean ddp?", code=12)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workload": gated.trained("resnet50", "f" * 20)}, "resnet50"),
        ({"hardware": ["NVIDIA A100"] * 2}, "NVIDIA A100"),
        ({"replicas": 4, "hardware": ["NVIDIA H100 80GB HBM3"] * 4}, "world size: 2 against 4"),
    ],
)
def test_other_work_is_not_comparable(gate: Bench, history: Path, changes: dict[str, Any], why: str) -> None:
    last = max(history.iterdir())
    other = tonight(history, 1.0, **changes)
    for arguments in (("--history", history), ("--baseline", last)):
        said = gate(other, *arguments, "--junit", "gate.xml", "--markdown", "gate.md")
        first = said.out.splitlines()[0]
        assert said.code == 12 and first.startswith("Not comparable:") and why in first and last.name in first
        assert ElementTree.parse("gate.xml").getroot().get("errors") == "9"
        assert Path("gate.md").read_text().startswith("## Gate: missing\n\nNot comparable:")
    assert gate(tonight(history, 1.0, 11, **changes), "--history", history).code == 0, "a series of its own from now on"
    assert gate(tonight(history, 1.0, 12), "--history", history).code == 0, "the old one goes on"


def test_untrusted_runs_are_left_out_and_named(gate: Bench, history: Path) -> None:
    first, second, third = sorted(history.iterdir())[-3:]
    (first / "digest.json").write_text("{}")  # seen where the digest is read
    whole = (second / "run.json").read_text()  # seen only where all of it is verified
    (second / "run.json").write_text(whole.replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 9'))
    sealed_again(third, complete=False)
    said = gate(tonight(history), "--history", history, "--json")
    assert said.code == 0 and len(said.document["base"]) == 7
    assert [one["path"] for one in said.document["left_out"]] == [str(one) for one in (first, third, second)]
    for one in said.document["left_out"]:
        (text,) = (text for text in said.document["warnings"] if Path(one["path"]).name in text)
        assert text.startswith("left out: ") and f"warning: {text}" in said.err


# What it writes


def test_junit_and_markdown_have_every_row(gate: Bench, history: Path) -> None:
    rows = [
        gated.usual("ddp", 10, 0, 1.05),
        gated.usual("dp", 10, 1, status="error", reason=f"{HOSTILE} \x1b[31m\x00"),
        gated.usual("ddp_o2", 10, 2),
        gated.scenario('<new> & "quoted"', gated.STEADY),
    ]
    path = gated.write(history, gated.digest(10, rows))
    assert gate(path, "--history", history, "--junit", "gate.xml", "--markdown", "gate.md").code == 10
    suite = ElementTree.parse("gate.xml").getroot()
    cases = {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    assert len(cases) == 12 == int(suite.get("tests", "0"))
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "3", "3")
    failure = cases["bench.gate.ddp", "step time"].find("failure")
    assert failure is not None and "+4.9 %" in str(failure.get("message"))
    assert (failure.get("type"), failure.text) == ("regressed", failure.get("message"))
    error = cases["bench.gate.dp", "peak memory"].find("error")
    assert error is not None and "<script>" in str(error.get("message")) and "\x1b" not in str(error.get("message"))
    assert cases['bench.gate.<new> & "quoted"', "numerics"].find("skipped") is not None
    assert cases["bench.gate.ddp_o2", "step time"].find("failure") is None
    text = Path("gate.md").read_text()
    assert text.startswith("## Gate: regressed\n\nRegressed: ddp step time +4.9 %")
    wrong, everything = text.split("<details>")
    assert "| ddp | step time (ms) | 104.9 |" in wrong and "ddp_o2 | step time" not in wrong
    assert "| ddp | numerics | same |" not in wrong and "| ddp | numerics | same |" in everything
    assert "<script>" not in text and "\\<script\\>" in text


# Thresholds


def test_thresholds(gate: Bench, history: Path) -> None:
    path = tonight(history, 1.05)

    def rule(*arguments: object) -> tuple[int, dict[str, Any]]:
        said = gate(path, "--history", history, "--json", *arguments)
        return said.code, said.document["rule"]

    usual = {"nights": 10, "level": 0.99, "thresholds": {"step_time": 0.01, "peak_memory": 0.01}, "before": 0.03}
    assert rule() == (10, usual)
    asked = {"nights": 5, "level": 0.95, "thresholds": {"step_time": 0.08, "peak_memory": 0.03}, "before": 0.05}
    thresholds = ("--threshold", "8%", "--memory-threshold", "3%", "--early-threshold", "5%")
    assert rule("--nights", "5", "--level", "95%", *thresholds) == (0, asked)


def test_latest_is_the_last_of_the_history(gate: Bench, history: Path, tmp_path: Path) -> None:
    path = tonight(history, 1.05)
    sealed_again(gated.write(tmp_path / "results", gated.digest(20, [gated.usual("ddp", 20, 0, 1.0)])), complete=False)
    said = gate("latest", "--history", history)
    assert said.code == 10 and said.out.startswith("Regressed: ddp"), said.err
    assert said.err == f"note: 'latest' is {path}\n"


def test_latest_of_a_history_without_a_finished_run_is_no_other_run(gate: Bench, tmp_path: Path) -> None:
    gated.write(tmp_path / "results", gated.digest(20, [gated.usual("ddp", 20, 0, 1.0)]))
    (tmp_path / "nights").mkdir()
    gate("latest", "--history", "nights").refused("RUN: there is no run in nights")
    begun = gated.write(tmp_path / "nights", gated.digest(1, [gated.usual("ddp", 1, 0, 1.0)]))
    sealed_again(begun, complete=False)
    assert f"nights/{begun.name} is incomplete" in gate("latest", "--history", "nights").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{new}",), ("--history", "--baseline", "is required")),
        (("{new}", "--history", "{history}", "--baseline", "{new}"), ("--baseline: not allowed with", "--history")),
        (("absent", "--history", "{history}"), ("RUN: there is no run 'absent'",)),
        (("{edited}", "--history", "{history}"), ("run.json was changed after it was sealed",)),
        (("latest", "--history", "{history}", "--results", "none"), ("RUN: there is no run in none",)),
        (("{new}", "--history", "absent"), ("--history: there is no folder 'absent'",)),
        (("{new}", "--history", "{new}"), ("--history:", "is a run itself; give the folder")),
        (("{new}", "--baseline", "absent"), ("--baseline: there is no run 'absent'",)),
        (("{new}", "--baseline", "{new}"), ("--baseline:", "is NEW itself")),
        (("{incomplete}", "--history", "{history}"), ("is incomplete", "finish it with 'python -m bench run --resume")),
        (("{new}", "--baseline", "{incomplete}"), ("--baseline: {incomplete} is incomplete", "run --resume")),
        (("{new}", "--history", "{history}", "--threshold", "slow"), ("--threshold: 'slow' is not a percentage",)),
        (("{new}", "--history", "{history}", "--level", "1%"), ("--level: '1%'", "below 50%")),
        (("{new}", "--history", "{history}", "--nights", "2"), ("--nights: '2'",)),
        (("{new}", "--history", "{history}", "--threshold", "-1%"), ("--threshold: ",)),
        (("{new}", "--history", "{history}", "--scenario", ","), ("--scenario:", "empty name")),
        (("{new}", "--history", "{history}", "--junit", "absent/x"), ("--junit: absent/x cannot be a file",)),
        (("{new}", "--history", "{history}", "--markdown", "."), ("--markdown: . cannot be a file",)),
        (("{new}", "--history", "{history}", "--markdown", "/proc/x"), ("--markdown: /proc/x cannot be written",)),
        (("{new}", "--history", "{history}", "--junit", "{pipe}"), ("--junit: {pipe} is a device",)),
        (("{new}", "--history", "{history}", "--markdown", "{link}"), ("--markdown: {link} is a device",)),
        (("{new}", "--history", "{history}", "--junit", "x", "--markdown", "./x"), ("./x is where --junit",)),
        (("", "--history", "{history}"), ("RUN: it is empty",)),
        (("{new}", "--baseline", ""), ("--baseline: it is empty",)),
    ],
)
def test_wrong_requests(
    gate: Bench, history: Path, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """A file is put in its place by renaming, which would take a device away from the whole machine if root asks."""
    new, incomplete, edited = (tonight(history, 1.0, day) for day in (10, 11, 12))
    sealed_again(incomplete, complete=False)
    (edited / "run.json").write_text((edited / "run.json").read_text().replace('"launches": []', '"launches": [{}]'))
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    places = {"new": new, "history": history, "incomplete": incomplete, "edited": edited, "pipe": pipe, "link": link}
    before = [*tmp_path.iterdir()]
    given = [text.format(**places) for text in arguments]
    gate(*given).refused(*(word.format(**places) for word in words))
    assert nights.read(str(history)).accepted == {} and [*tmp_path.iterdir()] == before
    assert pipe.is_fifo() and link.is_symlink()


def test_remedies_name_the_run_and_what_failed(gate: Bench, history: Path) -> None:
    def write(folder: Path, day: int, **changes: Any) -> Path:
        return gated.write(folder, gated.night(day, **changes))

    failed: dict[str, Any] = {"status": "oom", "reason": "CUDA out of memory"}
    here, inside = write(Path("results"), 20, **failed), write(history, 21, **failed)
    for run, where in ((here, ""), (inside, "history/")):  # in results run looks, too
        said = gate(run.name, "--history", history)
        assert said.code == 12 and f"what failed: python -m bench run --resume {where}{run.name}\n" in said.out
    attached = Attached(commands={}, step="a step", times="a clock")
    scaling = Scaling(counts=(2,), modes=("weak",), batch_per_rank=1)
    for record, again in ((attached, " in a new run"), (scaling, f": python -m bench scale --resume {here.name}")):
        sealed_again(here, experiments={name_of(type(record)): encode(record)})
        assert f"repeat what failed{again}\n" in gate(here.name, "--history", history).out
    sealed_again(here, complete=False)
    gate(here.name, "--history", history).refused("incomplete", f"'python -m bench scale --resume results/{here.name}'")
    invalid = write(Path("nights of mine"), 22, validity="invalid", invalid=["phases"])
    said = gate(invalid, "--history", history)
    assert said.code == 12 and "run --resume" not in said.out, "which would say that there is nothing to resume"
    assert "measure ddp again in a new run" in said.out and f"bench report '{invalid}'\n" in said.out
    slow = write(Path("nights of mine"), 23, factor=1.1)
    said = gate(slow, "--history", history)
    assert f"once it is in {history}: python -m bench accept {slow.name} --reason" in said.out
    renamed = slow.rename(slow.with_name("with a blank"))
    assert "python -m bench accept 'with a blank' --reason" in gate(renamed, "--history", history).out
    cannot = write(history, 24, status="unsupported", reason="needs CUDA", **gated.NOTHING)
    said = gate(cannot, "--history", history)
    assert "--resume" not in said.out, "it would pass over that"
    assert "install what ddp needs (python -m bench list says what is missing here)" in said.out


@pytest.mark.parametrize(
    ("launches", "advice"),
    [
        ((100.0, 108.0, 93.0), "stop other jobs, and measure every night with --launches "),
        ((100.0, 160.0, 70.0), "cannot make up for so much noise; what may cause it: python -m bench doctor\n"),
    ],
)
def test_noise_that_launches_cannot_average_has_another_remedy(
    gate: Bench, tmp_path: Path, launches: tuple[float, ...], advice: str
) -> None:
    *_, last = (gated.write(tmp_path, gated.digest(day, [gated.scenario("ddp", launches)])) for day in range(2))
    said = gate(last, "--history", tmp_path)
    assert said.code == 11 and "too noisy" in said.out and advice in said.out


# A person says that a night is as it should be

REASON = "checks for NaN in every step"


@pytest.fixture
def slower(bench: Bench) -> list[Path]:
    gated.nights(Path.cwd() / "results", 10, NAMES)
    return [tonight(Path.cwd() / "results", 1.05, day) for day in range(10, 14)]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_accepted_night_passes_and_becomes_the_base(slower: list[Path], bench: Bench) -> None:
    history = ("--history", slower[0].parent)
    assert [bench("gate", path, *history).code for path in slower] == [10, 10, 10, 10]
    assert f"3 later runs in {slower[0].parent} not looked at" in bench("gate", slower[0], *history).out
    before = files(slower[0].parent)
    told = bench("accept", slower[1].name, "--reason", f"  {REASON} \n", "--json")
    assert told.code == 0 and f"Accepted {slower[1].name}: {REASON}" in told.err
    assert (told.document["run"], told.document["reason"]) == (slower[1].name, REASON)
    after = files(slower[0].parent)
    (new,) = after.keys() - before.keys()
    assert new == f"accepted/{slower[1].name}.json" in told.err and before.items() <= after.items(), "runs stay"
    kept = json.loads(after[new])
    assert (kept["reason"], kept["utc"]) == (REASON, told.document["utc"]) and told.document["file"].endswith(new)
    assert [bench("gate", path, *history).code for path in slower] == [10, 0, 0, 0]
    assert f"Accepted by a person ({REASON}): ddp step time +5." in bench("gate", slower[1], *history).out


def test_check_does_not_take_it_for_a_run(slower: list[Path], bench: Bench) -> None:
    bench("accept", slower[0], "--reason", REASON)
    Path("results/reference").mkdir()
    out = bench("check", *slower[0].parent.iterdir()).out
    assert f"{slower[0].name}: " in out and "accepted" not in out and "reference" not in out
    for name in ("accepted", "reference"):
        bench("check", f"results/{name}").refused(f"RUN: there is no run in results/{name}")
    kept = shutil.copytree(slower[0], Path("results/reference/h100-2026-01-01") / slower[0].name)
    (everything,) = re.findall(r"python -m bench check (\S+) +all of them", EPILOG)
    Path("results/README.md").write_text("as in a checkout")
    named = [path for word in everything.split() for path in sorted(glob(word))]  # as a shell does
    assert len(bench("check", *named, "--json").document["runs"]) == len(list(slower[0].parent.glob("2*")))
    found = bench("check", "results/reference", "--json").document["runs"]
    assert [run["path"] for run in found] == [str(kept)], "in its stead"
    named_so = Path("results/20260101T000000Z-00000000")
    named_so.mkdir()
    assert f"{named_so.name}: {named_so} is not a run folder" in bench("check", slower[0], named_so).out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("latest",), "--reason"),
        (("latest", "--reason", " \n"), "--reason: it is empty; say why"),
        (("absent", "--reason", "x"), "there is no run 'absent'"),
        (("", "--reason", "x"), "RUN: it is empty"),
        (("latest", "--reason", "x", "--history", ""), "--history: it is empty"),
        (("{run}", "--reason", "x", "--results", "elsewhere", "--history", "results"), "--results: with --history, "),
        (("results", "--reason", "x"), "is not a run folder"),
        (("results/{run}", "--reason", "x", "--history", "absent"), "is not in absent; copy it there first"),
        (("results/{run}", "--reason", "x", "--history", "elsewhere"), "is not in elsewhere"),
        (("{run}", "--reason", "x", "--history", "elsewhere"), "there is no run"),
        (("{torn}", "--reason", "x"), "digest.json was changed after it was sealed"),
        (("{run}", "--reason", "x"), "--history: {here}/results/accepted cannot be written: File exists; "),
    ],
)
def test_what_cannot_be_accepted(slower: list[Path], bench: Bench, arguments: tuple[str, ...], word: str) -> None:
    Path("elsewhere").mkdir()
    Path("results/accepted").touch()
    (slower[3] / "digest.json").write_text("{}")
    before = files(Path())
    given = [text.format(run=slower[0].name, torn=slower[3].name) for text in arguments]
    bench("accept", *given).refused(word.format(here=Path.cwd()))
    assert files(Path()) == before
