"""Findings from what the records say: heat, power caps, other processes; and hosts whose clocks are hours apart."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from standin import numerics
from standin.documents import changed, launch, ran_with, reference, sample, with_records
from standin.frames import iterations, launch_stats, step_rows

from bench.analyse.memory import peaks, timeline
from bench.analyse.parity import parity
from bench.analyse.validity import findings, unlike
from bench.core.codec import encode
from bench.experiments import record
from bench.runs.document import HostRecord, Machine, State
from bench.runs.experiments import IntervalTargetRecord, Numerics, Reached
from bench.runs.frames import RankSteps
from bench.runs.launches import RankRecord
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read(str(write_run(tmp_path_factory.mktemp("run"), [DDP])))


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


def test_one_answer_says_whether_a_gpu_waits(whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is ahead at the end of a step may be late within it, as its account says."""
    ranks = [tuple(replace(rank, host_lead_ms=60.0) for rank in one.ranks) for one in whole.document.launches]
    run = changed(whole, launches=tuple(map(lambda one, of: replace(one, ranks=of), whole.document.launches, ranks)))
    for found_accounts, times in ([], 1), ([None], 0):
        monkeypatch.setattr("bench.words.questions.accounts", lambda run, made=found_accounts: made)
        assert [question for question, _ in questions(run)].count("Is the GPU waiting for Python?") == times


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


HOUR_NS = 3600 * 10**9
CLOCKS = {"node1": 5 * HOUR_NS, "node2": 2 * HOUR_NS}
HOSTS = ("node1", "node2")


def steps() -> pd.DataFrame:
    """Three steps of 100 ms on rank 0, and 10 ms more on rank 1; the first is a warm-up."""
    rows = step_rows(0, "ddp", [100.0] * 3, [110.0] * 3, warmup=1)
    for row in rows:
        row["host"] = HOSTS[row["rank"]]
        row["start_ns"] = CLOCKS[row["host"]] + row["step"] * 110_000_000
    return pd.DataFrame(rows)


