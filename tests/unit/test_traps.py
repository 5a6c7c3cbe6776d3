"""Mistakes that benchmarks of training have been caught in, and that this one is free of each of them."""

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import Executed
from scipy import stats
from standin.documents import document
from standin.frames import launch_figures

from bench import machine
from bench.analyse.labels import what_ran
from bench.analyse.memory import peaks
from bench.analyse.steps import summary
from bench.core.errors import RequestError
from bench.core.records import MEMORY_COLUMNS, STEP_COLUMNS
from bench.runs.codec import decode
from bench.runs.document import Effective
from bench.sites.local import WorkerHost
from bench.worker import loop
from bench.worker.session import Session

GLOBAL_BATCH = 32
KEYS = ("launch", "scenario", "repeat", "rank", "step", "warmup", "step_ms")


def summarised(launches: list[list[float]], warmup: list[float] | None = None, memory: Any = ()) -> Any:
    """The row of the table for launches of one rank, given by their measured steps (ms), each after this warm-up."""
    slow = warmup or []
    rows = [
        dict(zip(KEYS, (number, "ddp", number, 0, step, step < len(slow), step_ms), strict=True))
        for number, steps in enumerate(launches)
        for step, step_ms in enumerate([*slow, *steps])
    ]
    run = document(workload={"global_batch": GLOBAL_BATCH}, launches=[{"launch": at} for at in range(len(launches))])
    used = pd.DataFrame(memory, columns=list(MEMORY_COLUMNS))
    figures = launch_figures(pd.DataFrame(rows, columns=list(STEP_COLUMNS)))
    (row,) = summary(run, figures, peaks(used)).to_dict("records")
    return row


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_throughput_is_not_multiplied_by_the_number_of_steps(steps: int) -> None:
    assert summarised([[50.0] * steps])["throughput_per_s"] == pytest.approx(GLOBAL_BATCH / 0.050)


def test_throughput_is_not_that_of_one_rank_times_the_ranks_nor_of_the_launches_together() -> None:
    assert summarised([[50.0] * 5] * 4)["throughput_per_s"] == pytest.approx(GLOBAL_BATCH / 0.050)


def test_warm_up_is_in_no_figure() -> None:
    steps = [[50.0, 51.0, 49.0, 50.0, 52.0]] * 3
    cold, never = summarised(steps, warmup=[500.0, 400.0]), summarised(steps)
    for name in ("throughput_per_s", "step_median_ms", "step_p95_ms", "step_high_ms"):
        assert cold[name] == never[name], name


@pytest.mark.parametrize("repeats", [1, 4])
def test_what_stands_behind_a_figure_is_an_interval_that_shrinks_and_no_deviation(repeats: int) -> None:
    """Student's t over launches on logarithms, written down again; 1.96 sigma would stay as wide as it is."""
    medians = [48.0, 49.0, 50.0, 51.0, 52.0] * repeats
    row = summarised([[median] * 3 for median in medians])
    logs = torch.tensor(medians, dtype=torch.float64).log()
    error = float(logs.std()) / len(medians) ** 0.5
    half = float(stats.t.ppf(0.975, len(medians) - 1)) * error
    middle = float(logs.mean())
    expected = [float(torch.tensor(middle + sign * half).exp()) for sign in (-1, 1)]
    assert [row["step_low_ms"], row["step_high_ms"]] == pytest.approx(expected, rel=1e-5)
    sigma = 1.96 * float(logs.std())
    assert half / sigma == pytest.approx({1: 0.633, 4: 0.239}[repeats], abs=0.002), "sigma is no interval"


def test_steps_of_a_launch_do_not_pass_for_launches() -> None:
    few, many = summarised([[49.0, 51.0]]), summarised([[49.0, 51.0] * 500])
    for row in (few, many):
        assert row["step_low_ms"] is None and row["half_width_percent"] is None


def test_memory_is_the_peak_of_one_moment() -> None:
    """Each of two processes has 1,000 MiB once, but never both: 1,100 MiB are what the machine must have."""
    used = {(0, 0): 1000.0, (0, 1): 100.0, (1, 0): 100.0, (1, 1): 1000.0}
    rows = [
        {"launch": 0, "scenario": "ddp", "t_ns": t_ns, "pid": 7 + rank, "rank": rank, "used_mib": mib, "source": "rss"}
        for (t_ns, rank), mib in used.items()
    ]
    row = summarised([[50.0] * 3], memory=rows)
    assert (row["peak_pid_mib"], row["peak_total_mib"]) == (1000.0, 1100.0)


# The clock is read when everything has happened


class Queue:
    """A clock like a GPU's: marks are queued, and happen 10 ms apart while somebody waits for them."""

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


class Instant(Session):
    """A session whose every call returns at once, as on a GPU, where the work has only been queued."""

    def __init__(self) -> None:
        pass

    def forward(self, batch: object) -> torch.Tensor:
        return torch.zeros(())

    def backward(self, loss: torch.Tensor) -> None:
        pass

    def optimize(self) -> None:
        pass


def test_the_clock_is_read_once_and_after_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the synchronisation left out, three steps would be read as no time at all, as they are queued in no time."""
    clock = Queue()
    monkeypatch.setattr(loop, "clock_for", lambda device: clock)
    batch = torch.zeros(1), torch.zeros(1)
    timings = loop.run_window(Instant(), lambda: batch, 3, device=torch.device("cpu"))
    marks = 3 * loop.MARKS_PER_STEP + 1
    assert clock.calls == ["prepare", *["mark"] * marks, "wait", "read"], "and nothing waits within the window"
    assert timings.step_ms == [40.0] * 3
    assert timings.wall_ms >= 10.0 * marks, "the host's time for the window ends when the work does"


def test_garbage_is_collected_before_the_clock_takes_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's first mark stands at that time, so what came between would make every step seem earlier."""
    clock = Queue()
    monkeypatch.setattr(loop, "clock_for", lambda device: clock)
    monkeypatch.setattr(gc, "collect", lambda: clock.calls.append("collect"))
    loop.run_window(Instant(), lambda: (torch.zeros(1), torch.zeros(1)), 1, device=torch.device("cpu"))
    assert clock.calls[:3] == ["collect", "prepare", "mark"]


# Names say what ran


def test_autocast_is_not_called_apex(execute: Callable[..., Executed]) -> None:
    done = execute("apex_ddp_o1", global_batch=4)
    assert done.outcome.status == "ok", done.outcome.reason
    ran = done.results[0]["effective"]
    assert (ran["precision_impl"], ran["parallel_impl"]) == ("native", "native")
    assert what_ran(decode(Effective, ran)) == "native flat-bucket · gloo ×2 · native O1 bf16"


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
    """CPU time, which other work on the machine does not add to, of the supervising process and of the worker host."""
    began, own, hosts = time.monotonic(), time.process_time(), cpu_s(host.process.pid)
    done = execute(RESTING, iters=20, global_batch=4)
    wall_s = time.monotonic() - began
    assert done.outcome.status == "ok", done.outcome.reason
    assert wall_s > 2.0
    assert time.process_time() - own < 0.1 * wall_s
    assert cpu_s(host.process.pid) - hosts < 0.1 * wall_s
