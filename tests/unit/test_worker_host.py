"""Launching: what a rank finds, how each kind of failure is told, and that nothing is left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from conftest import Executed, planned
from standin import program, python
from standin.planted import failing, planted
from standin.processes import alive

from bench import machine
from bench.core.channel import Channel
from bench.core.children import LAUNCHER, Unanswered, ask, beside
from bench.core.control_group import available_memory_bytes
from bench.core.errors import BenchError, HostError, RequestError
from bench.core.job import Meet
from bench.seams.site import Options
from bench.sites.local import WorkerHost
from bench.worker import host as server
from bench.worker import processes, supervisor
from bench.worker import rank as one_rank

JOB = planned().job


def options(folder: Path, **how: Any) -> Options:
    return Options(device="cpu", hosts=machine.here(()), log=str(folder / "log"), **how)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("sys.exit(3)", "error", "SystemExit: 3"),
        ("os.write(2, b'threads: Resource temporarily unavailable'); os._exit(1)", "error", "'ulimit -u'"),
        ("torch.empty(10**15)", "oom", "allocate memory"),
    ],
)
def test_the_first_failure_is_named(execute: Callable[..., Executed], fault: str, status: str, reason: str) -> None:
    done = execute(failing(fault), stall_timeout_s=3600.0)
    assert done.outcome.status == status
    assert reason in (done.outcome.reason or "")
    assert done.outcome.first_failed_rank == 1, "rank 0 failed only because rank 1 was gone"
    assert not any(alive(rank["pid"]) for rank in done.outcome.ranks)


@pytest.mark.parametrize(
    ("command", "folder", "reason"),
    [
        ("absent", "", "absent: No such file or directory"),
        ("/etc/passwd", "", "/etc/passwd: Permission denied"),
        ("true", "absent", "launcher.log: No such file or directory"),
    ],
)
def test_a_launcher_that_cannot_be_started(tmp_path: Path, command: str, folder: str, reason: str) -> None:
    job = replace(JOB, logs=str(tmp_path / folder))
    launch = server.start_launch(job, Mock(), fresh=False, locks=(), command=[command], meet=None)
    failure = launch.cause()
    assert failure is not None and f"{reason}, so no rank was started" in failure.reason and launch.over
    assert launch.door is not None
    launch.door.close()


NO_CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize(
    ("kind", "free_gib", "error", "text"),
    [
        ("oom", 40, RuntimeError, "CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        ("oom", 40, RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("oom", 1, dist.DistBackendError, "NCCL error: unhandled cuda error: Cuda failure 2 'out of memory'"),
        ("oom", 1, RuntimeError, "FIND was unable to find an engine to execute this computation"),
        ("error", 40, RuntimeError, "FIND was unable to find an engine to execute this computation"),
        ("error", 1, dist.DistBackendError, "NCCL error: remote process exited or there was a network error"),
        ("error", 1, RuntimeError, "NCCL AllReduce failed: remote process exited or there was a network error"),
        ("error", 1, RuntimeError, "Watchdog caught collective operation timeout: NCCL operation timed out."),
        ("oom", 72, MemoryError, ""),
        ("oom", 72, RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("oom", 1, RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        *((kind, free, RuntimeError, NO_CUBLAS) for kind, free in (("oom", 1), ("error", 72), ("error", None))),
    ],
)
def test_forms_of_out_of_memory(
    kind: str, free_gib: int | None, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch, cuDNN and NCCL word it; nothing of it may be put down to another rank that was gone. None: the device
    answers nothing any more."""
    broken = None if free_gib else RuntimeError("CUDA error: device-side assert triggered")
    told_of_memory = Mock(return_value=((free_gib or 0) << 30, 80 << 30), side_effect=broken)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", told_of_memory)
    told = one_rank._about(error(text), JOB, 0)
    assert (told["kind"], told["collateral"]) == (kind, kind == "error" and "NCCL" in text)
    assert not str(told["reason"]).endswith("."), "sentences end with it"


