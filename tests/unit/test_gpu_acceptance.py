"""The acceptance on a GPU, as far as it needs none: order, verdicts, page, going on, bad input. Values are made up."""

import importlib
import json
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_acceptance as pack
import launching
import pytest
from standin import a_gpu
from standin.runs import DDP, write_run

from bench.cli import main
from bench.runs import check
from bench.seams import discover, switching
from bench.verbs import run

Capture = pytest.CaptureFixture[str]


def compared(low: float, high: float, **more: Any) -> dict[str, Any]:
    one = {"a": "bare", "b": "instrumented", "a_s": [0.1, 0.2, 0.3], "b_s": [0.2, 0.25, 0.3], "passed": False}
    one |= {"ratio": math.sqrt(low * high), "interval_95": [low, high], "allowed": 1.005, "margin": None}
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
def test_verdicts_on_bounds(document: dict[str, Any], verdict: str) -> None:
    found = pack.acceptance.of_comparison("overhead", "the step", document)
    assert [one.verdict for one in found] == [verdict, "passed"]
    for by_noise, judged in ((True, "not shown"), (False, "FAILED")):
        document["checks"][0] |= {"passed": False, "by_noise": by_noise}
        assert pack.acceptance.of_comparison("overhead", "the step", document)[1].verdict == judged


def test_every_scenario_can_cut_up_a_rehearsals_batch() -> None:
    scenarios = [switching.load(*discover.resolve(name)) for name in discover.names(discover.SCENARIO)]
    assert [one.name for one in scenarios if pack.TINY["global_batch"] % (2 * one.strategy.replicas(2))] == []


def test_the_tests_of_a_gpu_one_by_one() -> None:
    """The one without a name was running when pytest was ended."""
    junit = """<?xml version="1.0"?><testsuites><testsuite>
        <testcase name="test_a" time="1.26"/>
        <testcase name="test_b" time="0.1"><failure message="assert 1 ==&#10; 2">long</failure></testcase>
        <testcase name="test_c" time="0.1"><error message="fixture broke"/></testcase>
        <testcase name="test_d" time="0"><skipped message="needs two GPUs"/></testcase>
        <testcase name="test_e" time="0"><skipped message="not reached within 100 s"/></testcase>
        <testcase time="6.2"/>
    </testsuite></testsuites>"""
    assert [(one.what, one.verdict, one.why) for one in pack.acceptance.of_tests("tests", junit)] == [
        ("test_a", "passed", ""),
        ("test_b", FAILS, "assert 1 == 2"),
        ("test_c", FAILS, "fixture broke"),
        ("test_d", HERE, "needs two GPUs"),
        ("test_e", NOT_DONE, "not reached within 100 s"),
    ]


def a_run() -> dict[str, Any]:
    held = {"single": "same", "ddp_o1": "within half precision"}
    ok = {"status": "ok", "reason": None}
    launch = ok | {"checks": {"conservation_error": 0.001}}
    values = dict.fromkeys(("throughput_per_s", "step_median_ms", "peak_pid_mib", "peak_total_mib"), 1000.0)
    row = ok | values | {"relative_to_ddp": None, "memory_source": "nvml_pid", "what_ran": "torch DDP"}
    return {
        "complete": True,
        "request": {"parity": True},
        "experiments": {"numerics": {"references": [dict(ok)]}},
        "launches": [launch | {"scenario": name, "effective": {"switches": {}}} for name in held],
        "summary": [row | {"scenario": name, "parity": parity} for name, parity in held.items()],
        "parity": [{"scenario": name, "verdict": parity, "reason": None} for name, parity in held.items()],
    }


EVERY, MEMORY = "every scenario runs", "the memory of every scenario is known"
SEALED, NUMERICS = "the run folder is sealed and sound", "fp32, O1 and O2 train the model of the fp32 reference"
ELSE, IDLE = "scenarios that cannot run here", "switches without effect here"
HERE, FAILS, NOT_SHOWN, NOT_DONE = "not applicable here", "FAILED", "not shown", "not done"
FULL = {"status": "oom", "reason": "full"}
KILLED = {"status": "killed", "reason": "interrupted", "peak_total_mib": None}
NEEDS_TWO = {"status": "unsupported", "reason": "it needs two GPUs", "peak_total_mib": None}
UNHELD = {"experiments": {}, "parity": []}


