"""bench history on nights whose truth is known: what it finds, what it says, and what it refuses."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench
from standin import gated
from standin.runs import DDP, HOSTILE, write_run

from bench.analyse.history import nights
from bench.analyse.history.shifts import levels
from bench.analyse.history.trends import Night, Track, Trend, commit_range
from bench.report import history as report
from bench.report.history_plots import DOTS_AT_MOST, of_track

THREE = ("dp", "ddp", "ddp_o2")
SHIFTED, COUNT = 24, 40


@pytest.fixture
def say(bench: Bench) -> Bench:
    return lambda *arguments: bench("history", *arguments)


@pytest.fixture
def told(say: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(report, "of_track", lambda *about: [])
    return say


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty nights; from the 25th on another driver, and ddp_o2 takes 4 % longer. One night dp has no value."""
    folder = tmp_path_factory.mktemp("shifted")

    def also(night: int, digest: dict[str, Any]) -> None:
        if night >= SHIFTED:
            digest["conditions"]["driver"] = "560.28.03"
        if night == 7:
            digest["scenarios"][0] |= {"status": "oom", "reason": "CUDA out of memory", **gated.NOTHING}

    gated.nights(folder, COUNT, THREE, slower=only("ddp_o2", SHIFTED, 1.04), also=also, energy=True)
    return folder


def only(scenario: str, since: int, by: float) -> Callable[[int, str], float]:
    return lambda night, name: by if name == scenario and night >= since else 1.0


def trend_of(document: dict[str, Any], scenario: str, metric: str = "step_ms") -> dict[str, Any]:
    of = {(one["scenario"], one["metric"]): one for one in document["tracks"][0]["trends"]}
    return dict(of[scenario, metric])


def test_the_night_of_a_shift_is_named(shifted: Path, told: Bench) -> None:
    code, out, err = told(shifted, "--json")
    document = json.loads(out)
    (track,) = document["tracks"]
    runs = [night["run"] for night in track["nights"]]
    assert code == 0 and len(runs) == COUNT and runs == sorted(runs)
    lines = [line.strip().rstrip(",") for line in out.splitlines()]
    assert {json.dumps(track["nights"][7]), f'"values": {json.dumps(track["trends"][0]["values"])}'} <= {*lines}
    (event,) = track["shifts"]
    assert (event["before"]["run"], event["after"]["run"]) == (runs[SHIFTED - 1], runs[SHIFTED])
    changed = {(change["scenario"], change["metric"]) for change in event["changes"]}
    assert changed == {("ddp_o2", "step_ms"), ("ddp_o2", "energy_per_1000_j")}
    assert all(change["shift"]["low"] < 1.04 < change["shift"]["high"] for change in event["changes"])
    assert event["commits"] == f"{event['before']['commit'][:10]}..{event['after']['commit'][:10]}"
    assert event["differs"] == ["driver: 550.54.15 against 560.28.03"]
    assert re.search(r"step time: ddp_o2 \+[34]\.\d % \(\+3\.\d % to \+[45]\.\d %\)", err) and "commits: " in err
    of_dp, of_ddp_o2 = (trend_of(document, name) for name in ("dp", "ddp_o2"))
    assert of_ddp_o2["over_all"] == pytest.approx(1.04, abs=0.01)
    assert of_ddp_o2["over_recent"] == pytest.approx(1.0, abs=0.02)
    assert of_ddp_o2["levels"]["noise"] == pytest.approx(0.0067, rel=0.5)
    assert len(of_ddp_o2["levels"]["levels"]) == 2
    assert [night for night, value in enumerate(of_dp["values"]) if value is None] == [7]
    assert track["without_figure"] == [{"scenario": "dp", "why": "it is 'oom' (CUDA out of memory)", "nights": 1}]
    stopped = of_ddp_o2["regressed"]
    assert sum(night >= SHIFTED for night in stopped) >= 14, "the gate stops it night after night: nobody accepted it"
    assert sum(night < SHIFTED for night in stopped) <= 1
    (track,) = json.loads(told(shifted, "--scenario", "ddp,dp", "--json")[1])["tracks"]
    assert {trend["scenario"] for trend in track["trends"]} == {"dp", "ddp"} and track["shifts"] == []


