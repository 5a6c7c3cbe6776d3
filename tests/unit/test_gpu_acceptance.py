"""The acceptance on a GPU, as far as it needs none: time, verdicts, the page, and what becomes of bad input.

Figures here are made up so that what must come of them is known; none was measured on a GPU.
"""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import conftest
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from standin.runs import DDP, HOSTILE, write_run

from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.core.records import Training
from bench.machine import nvml
from bench.runs.reader import read


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
        import acceptance
        import gpu_acceptance
        import gpu_probe

        yield {"acceptance": acceptance, "pack": gpu_acceptance, "probe": gpu_probe}


@pytest.fixture(scope="module")
def acceptance(modules: dict[str, ModuleType]) -> Any:
    return modules["acceptance"]


@pytest.fixture(scope="module")
def pack(modules: dict[str, ModuleType]) -> Any:
    return modules["pack"]


# Time


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def eight_minutes(pack: Any, clock: Clock, out: str = "x", **more: Any) -> Any:
    budget = pack.Budget(total_s=480.0, reserve_s=pack.RESERVE_S, clock=clock)
    return pack.Acceptance(options=pack.parse(["--out", out]), out=out, budget=budget, **more)


def test_a_part_gets_what_is_left_by_those_to_come_and_no_more_than_it_may_have(acceptance: Any) -> None:
    clock = Clock()
    budget = acceptance.Budget(total_s=100.0, reserve_s=10.0, clock=clock)
    first, second, third = (
        acceptance.Part(name=name, title=name, least_s=least, most_s=most)
        for name, least, most in (("a", 20, 60), ("b", 30, 40), ("c", 15, 99))
    )
    assert budget.grant(first, (second, third)) == 45.0, "90 less the 45 of the others"
    assert budget.grant(first, ()) == 60.0
    clock.now += 60.0
    assert budget.grant(second, (third,)) == 30.0, "never below its least while that is there"
    clock.now += 20.0
    assert (budget.left_s, budget.grant(third, ())) == (10.0, None)
    check = acceptance.too_late(third, budget.left_s)
    assert check.verdict == acceptance.NOT_DONE
    assert check.why == "10 s were left and it needs 15; give more with --budget"
    clock.now += 1000.0
    assert budget.left_s == 0.0


@given(takes=st.lists(st.floats(0.0, 1.0), min_size=10, max_size=10), total_s=st.floats(10.0, 2000.0))
def test_the_budget_holds(pack: Any, acceptance: Any, takes: list[float], total_s: float) -> None:
    clock = Clock()
    budget = acceptance.Budget(total_s=total_s, reserve_s=10.0, clock=clock)
    for number, (part, share) in enumerate(zip(pack.PARTS, takes, strict=True)):
        granted = budget.grant(part, pack.PARTS[number + 1 :])
        if granted is not None:
            assert part.least_s <= granted <= part.most_s
            clock.now += share * granted
    assert clock.now - 100.0 <= max(0.0, total_s - 10.0) + 1e-6


def test_all_parts_have_their_least_in_eight_minutes(pack: Any) -> None:
    assert sum(part.least_s for part in pack.PARTS) <= 480.0 - pack.RESERVE_S
    assert pack.parse(["--out", "x"]).budget == 480.0


def test_how_many_steps_fit(acceptance: Any) -> None:
    fits = acceptance.steps_that_fit
    assert fits(170.0, 0.13, launches=10, start_s=6.0) == (10, 27), "(0.9 x 170 - 11 x 6) / (18 x 0.13) = 37 steps"
    assert fits(170.0, 0.01, launches=10, start_s=6.0) == (10, 30)
    assert fits(170.0, 0.26, launches=10, start_s=6.0) == (10, 8), "18 steps, the fewest"
    assert fits(170.0, 0.27, launches=10, start_s=6.0) is None
    assert fits(60.0, 0.01, launches=10, start_s=6.0) is None, "the launches alone take longer"


@given(step_s=st.floats(0.005, 2.0), start_s=st.floats(1.0, 40.0))
def test_the_least_time_is_that_in_which_the_fewest_steps_fit(acceptance: Any, step_s: float, start_s: float) -> None:
    least_s = acceptance.seconds_for_fewest(step_s, launches=10, start_s=start_s)
    assert acceptance.steps_that_fit(least_s + 0.01, step_s, launches=10, start_s=start_s) is not None
    assert acceptance.steps_that_fit(least_s - 0.01, step_s, launches=10, start_s=start_s) is None