def memory(*samples: tuple[str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(
        sample(host=host, t_ns=CLOCKS[host] + at_ms * 1_000_000, pid=40, rank=HOSTS.index(host), used_mib=used_mib)
        for host, at_ms, used_mib in samples
    )


SAMPLES = memory(("node1", -50, 100.0), ("node1", 200, 300.0), ("node2", 0, 250.0), ("node2", 130, 200.0))


@pytest.mark.parametrize("ahead_ns", [0, 10**15])
def test_an_iteration_has_one_clock(ahead_ns: int) -> None:
    """The second host's clock is behind that of the first, or ahead of it."""
    rows = steps()
    rows.loc[rows["host"] == "node2", "start_ns"] += ahead_ns
    table = iterations(rows).frame
    assert list(table["ranks"]) == [2, 2, 2] and list(table["rank"]) == [1, 1, 1]
    assert list(table["step_ms"]) == [110.0] * 3 and list(table["elapsed_s"]) == pytest.approx([0.11, 0.22, 0.33])
    assert set(table["host"]) == {"node1"}
    begins = [CLOCKS["node1"] + step * 110_000_000 for step in range(3)]
    assert list(table["begin_ns"]) == begins
    assert list(table["end_ns"]) == [begin + 100_000_000 for begin in begins]
    assert list(table["forward_end_ns"]) == [begin + 25_000_000 for begin in begins]
    assert launch_stats(steps()).frame["median_ms"].tolist() == [110.0]


def test_samples_are_on_the_clock_of_their_host(whole: Run) -> None:
    (peak,) = peaks(SAMPLES).to_dict("records")
    assert (peak["peak_pid_mib"], peak["peak_total_mib"]) == (300.0, 550.0), "the sum of the peaks of the hosts"
    launch = replace(whole.document.launches[0], launch=0, first_forward_s=0.125)
    line, windows = timeline(launch, SAMPLES, iterations(steps()))
    assert line["seconds"].tolist() == pytest.approx([0.05, 0.30, 0.0, 0.13])
    assert windows == pytest.approx((0.10, 0.21, 0.42)), "since 100 ms before the first step"


def unequal(run: Run, *ranks: RankRecord) -> list[str]:
    launches = [replace(run.document.launches[0], ranks=ranks, processes=len(ranks))]
    return list(findings_of(changed(run, launches=launches)).query("code == 'unequal'")["text"])


def ranks(*about: tuple[str, int, int, int]) -> tuple[RankRecord, ...]:
    """Ranks as (host, planned threads, threads that they had, cores)."""
    return tuple(
        RankRecord(rank=rank, pid=40, host=host, threads=planned, ran_threads=threads, cores=cores)
        for rank, (host, planned, threads, cores) in enumerate(about)
    )


def test_threads_are_those_planned_for_each_host(alone: Run) -> None:
    assert unequal(alone, *ranks(("node1", 8, 8, 8), ("node2", 1, 1, 2), ("node2", 1, 1, 2))) == []
    (said,) = unequal(alone, *ranks(("node1", 8, 8, 8), ("node2", 1, 2, 2), ("node2", 1, 2, 2)))
    assert said == "its ranks on node2 had 2 threads where 1 was planned"
    (said,) = unequal(alone, *ranks(("node1", 8, 8, 8), ("node2", 1, 1, 2), ("node2", 1, 1, 4)))
    assert said == "launches of this run had 2 and 4 cores on node2"
    (said,) = unequal(alone, *ranks(("node1", 4, 4, 1), ("node1", 4, 4, 1)))
    assert said == "something bound its ranks to 1 core, fewer than their threads", "all to the same"


def test_a_switch_may_bind_ranks_to_some_of_the_cores(alone: Run) -> None:
    (plain,) = alone.document.launches
    few = replace(plain.effective, affinity=1)
    others = [plain, replace(plain, launch=2, scenario="bound", ranks=(), effective=few)]
    both = replace(alone, timed=RankSteps(pd.concat([alone.steps, alone.steps.assign(launch=2, scenario="bound")])))
    said = findings_of(changed(both, launches=others)).query("code == 'unequal'")
    assert list(said["scenario"]) == ["ddp", "bound"]
    others[1] = replace(others[1], effective=replace(few, bound_cores=1))
    assert findings_of(changed(both, launches=others)).query("code == 'unequal'").empty


def test_ranks_of_one_host_are_alike() -> None:
    def result(**ran: Any) -> dict[str, Any]:
        window = {"step_ms": [1.0], "wall_ms": 1.0, "loss": [1.0]}
        known = {"initial_sha256": "a", "final_sha256": "b", "skipped_steps": 0}
        return {"rank": 0, "measured": window, "effective": ran, **known}

    small, large = result(threads=1, affinity=2, backend="gloo"), result(threads=4, affinity=4, backend="gloo")
    assert record._checks([small, large], ["node1", "node2"])["ranks_differ"] == []
    assert record._checks([small, large], ["node1", "node1"])["ranks_differ"] == ["affinity", "threads"]
    other = result(threads=4, affinity=4, backend="nccl")
    assert record._checks([small, large, other], ["node1", "node2", "node2"])["ranks_differ"] == ["backend"]


def host(name: str, **about: Any) -> HostRecord:
    machine = Machine(host=name, cpu="EPYC", cores_usable=8, python="3.11.7")
    usual: dict[str, Any] = {"name": name, "machine": machine, "versions": {"torch": "2.15"}, "start": State(utc=None)}
    return HostRecord(**usual | about)


def test_what_differs_between_hosts_is_a_finding(alone: Run) -> None:
    assert list(unlike([host("a"), host("b")])) == []
    busy = State(utc=None, load_1min=7.5)
    slow = replace(host("b").machine, cpu="Xeon", cores_usable=4)
    other = host("b", machine=slow, versions={"torch": "2.15", "torchvision": "0.30"}, start=busy)
    assert list(unlike([host("a"), other])) == [
        "cpu: EPYC on a, Xeon on b",
        "cores usable: 8 on a, 4 on b",
        "torchvision: none on a, 0.30 on b",
        "load per core when it began: 0.0 on a, 1.9 on b",
    ]
    one = replace(alone.document.launches[0], ranks=ranks(("a", 1, 1, 8), ("b", 1, 1, 4)), processes=2)
    said = findings_of(changed(alone, launches=[one], hosts=(host("a"), other)))
    assert "unlike hosts" in set(said["code"])