def test_a_table_and_a_page_that_needs_nothing(shifted: Path, say: Bench, tmp_path: Path) -> None:
    code, out, err = say(shifted)
    assert (code, err) == (0, "")
    assert re.search(r"ddp_o2 +40 +\S+ +\+[34]\.\d % ", out)
    assert "no value: dp on 1 night: it is 'oom'" in out
    page = (tmp_path / "reports" / "history.html").read_text()
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == [
        *("history-energy-per-1000-j.png", "history-energy-per-1000-j.svg"),
        *("history-step-ms.png", "history-step-ms.svg", "history.html"),
    ]
    assert "There is no plot of the peak memory" in page
    assert page.count("<svg") == 4, "each plot wide and narrow"
    loaded = re.findall(r"""(?:src=|href=|url\()["']?([^"')]+)""", page)
    assert all(link.startswith("#") or (tmp_path / "reports" / link).is_file() for link in loaded)
    assert page.count("<script") == 1 and "@import" not in page, "the library that sorts tables"


def test_text_from_outside_stays_text(tmp_path: Path, say: Bench) -> None:
    def also(night: int, digest: dict[str, Any]) -> None:
        digest["git"] = {"commit": f"{HOSTILE}{night}", "dirty": bool(night % 2)}
        digest["hardware"] = [HOSTILE]
        digest["label"] = HOSTILE
        digest["conditions"]["driver"] = f"{HOSTILE} {night >= 5}"
        digest["scenarios"][0]["what_ran"] = HOSTILE
        digest["scenarios"][1] |= {"status": "error", "reason": f"two\nlines \x1b[31m{HOSTILE}"}

    gated.nights(tmp_path / "h", 12, ("ddp", "dp"), slower=only("ddp", 5, 1.2), also=also)
    code, out, err = say(tmp_path / "h", "--json")
    (event,) = json.loads(out)["tracks"][0]["shifts"]
    assert code == 0 and event["before"]["dirty"] != event["after"]["dirty"]
    assert "\x1b" not in err and "it is 'error' (two lines \\x1b[31m<script>" in err
    page = (tmp_path / "reports" / "history.html").read_text()
    assert page.count("<script") == 1 and "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "1 night, 2026-01-01: a trend needs two or more"), (3, "no shift was found (it takes 6 nights to tell one)")],
)
def test_few_nights_are_a_page_and_no_shift(tmp_path: Path, say: Bench, count: int, said: str) -> None:
    gated.nights(tmp_path / "results", count, ("ddp",), slower=only("ddp", 1, 1.5))
    code, out, _ = say()
    assert code == 0 and said in out
    assert (tmp_path / "reports" / "history-step-ms.svg").is_file()


def test_runs_of_another_kind_have_their_own_section(tmp_path: Path, say: Bench) -> None:
    def also(night: int, digest: dict[str, Any]) -> None:
        if night % 2:
            digest["hardware"] = ["NVIDIA A100-SXM4-40GB"] * 2
        if night == 8:
            digest["workload"] = digest["workload"] | {"hash": "f" * 64, "global_batch": 512}

    def slower(night: int, scenario: str) -> float:
        return 1.5 if night % 2 else 1.0

    gated.nights(tmp_path / "h", 9, ("ddp",), also=also, slower=slower)
    document = json.loads(say(tmp_path / "h", "--json")[1])
    h100, a100 = "2 × NVIDIA H100 80GB HBM3", "2 × NVIDIA A100-SXM4-40GB"
    places = [(track["place"], len(track["nights"])) for track in document["tracks"]]
    assert places == [(h100, 1), (a100, 4), (h100, 4)]
    assert not any(track["shifts"] for track in document["tracks"]), "two machines are no shift"
    page = (tmp_path / "reports" / "history.html").read_text()
    assert page.count("Step time, night by night") >= 2 and "In ms, lower is better. Nights" in page
    assert "Runs with nothing to compare to" in page
    assert (tmp_path / "reports" / "history-2-step-ms.svg").is_file()


