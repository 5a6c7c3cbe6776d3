"""What becomes of a launch whose rank fails: the right status, the right rank, nobody left, and the next one runs. And
whoever else breaks (host, sampler or supervisor), in whichever phase of a launch, the rest of the run is in order."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench, Executed, a_host
from standin.planted import failing
from standin.processes import FASHION, alive, family, nobody_left, not_locked, start, wait_for
from standin.schemas import document_in

from bench.runs.check import findings
from bench.runs.reader import read
from bench.sites.local import WorkerHost

pytestmark = pytest.mark.fault

STATUS = {"exception": "error", "exit": "error", "kill": "killed", "stop": "timeout", "sleep": "timeout", "oom": "oom"}
PHASES = ("import", "rendezvous", "warmup", "measured", "sealing")
Execute = Callable[..., Executed]
Planted = tuple[WorkerHost, Path]
STALL_S = 4.0
"""Long enough that a busy machine does not make a rank that is only slow look like one that hangs."""
STALLED_GONE_S = 35.0
"""Beyond the time a launch may stall: how long a host may say nothing before it is taken for dead, and some more."""


def breaking(file: Path) -> dict[str, str]:
    planted = str(Path(__file__).with_name("planted"))
    path = os.pathsep.join([planted, os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "BENCH_TEST_FAULT": str(file)}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in breaking(folder / "fault.json").items():
            patch.setenv(name, value)
        with contextlib.contextmanager(a_host)("cpu", tmp_path_factory) as host:
            yield host, folder / "fault.json"


def broken(planted: Planted, execute: Execute, phase: str, fault: str, rank: int, **changes: Any) -> Executed:
    host, file = planted
    file.write_text(json.dumps({"phase": phase, "fault": fault, "rank": rank}))
    try:
        return execute("ddp", on=host, stall_timeout_s=STALL_S if fault in ("stop", "sleep") else 60.0, **changes)
    finally:
        file.unlink()


def matrix(whom: Collection[object], *short: tuple[object, ...]) -> list[Any]:
    """Every phase with every fault in all of ``whom``; only those that are ``short`` without ``slow``."""
    return [
        pytest.param(*case, marks=[] if case in short else pytest.mark.slow, id="-".join(map(str, case)))
        for case in product(PHASES, STATUS, whom)
    ]


ONE_OF_EACH = [("import", "kill", 0), ("warmup", "exit", 0), ("measured", "exception", 1)]
ONE_OF_EACH += [("measured", "stop", 1), ("sealing", "oom", 1)]


@pytest.mark.parametrize(("phase", "fault", "rank"), matrix((0, 1), *ONE_OF_EACH))
def test_a_fault_is_told(planted: Planted, execute: Execute, phase: str, fault: str, rank: int) -> None:
    outcome = broken(planted, execute, phase, fault, rank, iters=3).outcome
    assert (outcome.status, outcome.first_failed_rank) == (STATUS[fault], rank), outcome.reason
    assert outcome.failure is not None and outcome.failure["rank"] == rank
    assert not any(alive(rank["pid"]) for rank in outcome.ranks)
    if fault == "exception":
        assert outcome.reason == f"ValueError: planted in {phase}"
        assert outcome.failure["log_end"][-1] == outcome.reason
    if fault == "stop":
        assert f"rank {rank} " in outcome.reason and "stopped" in outcome.reason
        assert outcome.reason.endswith("raise --stall-timeout if the machine is just slow")
    if fault == "sleep":
        assert re.search(rf"rank {rank} (hangs|is) in phase .*, at sitecustomize\.py:\d+ in _break", outcome.reason)
    if fault == "oom":
        assert f"rank {rank} on cpu with 4 images (global batch 8)" in outcome.reason
        assert outcome.failure["memory"]["allocator"]["max_rss_mib"] > 0
    if (phase, fault, rank) not in ONE_OF_EACH:
        again = execute("ddp", on=planted[0])
        assert again.outcome.status == "ok", again.outcome.reason


@pytest.mark.parametrize(
    ("phase", "fault", "victim"), matrix(("host", "sampler", "supervisor"), ("measured", "kill", "host"))
)
def test_the_rest_is_in_order(repository: Path, tmp_path: Path, phase: str, fault: str, victim: str) -> None:
    """Each takes half a minute; without ``slow`` is the one whose like no other test does to a real run."""
    file = tmp_path / "fault.json"
    file.write_text(json.dumps({"phase": phase, "fault": fault, "rank": 0, "victim": victim}))
    out = tmp_path / "out"
    more = ["--scenario", "ddp,single", "--iters", "3", "--no-parity", "--stall-timeout", str(STALL_S)]
    with start(repository, out, *more, small=FASHION, env=os.environ | breaking(file)) as running:
        wait_for(lambda: not file.exists())
        hit_s = time.monotonic()
        members = [*family(running.pid), running.pid]
        if victim == "supervisor" and fault in ("stop", "sleep"):
            time.sleep(2.0)
            assert running.poll() is None, "a run that somebody stops waits until it is continued, or ended"
            os.kill(running.pid, signal.SIGCONT if fault == "stop" else signal.SIGINT)
        _, shown = running.communicate(timeout=100)
        took_s = time.monotonic() - hit_s
    assert nobody_left(members) and not_locked()
    states = [(launch["scenario"], launch["status"]) for launch in document_in(out)["launches"]]
    (path,) = out.iterdir()
    if victim == "host":
        expected = "timeout" if fault in ("stop", "sleep") else "killed"
        assert (states, running.returncode) == ([("ddp", expected), ("single", "ok")], 1), shown
    elif victim == "sampler" or fault == "stop":
        assert (states, running.returncode) == ([("ddp", "ok"), ("single", "ok")], 0), shown
    else:
        assert not document_in(out)["complete"]
        assert running.returncode == {"kill": -signal.SIGKILL, "exit": 0, "sleep": 130}.get(fault, 1), shown
        assert took_s < STALLED_GONE_S
    for finding in findings(str(path)):
        assert victim == "supervisor" and ("incomplete" in finding or "no steps" in finding)
    assert ("Traceback" in shown) == (victim == "supervisor" and fault in ("exception", "oom")), shown


@pytest.mark.parametrize(
    "fault", ["kill", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("exception", "stop"))]
)
def test_earlier_steps_are_kept(planted: Planted, execute: Execute, fault: str) -> None:
    done = broken(planted, execute, "measured", fault, 1, warmup=2, iters=4)
    assert done.outcome.failure is not None
    assert done.outcome.failure["where"] == "phase measure, optimizer of step 5"
    for rank in (0, 1):
        (steps,) = (kept["steps"] for kept in done.outcome.partial if kept["rank"] == rank)
        assert [row["step"] for row in steps][:5] == [0, 1, 2, 3, 4], "the sixth was in hand"
        assert len(steps) == 5 if rank == 1 else len(steps) in (5, 6)
        for row in steps:
            phases = sum(row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer"))
            assert row["step_ms"] == pytest.approx(phases) and row["step_ms"] > 0


ALONE = {"then": "parts.session()", "how": "group=False"}


def test_a_rank_that_leaves_its_group_is_ended_with_it(execute: Execute) -> None:
    done = execute(failing("1 / 0", "parts.rank == 0 or os.setsid() or time.sleep(600)"))
    assert done.outcome.status == "error" and done.outcome.reason.endswith(":9: ZeroDivisionError: division by zero")
    assert nobody_left([rank["pid"] for rank in done.outcome.ranks])


NONSENSE = """
for number in range(3, 100):
    try:
        socket.socket(fileno=number).send(b'[]\\n')
    except OSError:
        pass"""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("sys.stdout = sys.stderr = None; raise ValueError('without streams')", "ValueError: without streams"),
        ("os.closerange(0, 1000); raise ValueError", "left with exit status 1 and no result"),
        ("return None", "planted.py returned NoneType; return a Session, such as parts.session(wrap=...)"),
        (NONSENSE, "it sent an invalid message"),
    ],
    ids=["streams", "descriptors", "forgets", "nonsense"],
)
def test_what_a_rank_breaks_is_its_own(execute: Execute, fault: str, reason: str) -> None:
    done = execute(failing(fault, "parts.rank == 0", **ALONE), replicas=1)
    assert done.outcome.status == "error" and reason in done.outcome.reason
    assert "worker host ended" not in done.outcome.reason, "the host goes on"


def test_a_rank_that_aborts_is_failed_in_the_words_of_its_library(execute: Execute) -> None:
    fault = r"os.write(2, b'terminate called\n  what(): no route to host\nframe #1\n'); os.abort()"
    done = execute(failing(fault, "parts.rank == 0", **ALONE), replicas=1)
    assert done.outcome.status == "killed" and done.outcome.reason.endswith("ended by SIGABRT: no route to host")


def test_an_exception_in_a_thread_fails_the_launch(execute: Execute) -> None:
    thread = "thread = threading.Thread(target=lambda: 1 / 0, name='loader')\nthread.start()"
    done = execute(failing(thread), iters=2000)
    assert (done.outcome.status, done.outcome.first_failed_rank) == ("error", 1)
    assert re.fullmatch(r"thread loader: \S+\.py:9: ZeroDivisionError: division by zero", done.outcome.reason)


STARTING = """\
fork = os.fork()
if fork == 0:
    time.sleep(600)
