"""Findings from what the records say: heat, power caps, other processes; and what they do to the recommendation."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from standin import numerics
from standin.documents import changed, launch, ran_with, reference, with_records
from standin.frames import iterations, launch_stats

from bench.analyse.parity import parity
from bench.analyse.validity import findings
from bench.core.codec import encode
from bench.runs.experiments import IntervalTargetRecord, Numerics, Reached
from bench.runs.reader import Run, read
from bench.words.questions import questions
from tests.standin.runs import DDP, FINITE, Launch, write_run

HOT = {"verdict": "invalid", "devices": {"GPU-a": ["thermal slowdown (hardware)"], "GPU-b": []}}
CAPPED = {"verdict": "warning", "devices": {"GPU-a": ["power cap"]}}
FINE = {"verdict": "ok", "devices": {"GPU-a": ["idle"]}}
OTHER = {"device": "GPU-a", "pid": 4242, "name": "trainer", "peak_mib": 900.0, "certain": True}
UNSURE = OTHER | {"pid": 7, "name": None, "peak_mib": None, "certain": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read(str(write_run(tmp_path_factory.mktemp("run"), [DDP, FINITE])))


def run_with(run: Run, checks: dict[str, Any], device: str = "cuda") -> Run:
    first, second = run.document.launches
    launches = (first, replace(second, checks=launch(checks=encode(second.checks) | checks).checks))
    return changed(run, launches=launches, workload=replace(run.document.workload, device=device))


def findings_of(run: Run) -> pd.DataFrame:
    verdicts = parity(run.document, iterations(run.steps), run.numerics)
    return findings(run.document, launch_stats(run.steps), verdicts)


def found(run: Run) -> dict[str, str]:
    rows = findings_of(run).query("launch == 1").to_dict("records")
    return {row["code"]: f"{row['severity']}: {row['text']}" for row in rows}


UNKNOWN_PID = "PID 7 (name unknown, memory unknown, perhaps a rank under another PID)"


@pytest.mark.parametrize(
    ("device", "checks", "code", "expected"),
    [
        ("cuda", {"throttle": HOT}, "throttled", "invalid: * (GPU-a: thermal slowdown (hardware))"),
        ("cuda", {"throttle": CAPPED}, "power cap", "warning: *"),
        ("cuda", {"throttle": FINE}, "throttled", None),
        ("cuda", {"throttle": FINE}, "power cap", None),
        ("cuda", {"foreign": [OTHER, UNSURE]}, "shared GPU", f"invalid: * PID 4242 (trainer, 900 MiB), {UNKNOWN_PID}"),
        ("cuda", {"foreign": [UNSURE]}, "shared GPU", f"warning: it shared a GPU with {UNKNOWN_PID}"),
        ("cuda", {"foreign": []}, "shared GPU", None),
        ("cuda", {"foreign": []}, "unwatched", None),
        ("cuda", {"foreign": None}, "unwatched", "warning: *"),
        ("cpu", {"foreign": None}, "unwatched", None),
        ("cuda", {"scrambled_lists": 3}, "scrambled lists", "warning: 3 of * were scrambled *"),
        ("cuda", {"scrambled_lists": 1}, "scrambled lists", "warning: 1 of * was scrambled *"),
        ("cuda", {"scrambled_lists": 0}, "scrambled lists", None),
        ("cpu", {"foreign_cores": 0.3}, "load", "warning: others kept 0.3 of the 2 cores busy meanwhile"),
        ("cpu", {"foreign_cores": 0.1}, "load", None),
        ("cuda", {"foreign_cores": 0.3}, "load", None),
        ("cuda", {"skipped_steps": 2}, "skipped steps", "warning: the loss scaler skipped 2 optimizer steps, *"),
        ("cuda", {"skipped_steps": 1}, "skipped steps", "warning: the loss scaler skipped 1 optimizer step, which *"),
    ],
)
def test_what_checks_find(whole: Run, device: str, checks: dict[str, Any], code: str, expected: str | None) -> None:
    finding = found(run_with(whole, checks, device)).get(code)
    assert finding is None if expected is None else fnmatchcase(finding or "", expected), finding


@pytest.mark.parametrize(("lead_ms", "bound"), [(0.1, True), (-0.1, True), (60.0, False), (None, False)])
def test_a_host_that_is_not_ahead(whole: Run, lead_ms: float | None, bound: bool) -> None:
    """By the rank that is least ahead, as the others wait for it in the all-reduce."""
    run = run_with(whole, {"foreign": [], "throttle": FINE})
    launches = tuple(
        replace(one, ranks=tuple(replace(rank, host_lead_ms=lead_ms and lead_ms + rank.rank) for rank in one.ranks))
        for one in run.document.launches
    )
    run = changed(run, launches=launches)
    assert ("host-bound" in found(run)) == bound
    answers = [text for question, text in questions(run) if question == "Is the GPU waiting for Python?"]
    assert [("--batch-per-rank 64" in answer) for answer in answers] == ([] if lead_ms is None else [bound])


def test_large_figures_have_no_exponent(tmp_path: Path) -> None:
    late = {"ranks": [{"rank": 0, "pid": 7, "host_lead_ms": 123.4}]}
    run = read(str(write_run(tmp_path, [Launch("ddp", [[9, 12345, 12345]], more=late), Launch("ddp", [[9, 99, 99]])])))
    reached = Reached(launches=2, half_width=1.46, reached=False)
    about = {"target": 0.02, "budget_s": 100.0, "spent_s": 100.0, "stopped_by": "budget"}
    target = IntervalTargetRecord(**about, scenarios={"ddp": reached})
    found = findings_of(replace(run, document=with_records(run.document, target))).set_index("code")
    texts = found["text"]
    assert found.loc["imprecise", "remedy"].startswith("raise --budget (it was 1.667m), ")
    ahead = "the host was 120 ms ahead of the GPU when a step of 12,300 ms ended"
    assert texts["host-bound"].startswith(ahead)
    assert texts["imprecise"] == "±150% is what was reached of the ±2% asked for"


@pytest.mark.parametrize(("last_ms", "drifts"), [(10.05, None), (11.0, "10.0 % slower"), (9.0, "10.0 % faster")])
def test_steps_that_get_slower_or_faster(tmp_path: Path, last_ms: float, drifts: str | None) -> None:
    run = read(str(write_run(tmp_path, [DDP, replace(FINITE, steps_ms=[[9, *[10.0] * 4, last_ms, last_ms]])])))
    assert found(run).get("unsteady", "").startswith(f"warning: its last third is {drifts}" if drifts else "")
    assert ("unsteady" in found(run)) is (drifts is not None)


def test_a_remedy_names_no_steps_that_are_unknown(tmp_path: Path) -> None:
    launches = [Launch("ddp", [[9, 10, 10, 20, 20, 30, 30]])]
    run = read(str(write_run(tmp_path, launches, about={"request": {"warmup": None, "iters": None}})))
    remedies = findings_of(run).set_index("code")["remedy"]
    assert remedies["unsteady"] == "raise --warmup, and stop other jobs, and check the cooling"
    assert remedies["spread"] == "stop other jobs and raise --iters"


@pytest.mark.parametrize(("told", "slow"), [(False, True), (True, False), (None, False)])
def test_bf16_without_instructions_is_a_finding(whole: Run, told: bool | None, slow: bool) -> None:
    run = ran_with(run_with(whole, {}, device="cpu"), {"bf16_instructions": told})
    said = findings_of(run).query("code == 'slow half'")
    assert set(said["launch"]) == ({1} if slow else set()), "ddp_o2 computes in bf16, ddp in fp32"


@pytest.mark.parametrize(("times", "seen"), [([19.0], False), ([21.0], True), ([21.0, 19.0], False), ([21, 30], True)])
def test_a_step_too_fast_to_be_true(whole: Run, times: list[float], seen: bool) -> None:
    """The other computation of the reference is not of as many replicas, but has the same batch."""
    run = ran_with(run_with(whole, {}, device="cpu"), {"replicas": 2, "norm_parts": 2, "threads": 1, "tf32": None})
    (median_ms,) = launch_stats(run.steps).frame.query("launch == 1")["median_ms"]
    computations = tuple(numerics.computation(replicas) for replicas in (2, 4)[: len(times)])
    about = reference(computations=computations, step_ms=tuple(2 * one * median_ms for one in times))
    document = with_records(run.document, Numerics(references=(about,)))
    assert ("too fast" in found(replace(run, document=document))) is seen