@pytest.mark.parametrize(
    ("part", "changes", "found"),
    [
        ("scenarios", {}, {}),
        ("scenarios", {"summary 0": FULL}, {EVERY: FAILS}),
        ("scenarios", {"summary 1": {"peak_total_mib": None}}, {MEMORY: FAILS}),
        ("scenarios", {"parity 1": {"verdict": "diverged"}}, {NUMERICS: FAILS}),
        ("scenarios", {"experiments numerics references 0": FULL}, {NUMERICS: FAILS}),
        ("more", {"parity 1": {"verdict": "differs by design"}}, {}),
        ("scenarios", {"parity 1": {"verdict": None, "reason": "a step was skipped"}}, {NUMERICS: NOT_SHOWN}),
        ("scenarios", {"": UNHELD}, {NUMERICS: NOT_DONE}),
        ("scenarios", {"": UNHELD | {"request": {"parity": False}}}, {NUMERICS: None}),
        ("scenarios", {"summary 1": NEEDS_TWO}, {EVERY: FAILS, MEMORY: FAILS}),
        ("more", {"summary 1": NEEDS_TWO}, {ELSE: HERE}),
        ("more", {"launches 1 effective switches": {"fused": "it is fused anyway", "bf16": None}}, {IDLE: "value"}),
        ("scenarios", {"": {"complete": False}, "summary 1": KILLED}, {EVERY: NOT_DONE, SEALED: NOT_DONE}),
        ("scenarios", {"": {"complete": False}, "summary 1": FULL}, {EVERY: FAILS, SEALED: NOT_DONE}),
    ],
)
def test_the_checks_of_a_run(part: str, changes: Any, found: dict[str, str | None]) -> None:
    """``changes``: at places such as ``summary 1``; ``found``: what is not as it should be."""
    run: Any = a_run()
    for place, values in changes.items():
        at = run
        for step in place.split():
            at = at[int(step) if step.isdigit() else step]
        at.update(values)
    expected = dict.fromkeys((EVERY, SEALED, MEMORY, NUMERICS), "passed") | found
    verdicts = {one.what: one.verdict for one in pack.acceptance.of_run(part, run, [], on_gpu=True)}
    assert verdicts == {what: verdict for what, verdict in expected.items() if verdict}


A_GPU = a_gpu(0, "GPU-0", "NVIDIA Imaginary 9000")


