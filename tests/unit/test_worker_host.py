"""Launching: what a rank finds, how each kind of failure is told, and that nothing is left behind."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Executed, request_for

from bench import discover
from bench.launch.local import WorkerHost
from bench.plan import launches
from bench.records import job_to_json

FAILING = """
    from bench.scenario import Scenario

    SCENARIO = Scenario(summary="fails", strategy="custom", needs=("distributed",))

    def setup(job):
        import os, signal, sys, time, torch
        from bench.worker.parallel import distributed_data_parallel
        from bench.worker.session import session_for
        if job.rank == 1:
            {fault}
        return session_for(job, wrap=distributed_data_parallel)
"""


def alive(pid: int) -> bool:
    """Whether a process of this id runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("raise ValueError('planted')", "error", "ValueError: planted"),
        ("sys.exit(3)", "error", "SystemExit: 3"),
        ("os._exit(0)", "error", "exit status 0 and no result"),
        ("os._exit(7)", "error", "exit status 7 and no result"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "ended by SIGKILL"),
        ("torch.empty(10**15)", "oom", "allocate memory"),
        ("raise MemoryError", "oom", "MemoryError"),
    ],
)
def test_the_first_failure_is_named_and_every_rank_is_gone(
    execute: Callable[..., Executed], fault: str, status: str, reason: str
) -> None:
    started = time.monotonic()
    done = execute(FAILING.format(fault=fault))
    assert done.outcome.status == status
    assert reason in (done.outcome.reason or "")
    assert done.outcome.first_failed_rank == 1, "rank 0 failed only because rank 1 was gone"
    assert time.monotonic() - started < 20
    assert not any(alive(rank["pid"]) for rank in done.outcome.ranks)


def test_a_rank_that_makes_no_progress_is_ended(execute: Callable[..., Executed]) -> None:
    source = FAILING.format(fault="pass").replace(
        "return session_for(job, wrap=distributed_data_parallel)",
        "session = session_for(job, wrap=distributed_data_parallel)\n"
        "        optimize, calls = session.optimize, []\n"
        "        def sometimes():\n"
        "            calls.append(1)\n"
        "            if len(calls) == 20 and job.rank == 1:\n"
        "                time.sleep(600)\n"
        "            optimize()\n"
        "        session.optimize = sometimes\n"
        "        return session",
    )
    done = execute(source, iters=40, stall_timeout_s=3.0)
    assert done.outcome.status == "timeout"
    assert "--stall-timeout" in (done.outcome.reason or "")
    assert not any(alive(rank["pid"]) for rank in done.outcome.ranks)


def test_the_host_serves_on_after_a_failure(execute: Callable[..., Executed], host: WorkerHost) -> None:
    execute(FAILING.format(fault="os._exit(1)"))
    done = execute("ddp")
    assert done.outcome.status == "ok", done.outcome.reason
    threads = len(os.listdir(f"/proc/{host.process.pid}/task"))
    assert threads == 1, "every fork of a host with threads is a gamble"


@pytest.mark.slow
def test_a_launch_through_fresh_interpreters_gives_the_same_losses(
    execute: Callable[..., Executed], tmp_path: Path
) -> None:
    forked = execute("ddp", iters=3)
    with WorkerHost(python=None, fresh=True, apex_path=None, log=str(tmp_path / "log"), device="cpu") as fresh_host:
        fresh_host.wait_until_ready()
        fresh = execute("ddp", on=fresh_host, iters=3)
    assert fresh.outcome.status == "ok", fresh.outcome.reason
    for rank in (0, 1):
        assert fresh.results[rank]["measured"]["loss"] == forked.results[rank]["measured"]["loss"]


def test_ranks_die_with_the_host(tmp_path: Path) -> None:
    """SIGKILL of the host leaves no rank (the tie of the host to the command line is in tests/cli/test_run.py)."""
    found = discover.load(*discover.resolve("ddp"))
    (planned,) = launches(request_for((found,), iters=100000), (found,), cores=2)
    host = WorkerHost(python=None, fresh=False, apex_path=None, log=str(tmp_path / "log"), device="cpu")
    host.wait_until_ready()
    job = replace(planned.job, scratch=str(tmp_path), logs=str(tmp_path))
    host.channel.send(event="launch", job=job_to_json(job))
    pids: list[int] = []
    while len(pids) < 2:
        pids += [message["pid"] for message in host.channel.receive() if message["event"] == "up"]
    host.process.kill()
    host.close()
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_ranks_listen_on_loopback_alone(execute: Callable[..., Executed]) -> None:
    done = execute(
        FAILING.format(
            fault="pass\n"
            "        lines = open('/proc/self/net/tcp').read().split('\\n')[1:-1]\n"
            "        inodes = {os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')\n"
            "                  if os.path.exists(f'/proc/self/fd/{fd}')}\n"
            "        mine = [l.split() for l in lines if f'socket:[{l.split()[9]}]' in inodes]\n"
            "        listening = [f[1] for f in mine if f[3] == '0A']\n"
            "        assert all(address.startswith('0100007F') for address in listening), listening"
        )
    )
    assert done.outcome.status == "ok", done.outcome.reason


@pytest.mark.slow
def test_apex_is_probed_in_the_workers_interpreter(tmp_path: Path) -> None:
    """An apex that has both modules on disk, but one that fails to import, is told apart module by module."""
    for module in ("amp", "parallel"):
        (tmp_path / "apex" / module).mkdir(parents=True)
    (tmp_path / "apex" / "__init__.py").write_text("")
    (tmp_path / "apex" / "amp" / "__init__.py").write_text("")
    (tmp_path / "apex" / "parallel" / "__init__.py").write_text("import no_such_kernel\n")
    log = tmp_path / "log"
    with WorkerHost(python=None, fresh=False, apex_path=str(tmp_path), log=str(log), device="cpu") as host:
        found = host.wait_until_ready()["apex"]
    assert found["kind"] == "nvidia"
    assert found["problems"]["apex.amp"] is None
    assert "No module named 'no_such_kernel'" in found["problems"]["apex.parallel"]