@given(step_s=st.floats(0.03, 0.5), first_s=st.floats(0.5, 20.0), look_s=st.floats(3.0, 40.0))
def test_parts_begin_with_enough_time(pack: Any, acceptance: Any, step_s: float, first_s: float, look_s: float) -> None:
    """At whatever speed the probe finds, each part having used all that it was given: half-done ones show nothing."""
    clock = Clock()
    sizes = pack.Sizes(device="cuda", model="resnet101", image_size=224, global_batch=128)
    probe = {"step": {"step_s": step_s, "first_s": first_s}}
    made = eight_minutes(pack, clock, sizes=sizes, probe=probe, took={"look": look_s})
    clock.now += 60.0
    begun = []
    for number, part in enumerate(pack.PARTS[3:], start=4):
        sized = made.sized(part)
        granted = made.budget.grant(sized, [made.sized(one) for one in pack.PARTS[number:]])
        if granted is None:
            continue
        clock.now += granted
        begun.append(part.name)
        left_s = granted - pack.AFTER_S + 1e-6
        if part.name == "scenarios":
            left_s -= made.host_s
            assert acceptance.steps_that_fit(left_s, step_s, launches=10, start_s=made.launch_s) is not None
        elif part.name in ("single", "ddp_o1"):
            assert left_s - made.before_s(2) >= 20 * made.block(5, 0.5) * step_s, "five rounds of four blocks"
        elif part.name == "instruments":
            left_s -= made.before_s(1) + pack.ALONE_S + pack.PEACE_S
            assert left_s >= 10 * (6 * made.block(4, 0.25) + 4) * step_s, "ten rounds of six blocks, and of four steps"
    assert made.launch_s >= first_s and (begun[:1] == ["scenarios"] or made.sized(pack.PARTS[3]).least_s > 410.0)


# Verdicts


def checks_of(acceptance: Any, *verdicts: str) -> list[Any]:
    return [acceptance.Check(part="p", what="w", verdict=verdict) for verdict in verdicts]


def test_what_a_launch_takes_besides_its_steps_is_seen_in_the_run(pack: Any, acceptance: Any) -> None:
    """By the longest of those that were ok, here of 20 steps of 100 ms."""
    row, launch = a_run()["summary"][0], a_run()["launches"][0]
    run = {
        "request": {"warmup": 5, "iters": 15},
        "summary": [{**row, "scenario": name, "step_median_ms": ms} for name, ms in (("a", 100.0), ("b", None))],
        "launches": [
            {**launch, "scenario": name, "status": status, "wall_s": wall_s}
            for name, status, wall_s in (("a", "ok", 9.0), ("a", "ok", 11.5), ("a", "oom", 99.0), ("b", "ok", 99.0))
        ],
    }
    assert acceptance.besides_steps(run) == 9.5
    made = eight_minutes(pack, Clock(), sizes=pack.TINY, probe={"step": {"step_s": 0.1, "first_s": 3.0}})
    assert made.launch_s == 3.0 + pack.AROUND_S
    made.run = run
    assert made.launch_s == 9.5
    made.run = {**run, "launches": []}
    assert made.launch_s == 3.0 + pack.AROUND_S, "nothing was seen"


def test_the_gravest_verdict_is_the_exit_code(acceptance: Any) -> None:
    code, of = acceptance.exit_code, acceptance
    assert code(checks_of(of, of.PASSED, of.FIGURE, of.NOT_HERE)) == 0
    assert code(checks_of(of, of.PASSED, of.NOT_SHOWN)) == 11
    assert code(checks_of(of, of.NOT_SHOWN, of.NOT_DONE)) == 12
    assert code(checks_of(of, of.NOT_DONE, of.FAILED, of.PASSED)) == 1
    assert acceptance.Evidence(about={}, checks=[], took={}, obstacle="no GPU; buy one").exit_code == 12


def compared(low: float, high: float, **more: Any) -> dict[str, Any]:
    one = {
        "a": "bare",
        "b": "instrumented",
        "a_s": [0.1, 0.2, 0.3],
        "b_s": [0.2, 0.25, 0.3],
        "ratio": math.sqrt(low * high),
        "interval_95": [low, high],
        "allowed": 1.005,
        "margin": None,
        "passed": False,
    }
    return {"comparisons": [one | more], "checks": [{"text": "at least 20 rounds", "passed": True, "by_noise": True}]}


@pytest.mark.parametrize(
    ("document", "verdict"),
    [
        (compared(0.999, 1.004, passed=True), "passed"),
        (compared(0.99, 1.02), "not shown"),
        (compared(1.006, 1.02), "FAILED"),
        (compared(0.995, 1.002, allowed=None, margin=0.01, passed=True), "passed"),
        (compared(0.98, 1.002, allowed=None, margin=0.01), "not shown"),
        (compared(0.95, 0.98, allowed=None, margin=0.01), "FAILED"),
        (compared(1.02, 1.03, allowed=None, margin=0.01), "FAILED"),
        (compared(1.0, 1.0, ratio=None, interval_95=None), "not shown"),
    ],
)
def test_verdicts_on_bounds(acceptance: Any, document: dict[str, Any], verdict: str) -> None:
    first, rounds = acceptance.of_comparison("overhead", "the step", document)
    assert first.verdict == verdict
    assert rounds.verdict == "passed"
    for by_noise, judged in ((True, "not shown"), (False, "FAILED")):
        document["checks"][0] |= {"passed": False, "by_noise": by_noise}
        assert acceptance.of_comparison("overhead", "the step", document)[1].verdict == judged


