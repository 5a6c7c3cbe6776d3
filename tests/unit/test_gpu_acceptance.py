"""The acceptance on a GPU, as far as it needs none: the order, verdicts, the page, going on, and bad input.

Figures here are made up so that what must come of them is known; none was measured on a GPU.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import conftest
import pytest
from standin.runs import DDP, HOSTILE, write_run

from bench.core.codec import encode
from bench.core.records import Gpu, Training
from bench.runs.reader import read
from bench.seams import discover, switching


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
        import acceptance
        import gpu_acceptance

        yield {"acceptance": acceptance, "pack": gpu_acceptance}


@pytest.fixture(scope="module")
def acceptance(modules: dict[str, ModuleType]) -> Any:
    return modules["acceptance"]


@pytest.fixture(scope="module")
def pack(modules: dict[str, ModuleType]) -> Any:
    return modules["pack"]


# The order


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made(pack: Any, *words: str, out: str = "x") -> Any:
    """A call that begins."""
    options = pack.parse(["--out", out, *words])
    options.apex = "/apex"
    return pack.Acceptance(options=options, out=out, gpus=(A_GPU,), clock=Clock(), began_s=Clock.now)


# Verdicts


def checks_of(acceptance: Any, *verdicts: str) -> list[Any]:
    return [acceptance.Check(part="p", what="w", verdict=verdict) for verdict in verdicts]


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


FULL = {"status": "oom", "reason": "full"}


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
        "request": {"warmup": 10, "iters": 20, "parity": True},
        "experiments": {"numerics": {"reference": {"status": "ok", "reason": None}}},
        "workload": {"global_batch": 128},
        "launches": [launch("single", "O0", {}), launch("ddp_o1", "O1", ran)],
        "summary": [row("single", 100.0, "same"), row("ddp_o1", 50.0, "within half precision")],
        "parity": [
            {"scenario": "single", "verdict": "same", "reason": None},
            {"scenario": "ddp_o1", "verdict": "within half precision", "reason": "as it should"},
        ],
    }


def verdicts(checks: list[Any]) -> dict[str, str]:
    return {check.what: check.verdict for check in checks}


def test_a_run_on_a_gpu_passes_as_it_should(acceptance: Any) -> None:
    found = verdicts(acceptance.of_run("scenarios", a_run(), [], on_gpu=True))
    assert set(found.values()) == {"passed"} and len(found) == 6


@pytest.mark.parametrize(
    ("what", "plant"),
    [
        ("every scenario runs", lambda run: run["summary"][0].update(status="oom", reason="full")),
        ("steps add up", lambda run: run["launches"][0]["checks"].update(conservation_ok=False)),
        ("the memory of every", lambda run: run["summary"][1].update(peak_total_mib=None)),
        ("train the model", lambda run: run["parity"][1].update(verdict="diverged")),
        (
            "train the model",
            lambda run: run["experiments"]["numerics"]["reference"].update(status="oom", reason="full"),
        ),
        ("computed in fp16", lambda run: run["launches"][1]["effective"].update(compute_dtypes=["bfloat16"])),
        ("computed in fp16", lambda run: run["launches"][1]["effective"].update(scaler=None)),
    ],
)
def test_a_fault_fails_its_check_alone(acceptance: Any, what: str, plant: Callable[[dict[str, Any]], None]) -> None:
    run = a_run()
    plant(run)
    failed = [
        name
        for name, verdict in verdicts(acceptance.of_run("scenarios", run, [], on_gpu=True)).items()
        if verdict == "FAILED"
    ]
    assert len(failed) == 1 and what in failed[0], failed


def test_a_strategy_that_needs_other_devices_is_not_applicable(acceptance: Any) -> None:
    run = a_run()
    run["summary"][1].update(status="unsupported", reason="it needs two GPUs", peak_total_mib=None)
    for part, verdict in (("more_1", "not applicable here"), ("scenarios", "FAILED")):
        found = verdicts(acceptance.of_run(part, run, [], on_gpu=True))
        assert verdict in found.values() and ("FAILED" in found.values()) == (part == "scenarios")


def test_a_switch_without_effect_is_named(acceptance: Any) -> None:
    run = a_run()
    run["launches"][1]["effective"] |= {"switches": {"fused": "it is fused anyway", "bf16": None}}
    (one,) = [check for check in acceptance.of_run("more_1", run, [], on_gpu=True) if "without effect" in check.what]
    assert (one.verdict, one.why) == ("figure", "ddp_o1: it is fused anyway")


def test_what_compresses_gradients_may_diverge(acceptance: Any) -> None:
    run = a_run()
    run["parity"][1].update(verdict="diverged")
    name = run["parity"][1]["scenario"]
    next(one for one in run["launches"] if one["scenario"] == name)["strategy"] = "ddp_hooks"
    assert "FAILED" not in verdicts(acceptance.of_run("more_1", run, [], on_gpu=True)).values()


def test_what_was_not_held_against_the_reference_has_not_passed(acceptance: Any) -> None:
    run = a_run()
    run["parity"][1].update(verdict=None, reason="the loss scaler skipped the first step")
    (check,) = [one for one in acceptance.of_run("scenarios", run, [], on_gpu=True) if "train the model" in one.what]
    assert (check.verdict, check.why) == ("not shown", "ddp_o1: the loss scaler skipped the first step")


def test_without_the_reference_numerics_are_not_done(acceptance: Any) -> None:
    ended = a_run() | {"experiments": {}, "parity": [], "complete": False}
    found = verdicts(acceptance.of_run("scenarios", ended, [], on_gpu=True))
    assert found["fp32, O1 and O2 train the model of the fp32 reference"] == "not done"
    unasked = ended | {"request": {"warmup": 10, "iters": 20, "parity": False}}
    assert not any("reference" in what for what in verdicts(acceptance.of_run("x", unasked, [], on_gpu=True)))


def test_what_an_interruption_killed_has_not_failed(acceptance: Any) -> None:
    ended = a_run() | {"complete": False}
    ended["summary"][1].update(status="killed", reason="interrupted", peak_total_mib=None)
    found = verdicts(acceptance.of_run("scenarios", ended, [], on_gpu=True))
    assert "FAILED" not in found.values() and found["every scenario runs"] == "not done"
    ended["summary"][0].update(status="oom")
    assert verdicts(acceptance.of_run("scenarios", ended, [], on_gpu=True))["every scenario runs"] == "FAILED"


def test_what_check_finds_fails_but_for_steps_that_do_not_add_up_on_a_shared_cpu(acceptance: Any) -> None:
    sealed = "the run folder is sealed and sound"
    apart = ["launch 5: its steps do not add up to the host's wall time"]
    assert verdicts(acceptance.of_run("scenarios", a_run(), apart, on_gpu=True))[sealed] == "FAILED"
    assert verdicts(acceptance.of_run("scenarios", a_run(), apart, on_gpu=False))[sealed] == "not shown"
    assert verdicts(acceptance.of_run("scenarios", a_run(), [*apart, "torn"], on_gpu=False))[sealed] == "FAILED"


def test_the_largest_batch_and_how_its_search_ended(acceptance: Any) -> None:
    best = {"largest": 600, "throughput_per_s": 1000.0, "peak_mib": 70000.0, "too_large": 640, "why_not": "oom"}
    nothing = {"largest": None, "too_large": 128, "why_not": "oom", "stopped_by": None}
    document = {
        "experiments": {"batch_search": {"scenarios": {"ddp": best | {"stopped_by": "budget"}, "ddp_o2": nothing}}}
    }
    ddp, ddp_o2 = acceptance.of_search(document)
    assert (ddp.verdict, ddp.figure) == ("figure", "600 (1000 img/s, 70,000 MiB)")
    assert ddp.why == "the search ended by its budget; 640 does not: oom"
    assert (ddp_o2.verdict, ddp_o2.why) == ("FAILED", "oom")


# The page


def evidence(acceptance: Any, **more: Any) -> Any:
    checks = [
        acceptance.Check(
            part="instruments", what="the step", verdict=acceptance.PASSED, figure="1.0001", bound="1.005"
        ),
        acceptance.Check(part="tests", what="test_apex", verdict=acceptance.NOT_HERE, why=f"no apex {HOSTILE}"),
    ]
    fields = {
        "about": {"GPU": "NVIDIA Imaginary 9000", "command": "python3 x", "UTC": "2026-01-31T00:00:00Z"},
        "checks": checks,
        "took": {"instruments": 12.3},
        "run": a_run(),
    }
    return acceptance.Evidence(**(fields | more))


def test_the_page_has_every_check_with_figure_bound_and_verdict(acceptance: Any) -> None:
    page = acceptance.page(evidence(acceptance))
    assert page.startswith("# bench, accepted on NVIDIA Imaginary 9000\n")
    assert "| the step | 1.0001 | 1.005 | passed |  |" in page
    assert "2 checks: 1 passed, 1 not applicable here. Exit code 0." in page
    assert "- test_apex (not applicable here): no apex" in page
    assert "One device says nothing about communication" in page
    assert "<script>" not in page and "no evidence" not in page
    assert "| instruments | 12 |" in page and "## ddp and ddp\\_o2" not in page
    more = acceptance.page(evidence(acceptance, more_runs={"real apex": a_run()}))
    assert "## real apex\n\n| scenario | img/s |" in more


def test_a_rehearsal_says_first_that_it_is_no_evidence(acceptance: Any) -> None:
    page = acceptance.page(evidence(acceptance, rehearsal=True, about={}))
    first, second, *_ = page.split("\n\n")
    assert "rehearsed on the CPU" in first and "no evidence of any GPU" in second


def test_the_document_is_json_without_nan(acceptance: Any) -> None:
    made = acceptance.document(evidence(acceptance))
    assert json.loads(json.dumps(made))["summary"][0]["scenario"] == "single" and made["exit_code"] == 0
    with pytest.raises(ValueError, match="not JSON compliant"):
        acceptance.document(evidence(acceptance, took={"overhead": math.nan}))


# The pack itself

A_GPU = Gpu(
    index=0,
    uuid="GPU-0",
    name="NVIDIA Imaginary 9000",
    pci_bus_id="0",
    memory_total_mib=80000.0,
    compute_capability="9.0",
    power_limit_w=500.0,
    driver="500.1",
)


@pytest.fixture
def answers(pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What each command says, in place of doing it: a document, an exception, or a :class:`Command`. Under
    ``commands`` what was asked for, in order."""
    from bench.runs import check

    passed = compared(0.999, 1.001, margin=0.01, allowed=None, passed=True)
    run = a_run() | {"path": str(tmp_path)}
    found: dict[str, Any] = {
        "doctor": {"findings": []},
        "recipe": pack.Command(code=0, said="", told="", ended=False),
        "instruments": dict.fromkeys(("overhead", "sampler"), passed),
        "batch": {"experiments": {"batch_search": {"scenarios": {}}}},
        "commands": {},
        "takes_s": {},
    }

    def started(self: Any, name: str, command: list[str], limit_s: float, environment: dict[str, str]) -> Any:
        found["commands"].setdefault(name, []).append(command)
        self.clock.now += found["takes_s"].get(name, 1.0)
        answer = found.get(name, passed if name.startswith("handwritten") else run)
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer()
        if name == "tests":
            assert environment["BENCH_GPU_TESTS_S"] == f"{limit_s - 15:.0f}"
            assert environment["BENCH_TEST_GPUS"] == "GPU-0"
            Path(self.path(f"{name}.xml")).write_text('<testsuite><testcase name="a" time="1"/></testsuite>')
        return answer if isinstance(answer, pack.Command) else command_said(pack, answer)

    clock = Clock()
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([A_GPU], None))
    monkeypatch.setattr(pack, "compute_modes", lambda uuids: [])
    monkeypatch.setattr(pack.foreign, "refuse", lambda *about, **more: None)
    monkeypatch.setattr(pack.time, "monotonic", clock)
    monkeypatch.setattr(pack.Acceptance, "started", started)
    monkeypatch.setattr(check, "findings", lambda path: [])
    original = pack.Acceptance
    monkeypatch.setattr(pack, "Acceptance", lambda **fields: original(**{"clock": clock} | fields))
    return found