class Pack:
    """The pack in a folder of its own. ``answers``: what each command says, in place of doing it: a document, an
    exception, or a ``Command``; ``commands``: what was asked for, in order; ``takes_s``: of each command."""

    def __init__(self, out: Path) -> None:
        self.out, self.now_s, self.takes_s = out, 100.0, 1.0
        self.commands: dict[str, list[list[str]]] = {}
        passed = compared(0.999, 1.001, margin=0.01, allowed=None, passed=True)
        self.answers: dict[str, Any] = dict.fromkeys(EVERYTHING, a_run() | {"path": str(out)})
        self.answers |= {"doctor": {"findings": []}, "instruments": dict.fromkeys(("overhead", "sampler"), passed)}
        self.answers |= dict.fromkeys(("handwritten_single", "handwritten_ddp_o1"), passed)
        self.answers["apex"] = self.answers["scenarios"]
        self.answers["limits"] = {"limits": [{"part": "unexplained", "share": -0.04}]}

    def __call__(self, *words: str) -> int:
        self.commands.clear()
        return int(pack.main(["--out", str(self.out), *words]))

    def started(self, of: Any, name: str, command: list[str], limit_s: float, environment: dict[str, str]) -> Any:
        self.commands.setdefault(name, []).append(command)
        self.now_s += self.takes_s
        answer = self.answers[name]
        if isinstance(answer, BaseException):
            raise answer
        assert environment.get("CUDA_VISIBLE_DEVICES", "") == ",".join(gpu.uuid for gpu in of.gpus)
        if name == "tests":
            assert environment["BENCH_GPU_TESTS_S"] == f"{limit_s - 15:.0f}"
            Path(of.path(f"{name}.xml")).write_text('<testsuite><testcase name="a"/></testsuite>')
        return answer if isinstance(answer, pack.Command) else self.said(answer)

    def said(self, document: Any, **more: Any) -> Any:
        return pack.Command(**({"code": 0, "said": json.dumps(document), "told": "", "ended": False} | more))

    @property
    def document(self) -> Any:
        return json.loads((self.out / "acceptance.json").read_text())

    def why(self) -> dict[str, str]:
        return {one["part"]: one["why"] for one in self.document["checks"]}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pack]:
    made = Pack(tmp_path / "out")
    monkeypatch.setattr("bench.machine.nvml.list_gpus", lambda: ([A_GPU], None))
    monkeypatch.setattr(pack.foreign, "refuse", lambda *about, **more: None)
    monkeypatch.setattr(pack.time, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(pack.Acceptance, "started", lambda of, *about: made.started(of, *about))
    monkeypatch.setattr(check, "findings", lambda path: [])
    before = signal.getsignal(signal.SIGTERM)  # which main() changes, as it may in a process of its own
    yield made
    signal.signal(signal.SIGTERM, before)


EVERYTHING = (
    *("doctor", "handwritten_single", "scenarios", "tests", "more", "recipe", "attach", "checkpoint", "gpt"),
    *("limits", "tune", "standard_ddp_ddp_o2", "standard_single_ddp_o1", "instruments", "handwritten_ddp_o1", "batch"),
)


def test_calls_go_on_until_all_is_done(call: Pack) -> None:
    """What is broken shows before what is noisy; nothing is done twice, and there is one page in the end."""
    call.takes_s = 110.0
    done: list[str] = []
    code = 12
    while code and len(done) <= len(EVERYTHING):
        code, done = call(), [*done, *call.commands]
        assert code == (12 if any("left for the next call" in why for why in call.why().values()) else 0)
    assert done == list(EVERYTHING), "each of them once, in order"
    page = (call.out / "acceptance.md").read_text()
    assert "| NVIDIA Imaginary 9000 |" in page
    assert "communication between GPUs (not applicable here): one GPU was chosen" in page
    assert "real apex (not applicable here): --apex names no checkout" in page
    assert call("--items", "tune") == 0 and list(call.commands) == ["tune"], "what is named is done again"


@pytest.mark.parametrize(
    ("share", "verdict"), [(-0.04, "passed"), (0.06, "FAILED"), (-0.06, "FAILED"), (None, "not done")]
)
def test_the_account_of_a_step_has_to_add_up(call: Pack, share: float | None, verdict: str) -> None:
    call.answers["limits"] = {"limits": [{"part": "unexplained", "share": share}] * (share is not None)}
    call("--items", "limits")
    assert [one["verdict"] for one in call.document["checks"] if one["part"] == "limits"] == [verdict]


def test_a_run_that_gets_further_goes_on(call: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    call.answers["more"] = call.said({}, code=-2, ended=True)
    for begun, tries in ((1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (5, 0)):
        found = a_run() | {"path": "x", "complete": False, "summary": a_run()["summary"][:1] * begun}
        monkeypatch.setattr(pack, "salvaged", lambda folder, found=found: found)
        assert call("--budget", "2h") == 12
        assert json.loads((call.out / "items" / "more.json").read_text())["tries"] == tries


def test_an_interrupted_run_is_shown_and_resumed(call: Pack) -> None:
    """Where that is refused, as on another machine, the run is begun anew."""
    begun = write_run(call.out / "runs" / "scenarios", [DDP], complete=False)
    (call.out / "begun.json").write_text(json.dumps(pack.circumstances(pack.parse(["--out", "x"]), [A_GPU])))
    call.answers["scenarios"] = KeyboardInterrupt()
    assert call() == 130
    assert call.why()["scenarios"] == "interrupted; call again" and "left for the next call" in call.why()["batch"]
    (rows,) = call.document["runs"].values()
    assert [row["scenario"] for row in rows] == ["ddp"], "what it did is shown"
    call.answers["scenarios"] = call.said({}, code=2, told="error: --resume: another GPU")
    call()
    resumed, anew = call.commands["scenarios"]
    assert resumed == ["-m", "bench", "run", "--resume", str(begun), "--wait", "--json"]
    assert anew[-2:] == ["--out", str(call.out / "runs" / "scenarios")] and "--scenario" in anew


def test_no_gpu(call: Pack, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("bench.machine.nvml.list_gpus", lambda: ([], "no driver; install it, or use --device cpu"))
    assert call() == 12 and list(call.commands) == ["doctor"]
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("gpu_acceptance: --device: cuda was asked for, but no driver; install it")
    assert sum(one["verdict"] == NOT_DONE for one in call.document["checks"]) == len(EVERYTHING)
    assert "no driver" in (call.out / "acceptance.md").read_text()


def test_a_broken_item_does_not_stop_the_others(call: Pack) -> None:
    call.answers["tests"] = RuntimeError("tests broke")
    call.answers["tune"] = ModuleNotFoundError("No module named 'pandas'")
    assert call("--budget", "2h") == 1 and list(call.commands) == list(EVERYTHING)
    failed = [one["why"] for one in call.document["checks"] if one["verdict"] == FAILS]
    assert failed == ["RuntimeError: tests broke", "ModuleNotFoundError: No module named 'pandas'"]
    assert call.document["about"]["GPU"] == A_GPU.name and not call.document["rehearsal"]


def test_another_gpu_is_refused(call: Pack, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert call("--items", "doctor") == 12
    for change, code in (({"uuid": "GPU-7"}, 12), ({"name": "NVIDIA Other"}, 2)):
        monkeypatch.setattr("bench.machine.nvml.list_gpus", lambda change=change: ([replace(A_GPU, **change)], None))
        capsys.readouterr()
        assert call("--items", "doctor") == code, "a GPU of the same model goes on"
    (line,) = capsys.readouterr().err.splitlines()
    assert "was begun with GPU NVIDIA Imaginary 9000, and now it is NVIDIA Other; " in line


def test_every_strategy_and_switch_is_in_the_pack(call: Pack, repository: Path) -> None:
    assert call("--budget", "2h") == 0
    (words,) = call.commands["more"]
    asked = words[words.index("--scenario") + 1].split(",")
    found = [switching.scenario(name) for name in (*discover.DEFAULT, *asked)]
    there = {
        "scenarios": {one.base for one in found},
        "bench/strategies": {one.strategy_name for one in found if isinstance(one.scenario.strategy, str)},
        "bench/switches": {one.name for scenario in found for one in scenario.switches},
    }
    assert there == {folder: {file.stem for file in (repository / folder).glob("*.py")} for folder in there}


def test_commands_are_accepted(call: Pack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    apex = tmp_path / "apex"
    (apex / "apex" / "amp").mkdir(parents=True)
    monkeypatch.setattr(pack, "check_apex", lambda path: None)
    assert call("--budget", "2h", "--apex", str(apex)) == 0
    commands = call.commands
    assert set(commands) == {*EVERYTHING, "apex"}
    for name in ("scenarios", "apex", "more", "checkpoint", "standard_ddp_ddp_o2", "batch"):
        parsed = run.run_parser().parse_args(commands[name][0][3:])
        assert (parsed.device, parsed.global_batch, parsed.image_size) == ("cuda", 128, 224)
        assert parsed.model == "resnet101" and parsed.json and parsed.out.endswith(name)
    assert run.run_parser().parse_args(commands["gpt"][0][3:]).workload == "gpt" and parsed.find_batch
    capsys.readouterr()
    for name in ("doctor", "tune", "attach", "recipe", "limits"):
        words = commands[name][0]
        with suppress(SystemExit):
            main([words[2], "--help"])
        known = capsys.readouterr().out
        own = words[3 : words.index("--")] if "--" in words else words[3:]
        assert words[2] == name and not [word for word in own if word.startswith("--") and word not in known]
    script = commands["recipe"][0][-1]
    assert commands["recipe"][1][-3:] == [script, "--steps", "20"] == commands["attach"][0][-3:]

    def plan(scenario: str, *, device: str, gpus: str | None, model: str, **options: Any) -> None:
        raise LookupError(scenario, device, gpus, model)

    monkeypatch.setattr(launching, "plan", plan)
    for name, scenario, gpus in (("handwritten_single", "single", "GPU-0"), ("instruments", "ddp", None)):
        monkeypatch.setattr(sys, "argv", commands[name][0])
        with pytest.raises(LookupError) as asked:
            importlib.import_module(Path(sys.argv[0]).stem).main()
        assert asked.value.args == (scenario, "cuda", gpus, "resnet101")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "the following arguments are required: --out"),
        ("--out {full}", "--out: "),
        ("--out {new} --budget 8", "--budget: '8' is not a length of time"),
        ("--out {new} --global-batch 0", "--global-batch: '0'"),
        ("--out {new} --apex {full}", "--apex: "),
        ("--out {new} --items tests,all", "--items: there is no item 'all'; choose from doctor, "),
        ("--out {new} --gpus 7", "--gpus: there is no GPU '7'; choose from 0"),
    ],
)
def test_a_wrong_request_writes_nothing(call: Pack, tmp_path: Path, capsys: Capture, arguments: str, said: str) -> None:
    (tmp_path / "full" / "folder").mkdir(parents=True)
    assert pack.main(arguments.format(full=tmp_path / "full", new=call.out).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu_acceptance: error: ") and said in line and "; " in line
    assert not call.out.exists()