def test_the_tests_of_a_gpu_one_by_one(acceptance: Any) -> None:
    """The one without a name was running when pytest was ended."""
    junit = """<?xml version="1.0"?><testsuites><testsuite>
        <testcase name="test_a" time="1.26"/>
        <testcase name="test_b" time="0.1"><failure message="assert 1 ==&#10; 2">long</failure></testcase>
        <testcase name="test_c" time="0.1"><error message="fixture broke"/></testcase>
        <testcase name="test_d" time="0"><skipped message="needs two GPUs"/></testcase>
        <testcase name="test_e" time="0"><skipped message="not reached within 100 s"/></testcase>
        <testcase time="6.2"/>
    </testsuite></testsuites>"""
    found = {check.what: (check.verdict, check.why) for check in acceptance.of_tests("alone", junit)}
    assert found == {
        "test_a": ("passed", ""),
        "test_b": ("FAILED", "assert 1 == 2"),
        "test_c": ("FAILED", "fixture broke"),
        "test_d": ("not applicable here", "needs two GPUs"),
        "test_e": ("not done", "not reached within 100 s"),
    }


def a_run() -> dict[str, Any]:
    ran = {"compute_dtypes": ["float16"], "scaler": {"scale": 65536.0}, "precision_impl": "native"}

    def launch(scenario: str, precision: str, effective: dict[str, Any]) -> dict[str, Any]:
        checks = {"conservation_error": 0.001, "conservation_ok": True}
        about = {"scenario": scenario, "precision": precision, "status": "ok", "wall_s": 10.0}
        return {**about, "checks": checks, "effective": effective}

    def row(scenario: str, step_ms: float, parity: str) -> dict[str, Any]:
        return {
            "scenario": scenario,
            "status": "ok",
            "reason": None,
            "throughput_per_s": 128e3 / step_ms,
            "step_median_ms": step_ms,
            "relative_to_ddp": None,
            "peak_pid_mib": 1000.0,
            "peak_total_mib": 1000.0,
            "memory_source": "nvml_pid",
            "parity": parity,
            "what_ran": "torch DDP · nccl ×1",
        }

    return {
        "run": "20260101T000000Z-00000000",
        "complete": True,
        "request": {"warmup": 10, "iters": 20},
        "reference": {"status": "ok", "reason": None},
        "workload": {"global_batch": 128},
        "launches": [launch("single", "O0", {}), launch("ddp_o1", "O1", ran)],
        "summary": [row("single", 100.0, "same"), row("ddp_o1", 50.0, "within half precision")],
        "parity": [
            {"scenario": "single", "verdict": "same", "reason": None},
            {"scenario": "ddp_o1", "verdict": "within half precision", "reason": "as it should"},
        ],
    }


PROBE = {
    "rates": {"matrix_tflops": {"tf32": 100.0, "fp16": 400.0}, "matrix_size": 8192, "copy_gb_s": 2000.0}
    | {"copied_bytes": 2**30},
    "counts": {
        level: {"flops_per_image": 50e9, "bytes_per_image": 0.5e9, "bytes_fixed": 1e9} for level in ("O0", "O1", "O2")
    },
}


def verdicts(checks: list[Any]) -> dict[str, str]:
    return {check.what: check.verdict for check in checks}


def test_a_run_on_a_gpu_passes_as_it_should(acceptance: Any) -> None:
    found = verdicts(acceptance.of_run(a_run(), [], on_gpu=True))
    assert set(found.values()) == {"passed", "figure"} and len(found) == 7


@pytest.mark.parametrize(
    ("what", "plant"),
    [
        ("every scenario runs", lambda run: run["summary"][0].update(status="oom", reason="full")),
        ("steps add up", lambda run: run["launches"][0]["checks"].update(conservation_ok=False)),
        ("the memory of every", lambda run: run["summary"][1].update(peak_total_mib=None)),
        ("train the model", lambda run: run["parity"][1].update(verdict="diverged")),
        ("train the model", lambda run: run["reference"].update(status="oom", reason="full")),
        ("computed in fp16", lambda run: run["launches"][1]["effective"].update(compute_dtypes=["bfloat16"])),
        ("computed in fp16", lambda run: run["launches"][1]["effective"].update(scaler=None)),
    ],
)
def test_a_fault_fails_its_check_alone(acceptance: Any, what: str, plant: Callable[[dict[str, Any]], None]) -> None:
    run = a_run()
    plant(run)
    failed = [
        name for name, verdict in verdicts(acceptance.of_run(run, [], on_gpu=True)).items() if verdict == "FAILED"
    ]
    assert len(failed) == 1 and what in failed[0], failed


def test_what_was_not_held_against_the_reference_has_not_passed(acceptance: Any) -> None:
    run = a_run()
    run["parity"][1].update(verdict=None, reason="the loss scaler skipped the first step")
    (check,) = [one for one in acceptance.of_run(run, [], on_gpu=True) if "train the model" in one.what]
    assert (check.verdict, check.why) == ("not shown", "ddp_o1: the loss scaler skipped the first step")


def test_ended_scenarios_are_judged(pack: Any, started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [DDP], complete=False)

    def ended(*arguments: Any, **more: Any) -> None:
        raise pack.NotDone("it was ended")

    monkeypatch.setattr(pack.Acceptance, "document", ended)
    with pytest.raises(pack.NotDone):
        started.scenarios(10.0)
    assert [row["scenario"] for row in started.run["summary"]] == ["ddp"]
    found = {check.what: check.verdict for check in started.checks}
    assert found["on the CPU: every scenario runs"] == "passed"
    assert found["on the CPU: the run folder is sealed and sound"] == "not done"
    assert pack.salvaged(str(tmp_path / "nowhere")) is None