def command_said(pack: Any, document: Any, **more: Any) -> Any:
    return pack.Command(**({"code": 0, "said": json.dumps(document), "told": "", "ended": False} | more))


def page_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "acceptance.json").read_text())
    return found


EVERYTHING = (
    *("doctor", "handwritten_single", "scenarios", "tests", "more", "recipe", "attach", "checkpoint", "gpt", "tune"),
    *("standard_ddp_ddp_o2", "standard_single_ddp_o1", "instruments", "handwritten_ddp_o1", "batch"),
)


def test_calls_go_on_until_all_is_done(pack: Any, answers: dict[str, Any], tmp_path: Path) -> None:
    """What is broken shows before what is noisy; nothing is done twice, and there is one page in the end."""
    out = tmp_path / "out"
    answers["takes_s"] = dict.fromkeys(EVERYTHING, 110.0)
    calls = []
    for _ in range(30):
        answers["commands"].clear()
        code = pack.main(["--out", str(out)])
        calls.append(list(answers["commands"]))
        left = [one["part"] for one in page_of(out)["checks"] if "left for the next call" in one["why"]]
        assert code == (12 if left else 0)
        if not left:
            break
    assert [name for call in calls for name in call] == list(EVERYTHING), "each of them once, in order"
    assert EVERYTHING.index("tune") < EVERYTHING.index("standard_ddp_ddp_o2")
    page = (out / "acceptance.md").read_text()
    assert "| NVIDIA Imaginary 9000 |" in page
    assert "communication between GPUs (not applicable here): one GPU was chosen" in page
    assert "real apex (not applicable here): --apex names no checkout" in page
    answers["commands"].clear()
    assert pack.main(["--out", str(out), "--items", "tune"]) == 0
    assert list(answers["commands"]) == ["tune"], "what is named is done again"


