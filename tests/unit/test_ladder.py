"""What each step of a ladder gains, alone and on top of the others; and what switches gain, in words."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Plotting
from standin.runs import FINITE, Launch, analysed, write_run

from bench.analyse.analysed import Analysed
from bench.analyse.ladder import Step, ladder, sentences, steps
from bench.analyse.steps import base_of
from bench.experiments.plan.ladder import ALONE, RUNGS
from bench.report import drawing, plots, summary
from bench.report import runs as report
from bench.report.ladder import ladder_table
from bench.seams.switching import scenario
from bench.words.questions import questions

NOISE = (0.99, 1.0, 1.01, 1.005)
TIMES = {
    "ddp+foreach": 100.0,
    "ddp": 90.0,
    "ddp+channels_last": 80.0,
    "ddp_o1+channels_last": 40.0,
    "ddp_o2+channels_last": 32.0,
    "ddp+channels_last+foreach": 89.0,
    "ddp_o1+foreach": 120.0,
}
"""Step times in ms: O1 is slower than fp32 by itself, and twice as fast in channels_last."""


def run_of(tmp_path: Path, times: dict[str, float], set_: str | None = "ladder", launches: int = 4) -> Analysed:
    one = replace(FINITE, memory_mib=[[100, 100]], precision="O0")
    rounds = [
        replace(one, scenario=name, steps_ms=[[ms * NOISE[(repeat * (place + 1) + place) % len(NOISE)]] * 5])
        for repeat in range(launches)
        for place, (name, ms) in enumerate(times.items())
    ]
    return analysed(write_run(tmp_path, rounds, scenarios=list(times), about={"request": {"set": set_}}))


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    return run_of(tmp_path_factory.mktemp("ladder"), TIMES)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_rung_is_a_scenario_one_step_up(device: str) -> None:
    found = steps(RUNGS[device] + ALONE[device])
    assert [step.rung for step in found] == list(RUNGS[device][1:])
    assert [step.before for step in found] == list(RUNGS[device][:-1])
    by_themselves = {step.alone for step in found} - {None}
    assert set(ALONE[device]) <= by_themselves
    for name in RUNGS[device] + ALONE[device]:
        assert scenario(name).name == name


def test_steps_are_found_by_what_names_say() -> None:
    o1, o2 = steps(list(TIMES))[2:]
    before = "ddp+channels_last"
    assert o1 == Step(before=before, rung=f"ddp_o1{before[3:]}", change="ddp_o1", below=before, alone="ddp_o1+foreach")
    assert (o2.before, o2.below, o2.alone) == ("ddp_o1+channels_last", "ddp+channels_last", None)
    assert [step.change for step in steps(list(TIMES))] == ["without foreach", "channels_last", "ddp_o1", "ddp_o2"]
    assert steps([]) == [] == steps(["ddp"])


def test_gains_are_those_of_the_times(climbed: Analysed) -> None:
    table = ladder(climbed).set_index("change")
    assert table["gain"].tolist() == pytest.approx([100 / 90, 90 / 80, 2.0, 40 / 32], rel=0.02)
    shown = climbed.overview.set_index("scenario")["step_median_ms"]
    assert table.set_index("rung")["step_ms"].to_dict() == {name: shown[name] for name in table["rung"]}
    assert (table["low"] < table["gain"]).all() and (table["gain"] < table["high"]).all()
    assert set(table["verdict"]) == {"faster"}
    assert table.loc["ddp_o1", ["on_top", "alone"]].tolist() == pytest.approx([2.0, 100 / 120], rel=0.02)
    assert table["interacts"].tolist() == [None, False, True, None]
    total, o1 = sentences(ladder(climbed))
    assert total.startswith("The top rung, ddp_o2+channels_last, is 3.1")
    assert o1.startswith("ddp_o1 gains more on top of the others (") and "do not multiply" in o1


def test_one_launch_of_each_tells_no_interaction(tmp_path: Path) -> None:
    run = run_of(tmp_path / "one", TIMES, launches=1)
    assert set(ladder(run)["verdict"]) == {"too few launches"}
    assert "One launch of each cannot show" in sentences(ladder(run))[-1]
    assert ladder_table(run) is not None
    rungs = {name: ms for name, ms in TIMES.items() if not name.endswith("+foreach")}
    (total,) = sentences(ladder(run_of(tmp_path / "rungs", rungs)))  # none of them by itself
    assert total.startswith("The top rung, ")
    other = run_of(tmp_path / "other", TIMES, set_=None, launches=1)
    assert ladder(other).empty and sentences(ladder(other)) == [] and ladder_table(other) is None


def test_what_speeds_are_relative_to() -> None:
    assert base_of(["single", "ddp+fused", "ddp"]) == base_of(["single"]) == "ddp"
    assert base_of(["before", "after"]) == "before", "as of attach --base"
    assert base_of(["single+fused", "ddp+compile+fused", "ddp+fused"]) == "ddp+fused"


def test_the_base_is_named_with_its_switch(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"single+fused": 60.0, "ddp+fused": 30.0}, set_=None)
    table = Analysed.of(run).overview
    assert table["relative_to"].tolist() == ["ddp+fused"] * 2
    assert table["relative_to_ddp"].tolist() == pytest.approx([0.5, 1.0], rel=0.02)
    brief = summary.brief_summary(table)
    assert "speed ÷ base" in brief.as_text(200) and "base: ddp+fused" in brief.notes
    shown = summary.summary_table(Analysed.of(run))
    assert "speed ÷ base" in [column.heading for column in shown.columns] and "base: ddp+fused." in shown.notes


def test_what_switches_gain_is_answered(tmp_path: Path) -> None:
    run = run_of(tmp_path, {**TIMES, "ddp+compile": 60.0, "ddp+find_unused": 99.0}, set_=None)
    said = dict(questions(run))
    assert "A step of ddp+channels_last takes 0.89 times" in said["Is channels_last faster here?"]
    assert "A step of ddp+find_unused takes 1.10 times" in said["What do unused parameters cost?"]
    assert "0.67 times" in said["Is torch.compile faster, and what does compiling take?"]
    slower = said["Is O1 slower than no AMP (ddp_o1+foreach against ddp+foreach)?"]
    faster = said["Is O1 slower than no AMP (ddp_o1+channels_last against ddp+channels_last)?"]
    assert slower.startswith("Yes") and faster.startswith("No")


def test_unused_parameters_that_end_plain_ddp(tmp_path: Path) -> None:
    why = "RuntimeError: Expected to have finished reduction in the prior iteration"
    launches = [Launch("ddp", status="error", reason=why), replace(FINITE, scenario="ddp+find_unused", precision="O0")]
    said = dict(questions(analysed(write_run(tmp_path, launches))))
    assert "ddp fails" in said["What do unused parameters cost?"]
    assert said["What do unused parameters cost?"].endswith("ddp+find_unused trains.")


def test_a_switch_without_effect_is_a_finding(tmp_path: Path) -> None:
    ran = {"switches": {"channels_last": "the first layer computes contiguous"}}
    launch = replace(FINITE, scenario="ddp+channels_last", precision="O0", ran=ran)
    run = analysed(write_run(tmp_path, [launch]))
    (row,) = [row for row in run.findings.to_dict("records") if row["code"] == "no effect"]
    assert row["severity"] == "warning" and "channels_last was on and had no effect" in row["text"]
    assert "no effect" in Analysed.of(run).overview["findings"].iloc[0]


def test_the_page_has_a_chapter_and_a_plot_of_a_ladder(climbed: Analysed, tmp_path: Path, plotting: Plotting) -> None:
    plotting(plots.ladder_plot)
    files = report.write([climbed], str(tmp_path / "page"))
    page = (tmp_path / "page" / "index.html").read_text()
    assert "What does each step gain?" in page and any(name.endswith("ladder.svg") for name in files)


def test_switches_have_colours_of_their_own(climbed: Analysed) -> None:
    about = climbed.document
    looks = {one.scenario: drawing.look_of(about, one) for one in about.launches}
    assert looks["ddp"] == (about.strategies["ddp"].hue, about.strategies["ddp"].dash)
    assert looks["ddp_o1+foreach"] == looks["ddp+foreach"], "one set of switches; their levels differ in shade"
    sets = {"ddp", "ddp+foreach", "ddp+channels_last", "ddp+channels_last+foreach"}
    assert len({looks[name][0] for name in sets}) == len(sets)


def test_scenarios_of_one_strategy_and_level_look_different(tmp_path: Path) -> None:
    """As ``ddp_bf16_hook`` and ``ddp_powersgd`` do, and two commands that bench was attached to."""
    launches = [replace(FINITE, scenario=name, precision="O0") for name in ("small", "big", "huge")]
    run = analysed(write_run(tmp_path, launches))
    assert len({drawing.look_of(run.document, one) for one in run.document.launches}) == 3