def test_what_check_finds_fails_but_for_steps_that_do_not_add_up_on_a_shared_cpu(acceptance: Any) -> None:
    sealed = "the run folder is sealed and sound"
    apart = ["launch 5: its steps do not add up to the host's wall time"]
    assert verdicts(acceptance.of_run(a_run(), apart, on_gpu=True))[sealed] == "FAILED"
    assert verdicts(acceptance.of_run(a_run(), apart, on_gpu=False))[sealed] == "not shown"
    assert verdicts(acceptance.of_run(a_run(), [*apart, "torn"], on_gpu=False))[sealed] == "FAILED"


def test_the_largest_batch_and_how_its_search_ended(acceptance: Any) -> None:
    best = {"largest": 600, "throughput_per_s": 1000.0, "peak_mib": 70000.0, "too_large": 640, "why_not": "oom"}
    nothing = {"largest": None, "too_large": 128, "why_not": "oom", "stopped_by": None}
    document = {"batch_search": {"scenarios": {"ddp": best | {"stopped_by": "budget"}, "ddp_o2": nothing}}}
    ddp, ddp_o2 = acceptance.of_search(document)
    assert (ddp.verdict, ddp.figure) == ("figure", "600 (1000 img/s, 70,000 MiB)")
    assert ddp.why == "the search ended by its budget; 640 does not: oom"
    assert (ddp_o2.verdict, ddp_o2.why) == ("FAILED", "oom")


def test_achieved_operations_and_bytes_by_hand(acceptance: Any) -> None:
    """50 GFLOP x 128 images / 0.1 s = 64 TFLOP/s of 100; 1 GB + 0.5 GB x 128 = 65 GB in 0.1 s = 650 GB/s of 2,000."""
    single, ddp_o1 = acceptance.speeds(a_run(), PROBE, replicas=1)
    assert (single.tflops, single.matrix_share, single.rate) == (pytest.approx(64.0), pytest.approx(0.64), "tf32")
    assert (single.gb_s, single.copy_share) == (pytest.approx(650.0), pytest.approx(0.325))
    assert (ddp_o1.tflops, ddp_o1.matrix_share, ddp_o1.rate) == (pytest.approx(128.0), pytest.approx(0.32), "fp16")
    single, ddp_o1 = acceptance.speeds(a_run(), PROBE, replicas=2)
    assert single.tflops == pytest.approx(64.0), "it has one device, however many there are"
    assert (ddp_o1.tflops, ddp_o1.gb_s) == (pytest.approx(64.0), pytest.approx(660.0))


# The page


def evidence(acceptance: Any, **more: Any) -> Any:
    checks = [
        acceptance.Check(part="overhead", what="the step", verdict=acceptance.PASSED, figure="1.0001", bound="1.005"),
        acceptance.Check(part="tests", what="test_apex", verdict=acceptance.NOT_HERE, why=f"no apex {HOSTILE}"),
    ]
    fields = {
        "about": {"GPU": "NVIDIA Imaginary 9000", "command": "python3 x", "UTC": "2026-01-31T00:00:00Z"},
        "checks": checks,
        "took": {"overhead": 12.3},
        "run": a_run(),
        "probe": PROBE,
        "speeds": acceptance.speeds(a_run(), PROBE, replicas=1),
    }
    return acceptance.Evidence(**(fields | more))


def test_the_page_has_every_check_with_figure_bound_and_verdict(acceptance: Any) -> None:
    page = acceptance.page(evidence(acceptance))
    assert page.startswith("# bench, accepted on NVIDIA Imaginary 9000\n")
    assert "| the step | 1.0001 | 1.005 | passed |  |" in page
    assert "2 checks: 1 passed, 1 not applicable here. Exit code 0." in page
    assert "- test_apex (not applicable here): no apex" in page
    assert "64.00 | 64 % of tf32 | 650 | 32 % | 1,000" in page and "50.0 GFLOP an image" in page
    assert "| matrix products, fp16 | 400.00 TFLOP/s |" in page and "2000 GB/s" in page
    assert "One device says nothing about communication" in page
    assert "<script>" not in page and "no evidence" not in page


def test_a_rehearsal_says_first_that_it_is_no_evidence(acceptance: Any) -> None:
    page = acceptance.page(evidence(acceptance, rehearsal=True, about={}))
    first, second, *_ = page.split("\n\n")
    assert "rehearsed on the CPU" in first and "no evidence of any GPU" in second


def test_a_page_without_a_gpu_says_first_why(acceptance: Any) -> None:
    page = acceptance.page(
        evidence(acceptance, obstacle="--gpus: no driver; install it", run=None, probe=None, speeds=())
    )
    assert page.startswith("# bench: no GPU could be used\n\n**--gpus: no driver; install it**\n\n2 checks")
    assert "Exit code 12" in page and "TFLOP" not in page