def test_several_gpus_have_more(pack: Any) -> None:
    call = made(pack)
    call.gpus = (A_GPU,) * 4
    commands = {item.name: item.command for item in call.items}
    ten = commands["scenarios"]
    assert "--bandwidth" in commands["doctor"] and ten[ten.index("--scenario") + 1].endswith(",ddp_untuned")
    assert commands["per_rank"][commands["per_rank"].index("--batch-per-rank") + 1] == "64"
    assert commands["scale"][commands["scale"].index("--counts") + 1] == "1,2,4"
    assert [name for name in commands if name not in (*EVERYTHING, "apex")] == ["per_rank", "scale"]


def test_an_item_that_was_ended_is_tried_again_but_not_for_ever(
    pack: Any, answers: dict[str, Any], tmp_path: Path
) -> None:
    answers["batch"] = command_said(pack, {}, code=-2, ended=True)
    call = ["--out", str(tmp_path / "out"), "--items", "batch"]
    assert pack.main(call) == 12
    record = json.loads((tmp_path / "out" / "items" / "batch.json").read_text())
    assert (record["over"], record["tries"]) == (False, 1) and "call again" in record["checks"][-1]["why"]
    for _ in range(3):
        pack.main(["--out", str(tmp_path / "out"), "--budget", "2h"])
    record = json.loads((tmp_path / "out" / "items" / "batch.json").read_text())
    assert (record["over"], record["tries"]) == (True, 3) and "call again" not in record["checks"][-1]["why"]