def test_another_wrapper_is_another_trend(tmp_path: Path, told: Bench) -> None:
    def also(night: int, digest: dict[str, Any]) -> None:
        if night >= 10:
            digest["scenarios"][0]["what_ran"] = "apex DDP · nccl ×2 · apex O2 fp16"

    gated.nights(tmp_path / "h", 20, ("ddp",), slower=only("ddp", 10, 0.8), also=also)
    (track,) = json.loads(told(tmp_path / "h", "--json")[1])["tracks"]
    assert track["shifts"] == []
    of_time = [trend["values"] for trend in track["trends"] if trend["metric"] == "step_ms"]
    assert [sum(value is not None for value in values) for values in of_time] == [10, 10]


@pytest.mark.parametrize(("since", "when"), [(12, ""), (11, "a night earlier: "), (13, "a night later: ")])
def test_a_change_of_source_is_no_regression(tmp_path: Path, told: Bench, since: int, when: str) -> None:
    """Also where the shift is placed a night away from it, as noise may do."""

    def also(night: int, digest: dict[str, Any]) -> None:
        for row in digest["scenarios"]:
            row |= {"memory_source": "nvml_device_delta" if night >= since else "nvml_pid", "energy_source": "counter"}
            peaks = row["launches"]["peak_total_mib"]
            row["launches"]["peak_total_mib"] = [peak * (1.3 if night >= 12 else 1.0) for peak in peaks]

    gated.nights(tmp_path / "h", 20, ("dp", "ddp"), also=also)
    document = json.loads(told(tmp_path / "h", "--json")[1])
    (event,) = document["tracks"][0]["shifts"]
    assert {change["metric"] for change in event["changes"]} == {"peak_total_mib"}
    assert event["differs"] == [f"{when}memory measured in another way: nvml_pid against nvml_device_delta (dp, ddp)"]
    trend = trend_of(document, "ddp", "peak_total_mib")
    if since == 12:
        assert (trend["over_all"], trend["over_recent"]) == (1.0, 1.0), "over the nights of one source"
        assert trend["regressed"] == []


def test_an_accepted_night_is_marked(tmp_path: Path, say: Bench) -> None:
    made = gated.nights(tmp_path / "h", 14, ("ddp",), slower=only("ddp", 11, 1.10))
    nights.accept(str(tmp_path / "h"), str(made[11]), "deterministic kernels, on purpose", "2026-01-15T09:00:00Z")
    document = json.loads(say(tmp_path / "h", "--json")[1])
    accepted = [night["accepted"] for night in document["tracks"][0]["nights"]]
    assert accepted == [*[None] * 11, "deterministic kernels, on purpose", None, None]
    assert trend_of(document, "ddp")["regressed"] == [11], "what was accepted is the base of the next night"
    assert "accepted by a person" in (tmp_path / "reports" / "history-step-ms.svg").read_text()


def test_unsealed_and_changed_runs_are_left_out(tmp_path: Path, told: Bench) -> None:
    made = gated.nights(tmp_path / "h", 4, ("ddp",))
    unsealed = write_run(tmp_path / "h", [DDP], complete=False)
    (made[1] / "digest.json").write_text("{}")
    code, out, err = told(tmp_path / "h", "--json")
    document = json.loads(out)
    assert code == 0 and len(document["tracks"][0]["nights"]) == 3
    assert {Path(one["path"]).name for one in document["left_out"]} == {unsealed.name, made[1].name}
    named = [line for line in err.splitlines() if line.startswith("left out: ")]
    assert len(named) == 2 and any(unsealed.name in line and "incomplete" in line for line in named)
    assert "incomplete" in (tmp_path / "reports" / "history.html").read_text()


