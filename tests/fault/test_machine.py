"""What a machine can lack, and what a rank can do to it: memory to share, a steady clock, room for its log."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conftest import planned
from standin.documents import document
from standin.planted import planted
from standin.runs import DDP, write_run

from bench import machine
from bench.core.errors import RequestError
from bench.experiments import interrupts, launch
from bench.runs import files
from bench.runs.names import find
from bench.runs.writer import RunWriter
from bench.sites.local import WorkerHost
from bench.worker import host as worker_host
from bench.worker.beats import Beats

pytestmark = pytest.mark.fault


def test_both_ends_of_100_mb_of_output_are_kept(host: WorkerHost, tmp_path: Path) -> None:
    file = tmp_path / "loud.py"
    loud = "print('the first line')\nfor _ in range(100):\n    print('x' * 2**20)\nprint('the last line')"
    file.write_text(planted(f"{loud}\nreturn parts.session()", "group=False"))
    (tmp_path / "logs").mkdir()
    done = launch.execute(planned(str(file), replicas=1).job, host, str(tmp_path / "logs"), lambda event: None)
    assert done.outcome.status == "ok", done.outcome.reason
    (log,) = (tmp_path / "logs").iterdir()
    text = log.read_text()
    assert len(text) < files.LOG_LIMIT_BYTES + 100
    assert text.startswith("the first line\n") and text.endswith("the last line\n")
    assert f"[bench: {100 * (2**20 + 1) + 29 - files.LOG_LIMIT_BYTES} bytes were left out here]" in text


def test_no_beats_and_no_leak_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*about: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(os.listdir("/proc/self/fd"))
    for call in ("memfd_create", "posix_fallocate"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refuse)
            assert worker_host._make_beats(planned().job) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_working_directory_that_is_gone_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.refuse_missing_directory()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RequestError, match="the working directory was removed; change to one that exists"):
        machine.refuse_missing_directory()


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(RequestError, match="; set it to one that can be written"):
        machine.refuse_missing_directory()


def test_too_few_open_files_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (56, 56))
    machine.refuse_few_files(8)
    with pytest.raises(RequestError, match=r"56 open files are too few for 9 ranks; .*'ulimit -n 60'"):
        machine.refuse_few_files(9)
    monkeypatch.setattr("resource.getrlimit", lambda which: (-1, -1))
    machine.refuse_few_files(9)


def test_an_interruption_waits_where_it_must_and_once() -> None:
    done = []
    with interrupts.heeded(last=False):
        with pytest.raises(KeyboardInterrupt), interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("first")
        with pytest.raises(ValueError), interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("what went wrong is worth more")
        with interrupts.held():
            done.append("second")
    assert done == ["first", "second"]


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.heeded(last=False):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_code_of_others_is_bounded() -> None:
    def state() -> tuple[object, ...]:
        return time.monotonic, json.dumps, os._exit, sys.stdout, signal.getsignal(signal.SIGTERM)

    before = state()
    with pytest.raises(SystemExit), interrupts.bounded(60.0):
        time.monotonic = json.dumps = sys.stdout = None  # type: ignore[assignment]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os._exit(0)
    assert state() == before
    with pytest.raises(TimeoutError, match=r"not done after 0\.1 s"), interrupts.bounded(0.1):
        time.sleep(60)


def test_a_clock_that_jumps_back_overwrites_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RunWriter(str(tmp_path), document())
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda *_: real(time.time() - 86400))
    second = RunWriter(str(tmp_path), document())
    assert second.id < first.id
    assert find("latest", str(tmp_path)) == first.path, "the latest by name, which is what the clock said"
    assert {run.name for run in tmp_path.iterdir()} == {first.id, second.id}


def test_a_limit_on_threads_is_no_damage(repository: Path, tmp_path: Path) -> None:
    as_nobody = ["setpriv", "--reuid=65534", "--clear-groups"]  # the limit is not root's
    as_nobody += [f"--{which}-caps=+dac_override,+dac_read_search" for which in ("inh", "ambient")]
    if os.geteuid() != 0 or subprocess.run([*as_nobody, "true"], capture_output=True).returncode:
        pytest.skip("this user may not become another one")
    run = write_run(tmp_path, [DDP])
    for verb, option, code in (("show", str(run), 1), ("doctor", "--json", 2)):
        told = f"ulimit -u 1; exec {sys.executable} -m bench {verb} {option}"
        done = subprocess.run([*as_nobody, "bash", "-c", told], cwd=repository, capture_output=True, text=True)
        assert (done.returncode, "ulimit -u" in done.stderr) == (code, True), done.stderr
        assert "damaged" not in done.stderr and "None" not in done.stderr


def test_beats_tell_position_and_steps_of_each_rank() -> None:
    beats = Beats.create(2, 1, 4)
    again = Beats(os.dup(beats.fd))
    assert beats.position(1) is None and beats.steps(1) == []
    note = again.notes(1)
    for _ in range(5 + 4 * 2 + 3):
        note()
    position = beats.position(1)
    assert position is not None and (position.done, position.phase) == (3, "backward")
    steps = beats.steps(1)
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert steps[2]["start_ns"] - steps[1]["start_ns"] == pytest.approx(1e6 * steps[1]["step_ms"])
    assert beats.position(0) is None and beats.marks(1) == 16
    for _ in range(1000):
        note()  # more than there is room for is not written
    assert beats.marks(1) == 5 * 4 + 2
    again.close()
    beats.close()


def test_a_log_within_the_limit_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * files.LOG_LIMIT_BYTES)
    before = (tmp_path / "log").stat()
    files.shorten(str(tmp_path / "log"))
    files.shorten(str(tmp_path / "absent"))
    assert (tmp_path / "log").stat() == before
