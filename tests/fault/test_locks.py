"""Two runs on one machine: the second is refused with the name of the first, or stands in line."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from standin.processes import FASHION, wait_for

from bench.core.errors import RequestError
from bench.machine import lock

pytestmark = pytest.mark.fault

SMALL = ["run", *FASHION, "--iters", "1"]

HOLD = """
import os, subprocess, sys, time
from bench.machine import lock
from bench.core.errors import RequestError
def tell(text):
    print(text, file=sys.stderr, flush=True)
try:
    gpus = [one for one in sys.argv if one.startswith("GPU-")]
    with lock.acquire(gpus, wait="--wait" in sys.argv, say=tell) as held:
        child = subprocess.Popen(["sleep", "600"], pass_fds=held) if "--orphan" in sys.argv else None
        print("held", time.monotonic_ns(), child.pid if child else 0, flush=True)
        time.sleep(float(sys.argv[1]))
        print("free", time.monotonic_ns(), flush=True)
except RequestError as error:
    print(error, flush=True)
    raise SystemExit(2)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


def hold(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def holding(*arguments: str) -> "subprocess.Popen[str]":
    process = hold(*arguments)
    assert process.stdout is not None and process.stdout.readline().startswith("held")
    return process


def refusal(devices: tuple[str, ...] = ()) -> str:
    with pytest.raises(RequestError) as caught, lock.acquire(devices, wait=False, say=print):
        pass
    return str(caught.value)


def test_the_refusal_names_who_holds_the_lock(folder: Path) -> None:
    process = holding("600", "--api-key", "hunter2")
    try:
        said = refusal()
    finally:
        process.kill()
        process.communicate()
    assert f"the CPU is in use by PID {process.pid} (" in said and "since 20" in said
    assert "--wait" in said and "\n" not in said
    assert "--api-key ***" in said and "hunter2" not in said


def test_gpus_are_locked_one_by_one(folder: Path) -> None:
    with lock.acquire(("GPU-b", "GPU-a"), wait=False, say=print) as held:
        assert len(held) == 2
        assert "GPU GPU-b is in use by PID" in refusal(("GPU-c", "GPU-b"))
        with lock.acquire(("GPU-c",), wait=False, say=print), lock.acquire((), wait=False, say=print):
            pass
    with lock.acquire(("GPU-a", "GPU-b"), wait=False, say=print):
        pass


def test_a_run_that_queues_for_a_gpu_keeps_no_other(folder: Path) -> None:
    with lock.acquire(("GPU-b",), wait=False, say=print):
        process, says = waiting("0", "GPU-a", "GPU-b")
        assert says.startswith("waiting until GPU GPU-b is free of PID")
        with lock.acquire(("GPU-a",), wait=False, say=print):
            pass
    assert process.communicate(timeout=60)[0].startswith("held")


def test_the_lock_is_held_until_the_last_that_inherited_it_is_gone(folder: Path) -> None:
    process = hold("600", "--orphan")
    assert process.stdout is not None
    orphan = int(process.stdout.readline().split()[2])
    process.kill()
    process.wait()
    queued, _ = waiting("0")
    said = refusal()
    assert f"what is left of PID {process.pid}" in said and f": PID {orphan}; " in said
    os.kill(orphan, signal.SIGKILL)
    assert queued.communicate(timeout=60)[0].startswith("held")
    with lock.acquire((), wait=False, say=print):
        pass  # at once, and a moment's patience for the one that is ending
    process.communicate()


def test_a_folder_that_cannot_be_used_is_named(folder: Path) -> None:
    folder.write_text("")
    assert f"{lock.FOLDER_VARIABLE}: locks cannot be kept in {folder}" in refusal()


def test_several_at_once_take_turns_when_they_wait(folder: Path) -> None:
    processes = [hold("0.05", "--wait") for _ in range(8)]
    spans, waited = [], 0
    for process in processes:
        said, shown = process.communicate(timeout=120)
        assert process.returncode == 0, shown
        waited += "waiting until the CPU is free of PID" in shown
        spans.append([int(line.split()[1]) for line in said.splitlines()])
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert waited >= 1, "those that wait say for whom"
    assert os.listdir(folder) == ["cpu.lock"]


def test_of_several_at_once_one_runs_when_they_do_not_wait(folder: Path) -> None:
    processes = [hold("600") for _ in range(8)]
    wait_for(lambda: sum(process.poll() is not None for process in processes) == 7)
    (winner,) = [process for process in processes if process.poll() is None]
    for process in processes:
        if process is not winner:
            said, _ = process.communicate()
            assert process.returncode == 2
            assert said.count("\n") == 1 and f"PID {winner.pid}" in said
    winner.kill()
    winner.communicate()


def waiting(*arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """One that queues, and what it says before."""
    process = hold(*arguments, "--wait")
    assert process.stderr is not None
    says = process.stderr.readline()
    wait_for(lambda: queued(process))
    return process, says


def queued(process: "subprocess.Popen[str]") -> bool:
    return any("->" in line and f" {process.pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_the_queue_is_in_order_without_those_that_are_killed_or_stopped(folder: Path) -> None:
    first = holding("600")
    killed, says = waiting("0")
    assert says == f"waiting until the CPU is free of {refusal().split(' is in use by ')[1].split('; ')[0]}\n"
    killed.kill()
    killed.communicate()
    stopped, _ = waiting("0")
    stopped.send_signal(signal.SIGSTOP)
    wait_for(lambda: not queued(stopped))
    others = [waiting("0.1") for _ in range(3)]
    assert [said.count("; ") and said.split("; ")[1] for _, said in others] == [
        *(0, "1 before this run\n", "2 before this run\n")
    ]
    first.kill()
    first.communicate()
    held_ns = [int(process.communicate(timeout=60)[0].split()[1]) for process, _ in others]
    assert held_ns == sorted(held_ns)
    stopped.send_signal(signal.SIGCONT)
    assert stopped.communicate(timeout=60)[0].startswith("held")


NOBODY = 65534
NESTED, LONG = "[" * 100_000, "9" * 9**7
KINDS: dict[str, Callable[[Path, Path], None]] = {
    "pipe": lambda where, precious: os.mkfifo(where),
    "folder": lambda where, precious: where.mkdir(),
    "link": Path.symlink_to,
    "hard link": Path.hardlink_to,
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    def over(*about: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def locked(file: Path) -> int:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_link_in_place_of_the_folder_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slash: str
) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    monkeypatch.setenv(lock.FOLDER_VARIABLE, f"{folder}{slash}")
    assert f"locks cannot be kept in {folder}" in refusal()
    assert os.listdir(tmp_path / "theirs") == [] and (tmp_path / "theirs").stat().st_mode & 0o777 == 0o700


def test_a_folder_in_which_others_could_do_harm_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert "it is not sticky" in refusal()
    folder.chmod(0o1777)
    with lock.acquire((), wait=True, say=print):
        assert (folder / "cpu.lock").stat().st_mode & 0o777 == 0o666, "other users can take it too"
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        assert "it belongs to the user" in refusal()


@pytest.mark.parametrize("what", KINDS)
def test_what_cannot_be_a_lock_is_refused_by_name(folder: Path, tmp_path: Path, what: str) -> None:
    folder.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    KINDS[what](folder / "cpu.lock", precious)
    with within(20.0):
        said = refusal()
        assert "cpu.lock: " in said and "have cpu.lock removed" in said
        with pytest.raises(RequestError), lock.acquire((), wait=True, say=print):
            pass
    assert precious.read_text() == "mine" and os.listdir(folder) == ["cpu.lock"]


@pytest.mark.parametrize("text", ["{", "[1]", NESTED, LONG, f'{{"pid": {"9" * 4000}}}', '{"command": [[[]]]}'])
def test_whatever_a_lock_says_it_is_waited_for(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "cpu.lock").write_text(text)
    holder, said = locked(folder / "cpu.lock"), []

    def free(line: str) -> None:
        said.append(line)
        os.close(holder)

    with within(20.0), lock.acquire((), wait=True, say=free):
        assert len(said) == 1 and len(said[0]) < 1000
        assert f"is in use by PID {os.getpid()} (" in refusal(), "the next signature takes its place"


def test_a_run_that_waits_goes_on_in_a_folder_that_replaces_its_own(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (folder / "cpu.lock").write_text("")
    holder = locked(folder / "cpu.lock")

    def replaced(line: str) -> None:
        folder.rename(tmp_path / "before")
        os.close(holder)

    with within(20.0), lock.acquire((), wait=True, say=replaced):
        assert os.listdir(folder) == ["cpu.lock"]
        assert "in use" in refusal()


@as_root
def test_two_users_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        folder = Path(open_to_all) / "locks"
        monkeypatch.setenv(lock.FOLDER_VARIABLE, str(folder))
        holder = lock.acquire((), wait=True, say=print)
        holder.__enter__()
        listen, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                holder.__exit__(None, None, None)  # a fork holds it on
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                with lock.acquire((), wait=True, say=lambda line: os.write(tell, line.encode())):
                    os.write(tell, b" got it")
            finally:
                os._exit(0)
        try:
            with within(20.0):
                assert f"waiting until the CPU is free of PID {os.getpid()} (root" in os.read(listen, 1000).decode()
                holder.__exit__(None, None, None)
                assert os.read(listen, 1000) == b" got it"
                os.waitpid(child, 0)
        finally:
            os.close(listen)
            os.close(tell)
        with lock.acquire((), wait=True, say=print):
            assert os.listdir(folder) == ["cpu.lock"]


def bench_run(repository: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *SMALL, "--scenario", "single", "--no-parity", "--out", str(out), *more],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_is_refused_in_one_line_while_another_has_the_cpu(repository: Path, tmp_path: Path, folder: Path) -> None:
    process = holding("600")
    try:
        done = bench_run(repository, tmp_path / "out")
        said, shown = done.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert (done.returncode, said) == (2, "")
    assert re.fullmatch(rf"bench: error: --device: the CPU is in use by PID {process.pid} \(.*--wait.*\n", shown)
    assert not (tmp_path / "out").exists()


def test_a_run_that_waits_is_interrupted_and_leaves_the_queue(repository: Path, tmp_path: Path, folder: Path) -> None:
    with lock.acquire((), wait=False, say=print):
        queued = bench_run(repository, tmp_path / "out", "--wait")
        assert queued.stderr is not None
        wait_for(lambda: "waiting until" in queued.stderr.readline())
        queued.send_signal(signal.SIGTERM)
        _, shown = queued.communicate(timeout=60)
    assert (queued.returncode, shown.splitlines()[-1]) == (130, "bench: interrupted")