def test_what_is_refused_is_done_by_a_later_call(pack: Any, answers: dict[str, Any], tmp_path: Path) -> None:
    call = ["--out", str(tmp_path / "out"), "--budget", "2h"]
    answers["batch"] = command_said(pack, {}, code=2, told="bench: error: --gpus: in use; wait")
    for _ in range(pack.TRIES + 1):
        assert pack.main(call) == 12
    why = {one["part"]: one["why"] for one in page_of(tmp_path / "out")["checks"]}
    assert why["batch"] == "bench: error: --gpus: in use; wait"
    del answers["batch"]
    answers["batch"] = {"experiments": {"batch_search": {"scenarios": {}}}}
    assert pack.main(call) == 0


def test_a_call_that_is_interrupted_leaves_a_page(pack: Any, answers: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def interrupted() -> None:
        write_run(out / "runs" / "scenarios", [DDP], complete=False)
        raise KeyboardInterrupt

    answers["scenarios"] = interrupted
    assert pack.main(["--out", str(out)]) == 130
    why = {one["part"]: one["why"] for one in page_of(out)["checks"]}
    assert why["scenarios"] == "interrupted; call again" and "left for the next call" in why["batch"]
    assert [row["scenario"] for row in page_of(out)["summary"]] == ["ddp"], "what it did is shown"
    del answers["scenarios"]
    answers["commands"].clear()
    pack.main(["--out", str(out)])
    assert next(iter(answers["commands"])) == "scenarios"


def test_an_interrupted_run_is_resumed(
    pack: Any, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where that is refused, as on another machine, the run is begun anew."""
    out = tmp_path / "out"
    begun = write_run(out / "runs" / "scenarios", [DDP], complete=False)
    asked: list[list[str]] = []
    original = pack.Command

    def started(self: Any, name: str, command: list[str], limit_s: float, environment: dict[str, str]) -> Any:
        asked.append(command)
        return original(code=2, said="", told="error: --resume: another GPU", ended=False)

    call = made(pack, out=str(out))
    monkeypatch.setattr(type(call), "started", started)
    done = call.execute(call.item("scenarios"), 100.0)
    resumed, anew = asked
    assert resumed == ["-m", "bench", "run", "--resume", str(begun), "--wait", "--json"] and done.code == 2
    assert anew[-2:] == ["--out", str(out / "runs" / "scenarios")] and "--scenario" in anew


def test_an_ended_run_is_judged_by_what_it_left(pack: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "scenarios", [DDP], complete=False)
    call = made(pack, out=str(tmp_path))
    ended = command_said(pack, {}, ended=True)
    checks, run = call.judged_run("scenarios", ended)
    found = {check.what: check.verdict for check in checks}
    assert [row["scenario"] for row in run["summary"]] == ["ddp"]
    assert found["scenarios: every scenario runs"] == "not done"
    assert found["scenarios: the run folder is sealed and sound"] == "not done"
    assert call.judged_run("gpt", ended) == ([], {})


def test_no_gpu(
    pack: Any,
    answers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([], "no driver; install it, or use --device cpu"))
    assert pack.main(["--out", str(tmp_path / "out")]) == 12
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == "gpu_acceptance: --gpus: no NVIDIA GPU can be used: no driver; install it"
    assert list(answers["commands"]) == ["doctor"]
    found = page_of(tmp_path / "out")
    assert sum(one["verdict"] == "not done" for one in found["checks"]) == len(EVERYTHING)
    assert "no driver" in (tmp_path / "out" / "acceptance.md").read_text()


def test_a_broken_item_does_not_stop_the_others(pack: Any, answers: dict[str, Any], tmp_path: Path) -> None:
    answers["tests"] = RuntimeError("tests broke")
    answers["tune"] = ModuleNotFoundError("No module named 'pandas'")
    assert pack.main(["--out", str(tmp_path / "out"), "--budget", "2h"]) == 1
    assert list(answers["commands"]) == list(EVERYTHING)
    found = page_of(tmp_path / "out")
    failed = [one["why"] for one in found["checks"] if one["verdict"] == "FAILED"]
    assert failed == ["RuntimeError: tests broke", "ModuleNotFoundError: No module named 'pandas'"]
    assert found["about"]["GPU"] == A_GPU.name and not found["rehearsal"]


def test_another_gpu_is_refused(
    pack: Any,
    answers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = ["--out", str(tmp_path / "out"), "--items", "doctor"]
    assert pack.main(call) == 12
    same = Gpu(**{name: getattr(A_GPU, name) for name in A_GPU.__slots__} | {"uuid": "GPU-7"})
    other = Gpu(**{name: getattr(A_GPU, name) for name in A_GPU.__slots__} | {"name": "NVIDIA Other"})
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([same], None))
    assert pack.main(call) == 12, "a GPU of the same model goes on"
    monkeypatch.setattr(pack.nvml, "list_gpus", lambda: ([other], None))
    capsys.readouterr()
    assert pack.main(call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was begun with GPU NVIDIA Imaginary 9000, and now it is NVIDIA Other; " in line


def test_every_strategy_and_switch_is_in_the_pack(pack: Any, repository: Path) -> None:
    words = made(pack).item("more").command
    asked = words[words.index("--scenario") + 1].split(",")
    found = [switching.scenario(name) for name in (*discover.DEFAULT, *asked)]
    files = {
        folder: {file.stem for file in (repository / folder).glob("*.py")}
        for folder in ("scenarios", "bench/strategies", "bench/switches")
    }
    assert {one.base for one in found} == files["scenarios"]
    assert {one.strategy_name for one in found} == files["bench/strategies"]
    on = [one for scenario in found for one in scenario.switches]
    assert {one.name for one in on} == files["bench/switches"]
    for one in on:
        words = switching.load_switch(one.name, one.file).choices
        assert {str(other.value) for other in on if other.name == one.name} >= set(words)


class Planned(Exception):
    """A benchmark has read its options and asks for its launch."""


def test_commands_are_accepted(
    pack: Any,
    answers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import importlib

    import launching

    from bench.cli import main
    from bench.verbs import run

    apex = tmp_path / "apex"
    (apex / "apex" / "amp").mkdir(parents=True)
    monkeypatch.setattr(pack, "check_apex", lambda path: None)
    assert pack.main(["--out", str(tmp_path / "out"), "--budget", "2h", "--apex", str(apex)]) == 0
    commands = answers["commands"]
    assert set(commands) == {*EVERYTHING, "apex"}
    for name in ("scenarios", "apex", "more", "checkpoint", "standard_ddp_ddp_o2", "batch"):
        parsed = run.run_parser().parse_args(commands[name][0][3:])
        assert (parsed.device, parsed.gpus, parsed.global_batch, parsed.image_size) == ("cuda", "GPU-0", 128, 224)
        assert parsed.model == "resnet101" and parsed.json and parsed.out.endswith(name)
    assert run.run_parser().parse_args(commands["gpt"][0][3:]).workload == "gpt"
    assert run.run_parser().parse_args(commands["batch"][0][3:]).find_batch
    capsys.readouterr()
    for name in ("doctor", "tune", "attach", "recipe"):
        words = commands[name][0]
        with suppress(SystemExit):
            main([words[2], "--help"])
        known = capsys.readouterr().out
        own = words[3 : words.index("--")] if "--" in words else words[3:]
        assert words[2] == name and not [word for word in own if word.startswith("--") and word not in known]
    script = commands["recipe"][0][-1]
    assert commands["recipe"][1][-3:] == [script, "--steps", "20"] == commands["attach"][0][-3:]

    asked: list[dict[str, Any]] = []

    def plan(scenario: str, **options: Any) -> None:
        asked.append({"scenario": scenario, **options})
        raise Planned

    monkeypatch.setattr(launching, "plan", plan)
    for name in ("handwritten_single", "handwritten_ddp_o1", "instruments"):
        script, *arguments = commands[name][0]
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(Planned):
            importlib.import_module(Path(script).stem).main()
    assert [one["scenario"] for one in asked] == ["single", "ddp_o1", "ddp"]
    for one in asked:
        assert (one["device"], one["gpus"], one["model"]) == ("cuda", "GPU-0", "resnet101")


def test_two_on_one_gpu(pack: Any) -> None:
    call = made(pack)
    assert call.item("handwritten_single").missing is None
    call.modes = ["exclusive process"]
    assert "compute mode is exclusive process; " in call.item("handwritten_single").missing


def test_a_launch_that_fails_before_its_first_turn_says_why_at_once(pack: Any, tmp_path: Path) -> None:
    import launching

    job = launching.plan("single", model="resnet18", warmup=1, iters=1)
    failing = SimpleNamespace(perform=lambda *about: SimpleNamespace(status="oom", reason="planted"))
    began_s = time.monotonic()
    with pytest.raises(RuntimeError, match="the launch of single failed: planted"):
        launching.Turns(failing, job, str(tmp_path)).wait_until_warm()
    assert time.monotonic() - began_s < launching.START_LIMIT_S / 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the arguments --out --reference is required"),
        (("--out", "{full}"), "--out: "),
        (("--out", "{new}", "--budget", "8"), "--budget: '8' is not a length of time"),
        (("--out", "{new}", "--global-batch", "0"), "--global-batch: '0'"),
        (("--out", "{new}", "--apex", "{full}"), "--apex: "),
        (("--out", "{new}", "--items", "tests,all"), "--items: there is no item 'all'; choose from doctor, "),
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


@pytest.fixture
def started(pack: Any, tmp_path: Path) -> Any:
    (tmp_path / "items").mkdir()
    options = pack.parse(["--out", str(tmp_path), "--rehearse"])
    return pack.Acceptance(options=options, out=str(tmp_path), began_s=time.monotonic())


def test_a_slow_command_is_ended_with_its_children(pack: Any, started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "ENDING_S", 0.5)
    program = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "print(child.pid, flush=True); time.sleep(100)"
    )
    began_s = time.monotonic()
    done = started.started("slow", ["-c", program], 1.0, {})
    assert done.ended and done.code == -9 and time.monotonic() - began_s < 10
    child = int(done.said)
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_what_a_command_says_is_its_last_line_or_all_of_it(pack: Any) -> None:
    assert command_said(pack, {}, said='noise\n{"x": 1}\n').document == {"x": 1}
    assert command_said(pack, {}, said='{\n "x": 2\n}\n', code=1).document == {"x": 2}
    for broken in ({"code": 1, "said": ""}, {"code": 3, "said": "{}"}, {"said": '{"error": "e"}'}):
        with pytest.raises(RuntimeError, match="ValueError: planted"):
            _ = command_said(pack, {}, **broken, told="Traceback\nValueError: planted\n").document
    with pytest.raises(RuntimeError, match="exit code 0"):
        _ = command_said(pack, {}, said="nothing of use").document


def test_an_acceptance_on_a_gpu_is_kept_with_its_run_and_another_is_not(
    pack: Any, acceptance: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, root = tmp_path / "accepted", tmp_path / "repository"
    stored = encode(read(str(write_run(tmp_path / "any", [DDP]))).document.workload)
    known = Training(**{name: stored[name] for name in Training.__dataclass_fields__})
    run = write_run(folder / "runs" / "scenarios", [DDP], about={"workload": {"hash": known.hash()}})
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


@pytest.mark.slow
def test_a_rehearsal_in_parts(pack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--rehearse", "--budget", "4m", "--out", str(tmp_path / "out")]
    codes = [pack.main(call)]
    while codes[-1] == 12 and len(codes) < 8:
        codes.append(pack.main(call))
    found = page_of(tmp_path / "out")
    assert codes[-1] in (0, 11), [one for one in found["checks"] if one["verdict"] in ("FAILED", "not done")]
    assert found["rehearsal"] and len(found["summary"]) == 10
    assert set(found["took_s"]) == set(EVERYTHING)
    assert {one["verdict"] for one in found["checks"] if one["part"] == "tests"} == {"not applicable here"}
    assert "no evidence of any GPU" in (tmp_path / "out" / "acceptance.md").read_text()
