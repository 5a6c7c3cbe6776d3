"""Mistakes that benchmarks of training have been caught in, and that this one is free of each of them."""

import gc
import os
import time
from collections.abc import Callable
from unittest.mock import ANY, Mock, call

import pytest
import torch
from conftest import Executed
from standin.planted import planted
from standin.sessions import Sleepy

from bench import machine
from bench.core.errors import RequestError
from bench.sites.local import WorkerHost
from bench.worker import loop

# The clock is read when everything has happened


def test_the_clock_is_read_once_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the synchronisation left out, three steps would be read as no time at all, as they are queued in no time."""
    clock, session, marks = Mock(), Sleepy(), 3 * loop.MARKS_PER_STEP + 1
    clock.wait.side_effect = lambda alive: time.sleep(0.010 * marks)
    clock.read.side_effect = lambda: (0, [10.0] * (clock.mark.call_count - 1))
    monkeypatch.setattr(loop, "clock_for", lambda device: clock)
    monkeypatch.setattr(gc, "collect", clock.collect)
    timings = loop.run_window(session, session.load, 3, device=torch.device("cpu"))
    before = [call.collect(), call.prepare(marks)]  # a GPU's first mark stands at prepare: no garbage in between
    assert clock.mock_calls == [*before, *[call.mark()] * marks, call.wait(ANY), call.read()], "nothing waits within it"
    assert timings.step_ms == [40.0] * 3
    assert timings.wall_ms >= 10.0 * marks, "the host's time for the window ends when the work does"


def test_where_apex_was_asked_for_nothing_else_runs(execute: Callable[..., Executed]) -> None:
    done = execute("ddp_o1", impl="apex", global_batch=2)
    assert done.outcome.status == "error"
    assert "apex needs CUDA" in (done.outcome.reason or "")


@pytest.mark.parametrize(
    ("name", "device", "off", "on"),
    [
        ("CUDA_LAUNCH_BLOCKING", "cuda", ("0", ""), ("1", "yes")),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "cuda", ("0",), ("1",)),
        ("TORCH_DISTRIBUTED_DEBUG", "cpu", ("OFF", "INFO", ""), ("DETAIL", "detail")),
    ],
)
def test_a_variable_for_debugging_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, device: str, off: tuple[str, ...], on: tuple[str, ...]
) -> None:
    for value in off:
        monkeypatch.setenv(name, value)
        machine.refuse_debugging(device)
    for value in on:
        monkeypatch.setenv(name, value)
        assert machine.recorded_environment()[name] == value
        with pytest.raises(RequestError, match=f"unset {name}"):
            machine.refuse_debugging(device)
    if device == "cuda":
        machine.refuse_debugging("cpu")


RESTING = """
    import time
    session = parts.session()
    optimize = session.optimize
    session.optimize = lambda: (optimize(), time.sleep(0.1))
    return session
"""


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_nobody_spins_while_ranks_run(execute: Callable[..., Executed], host: WorkerHost) -> None:
    began, own, hosts = time.monotonic(), time.process_time(), cpu_s(host.process.pid)
    done = execute(planted(RESTING, "group=False"), iters=20, global_batch=4)
    wall_s = time.monotonic() - began
    assert done.outcome.status == "ok", done.outcome.reason
    assert wall_s > 2.0
    assert time.process_time() - own < 0.1 * wall_s
    assert cpu_s(host.process.pid) - hosts < 0.1 * wall_s
