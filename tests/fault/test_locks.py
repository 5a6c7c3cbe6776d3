"""Two runs on one machine: the second is refused with the name of the first, or stands in line."""

import fcntl
import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Bench
from standin import refusal as refused
from standin.processes import FASHION, not_locked, start, wait_for

from bench.core.errors import RequestError
from bench.experiments.interrupts import bounded
from bench.machine import lock

pytestmark = pytest.mark.fault

HOLD = """
import subprocess, sys, time
from bench.machine import lock
gpus = [one for one in sys.argv if one.startswith("GPU-")]
with lock.acquire(gpus, wait="--wait" in sys.argv, say=lambda line: print(line, file=sys.stderr, flush=True)) as held:
    child = subprocess.Popen(["sleep", "600"], pass_fds=held) if "--orphan" in sys.argv else None
    print("held", time.monotonic_ns(), child.pid if child else 0, flush=True)
    time.sleep(float(sys.argv[1]))
    print("free", time.monotonic_ns(), flush=True)
"""
Process = subprocess.Popen[str]
Hold = Callable[..., Process]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def hold(folder: Path) -> Iterator[Hold]:
    """``hold(seconds, *options)``: a process that takes the lock, or queues for it."""
    started: list[Process] = []

    def run(*arguments: str) -> Process:
        command = [sys.executable, "-c", HOLD, *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        end(process)


def end(process: Process) -> None:
    with process:
        process.kill()


def held(process: Process) -> list[int]:
    """When a process has the lock, and who inherited it."""
    assert process.stdout is not None
    word, *numbers = process.stdout.readline().split()
    assert word == "held"
    return list(map(int, numbers))


def queues(process: Process) -> str:
    assert process.stderr is not None
    said = process.stderr.readline()
    wait_for(lambda: queued(process))
    return said


def queued(process: Process) -> bool:
    return any("->" in line and f" {process.pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def refusal(devices: tuple[str, ...] = ()) -> str:
    return str(refused(lambda: lock.acquire(devices, wait=False, say=print).__enter__()))


def test_the_refusal_names_who_holds_the_lock(hold: Hold) -> None:
    process = hold("600", "--api-key", "hunter2")
    held(process)
    said = refusal()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f"the CPU is in use by PID {process.pid} ({user}, since 20" in said and "\n" not in said
    assert "--api-key ***" in said and "hunter2" not in said


def test_gpus_are_locked_one_by_one(folder: Path) -> None:
    with lock.acquire(("GPU-b", "GPU-a"), wait=False, say=print) as descriptors:
        assert len(descriptors) == 2
        assert "GPU GPU-b is in use by PID" in refusal(("GPU-c", "GPU-b"))
        assert not_locked("GPU-c") and not_locked()
    assert not_locked("GPU-a", "GPU-b")


def test_a_run_that_queues_for_a_gpu_keeps_no_other(hold: Hold) -> None:
    with lock.acquire(("GPU-b",), wait=False, say=print):
        process = hold("0", "GPU-a", "GPU-b", "--wait")
        assert queues(process).startswith("waiting until GPU GPU-b is free of PID")
        assert not_locked("GPU-a")
    held(process)


def test_the_last_heir_of_a_lock_holds_it(hold: Hold) -> None:
    process = hold("600", "--orphan")
    orphan = held(process)[1]
    process.kill()
    process.wait()
    waiting = hold("0", "--wait")
    queues(waiting)
    said = refusal()
    assert f"what is left of PID {process.pid}" in said and f": PID {orphan}; " in said
    os.kill(orphan, signal.SIGKILL)
    held(waiting)
    waiting.wait()
    assert not_locked()


def test_several_at_once_take_turns(hold: Hold, folder: Path) -> None:
    processes = [hold("0.05", "--wait") for _ in range(8)]
    spans = []
    for process in processes:
        said, shown = process.communicate(timeout=120)
        assert process.returncode == 0, shown
        spans.append([int(line.split()[1]) for line in said.splitlines()])
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert os.listdir(folder) == ["cpu.lock"]


def test_killed_and_stopped_runs_leave_the_queue(hold: Hold) -> None:
    first = hold("600")
    held(first)
    killed = hold("0", "--wait")
    assert queues(killed) == f"waiting until the CPU is free of {refusal().split(' is in use by ')[1].split('; ')[0]}\n"
    end(killed)
    stopped = hold("0", "--wait")
    queues(stopped)
    stopped.send_signal(signal.SIGSTOP)
    wait_for(lambda: not queued(stopped))
    others, said = [], []
    for _ in range(3):
        others.append(hold("0.1", "--wait"))
        said.append(queues(others[-1]).partition("; ")[2])
    assert said == ["", "1 before this run\n", "2 before this run\n"]
    end(first)
    held_ns = [held(process)[0] for process in others]
    assert held_ns == sorted(held_ns)
    stopped.send_signal(signal.SIGCONT)
    held(stopped)


NOBODY = 65534
NESTED, LONG = "[" * 100_000, "9" * 9**7


@pytest.mark.parametrize(("kind", "slash"), [("file", ""), ("link", ""), ("link", "/")])
def test_what_is_no_folder_is_refused_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, slash: str
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    folder.write_text("") if kind == "file" else folder.symlink_to(theirs)
    monkeypatch.setenv(lock.FOLDER_VARIABLE, f"{folder}{slash}")
    assert f"{lock.FOLDER_VARIABLE}: locks cannot be kept in {folder}" in refusal()
    assert os.listdir(theirs) == [] and theirs.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert "it is not sticky" in refusal()
    folder.chmod(0o1777)
    with lock.acquire((), wait=True, say=print):
        assert (folder / "cpu.lock").stat().st_mode & 0o777 == 0o666, "other users can take it too"
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        assert "it belongs to the user" in refusal()


@pytest.mark.parametrize(
    "made",
    [lambda where, mine: os.mkfifo(where), lambda where, mine: where.mkdir(), Path.symlink_to, Path.hardlink_to],
    ids=["pipe", "folder", "link", "hard link"],
)
def test_what_cannot_be_a_lock_is_refused(folder: Path, tmp_path: Path, made: Callable[[Path, Path], None]) -> None:
    folder.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    made(folder / "cpu.lock", precious)
    with bounded(20.0):
        assert "have cpu.lock removed" in refusal()
        with pytest.raises(RequestError), lock.acquire((), wait=True, say=print):
            pass
    assert precious.read_text() == "mine" and os.listdir(folder) == ["cpu.lock"]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("text", ["", "{", "[1]", NESTED, LONG, f'{{"pid": {"9" * 4000}}}', '{"command": [[[]]]}'])
def test_whatever_a_lock_says_it_is_waited_for(folder: Path, tmp_path: Path, text: str, replaced: bool) -> None:
    """Also where its folder is replaced while a run waits."""
    folder.mkdir()
    (folder / "cpu.lock").write_text(text)
    descriptor, said = os.open(folder / "cpu.lock", os.O_RDONLY | os.O_NONBLOCK), []
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    def free(line: str) -> None:
        said.append(line)
        if replaced:
            folder.rename(tmp_path / "before")
        os.close(descriptor)

    with bounded(20.0), lock.acquire((), wait=True, say=free):
        assert len(said) == 1 and len(said[0]) < 1000
        assert f"is in use by PID {os.getpid()} (" in refusal(), "the next signature takes its place"
        assert os.listdir(folder) == ["cpu.lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        monkeypatch.setenv(lock.FOLDER_VARIABLE, f"{open_to_all}/locks")
        assert not_locked()
        child = os.fork()
        if child == 0:
            try:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os._exit(0 if not_locked() and not_locked("GPU-a") else 1)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not_locked() and not_locked("GPU-a")


def test_one_line_refuses_a_run_on_a_busy_cpu(folder: Path, bench: Bench) -> None:
    with lock.acquire((), wait=False, say=print):
        code, said, shown = bench("run", *FASHION, "--scenario", "single")
    assert (code, said) == (2, "")
    assert re.fullmatch(rf"bench: error: --device: the CPU is in use by PID {os.getpid()} \(.*--wait.*\n", shown)
    assert not Path("results").exists()


def test_an_interrupted_run_leaves_the_queue(repository: Path, tmp_path: Path, folder: Path) -> None:
    with lock.acquire((), wait=False, say=print):
        process = start(repository, tmp_path / "out", "--wait", small=FASHION)
        assert "waiting until" in queues(process)
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown.splitlines()[-1]) == (130, "bench: interrupted")