def test_many_checks_without_an_answer_for_one_reason_are_counted(acceptance: Any) -> None:
    checks = [
        acceptance.Check(part="tests", what=f"test_{number}", verdict=acceptance.NOT_HERE, why="needs CUDA")
        for number in range(20)
    ]
    page = acceptance.page(evidence(acceptance, checks=checks))
    assert "- test_0, test_1, test_2, test_3, test_4, test_5, test_6, test_7 and 12 more (not applicable here)" in page
    assert acceptance.page(evidence(acceptance, checks=[])).count("Nothing.") == 1


def test_the_document_is_json_without_nan(acceptance: Any) -> None:
    made = acceptance.document(evidence(acceptance))
    assert json.loads(json.dumps(made))["speeds"][0]["scenario"] == "single" and made["exit_code"] == 0
    with pytest.raises(ValueError, match="not JSON compliant"):
        acceptance.document(evidence(acceptance, took={"overhead": math.nan}))


# The pack itself


def quick(pack: Any, patch: pytest.MonkeyPatch, *broken: str) -> list[str]:
    called: list[str] = []

    def part(name: str) -> Callable[..., None]:
        def do(self: Any, *arguments: Any) -> None:
            called.append(name)
            if name in broken:
                raise RuntimeError(f"{name} broke")
            self.add(pack.Check(part=name, what=name, verdict=pack.PASSED))

        return do

    names = ("doctor", "examine", "examine_speed", "scenarios", "against_handwritten", "tests", "instruments", "batch")
    for name in names:
        patch.setattr(pack.Acceptance, name, part(name))
    patch.setattr(pack.foreign, "refuse", lambda *about, **more: None)
    return called


A_GPU = nvml.Gpu(
    index=0,
    uuid="GPU-0",
    name="NVIDIA Imaginary 9000",
    pci_bus_id="0",
    memory_total_mib=80000.0,
    compute_capability="9.0",
    power_limit_w=500.0,
    driver="500.1",
)


def test_no_gpu(pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([], "no driver; install it, or use --device cpu"))
    called = quick(pack, monkeypatch)
    assert pack.main(["--out", str(tmp_path / "out")]) == 12
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == "gpu_acceptance: --gpus: no NVIDIA GPU can be used: no driver; install it"
    assert called == ["doctor", "scenarios"]
    found = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert found["exit_code"] == 12 and sum(one["verdict"] == "not done" for one in found["checks"]) == 7
    assert "no driver" in (tmp_path / "out" / "acceptance.md").read_text()


def test_busy(pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = quick(pack, monkeypatch)

    def refuse(*about: Any, **more: Any) -> None:
        remedy = "wait until they are free, choose others, or measure beside them with --force"
        raise RequestError("--gpus", "in use by others: PID 7", remedy)

    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([A_GPU], None))
    monkeypatch.setattr(pack.foreign, "refuse", refuse)
    assert pack.main(["--out", str(tmp_path / "out")]) == 12
    said = capsys.readouterr().err
    assert "gpu_acceptance: --gpus: in use by others: PID 7; wait until they are free, choose others\n" in said
    assert called == ["doctor", "scenarios"]


def test_a_broken_part_does_not_stop_the_others(pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called = quick(pack, monkeypatch, "tests")
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([A_GPU], None))
    assert pack.main(["--out", str(tmp_path / "out")]) == 1
    assert called[:5] == ["doctor", "examine", "examine_speed", "scenarios", "against_handwritten"]
    assert called[5:] == ["against_handwritten", "tests", "tests", "instruments", "batch"]
    found = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert [one["why"] for one in found["checks"] if one["verdict"] == "FAILED"] == ["RuntimeError: tests broke"] * 2
    assert found["about"]["GPU"] == A_GPU.name and not found["rehearsal"]


def test_an_old_driver_and_a_large_batch(pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, dict[str, Any]] = {
        "look": {"problem": "RuntimeError: The NVIDIA driver on your system is too old (found 11040)", "cuda": "12.8"}
    }
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([A_GPU], None))
    monkeypatch.setattr(pack.foreign, "refuse", lambda *about, **more: None)

    def document(self: Any, name: str, *arguments: Any, **more: Any) -> dict[str, Any]:
        if name not in told:
            raise pack.NotDone(f"{name} is not looked at here")
        return told[name]

    monkeypatch.setattr(pack.Acceptance, "document", document)
    assert pack.main(["--out", str(tmp_path / "old")]) == 12
    found = json.loads((tmp_path / "old" / "acceptance.json").read_text())
    assert found["obstacle"].startswith("--gpus: RuntimeError: The NVIDIA driver")
    assert found["obstacle"].endswith(
        "update the driver, or install a torch that was built for an older CUDA than 12.8"
    )

    told["look"] = {"problem": None, "name": "x", "free_mib": 9000.0, "total_mib": 9500.0}
    told["probe"] = {"rates": PROBE["rates"], "counts": PROBE["counts"]} | {
        "step": {"step_s": None, "peak_mib": None, "oom": "CUDA out of memory"}
    }
    monkeypatch.setattr(pack.Acceptance, "tests", lambda self, part, limit_s: None)
    assert pack.main(["--out", str(tmp_path / "small")]) == 12
    found = json.loads((tmp_path / "small" / "acceptance.json").read_text())
    why = {one["part"]: one["why"] for one in found["checks"] if one["verdict"] == "not done"}
    assert "128 images of 224 px do not fit" in why["scenarios"] and "(9,000 MiB free)" in why["scenarios"]
    assert "use --global-batch 64" in why["instruments"] and why["batch"] == "batch is not looked at here"