def test_a_rank_without_free_descriptors_is_ended(execute: Callable[..., Executed]) -> None:
    stuck = "lambda: (__import__('resource').setrlimit(7, (9, 9)), time.sleep(600))"
    optimizing = f'session = parts.build("ddp")\n    if parts.rank == 1: session.optimize = {stuck}\n'
    source = failing("pass").replace('return parts.build("ddp")', f"{optimizing}    return session")
    done = execute(source, stall_timeout_s=2.0)
    assert done.outcome.status == "timeout"
    assert "has 9 files open; raise the limit on open files" in (done.outcome.reason or "")
    assert not any(alive(rank["pid"]) for rank in done.outcome.ranks)


def test_the_host_serves_on_after_a_failure(execute: Callable[..., Executed], host: WorkerHost) -> None:
    execute(failing("os._exit(1)"))
    done = execute("ddp")
    assert done.outcome.status == "ok", done.outcome.reason
    assert len(os.listdir(f"/proc/{host.process.pid}/task")) == 1, "every fork of a host with threads is a gamble"
    environment = Path(f"/proc/{host.process.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=" in environment, "a run on the CPU sees no GPU"
    told = host.description["bf16_instructions"]
    assert told == torch.ops.mkldnn._is_mkldnn_bf16_supported(), "as torch tells by itself"
    assert done.results[0]["effective"]["bf16_instructions"] == told


@pytest.mark.parametrize(("threads", "asked"), [(1, False), (3, False), (1, True)])
def test_a_host_with_threads_forks_no_rank(threads: int, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that starts some when it is imported costs seconds a launch, and not the run; so does a module that
    asks whether there is CUDA, which torch then refuses to forks."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    started = []
    monkeypatch.setattr(server, "_describe", lambda apex_path: {})
    monkeypatch.setattr(server, "adopt_orphans", lambda: None)
    monkeypatch.setattr(server, "_threads", lambda: threads)
    monkeypatch.setattr(server, "start_launch", lambda job, control, **how: started.append(how["fresh"]))
    monkeypatch.setattr(server, "supervise", lambda launch, control: None)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: asked)
    examined = {device: server._examined(replace(JOB.workload, device=device)) for device in ("cpu", "cuda")}
    assert [one["cuda_asked"] for one in examined.values()] == [False, asked]
    monkeypatch.setattr(server, "_prepare", lambda workload: examined["cuda"])
    ours.send(event="prepare", workload=asdict(JOB.workload))
    ours.send(event="launch", job=asdict(JOB), command=None, meet=None)
    ours.socket.shutdown(socket.SHUT_WR)
    assert server.serve(theirs, fresh=False, apex_path=None) == 0
    ready, prepared = ours.receive()
    assert (ready["fresh"], ready["threads"]) == (threads > 1, threads), "the run says how its ranks were started"
    assert [prepared["fresh"]] == started == [threads > 1 or asked]


def test_the_host_itself_leaves_cuda_to_its_forks() -> None:
    """Whatever it asks of torch, such as for which GPUs it was built."""
    describe = "from bench.worker import host; host._describe(None)"
    fork = "import torch; from bench.core.children import ask; print(ask(torch.cuda._is_in_bad_fork, 60.0))"
    assert python(f"{describe}; {fork}", {}) == "False\n"


@pytest.mark.parametrize("says", [True, False])
def test_the_last_message_of_a_rank_is_read_first(says: bool) -> None:
    """It may end between the reading of its channel and the look at its process, and is no failure then."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    control, _kept = (Channel(end) for end in socket.socketpair())
    pid = os.fork()
    if pid == 0:
        if says:
            theirs.send(event="done", rank=0, result="{}")
        os._exit(0)
    theirs.close()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    rank = supervisor.Rank(number=0, pid=pid, channel=ours, log="", heard_s=0.0)
    launch = supervisor.Launch(job=JOB, beats=None, ranks=[rank])
    supervisor._reap(launch, control)
    os.waitpid(pid, 0)
    assert (rank.finished, rank.exit_status, launch.over) == (says, 0, True)
    assert [failure.kind for failure in launch.failures] == ([] if says else ["error"])


def test_a_kernel_without_a_count_of_kills_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "text_from", lambda path, start: "")
    assert supervisor.oom_kills() == 0


@pytest.mark.slow
def test_fresh_interpreters_give_the_same_losses(execute: Callable[..., Executed], tmp_path: Path) -> None:
    forked = execute("ddp", iters=3)
    with WorkerHost(options(tmp_path, fresh=True)) as fresh_host:
        fresh_host.wait_until_ready()
        fresh = execute("ddp", on=fresh_host, iters=3)
    assert fresh.outcome.status == "ok", fresh.outcome.reason
    for rank in (0, 1):
        assert fresh.results[rank]["measured"]["loss"] == forked.results[rank]["measured"]["loss"]


def test_ranks_listen_on_loopback_alone(execute: Callable[..., Executed]) -> None:
    """Of the half million objects that importing torch makes a collection would take longer than a step."""
    mine = "[one for one in psutil.net_connections('tcp4') if one.pid == os.getpid() and one.status == 'LISTEN']"
    looks = f"import gc, os, psutil; assert {{one.laddr.ip for one in {mine}}} <= {{'127.0.0.1'}}"
    done = execute(failing(f"{looks}; assert gc.get_freeze_count() > 50 * len(gc.get_objects())"))
    assert done.outcome.status == "ok", done.outcome.reason


@pytest.mark.skipif(machine.cores() < 2, reason="there is one core to be bound to")
def test_a_process_that_openmp_binds_hosts_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    with WorkerHost(options(tmp_path)) as host, pytest.raises(RequestError, match="; unset OMP_PROC_BIND"):
        host.wait_until_ready()


@pytest.mark.parametrize(
    ("ends", "error", "words"),
    [
        ("kill -KILL $$", HostError, "SIGKILL ended the worker host while it imported torch"),
        ("echo 'ImportError: a.so: failed to map segment from shared object'", HostError, "'ulimit -v'"),
        ("echo 'MemoryError'", HostError, "'ulimit -v'"),
        ("echo 'OpenBLAS error: Memory allocation still failed after 10 retries'", HostError, "'ulimit -v'"),
        ("echo 'BlockingIOError: [Errno 11] Resource temporarily unavailable'", HostError, "'ulimit -u'"),
        ("echo 'OSError: [Errno 24] Too many open files'", HostError, "'ulimit -n'"),
        ("echo 'No module named json'", RequestError, "--python: .*No module named json; name another one"),
    ],
)
def test_why_an_interpreter_could_not_host(tmp_path: Path, ends: str, error: type[BenchError], words: str) -> None:
    python = program(tmp_path / "python", f"#!/bin/sh\n{ends}\nexit 1\n")
    with WorkerHost(options(tmp_path, python=str(python))) as host:
        with pytest.raises(error, match=words) as caught:
            host.wait_until_ready()
        assert ("--python" in str(caught.value)) is (error is RequestError)


def test_a_question_may_take_half_of_the_free_memory() -> None:
    most = available_memory_bytes()
    with pytest.raises(Unanswered, match="raised MemoryError"):
        ask(lambda: len(bytearray(most * 3 // 4)), 60.0)
    assert ask(lambda: np.empty(most // 4, np.uint8).nbytes, 60.0) == most // 4, "which it need not fill"


@pytest.mark.parametrize("end", [lambda: 1 / 0, lambda: os._exit(0), list], ids=["raises", "ends", "well"])
def test_work_in_another_process(end: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fork does not do is done here; on one core all of it is."""
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            end()
        return os.getpid()

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert (beside(work)() != here) is (end is list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert beside(work)() == here


def test_a_later_fork_may_wait_for_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    first = beside(os.getpid)
    later = beside(first)
    assert later() == first() != os.getpid()


@pytest.mark.slow
def test_apex_is_probed_in_the_workers_interpreter(tmp_path: Path) -> None:
    (tmp_path / "apex").mkdir()
    for name, source in (("__init__", ""), ("amp", ""), ("parallel", "import no_such_kernel\n")):
        (tmp_path / "apex" / f"{name}.py").write_text(source)
    with WorkerHost(options(tmp_path, apex_path=str(tmp_path))) as host:
        found = host.wait_until_ready()["apex"]
    assert (found["kind"], found["problems"]["apex.amp"]) == ("nvidia", None)
    assert "No module named 'no_such_kernel'" in found["problems"]["apex.parallel"]


def test_a_rank_that_is_gone_has_no_line(tmp_path: Path) -> None:
    """A launcher's own is no child of the host, whose number would stay taken: it ends whenever it likes."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert processes.lines({gone.pid: str(tmp_path / "log")}) == {gone.pid: None}


def test_a_rank_that_cannot_be_started_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.subprocess, "Popen", Mock(side_effect=BlockingIOError))
    ours, theirs = socket.socketpair()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        server._start_fresh(str(tmp_path / "log"), {}, theirs, (), 0)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    ours.close()
    theirs.close()


def test_what_cannot_be_ended_is_named_on_any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a second host do not begin with 0. One that no signal ends is stuck in the kernel."""
    job = replace(JOB, ranks=(JOB.ranks[0], replace(JOB.ranks[1], host="other")))
    launch = supervisor.Launch(job, None, meet=Meet(host="other", address="127.0.0.1", port=1, interface=None))
    ended, used = Mock(), Mock(ru_utime=0.0, ru_stime=0.0)
    monkeypatch.setattr(supervisor, "_kill", ended)
    monkeypatch.setattr(supervisor, "end_children", lambda but: [7])
    monkeypatch.setattr(supervisor.os, "wait4", lambda pid, how: (0, 0, used))
    launch.ranks.append(supervisor.Rank(1, 5, Mock(), "", 0.0))
    supervisor._bury(launch)
    ended.assert_called_once_with([5])
    reasons = ["rank 1 (PID 5) is stuck", "what a rank had started could not be ended (PID 7)"]
    assert all(reason in one.reason and one.rank == 1 for reason, one in zip(reasons, launch.failures, strict=True))


@pytest.mark.parametrize(("device", "step", "named"), [("cuda", 0, True), ("cuda", 3, False), ("cpu", 0, False)])
def test_a_first_exchange_that_hangs(device: str, step: int, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the IOMMU is on, GPUs may find that they reach each other, and wait for ever."""
    launch = supervisor.Launch(replace(JOB, workload=replace(JOB.workload, device=device)), None)
    launch.ranks += [supervisor.Rank(one, 0, Mock(), "", 0.0, phase="build", step=step) for one in range(2)]
    monkeypatch.setattr(supervisor.processes, "lines", lambda logs: dict.fromkeys(logs))
    monkeypatch.setattr(supervisor.processes, "most_files", lambda pid: None)
    monkeypatch.setattr(supervisor, "_kill", Mock())
    supervisor._end_stalled(launch, "no progress for 120 s")
    assert ("; if it trains with NCCL_P2P_DISABLE=1, peer access hangs" in launch.failures[0].reason) == named


@pytest.mark.parametrize("rank", ["bench.worker", "bench.worker.restarted"])
def test_a_rank_without_its_launcher_ends(rank: str, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with socket.create_server(("127.0.0.1", 0)) as server:
        door = {"BENCH_SUPERVISOR": f"127.0.0.1:{server.getsockname()[1]}", "BENCH_TOKEN": "", "RANK": "0"}
        began = {**os.environ, **door, "TORCHELASTIC_RESTART_COUNT": "0", LAUNCHER: str(gone.pid)}
        began["PYTHONPATH"] = str(Path(__file__).parents[2])
        orphan = subprocess.run([sys.executable, "-m", rank, str(tmp_path)], env=began, capture_output=True, timeout=60)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (orphan.returncode, orphan.stderr) == (1, b"") and not any(tmp_path.iterdir())


RESTING = """
    import time
    session = parts.session()
    optimize = session.optimize
    session.optimize = lambda: (optimize(), time.sleep(0.1))
    return session
"""


def cpu_s(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def test_nobody_spins_while_ranks_run(execute: Callable[..., Executed], host: WorkerHost) -> None:
    began, own, hosts = time.monotonic(), time.process_time(), cpu_s(host.process.pid)
    done = execute(planted(RESTING, "group=False"), iters=20, global_batch=4)
    wall_s = time.monotonic() - began
    assert done.outcome.status == "ok", done.outcome.reason
    assert wall_s > 2.0
    assert time.process_time() - own < 0.1 * wall_s
    assert cpu_s(host.process.pid) - hosts < 0.1 * wall_s
