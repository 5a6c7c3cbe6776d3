"""Mistakes that benchmarks of training have been caught in, and that this one is free of each of them."""

import gc
import os
import time
from collections.abc import Callable

import pytest
import torch
from conftest import Executed
from standin.sessions import Sleepy

from bench import machine
from bench.core.errors import RequestError
from bench.sites.local import WorkerHost
from bench.worker import loop

# The clock is read when everything has happened


class Queue:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.queued = self.happened = 0

    def prepare(self, marks: int) -> None:
        self.calls.append("prepare")
        self.room = marks

    def mark(self) -> None:
        self.calls.append("mark")
        self.queued += 1
        assert self.queued <= self.room

    def wait(self) -> None:
        self.calls.append("wait")
        time.sleep(0.010 * (self.queued - self.happened))
        self.happened = self.queued

    def read(self) -> tuple[int, list[float]]:
        self.calls.append("read")
        assert self.happened == self.queued, "the clock was read before the work was done"
        return 0, [10.0] * (self.queued - 1)


def test_the_clock_is_read_once_and_after_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the synchronisation left out, three steps would be read as no time at all, as they are queued in no time."""
    clock, session = Queue(), Sleepy()
    monkeypatch.setattr(loop, "clock_for", lambda device: clock)
    monkeypatch.setattr(gc, "collect", lambda: clock.calls.append("collect"))
    timings = loop.run_window(session, session.load, 3, device=torch.device("cpu"))
    marks = 3 * loop.MARKS_PER_STEP + 1
    before = ["collect", "prepare"]  # a GPU's first mark stands at the time of prepare: no garbage comes in between
    assert clock.calls == [*before, *["mark"] * marks, "wait", "read"], "and nothing waits within the window"
    assert timings.step_ms == [40.0] * 3
    assert timings.wall_ms >= 10.0 * marks, "the host's time for the window ends when the work does"


# Names say what ran


def test_where_apex_was_asked_for_nothing_else_runs(execute: Callable[..., Executed]) -> None:
    done = execute("ddp_o1", impl="apex", global_batch=2)
    assert done.outcome.status == "error"
    assert "apex needs CUDA" in (done.outcome.reason or "")


# The environment


@pytest.mark.parametrize(
    ("device", "value", "refused"),
    [("cuda", "1", True), ("cuda", "yes", True), ("cuda", "0", False), ("cuda", "", False), ("cpu", "1", False)],
)
def test_launch_blocking_is_refused(monkeypatch: pytest.MonkeyPatch, device: str, value: str, refused: bool) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    assert machine.recorded_environment()["CUDA_LAUNCH_BLOCKING"] == value
    if not refused:
        machine.refuse_blocking_launches(device)
        return
    with pytest.raises(RequestError, match="unset CUDA_LAUNCH_BLOCKING"):
        machine.refuse_blocking_launches(device)


# Who measures does not disturb

RESTING = """
    from bench.seams import Scenario, Strategy

    SCENARIO = Scenario(summary="sleeps", strategy=Strategy(label="planted", group=False))

    def build(parts):
        import time
        session = parts.session()
        optimize = session.optimize
        def rest():
            optimize()
            time.sleep(0.1)
        session.optimize = rest
        return session
"""


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_nobody_spins_while_ranks_run(execute: Callable[..., Executed], host: WorkerHost) -> None:
    began, own, hosts = time.monotonic(), time.process_time(), cpu_s(host.process.pid)
    done = execute(RESTING, iters=20, global_batch=4)
    wall_s = time.monotonic() - began
    assert done.outcome.status == "ok", done.outcome.reason
    assert wall_s > 2.0
    assert time.process_time() - own < 0.1 * wall_s
    assert cpu_s(host.process.pid) - hosts < 0.1 * wall_s