session = subprocess.Popen(['sleep', '600'], start_new_session=True).pid
shell = subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!'], stdout=subprocess.PIPE)
print('started', fork, session, int(shell.stdout.readline()), flush=True)"""


def test_what_a_scenario_started_ends_with_it(execute: Execute) -> None:
    done = execute(failing(STARTING))
    assert done.outcome.status == "ok", done.outcome.reason
    (pids,) = re.findall(r"started ([\d ]+)", done.log(1))
    assert len(pids.split()) == 3 and nobody_left(list(map(int, pids.split())))


@pytest.mark.slow
def test_a_forked_child_is_no_second_rank(execute: Execute) -> None:
    done = execute(failing("pass", "os.fork() == 0", **ALONE), replicas=1)
    assert done.outcome.status == "ok", done.outcome.reason
    assert len([event for event in done.events if event["event"] == "done"]) == 1
    assert done.results[0]["pid"] == done.outcome.ranks[0]["pid"]


@pytest.mark.slow
def test_too_few_descriptors_fail_only_the_launch(execute: Execute, tmp_path_factory: pytest.TempPathFactory) -> None:
    with contextlib.contextmanager(a_host)("cpu", tmp_path_factory) as host:
        before = resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE)
        open_now = len(os.listdir(f"/proc/{host.process.pid}/fd"))
        resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE, (open_now + 3, before[1]))
        done = execute("ddp", on=host)
        assert done.outcome.status == "error" and "('ulimit -n')" in (done.outcome.reason or "")
        assert not any(alive(rank["pid"]) for rank in done.outcome.ranks)
        resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE, before)
        again = execute("ddp", on=host)
        assert again.outcome.status == "ok", again.outcome.reason
        assert len(os.listdir(f"/proc/{host.process.pid}/fd")) <= open_now + 1, "descriptors leak from launch to launch"


SPOOLS = """os.makedirs(os.path.join(run, '.scratch'), exist_ok=True)
for launch in range(parts.job.launch + 1, 20): os.mkfifo(f'{run}/.scratch/samples-{launch}.jsonl')"""
SEALED = "import json, bench.worker.rank\nbench.worker.rank._sealed = "
MEDDLING = {
    "scratch": ("ok", "time.sleep(1)\nshutil.rmtree(os.path.join(run, '.scratch'))"),
    "spools": ("ok", SPOOLS),
    "folder": ("ok", "shutil.rmtree(run, ignore_errors=True)"),
    "pipes": ("ok", "os.mkfifo(f'{run}/logs/pipe')\nos.symlink('/dev/zero', f'{run}/logs/zero')"),
    "tables": ("ok", "import glob\nfor part in glob.glob(os.path.join(run, '.parts', '*')):\n    os.truncate(part, 7)"),
    "log": ("error", "log = os.path.join(run, 'logs', parts.job.log_name(0))\nos.unlink(log)\nos.mkfifo(log)\n1 / 0"),
    "listed": ("error", f"{SEALED}lambda result: '[]'"),
    "nonsense": ("error", f"{SEALED}lambda result: 'nonsense'"),
    "words": ("error", f"{SEALED}lambda result: json.dumps(result | {{'measured': 'words'}})"),
    "infinite": ("error", f"{SEALED}lambda result: json.dumps(result | {{'first_forward_s': float('inf')}})"),
    "frozen": ("error", "import bench.worker.loop\nbench.worker.loop.perf_counter_ns = lambda: 7"),
    "frozen_time": ("ok", "time.perf_counter_ns = time.monotonic = lambda: 7"),
}
"""Scenarios that harm the run that they are in: the status of their launch, and what they do in the rank."""


def test_what_a_scenario_harms_is_its_own_launch(run_here: Bench, tmp_path: Path) -> None:
    for name, (_, fault) in MEDDLING.items():
        harm = failing(f"run = os.path.dirname(parts.job.logs)\n{fault}", "True", **ALONE)
        (tmp_path / f"{name}.py").write_text(harm)
    names = ",".join([*(str(tmp_path / f"{name}.py") for name in MEDDLING), "single"])
    out = tmp_path / "out"
    small = ["--iters", "2", "--ranks", "1", "--global-batch", "4", "--no-parity", "--out", str(out)]
    done = run_here("run", *FASHION, "--scenario", names, *small)
    assert done.code == 1, done.err
    launches = document_in(out)["launches"]
    statuses = {launch["scenario"]: launch["status"] for launch in launches}
    assert statuses == {name: status for name, (status, _) in MEDDLING.items()} | {"single": "ok"}, done.err
    assert "the clock of rank 0 is wrong: step_ms is 0.0" in done.err
    (path,) = out.iterdir()
    left = {f"{path}/logs/{name} does not belong to this run" for name in ("pipe", "zero", "launch-006-log-rank0.log")}
    assert set(findings(str(path))) == left
    whole = {one["launch"] for one in launches if one["status"] == "ok"}
    run = read(str(path))
    assert set(run.steps["launch"]) == whole <= set(run.memory["launch"])
    reasons = set(run.memory["reason"].dropna())
    assert not any("cannot be read" in reason for reason in reasons), reasons


FORK = """
import os, time
from bench.core.channel import forks_die_with_parent
os.register_at_fork(after_in_child=lambda: time.sleep(0.5))
forks_die_with_parent()
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
time.sleep(60)
"""


def test_a_fork_whose_rank_has_just_died_ends(repository: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FORK], cwd=repository, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
        try:
            assert wait_for(lambda: not alive(child), 10.0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