class Planned(Exception):
    """A benchmark has read its options and asks for its launch."""


def test_commands_are_accepted(pack: Any, acceptance: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib

    import launching

    from bench.runs import check
    from bench.verbs import doctor, run

    answers: dict[str, dict[str, Any]] = {
        "doctor": {"findings": []},
        "look": {"problem": None, "name": "x", "free_mib": 80000.0, "total_mib": 81000.0}
        | {"torch": "2.11", "cuda": "13.0"},
        "probe": PROBE | {"step": {"step_s": 0.12, "first_s": 3.0, "peak_mib": 17000.0, "oom": None}},
        "scenarios": a_run() | {"path": str(tmp_path)},
        "batch": {"batch_search": {"scenarios": {}}},
        **dict.fromkeys(("single", "ddp_o1"), compared(0.999, 1.001, margin=0.01, allowed=None, passed=True)),
        "instruments": dict.fromkeys(("overhead", "sampler"), compared(0.999, 1.001, passed=True)),
    }
    commands: dict[str, list[str]] = {}
    files = {file.name for file in (Path(__file__).parents[1] / "gpu").glob("test_*.py")}
    assert files == {file for sessions in pack.TESTS.values() for done in sessions.values() for file in done}

    def execute(self: Any, asked: dict[str, list[str]], limit_s: float, **environment: str) -> dict[str, Any]:
        for name, command in asked.items():
            commands[name] = command
            if "pytest" in command:
                assert environment == {"BENCH_GPU_TESTS_S": f"{limit_s - 15:.0f}", "BENCH_TEST_GPUS": "GPU-0"}
                assert {Path(word).name for word in command if word.endswith(".py")} <= files
                junit = Path(self.out) / "parts" / f"{name}.xml"
                junit.write_text('<testsuite><testcase name="a" time="1"/></testsuite>')
        return {
            name: pack.Command(code=0, said=json.dumps(answers.get(name, {})), told="", ended=False) for name in asked
        }

    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([A_GPU], None))
    monkeypatch.setattr(pack.foreign, "refuse", lambda *about, **more: None)
    monkeypatch.setattr(pack.Acceptance, "execute", execute)
    monkeypatch.setattr(check, "findings", lambda path: [])
    assert pack.main(["--out", str(tmp_path / "out")]) == 0
    with_tests = [pack.TESTS.get(part.name, (part.name,)) for part in pack.PARTS]
    assert list(commands) == [name for names in with_tests for name in names]
    every = dict(commands)
    commands.clear()
    assert pack.main(["--out", str(tmp_path / "more"), "--parts", "tests, batch"]) == 0
    assert list(commands) == ["doctor", "look", "probe", "what_ran", "gpu_ranks", "gpu_runs", "batch"]
    commands |= every

    measured = run._parser().parse_args(commands["scenarios"][3:])
    assert (measured.device, measured.gpus, measured.global_batch, measured.image_size) == ("cuda", "GPU-0", 128, 224)
    assert (measured.warmup, measured.model, measured.json) == (10, "resnet101", True) and measured.iters >= 8
    searched = run._parser().parse_args(commands["batch"][3:])
    assert searched.find_batch and searched.scenario == ["ddp,ddp_o2"] and 0 < searched.budget < 150
    assert commands["doctor"][:3] == ["-m", "bench", "doctor"] and doctor is not None

    asked: list[dict[str, Any]] = []

    def plan(scenario: str, **options: Any) -> None:
        asked.append({"scenario": scenario, **options})
        raise Planned

    monkeypatch.setattr(launching, "plan", plan)
    for name in ("single", "ddp_o1", "instruments"):
        script, *arguments = commands[name]
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(Planned):
            importlib.import_module(Path(script).stem).main()
    assert [one["scenario"] for one in asked] == ["single", "ddp_o1", "ddp"]
    for one in asked:
        assert (one["device"], one["gpus"], one["model"]) == ("cuda", "GPU-0", "resnet101")
        assert (one["image_size"], one["global_batch"], one["warmup"]) == (224, 128, 12)
    for name in ("look", "probe"):
        assert Path(commands[name][0]).is_file()
    page = (tmp_path / "out" / "acceptance.md").read_text()
    assert "| NVIDIA Imaginary 9000 |" in page and "torch | 2.11, CUDA 13.0" in page and "64 % of tf32" in page
    assert "communication between GPUs (not applicable here): one GPU was chosen" in page