REFUSED = {
    "empty": (("{empty}",), "DIR: there is no finished run in '{empty}'"),
    "nameless": (("",), "DIR: there is no folder ''"),
    "absent": (("{empty}/absent",), "DIR: there is no folder '{empty}/absent'"),
    "a run": (("{run}",), "DIR: {run} is a run itself"),
    "unsealed": (("{unsealed}",), "DIR: there is no finished run in '{unsealed}' ({begun} is incomplete"),
    "percent": (("{empty}", "--threshold", "slow"), "--threshold: 'slow' is not a percentage"),
    "scenario": (("{shifted}", "--scenario", "ddp_02"), "--scenario: no run in there has a scenario 'ddp_02'; did"),
    "out": (("{empty}", "--out", "{run}/run.json"), "--out: {run}/run.json is not a folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_history_is_refused_in_one_line(case: str, shifted: Path, tmp_path: Path, say: Bench) -> None:
    (tmp_path / "empty").mkdir()
    begun = write_run(tmp_path / "unsealed", [DDP], complete=False)
    places = {"empty": tmp_path / "empty", "run": write_run(tmp_path / "runs", [DDP]), "shifted": shifted}
    places |= {"unsealed": begun.parent, "begun": begun}
    arguments, expected = REFUSED[case]
    expected = f"bench: error: {expected.format(**places)}"
    say(*(argument.format(**places) for argument in arguments)).refused(expected)
    assert not (tmp_path / "reports").exists()


def test_the_last_nights_gate_is_on_terminal_and_page(tmp_path: Path, told: Bench) -> None:
    paths = gated.nights(tmp_path / "nights", 12, ("ddp", "dp"), slower=only("ddp", since=11, by=1.2))
    _, out, _ = told(tmp_path / "nights")
    last = f"The gate stops the last night, {paths[-1].name[:4]}-{paths[-1].name[4:6]}-{paths[-1].name[6:8]}, for"
    assert f"{last} step time of ddp.\n" in out
    assert f"{last} step time of ddp." in (tmp_path / "reports" / "history.html").read_text()
    assert "The gate stops" not in told(tmp_path / "nights", "--scenario", "dp")[1]
    gated.nights(tmp_path / "over", 12, ("ddp",), slower=lambda night, scenario: 1.2 if night == 10 else 1.0)
    assert "The gate stops" not in told(tmp_path / "over")[1], "it stopped the night before"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("a", False), ("b", False), "aaaaaaaaaa..bbbbbbbbbb"),
        (("a", True), ("b", False), "aaaaaaaaaa (dirty)..bbbbbbbbbb"),
        (("a", False), ("a", False), "same commit aaaaaaaaaa: not the code"),
        (("a", False), ("a", True), "same commit aaaaaaaaaa, with changes that no commit holds"),
        ((None, False), ("a", False), "unknown"),
        (("a", False), (None, False), "unknown"),
    ],
)
def test_commits_between_two_nights(before: tuple[str | None, bool], after: tuple[str | None, bool], said: str) -> None:
    first, second = (
        Night(run="", utc="", label=None, commit=letter and 40 * letter, dirty=dirty, accepted=None)
        for letter, dirty in (before, after)
    )
    assert commit_range(first, second) == said


def test_thousands_of_nights_are_drawn_in_columns() -> None:
    sizes: list[int] = []
    about: dict[str, Any] = {"scenario": "ddp", "what_ran": "", "metric": "step_ms"}
    night = Night(run="run", utc="2021-01-01T00:00:00Z", label=None, commit=None, dirty=False, accepted=None)
    for count in (DOTS_AT_MOST + 1, 10 * DOTS_AT_MOST):
        values = tuple(100.0 + place % 7 for place in range(count))
        trend = Trend(**about, values=values, sources=(None,) * count, levels=levels(values))
        nights = tuple(replace(night, run=f"{place}") for place in range(count))
        stopped = {("ddp", "step_time"): ["3", "4", "400"]}
        of: dict[str, Any] = {"work": "work", "place": "place", "events": (), "unusable": {}}
        track = Track(**of, nights=nights, trends=(trend,), stopped=lambda stopped=stopped: stopped)
        assert track.regressed(trend) == [3, 4, 400]
        (plot,) = of_track(track)
        sizes.append(len(plot.svg))
    assert sizes[1] < 1.2 * sizes[0]
