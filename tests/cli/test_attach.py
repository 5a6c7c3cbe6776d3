"""``bench attach``: a script that knows nothing of bench is measured, and keeps its exit code, output and signals."""

import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime
from itertools import permutations
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Bench, Plotting
from standin.hosts import free_port
from standin.processes import piped
from standin.schemas import only_run

from bench import machine
from bench.experiments import attaching
from bench.experiments.attached_command import RECORDER
from bench.experiments.attached_notes import About, Notes, ranks_of, rows_of
from bench.experiments.attached_notes import read as read_notes
from bench.report.plots import phase_stack
from bench.runs import document as stored
from bench.runs.reader import Run
from bench.runs.writer import RunWriter
from bench.verbs.options import place

SCRIPT = str(Path(__file__).parent.parent / "standin" / "training.py")
PYTHON = sys.executable
NEW = (PYTHON, str(Path(SCRIPT).with_name("noting.py")))
OLD = " ".join(NEW)
"""Without torch, and the seconds that its import takes."""

Attached = tuple[int, str, str, Run]


@pytest.fixture
def attach(bench: Bench) -> Any:
    def run(options: tuple[str, ...], *command: str) -> Attached:
        code, out, err = bench("attach", *options, "--", *command)
        return code, out, err, only_run()

    return run


def apart(step_ms: Iterable[float], line: str) -> float:
    """How far times are from those that a script printed, step by step; medians differ by more on a busy machine."""
    pairs = zip(step_ms, map(float, line.split()[1:]), strict=True)
    return statistics.median(abs(ours / its_own - 1.0) for ours, its_own in pairs)


def test_a_script_is_measured_as_it_is(attach: Any, bench: Bench, plotting: Plotting) -> None:
    """Its own step times are ours, and nothing else is on its standard output."""
    code, out, err, run = attach(("--label", "mine", "--global-batch", "8"), PYTHON, SCRIPT, "--load-ms", "20")
    assert code == 0 and out.startswith("steps ") and out.count("\n") == 1
    assert apart(run.steps["step_ms"], out) < 0.02
    assert len(run.steps) == 19 and list(run.steps["warmup"]).index(False) == 3
    measured = run.steps[~run.steps["warmup"]]
    assert measured["data_ms"].median() > 19 and measured["forward_ms"].isna().all() and measured["loss"].isna().all()
    document = run.document
    (launch,), attached = document.launches, document.of(stored.Attached)
    assert (launch.scenario, launch.status, document.request.label) == ("single", "ok", "mine")
    assert launch.effective.parameter_dtypes == {"float32": 2762} and launch.effective.compute_dtypes == ("bfloat16",)
    assert (launch.effective.precision, launch.effective.optimizer) == ("O1", "__main__.Descent")
    command, about = attached.commands["single"], attached.launches[0]
    assert command.script.file == SCRIPT and command.command[:2] == (PYTHON, SCRIPT)
    assert command.command[2].startswith("(2 more words, SHA-256 ") and "--load-ms" not in str(document.command)
    assert "bench: left out: 20 calls of other optimizers (Other): steps are those of the first\n" in err
    assert 2 < about.final_loss < 3, "of both micro-batches, and not of what zero_grad has dropped"
    assert about.wait_ms > 19 and 0 < about.startup_ms < about.wall_ms
    assert run.memory["used_mib"].max() > 50 and set(run.memory["pid"]) == {launch.ranks[0].pid}
    assert {one.code for one in document.validity} >= {"input-bound", "few launches"}
    assert document.parity[0].reason == "attached: nothing is known of the numerics"
    assert "bench: training.py, global batch 8 (no wrapper · torch O1 bf16): a step takes " in err
    assert re.search(r"ms, [\d,.]+ examples a second at a peak of [\d,]+ MiB .*\. 16 measured steps\.\n", err), err
    started, known = datetime.strptime(document.run[:16], "%Y%m%dT%H%M%S%z"), datetime.fromisoformat(document.start.utc)
    assert abs((started - known).total_seconds()) <= 1, "a run is called by its start"
    plotting(phase_stack)
    code, page, _ = bench("report", "latest")
    written = Path("reports/index.html").read_text()
    assert code == 0 and "a step takes" in page and "raise num_workers" in written
    assert "its phases but the wait for data, numerics" in written and "data (ms): " in written
    assert "(ms): nan" not in written and "Communication overlaps" not in written
    assert written.count("numerics, ") + written.count("same model?") == 0, "which are unknown, and said to be so once"
    assert "Command" in written and "bench run --diagnose" not in written
    assert "not finite from" not in written and "too much" not in written and f"{about.final_loss:.4g}" in written
    assert bench("runs")[1].rstrip().endswith("  1 attached command")
    for verb in ("run", "scale"):
        bench(verb, "--resume", "latest").refused("--resume: that run was imported or attached", "start a run of its")