def test_exclusive_mode(pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = eight_minutes(pack, Clock(), str(tmp_path), sizes=pack.TINY, exclusive=True)
    with pytest.raises(pack.NotDone, match="both are on the GPU at once, and its compute mode is exclusive process; "):
        made.against_handwritten("single", 60.0)
    together: list[list[str]] = []

    def execute(self: Any, asked: dict[str, list[str]], limit_s: float, **environment: str) -> dict[str, Any]:
        together.append(list(asked))
        return {name: pack.Command(code=0, said="", told="", ended=False) for name in asked}

    monkeypatch.setattr(pack.Acceptance, "execute", execute)
    for alone in (True, False):
        made.exclusive = alone
        made.tests("tests", 60.0)
    assert together == [["what_ran"], ["gpu_ranks"], ["gpu_runs"], ["what_ran", "gpu_ranks", "gpu_runs"]]


def test_a_launch_that_fails_before_its_first_turn_says_why_at_once(pack: Any, tmp_path: Path) -> None:
    import launching

    job = launching.plan("single", model="resnet18", warmup=1, iters=1)
    failing = SimpleNamespace(perform=lambda *about: SimpleNamespace(status="oom", reason="planted"))
    began_s = time.monotonic()
    with pytest.raises(RuntimeError, match="the launch of single failed: planted"):
        launching.Turns(failing, job, str(tmp_path)).wait_until_warm()
    assert time.monotonic() - began_s < launching.START_LIMIT_S / 10


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("torch was built without CUDA", "with CUDA"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "update the driver"),
        ("RuntimeError: CUDA error: no kernel image is available", "compute capability 3.5"),
        ("OutOfMemoryError: CUDA out of memory", "wait until the GPU is free"),
        ("RuntimeError: something else", "doctor"),
    ],
)
def test_every_reason_has_a_remedy(pack: Any, problem: str, remedy: str) -> None:
    assert remedy in pack.remedy({"problem": problem, "capability": "3.5", "cuda": "12.8"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the arguments --out --reference is required"),
        (("--out", "{full}"), "--out: "),
        (("--out", "{new}", "--budget", "8"), "--budget: '8' is not a length of time"),
        (("--out", "{new}", "--global-batch", "0"), "--global-batch: '0'"),
        (("--out", "{new}", "--apex", "{full}"), "--apex: "),
        (("--out", "{new}", "--parts", "tests,all"), "--parts: there is no part 'all'; choose from scenarios, "),
        (("--out", "{new}", "--gpus", "7"), "--gpus: there is no GPU '7'; choose from 0"),
        (("--reference", "{full}"), "--reference: "),
    ],
)
def test_a_wrong_request_is_one_line_and_nothing_is_written(
    pack: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([A_GPU], None))
    assert pack.main([text.format(full=tmp_path / "full", new=tmp_path / "new") for text in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu_acceptance: error: ") and said in line and "; " in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("git", "told", "commit"),
    [
        ({"commit": "abc", "dirty": False}, ["--commit", "other"], "abc"),
        ({"commit": "abc", "dirty": True}, [], "abc with changes"),
        (None, ["--commit", "abc"], "abc (as told: this is no git checkout)"),
        (None, [], "unknown: not a git checkout, and --commit was not given"),
    ],
)
def test_the_commit_of_a_copy(pack: Any, git: dict[str, Any] | None, told: list[str], commit: str) -> None:
    host = {"git": git, "python": "3", "cpu": "c", "cores_usable": 1, "container": None, "utc": "now"}
    about = pack.circumstances(pack.parse(["--out", "x", *told]), (), {}, pack.TINY, host)
    assert about["commit"] == commit


@pytest.fixture
def started(pack: Any, tmp_path: Path) -> Any:
    (tmp_path / "parts").mkdir()
    budget = pack.Budget(total_s=1000.0, reserve_s=0.0, clock=time.monotonic)
    options = pack.parse(["--out", str(tmp_path), "--rehearse"])
    return pack.Acceptance(options=options, out=str(tmp_path), budget=budget, sizes=pack.TINY)


def test_a_slow_command_is_ended_with_its_children(pack: Any, started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "ENDING_S", 0.5)
    program = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "print(child.pid, flush=True); time.sleep(100)"
    )
    began_s = time.monotonic()
    both = started.execute({"slow": ["-c", program], "quick": ["-c", "print('done')"]}, 1.0)
    done, quick = both["slow"], both["quick"]
    assert done.ended and done.code == -9 and time.monotonic() - began_s < 10
    assert (quick.ended, quick.code, quick.said) == (False, 0, "done\n"), "side by side, and it was over in time"
    child = int(done.said)
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    with pytest.raises(pack.NotDone, match="ended after 0 s; give more with --budget"):
        started.document("slow", ["-c", program], 0.3)


def test_a_command_hears_the_signal_that_ends_it_though_the_acceptance_does_not(started: Any) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
        done = started.execute({"any": ["-c", program]}, 20.0)["any"]
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.said == "True\n"


def test_what_a_command_says_is_its_last_line_or_all_of_it(pack: Any, started: Any) -> None:
    assert started.document("a", ["-c", "print('noise'); print('{\"x\": 1}')"], 20.0) == {"x": 1}
    several = started.document("b", ["-c", "print('{\\n \"x\": 2\\n}'); raise SystemExit(1)"], 20.0, codes=(0, 1))
    assert several == {"x": 2}
    with pytest.raises(RuntimeError, match="ValueError: planted"):
        started.document("c", ["-c", "raise ValueError('planted')"], 20.0)
    with pytest.raises(pack.NotDone, match="error: --gpus: taken"):
        started.document("d", ["-c", "import sys; print('error: --gpus: taken', file=sys.stderr); sys.exit(2)"], 20.0)
    with pytest.raises(RuntimeError, match="exit code 0"):
        started.document("e", ["-c", "print('nothing of use')"], 20.0)


