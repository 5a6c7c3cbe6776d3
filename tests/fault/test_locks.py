"""Two runs on one machine: the second is refused with the name of the first, or stands in line."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from bench.core.errors import RequestError
from bench.machine import lock

pytestmark = pytest.mark.fault

SMALL = ["run", "--device", "cpu", "--model", "resnet18", "--image-size", "32", "--warmup", "1", "--iters", "1"]

HOLD = """
import os, subprocess, sys, time
from bench.machine import lock
from bench.core.errors import RequestError
try:
    with lock.acquire((), wait="--wait" in sys.argv, say=lambda text: print(text, file=sys.stderr, flush=True)) as held:
        child = subprocess.Popen(["sleep", "600"], pass_fds=held.descriptors) if "--orphan" in sys.argv else None
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


def wait_for(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


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
        assert len(held.descriptors) == 2
        assert "GPU GPU-b is in use by PID" in refusal(("GPU-c", "GPU-b"))
        with lock.acquire(("GPU-c",), wait=False, say=print), lock.acquire((), wait=False, say=print):
            pass
    with lock.acquire(("GPU-a", "GPU-b"), wait=False, say=print):
        pass


def test_the_lock_is_held_until_the_last_that_inherited_it_is_gone(folder: Path) -> None:
    process = hold("600", "--orphan")
    assert process.stdout is not None
    orphan = int(process.stdout.readline().split()[2])
    process.kill()
    process.wait()
    said = refusal()
    assert f"what is left of PID {process.pid}" in said
    os.kill(orphan, signal.SIGKILL)
    with lock.acquire((), wait=False, say=print):
        pass  # at once, and a moment's patience for the one that is ending
    process.communicate()


def test_other_users_can_take_the_locks_too(folder: Path) -> None:
    with lock.acquire((), wait=True, say=print):
        assert (folder / "cpu.lock").stat().st_mode & 0o777 == 0o666
        assert folder.stat().st_mode & 0o7777 == 0o1777
        assert (folder / "line").stat().st_mode & 0o7777 == 0o1777


def test_a_link_in_place_of_a_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "precious").write_text("mine")
    (folder / "cpu.lock").symlink_to(tmp_path / "precious")
    assert lock.FOLDER_VARIABLE in refusal()
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_cannot_be_used_is_named(folder: Path) -> None:
    folder.write_text("")
    assert f"{lock.FOLDER_VARIABLE}: locks cannot be kept in {folder}" in refusal()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', "\0" * 100])
def test_a_signature_that_cannot_be_read_is_no_obstacle(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "cpu.lock").write_text(content)
    with lock.acquire((), wait=False, say=print):
        assert str(os.getpid()) in (folder / "cpu.lock").read_text()


def test_twenty_at_once_succeed_one_after_the_other_when_they_wait(folder: Path) -> None:
    processes = [hold("0.05", "--wait") for _ in range(20)]
    spans, waited = [], 0
    for process in processes:
        said, shown = process.communicate(timeout=120)
        assert process.returncode == 0, shown
        waited += "waiting until the CPU is free of PID" in shown
        spans.append([int(line.split()[1]) for line in said.splitlines()])
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert waited >= 1, "those that wait say for whom"
    assert os.listdir(folder / "line") == []


def test_twenty_at_once_are_refused_but_for_one_when_they_do_not_wait(folder: Path) -> None:
    processes = [hold("600") for _ in range(20)]
    wait_for(lambda: sum(process.poll() is not None for process in processes) == 19)
    (winner,) = [process for process in processes if process.poll() is None]
    for process in processes:
        if process is not winner:
            said, _ = process.communicate()
            assert process.returncode == 2
            assert said.count("\n") == 1 and f"PID {winner.pid}" in said
    winner.kill()
    winner.communicate()


def test_a_place_in_the_line_whose_owner_was_killed_is_empty(folder: Path) -> None:
    first = holding("600")
    second = hold("0", "--wait")
    wait_for(lambda: (folder / "line").is_dir() and len(os.listdir(folder / "line")) == 1)
    second.kill()
    second.communicate()
    third = hold("0", "--wait")
    first.kill()
    first.communicate()
    assert third.communicate(timeout=60)[0].startswith("held")


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("wait", [True, False])
def test_twenty_runs_started_at_once(repository: Path, tmp_path: Path, folder: Path, wait: bool) -> None:
    more = ["--wait"] if wait else ["--iters", "3000"]
    runs = [bench_run(repository, tmp_path / f"out{number}", *more) for number in range(20)]
    if not wait:
        wait_for(lambda: sum(run.poll() is not None for run in runs) == 19, 250)
        for run in runs:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
    codes = []
    for run in runs:
        _, shown = run.communicate(timeout=1500)
        codes.append(run.returncode)
        assert "Traceback" not in shown
    assert sorted(codes) == ([0] * 20 if wait else [2] * 19 + [130])