def test_a_killed_command_keeps_its_code_and_steps(attach: Any, tmp_path: Path) -> None:
    """Also of a script whose name is no text in this locale."""
    named = shutil.copy(SCRIPT, tmp_path / os.fsdecode(b"tr\xe4in.py"))
    code, _, err, run = attach((), PYTHON, str(named), "--end", "kill")
    (launch,) = run.document.launches
    assert (code, launch.status) == (128 + signal.SIGKILL, "killed")
    assert launch.reason == f"the command ended with exit code {code}" and launch.reason in err
    assert len(run.steps) >= 19


def test_a_second_launch_that_trains_nothing_is_named(attach: Any) -> None:
    """As a script does that finds its last checkpoint."""
    again = f"[ -e done ] || {OLD}; touch done"
    code, _, err, run = attach(("--launches", "3"), "sh", "-c", again)
    assert code == 0 and len(run.document.launches) == 1
    assert "bench: nothing was recorded of launch 2: no optimizer of torch stepped" in err


@pytest.mark.parametrize(("end", "status"), [(-1, "error"), (128 + signal.SIGTERM, "killed")])
def test_an_exit_code_that_is_of_no_signal_is_an_error(attach: Any, end: int, status: str) -> None:
    code, _, _, run = attach((), *NEW, f"--end={end}")
    assert (code, run.document.launches[0].status) == (end % 256, status)


RANK = f"MASTER_ADDR=127.0.0.1 MASTER_PORT=%d WORLD_SIZE=2 RANK=%d {PYTHON} {SCRIPT} $@"


