"""Findings from what the records say: heat, power caps, other processes; and what they do to the recommendation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from standin import numerics
from standin.documents import changed, ran_with, reference, with_records
from standin.frames import iterations, launch_figures

from bench.analyse.analysed import Analysed
from bench.analyse.parity import parity
from bench.analyse.recommendation import recommendation
from bench.analyse.validity import findings, grouped
from bench.runs.experiments import Numerics
from bench.runs.reader import Run, read
from bench.words.questions import questions
from tests.standin.runs import DDP, FINITE, write_run

HOT = {"verdict": "invalid", "devices": {"GPU-a": ["thermal slowdown (hardware)"], "GPU-b": []}}
CAPPED = {"verdict": "warning", "devices": {"GPU-a": ["power cap"]}}
FINE = {"verdict": "ok", "devices": {"GPU-a": ["idle"]}}
OTHER = {"device": "GPU-a", "pid": 4242, "name": "trainer", "peak_mib": 900.0, "certain": True}
UNSURE = OTHER | {"pid": 7, "name": None, "peak_mib": None, "certain": False}


def run_with(folder: Path, checks: dict[str, Any], device: str = "cuda") -> Run:
    run = read(str(write_run(folder, [DDP, replace(FINITE, checks=checks)])))
    return changed(run, workload=replace(run.document.workload, device=device))


def findings_of(run: Run) -> pd.DataFrame:
    verdicts = parity(run.document, iterations(run.steps), run.numerics)
    return findings(run.document, launch_figures(run.steps), verdicts)


def found(run: Run) -> dict[str, tuple[str, str]]:
    table = findings_of(run)
    mine = table[table["launch"] == 1].to_dict("records")
    return {row["code"]: (row["severity"], row["text"]) for row in mine}


def test_nothing_is_found_where_nothing_was_noticed(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"foreign": [], "scrambled_lists": 0, "throttle": FINE, "foreign_cores": 0.1})
    assert not {"throttled", "power cap", "shared GPU", "unwatched", "scrambled lists", "load"} & set(found(run))


@pytest.mark.parametrize(("lead_ms", "bound"), [(0.1, True), (-0.1, True), (60.0, False), (None, False)])
def test_a_host_that_is_not_ahead(tmp_path: Path, lead_ms: float | None, bound: bool) -> None:
    """By the rank that is least ahead, as the others wait for it in the all-reduce."""
    run = run_with(tmp_path, {"foreign": [], "throttle": FINE})
    launches = tuple(
        replace(one, ranks=tuple(replace(rank, host_lead_ms=lead_ms and lead_ms + rank.rank) for rank in one.ranks))
        for one in run.document.launches
    )
    run = changed(run, launches=launches)
    assert ("host-bound" in found(run)) == bound
    answers = [text for question, text in questions(run) if question == "Is the GPU waiting for Python?"]
    assert len(answers) == (lead_ms is not None)
    if answers:
        assert ("--batch-per-rank 64" in answers[0]) == bound


def test_heat_makes_a_launch_invalid_and_the_next_is_recommended(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"throttle": HOT})
    severity, text = found(run)["throttled"]
    assert severity == "invalid" and "GPU-a: thermal slowdown (hardware)" in text and "GPU-b" not in text
    advice = recommendation(Analysed.of(run).overview)
    assert advice.fastest == "ddp" and advice.left_out == {"ddp_o2": "throttled"}


def test_a_power_cap_is_a_warning_and_leaves_the_recommendation(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"throttle": CAPPED})
    assert found(run)["power cap"][0] == "warning"
    assert recommendation(Analysed.of(run).overview).fastest == "ddp_o2"


@pytest.mark.parametrize(("processes", "severity"), [([OTHER, UNSURE], "invalid"), ([UNSURE], "warning")])
def test_other_processes_on_the_gpu_are_named(tmp_path: Path, processes: list[Any], severity: str) -> None:
    said = found(run_with(tmp_path, {"foreign": processes}))["shared GPU"]
    assert said[0] == severity
    assert "PID 7 (name unknown, memory unknown, perhaps a rank under another PID)" in said[1]
    assert ("PID 4242 (trainer, 900 MiB)" in said[1]) == (OTHER in processes)


def test_a_launch_that_nobody_watched_is_told_on_a_gpu_alone(tmp_path: Path) -> None:
    assert found(run_with(tmp_path / "gpu", {"foreign": None}))["unwatched"][0] == "warning"
    assert "unwatched" not in found(run_with(tmp_path / "cpu", {"foreign": None}, device="cpu"))


def test_others_on_the_cores_are_a_warning_in_proportion_to_the_device(tmp_path: Path) -> None:
    busy = {"foreign_cores": 0.3}  # of two
    assert "0.3 of the 2 cores" in found(run_with(tmp_path / "cpu", busy, device="cpu"))["load"][1]
    assert "load" not in found(run_with(tmp_path / "gpu", busy))


def test_skipped_steps_are_reported(tmp_path: Path) -> None:
    said = found(run_with(tmp_path / "measured", {"skipped_steps": 2, "skipped_warmup_steps": 0}))["skipped steps"]
    assert said == ("warning", "the loss scaler skipped 2 optimizer steps, which made those cheaper")
    warm = {"skipped_steps": 0, "skipped_warmup_steps": 2}
    assert "skipped steps" not in found(run_with(tmp_path / "warm", warm))


def test_of_many_launches_the_worst_is_the_example() -> None:
    about = {"scenario": "ddp", "code": "unsteady", "severity": "warning", "remedy": "raise --warmup"}
    told = [
        about | {"launch": at, "size": size, "text": f"{text} (of 50 %)"}
        for at, (size, text) in enumerate(
            [(0.012, "slower"), (0.125, "much slower"), (None, "who knows"), (0.03, "so")]
        )
    ]
    (row,) = grouped(pd.DataFrame(told)).to_dict("records")
    assert row["what"] == "ddp, launch 1: much slower (of 50 %)"
    assert row["where"] == "ddp (0, 1, 2, 3)"


def test_the_worst_is_known_where_no_text_has_a_share(tmp_path: Path) -> None:
    skipped = [replace(DDP, checks={"skipped_steps": count}) for count in (1, 7, 3)]
    run = read(str(write_run(tmp_path, skipped)))
    (row,) = (row for row in grouped(findings_of(run)).to_dict("records") if row["code"] == "skipped steps")
    assert row["what"].startswith("ddp, launch 1: the loss scaler skipped 7 ")


@pytest.mark.parametrize(("last_ms", "drifts"), [(10.05, None), (11.0, "10.0 % slower"), (9.0, "10.0 % faster")])
def test_steps_that_get_slower_or_faster(tmp_path: Path, last_ms: float, drifts: str | None) -> None:
    run = read(str(write_run(tmp_path, [DDP, replace(FINITE, steps_ms=[[9, *[10.0] * 4, last_ms, last_ms]])])))
    said = found(run).get("unsteady", ("", ""))[1]
    assert said.startswith(f"its last third is {drifts}") if drifts else said == ""


@pytest.mark.parametrize(("told", "slow"), [(False, True), (True, False), (None, False)])
def test_bf16_on_a_cpu_without_instructions_for_it_is_told(tmp_path: Path, told: bool | None, slow: bool) -> None:
    run = run_with(tmp_path, {}, device="cpu")
    run = ran_with(run, {"bf16_instructions": told})
    assert ("slow half" in found(run)) == slow, "of ddp_o2, which computes in bf16"
    table = findings_of(run)
    assert not ((table["launch"] == 0) & (table["code"] == "slow half")).any(), "ddp computes in fp32"


@pytest.mark.parametrize(("times", "seen"), [([19.0], False), ([21.0], True), ([21.0, 19.0], False), ([21, 30], True)])
def test_a_step_too_fast_to_be_true(tmp_path: Path, times: list[float], seen: bool) -> None:
    """The other computation of the reference is not of as many replicas, but has the same batch."""
    run = ran_with(run_with(tmp_path, {}, device="cpu"), {"replicas": 2, "norm_parts": 2, "threads": 1, "tf32": None})
    (median_ms,) = launch_figures(run.steps).frame.query("launch == 1")["median_ms"]
    computations = tuple(numerics.computation(replicas) for replicas in (2, 4)[: len(times)])
    about = reference(computations=computations, step_ms=tuple(2 * one * median_ms for one in times))
    assert (
        "too fast" in found(replace(run, document=with_records(run.document, Numerics(references=(about,)))))
    ) is seen