def test_an_acceptance_on_a_gpu_is_kept_with_its_run_and_another_is_not(
    pack: Any, acceptance: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, root = tmp_path / "accepted", tmp_path / "repository"
    stored = encode(read(str(write_run(tmp_path / "any", [DDP]))).document.workload)
    known = Training(**{name: stored[name] for name in Training.__dataclass_fields__})
    run = write_run(folder / "run", [DDP], about={"workload": {"hash": known.hash()}})
    monkeypatch.setattr(pack.paired, "ROOT", str(root))

    def written(**more: Any) -> list[str]:
        document = acceptance.document(evidence(acceptance, run=a_run() | {"run": run.name}, **more))
        (folder / "acceptance.json").write_text(json.dumps(document))
        (folder / "acceptance.md").write_text("page")
        return ["--reference", str(folder)]

    for refused in ({"rehearsal": True}, {"obstacle": "none; buy one"}):
        assert pack.main(written(**refused)) == 2
        assert "is no run on a GPU" in capsys.readouterr().err
    assert pack.main(written()) == 0
    kept = root / "results" / "reference" / "nvidia-imaginary-9000-20260131"
    assert sorted(path.name for path in kept.iterdir()) == sorted(["acceptance.json", "acceptance.md", run.name])
    assert str(kept.relative_to(root)) in capsys.readouterr().out
    assert pack.main(written()) == 2 and "is there already" in capsys.readouterr().err
    with open(run / "steps.parquet", "ab") as torn:
        torn.write(b"x")
    assert pack.main(written()) == 2 and "steps.parquet" in capsys.readouterr().err


def test_tests_of_a_gpu_say_that_they_were_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, other = (SimpleNamespace(get_closest_marker=lambda name, is_gpu=is_gpu: is_gpu) for is_gpu in (True, False))
    for limit, item in (("1e9", gpu), ("0", other)):
        monkeypatch.setenv(conftest.GPU_TESTS_LIMIT, limit)
        conftest.pytest_runtest_setup(item)
    with pytest.raises(pytest.skip.Exception, match="not reached within 0 s"):
        conftest.pytest_runtest_setup(gpu)


# What a step asks of a device


def traffic(modules: dict[str, ModuleType], call: Callable[[], object]) -> int:
    with modules["probe"].Traffic(torch.device("cpu")) as counted:
        call()
    return int(counted.bytes)


def test_bytes_of_operators_by_hand(modules: dict[str, ModuleType]) -> None:
    """Of 1,000 fp32 numbers (4,000 bytes): what is read, and what is written."""
    a, b = torch.ones(1000), torch.ones(1000)
    row = torch.ones(10)
    assert traffic(modules, lambda: a + b) == 12_000
    assert traffic(modules, lambda: a.add_(b)) == 12_000, "two are read, and one of them is written"
    assert traffic(modules, lambda: torch.add(a, b, out=b)) == 16_000, "b is an operand, and the result's place besides"
    assert traffic(modules, lambda: a.view(10, 100).t()) == 0
    assert traffic(modules, lambda: torch.empty(1000)) == 0
    assert traffic(modules, lambda: torch.zeros(1000)) == 4_000
    assert traffic(modules, lambda: row.expand(100, 10) * 1.0) == 40 + 4_000, "an expanded one is read once"
    assert traffic(modules, lambda: torch._foreach_add_([a, b], [a, b])) == 24_000
    assert traffic(modules, lambda: a.half()) == 6_000


def test_operations_and_bytes_of_a_training_step_are_linear_in_the_batch(modules: dict[str, ModuleType]) -> None:
    """An image asks for three forward passes' worth of operations, less the gradient of the images themselves."""
    import argparse

    options = argparse.Namespace(model="resnet18", image_size=32)
    probe, cpu = modules["probe"], torch.device("cpu")
    session, images, labels = probe.a_session(options, cpu, "O0", 6)
    (two, few), (four, more), (six, most) = (
        probe.count(session, images[:batch], labels[:batch], cpu) for batch in (2, 4, 6)
    )
    assert four == 2 * two and six == 3 * two
    assert most - more == pytest.approx(more - few, rel=0.01) and most > more > few
    forward = 2 * 37.2e6
    assert two / 2 == pytest.approx(3 * forward, rel=0.02)


@pytest.mark.slow
def test_a_rehearsal_from_end_to_end(pack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = pack.main(["--rehearse", "--budget", "20m", "--out", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert code in (0, 11), [one for one in found["checks"] if one["verdict"] in ("FAILED", "not done")]
    assert found["rehearsal"] and len(found["summary"]) == 10
    assert set(found["took_s"]) == {part.name for part in pack.PARTS if part.name != "look"}
    assert {one["verdict"] for one in found["checks"] if one["part"] in ("alone", "tests")} == {"not applicable here"}
    assert "no evidence of any GPU" in (tmp_path / "out" / "acceptance.md").read_text()