@pytest.mark.parametrize("launcher", ["sh", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_ranks_of_a_launcher(attach: Any, launcher: str) -> None:
    """Two ranks with a loader worker each: these and the launcher are no ranks, and their memory is sampled."""
    port = free_port()
    command = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)
    if launcher == "sh":
        command = ("sh", "-c", f"({RANK % (port, 0)}) & {RANK % (port, 1)} && wait", "sh")
    code, out, _, run = attach((), *command, "--workers", "1", "--steps", "60")
    lines = [line for line in out.splitlines() if line.startswith("steps ")]
    assert code == 0 and len(lines) == 2
    (launch,) = run.document.launches
    assert (launch.scenario, launch.processes, launch.replicas) == ("ddp", 2, 2)
    assert (launch.effective.label, launch.effective.backend, launch.effective.world_size) == ("torch DDP", "gloo", 2)
    assert list(run.steps.groupby("rank").size()) == [59, 59]
    ranks = [times for _, times in run.steps.groupby("rank")["step_ms"]]
    assert any(max(map(apart, ranks, order)) < 0.02 for order in permutations(lines))
    processes = run.document.of(stored.Attached).launches[0].processes
    assert [one.rank for one in processes].count(1) >= 2, "a rank, and the worker of its loader"
    sampled = set(run.memory.loc[run.memory["used_mib"].notna(), "pid"])
    assert {one.pid for one in launch.ranks} < sampled


TRUE = ("--", "true")
REFUSED = {
    "no command": ((), "COMMAND: there is no '--' before the command; write 'bench attach [OPTIONS] -- python train"),
    "nothing after": (("--",), "COMMAND: there is no command; write"),
    "unknown option": (("--lable", "x", *TRUE), "unrecognized arguments: --lable x; did you mean --label?"),
    "not there": (("--", "./nowhere"), "COMMAND: there is no command './nowhere'; give it as in a shell: -- python"),
    "a script": (("--", "./train.py"), "COMMAND: ./train.py cannot be started: Permission denied; write -- python ./"),
    "no Python": (TRUE, "COMMAND: nothing was recorded: no optimizer of torch stepped in any Python process"),
    "a fork": (
        ("--", PYTHON, "-c", "import os; os.fork() and os.wait()"),
        "of a class that is not torch.optim.Optimizer, as fastai's, are not seen, nor is Python with -I, -E or -S",
    ),
    "a failure": (("--", "sh", "-c", "exit 7"), "nothing was recorded, and the command ended with exit code 7"),
    "two words": (("--scenario", "a,b", *TRUE), "--scenario: 'a,b' is not the name of one scenario"),
    "a budget": (("--budget", "5m", *TRUE), "--budget: it has no effect without --until-precision; add --until"),
    "no base": (("--names", "a,b", *TRUE), "--names: there is no --base; give what the command is compared with"),
    "a quote": (("--base", "python 'a", *TRUE), '--base: "python \'a": no closing quotation; quote it as for a shell'),
    "empty": (("--base", " ", *TRUE), "--base: it is empty"),
    "names": (("--base", "true", "--names", "a", *TRUE), "--names: 'a' has 1 different name for 2 commands; give 2"),
    "no name": (("--base", "true", "--names", "a,", *TRUE), "--names: 'a,' has an empty name; separate names by one"),
    "odd name": (("--base", "true", "--names", "a\tb,c", *TRUE), "--names: 'a\\tb' is not the name of one scenario"),
    "variable": (("--base", "true", "--base-env", "x", *TRUE), "--base-env: 'x' is not NAME=VALUE"),
    "folder": (("--base", "true", "--base-cwd", "nowhere", *TRUE), "--base-cwd: 'nowhere' is no folder"),
    "no such base": (("--base", "./nowhere", *TRUE), "COMMAND: there is no command './nowhere'"),
    "no such new": (("--base", "touch ran", "--", "nowhere"), "COMMAND: there is no command 'nowhere'; give it as in"),
    "scenario": (("--base", "true", "--scenario", "x", *TRUE), "--scenario: it is for one command"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_one_line(bench: Bench, case: str) -> None:
    Path("train.py").write_text("")
    arguments, line = REFUSED[case]
    bench("attach", *arguments).refused(line, code=7 if case == "a failure" else 2)
    assert not Path("results").exists() and not Path("ran").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_bench_reach_the_command(number: signal.Signals, tmp_path: Path, repository: Path) -> None:
    told = f"trap 'echo got it; exit 5' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
    command = [PYTHON, "-m", "bench", "attach", "--out", str(tmp_path), "--", "bash", "-c", told]
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 (a shell's background job ignores it)
    with piped(command, repository, preexec_fn=default) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("got it\n", 5) and "Traceback" not in err


def test_a_second_signal_loses_nothing(repository: Path) -> None:
    """In a process of its own: another thread of the tests would take the first."""
    program = """
        import os, signal
        from bench.experiments import interrupts
        from bench.experiments.attached_command import Side, perform
        with interrupts.heeded(last=False):
            side = Side(command=("sh", "-c", "kill $PPID; sleep 5"))
            assert perform(side, 1, "cpu", (), (), quiet=True).interrupted
            os.kill(os.getpid(), signal.SIGTERM)
    """
    subprocess.run([PYTHON, "-c", dedent(program)], cwd=repository, timeout=60, check=True)


def test_a_signal_after_the_end_loses_nothing(attach: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before what there is of the command is on disk, nor while the run is sealed."""
    judged = attaching.judged

    def busy(*values: float) -> float:
        signal.raise_signal(signal.SIGTERM)
        return 0.0

    def seal(writer: RunWriter) -> Run:
        signal.raise_signal(signal.SIGTERM)
        return judged(writer)

    monkeypatch.setattr(machine, "foreign_cores", busy)
    monkeypatch.setattr(attaching, "judged", seal)
    code, _, err, run = attach(("--launches", "2"), *NEW)
    assert (code, [one.status for one in run.document.launches]) == (130, ["ok"]) and "Traceback" not in err
    assert f"bench: run folder: {place(run.path)}" in err


def test_a_users_sitecustomize_is_imported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    paths = os.pathsep.join([RECORDER, str(tmp_path)])
    program = "import sys, sitecustomize; print(sitecustomize.__file__, [p for p in sys.path if 'attached' in p])"
    environment = {**os.environ, "PYTHONPATH": paths, "BENCH_ATTACH": str(tmp_path)}
    done = subprocess.run([PYTHON, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"mine\n{tmp_path}/sitecustomize.py []\n" and done.stderr == ""


def notes(rank: int, steps: int, pid: int, kind: str = "cpu", **more: Any) -> Notes:
    ran: Any = SimpleNamespace(device={"type": kind}, world_size=2)
    about = About(pid=pid, rank=rank, script=None, python=(), devices=(), effective=ran)
    marks = [1_000_000 * (10 + 2 * step) for step in range(steps + 1)]
    return Notes(about=about, marks_ns=marks, waits_ms=[0.5] * len(marks), **more)


def test_the_process_with_more_steps_counts() -> None:
    ranks, left = ranks_of([notes(1, 3, 11), notes(0, 3, 12), notes(1, 9, 13), notes(2, 0, 14)])
    assert [one.who.pid for one in ranks] == [12, 13] and left == ["PID 11 with 3 steps, as rank 1 is PID 13"]
    assert ranks_of([notes(5, 3, 11)])[1] == ["1 of 2 ranks, which step no optimizer on this host"]


def test_steps_on_a_gpu_are_those_of_its_events() -> None:
    """One after another from the first mark, however far the host runs ahead; a step without its event is none."""
    of = notes(0, 4, 11, "cuda", spans_ms=[3.0, 4.0, 5.0])
    rows = list(rows_of(of, of.steps, 1))
    assert [row["step_ms"] for row in rows] == [3.0, 4.0, 5.0]
    assert [row["warmup"] for row in rows] == [True, False, False]
    assert [row["start_ns"] for row in rows] == [10_000_000, 13_000_000, 17_000_000]


class Event:
    """As of CUDA: it is done when the device gets there, ``done`` ms after the last one."""

    done = 0

    def record(self, stream: Any) -> None:
        self.number = stream.pop(0)

    def query(self) -> bool:
        return self.number <= Event.done

    def elapsed_time(self, other: "Event") -> float:
        return 2.0 * (other.number - self.number)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("recorder", Path(RECORDER) / "recorder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where the compiler of torch 2.6 looks for it
    spec.loader.exec_module(module)
    monkeypatch.setenv("BENCH_ATTACH", str(tmp_path))
    monkeypatch.setattr(module._live(), "peaks", lambda device: {})
    monkeypatch.setattr(module, "LATE_S", 0.01)
    monkeypatch.setattr(Event, "done", 0)
    module._open(module.STATE)
    module.STATE.flushed_ns = module.perf_counter_ns()
    numbers = list(range(9))
    module.STATE.stream = lambda: numbers
    module.STATE.cuda = SimpleNamespace(Event=lambda enable_timing: Event(), is_current_stream_capturing=lambda: False)
    return module


def test_events_are_never_waited_for(recorder: Any, tmp_path: Path) -> None:
    optimizer, state, files = Event(), recorder.STATE, os.listdir("/proc/self/fd")
    state.first = lambda: optimizer
    for done in (0, 0, 1, 2):
        Event.done = done
        recorder.on_step(optimizer, (), {})
    assert state.spans == [2.0, 2.0] and len(state.events) + len(state.spare) == 3  # one was used again
    recorder.on_step(Event(), (), {})
    recorder._end()  # step 3 is not done, and the script's end does not wait for it
    (file,) = tmp_path.iterdir()
    last = read_notes(str(file))
    assert (len(last.marks_ns), last.spans_ms, last.end.others) == (4, [2.0, 2.0], {"Event": 1})
    assert os.listdir("/proc/self/fd") == files, "a script that closes all gives these numbers to files of its own"


def test_a_torch_without_hooks_of_optimizers(recorder: Any) -> None:
    with pytest.raises(RuntimeError, match=r"older than 2\.0"):
        recorder.watch_optimizers(SimpleNamespace())


def test_a_captured_step_is_left_alone_and_said(recorder: Any, tmp_path: Path) -> None:
    optimizer = Event()
    recorder.STATE.first = lambda: optimizer
    recorder.STATE.cuda.is_current_stream_capturing = lambda: True
    recorder.on_step(optimizer, (), {})
    recorder.on_step(optimizer, (), {})
    (file,) = tmp_path.iterdir()
    assert "part of a CUDA graph" in str(read_notes(str(file)).problem) and file.read_text().count("\n") == 1


def test_a_compiled_step_does_not_compile_the_recorder(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo

    optimizer, callbacks = Event(), list[object]()
    recorder.STATE.first = lambda: optimizer
    now = torch._C._dynamo.eval_frame.get_eval_frame_callback
    monkeypatch.setattr(recorder, "_read_events", lambda state: callbacks.append(now()))
    torch.compile(lambda: recorder.on_step(optimizer, (), {}), backend="eager")()
    assert callbacks == [None]


def test_json_comes_after_what_the_command_prints(bench: Bench) -> None:
    code, out, err = bench("attach", "--json", "--", "sh", "-c", "echo mine; ls -l /proc/self/fd >&2")
    first, rest = out.split("\n", 1)
    assert (code, first, json.loads(rest)["exit_code"]) == (2, "mine", 2)
    assert f"-> {os.environ['BENCH_LOCK_DIR']}/" in err, "it has the lock, also where bench is killed"


BREAK = """
import glob, json, os, runpy, shutil, sys
spool = os.environ["BENCH_ATTACH"]
%s
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
WRONG_NOTES = """
odd = [os.path.join(spool, f"{number}-1.jsonl") for number in range(6)]
open(odd[0], "w").write("hello\\n")
open(odd[1], "w").write(json.dumps({"begin": {"pid": "x", "effective": []}}) + "\\n")
open(odd[2], "wb").write(b"\\xff\\n")
os.mkfifo(odd[3])
os.mkdir(odd[4])
os.symlink("/dev/zero", odd[5])
import torch; sys.exit = os._exit
"""


def test_odd_notes_and_an_exit_at_once_cost_no_step(attach: Any) -> None:
    code, _, err, run = attach((), PYTHON, "-c", BREAK % WRONG_NOTES, SCRIPT, "--end", "3")
    assert code == 3 and err.count("is not what the recorder writes") == 6 and len(run.steps) == 19


def test_a_warm_up_that_leaves_no_step_is_said(attach: Any) -> None:
    """And memory at the end of the interpreter is not of training: there torch takes 100 MiB more by itself."""
    late = "import atexit, runpy, time; atexit.register(lambda: (b'x' * 2**29, time.sleep(0.6)))"
    _, _, err, run = attach(("--warmup", "100"), PYTHON, "-c", f"{late}; runpy.run_path({SCRIPT!r})")
    assert "bench: --warmup 100 leaves none of 19 steps to measure: the last is measured all the same\n" in err
    assert list(run.steps["warmup"]).count(False) == 1
    assert 50 < run.memory["used_mib"].max() < run.document.launches[0].ranks[0].allocator["max_rss_mib"] + 10


def test_the_command_outlives_its_notes(bench: Bench) -> None:
    code, out, err = bench("attach", "--", PYTHON, "-c", BREAK % "shutil.rmtree(spool)", SCRIPT)
    assert code == 2 and out.startswith("steps ") and "the notes cannot be followed (FileNotFoundError" in err


# With --base, two commands take turns in one run, and the answer is that of bench compare


def test_two_commands_take_turns_and_are_compared(bench: Bench, plotting: Plotting) -> None:
    """What they print is not on standard output, where the JSON is; of the next commands one is run."""
    Path("there").mkdir()
    sides = ("--base", OLD, "--base-cwd", "there", "--base-env", "NOTED_TORCH=1.9", "--names", "old,fast")
    how = ("--launches", 3, "--json")
    faster = ("--step-ms", "90", "--loss", "2.5", "--print-mb", "1", "--wait-ms", "9")
    said = bench("attach", *sides, *how, "--", *NEW, *faster)
    answer, err = said.well(), said.err
    row = next(row for row in answer["comparisons"] if row["metric"] == "step_time")
    assert (row["scenario"], row["against"], row["verdict"]) == ("fast", "old", "faster")
    assert row["low"] < 0.9 < row["high"] and row["p_adjusted"] < 0.05
    run = only_run()
    document, attached = run.document, run.document.of(stored.Attached)
    assert [launch.scenario for launch in document.launches] == ["old", "fast", "fast", "old", "old", "fast"]
    assert [launch.repeat for launch in document.launches] == [0, 0, 1, 1, 2, 2]
    assert [one.effective.versions["torch"] for one in document.launches[:2]] == ["1.9", "2.0"]
    assert attached.commands["old"].cwd.endswith("there") and attached.commands["old"].environment
    assert all(one.startup_ms < one.wall_ms and one.final_loss > 1.5 for one in attached.launches)
    assert "bench: fast takes 0.9" in err and "of old's time a step: faster, p " in err
    lines = err.splitlines()
    differences = [line for line in lines if line.startswith("fast against old: ")]
    assert differences[0].startswith("fast against old: higher: final loss +") and "faster: step time" in differences[1]
    (following,) = [line for line in lines if line.startswith("bench: or: ")]
    assert bench(*following.split("python -m bench ")[1].split()).code == 0
    assert "| fast | final loss |" in Path("reports/comparison.md").read_text()
    code, page, _ = bench("report", "latest")
    assert code == 0 and ": Fastest: fast. A step of the next, old, takes 1." in page and "old (" in page
    assert not Path("reports/phases.svg").exists(), "nothing is known of phases"
    written = Path("reports/index.html").read_text()
    assert "--no-parity" not in written
    waits = r"waits for its DataLoader for (9\.\d|10)\s% \(fast\) of its time, on average over steps\."
    assert re.search(waits, written)


def test_the_same_command_twice_does_not_differ(bench: Bench) -> None:
    """Until both are precise enough, which takes no launch more where they do not scatter; a third one beside them."""
    more = ("--until-precision", "50%", "--launches", 3, "--also", OLD + " --step-ms 80")
    code, out, err = bench("attach", "--base", OLD, *more, "--", *NEW)
    assert code == 0 and "of base's time a step: no difference found" in out, err
    assert "bench: Every step time is known within ±50 %, after " in out
    assert "also1 takes 0.79" in out and len(only_run().document.launches) == 9


@pytest.mark.parametrize(
    ("end", "line"),
    [("3", "nothing was recorded of new"), ("4", "new: not comparable: new: it is 'error'")],
    ids=["before a step", "after its steps"],
)
def test_a_side_that_fails_is_not_comparable(bench: Bench, end: str, line: str) -> None:
    code, out, err = bench("attach", "--base", OLD, "--launches", 3, "--", *NEW, "--end", end)
    assert code == 12 and line in out + err
    assert len(only_run().document.launches) == 2 - (end == "3")


def test_the_first_side_that_fails_ends_it(bench: Bench) -> None:
    code, out, err = bench("attach", "--base", OLD + " --end 3", "--", *NEW)
    line = "nothing was recorded of base, and the command ended with exit code 3"
    assert (code, out) == (12, "") and line in err
    assert not Path("results").exists()
    said = bench("attach", "--json", "--base", OLD + " --end 3", "--", *NEW)
    assert said.code == 12 and said.document == {"error": line, "exit_code": 12}


def test_a_full_disk_is_named(recorder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder._open(recorder.STATE)
    recorder._write(recorder.STATE, {"problem": "none"})
    kept = (tmp_path / os.listdir(tmp_path)[0]).read_bytes()
    write = os.write

    def full(file: int, text: bytes) -> int:
        if len(text) < 10:
            raise OSError(28, os.strerror(28))
        return write(file, text[:9]) if len(text) < 20 else write(file, text[:-5])

    monkeypatch.setattr(os, "write", full)
    recorder._give_up(recorder.STATE, RuntimeError("why"))
    (name,) = os.listdir(tmp_path)
    assert (tmp_path / name).read_bytes() == kept
    assert str(read_notes(str(tmp_path / name)).problem).endswith("could not write its notes: No space left on device")
