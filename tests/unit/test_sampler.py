"""The sampler on real processes: what they allocate shows, the clock does not drift, and its death is survived."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
from conftest import planned
from standin.processes import alive
from standin.processes import wait_for as until

import bench.machine.sample
import bench.machine.sample.sources
from bench.core.channel import Channel
from bench.core.records import MEMORY_COLUMNS
from bench.experiments import launch
from bench.machine.sample import Sampler
from bench.machine.sample.process import DUTY_CYCLE, MEMORY_PERIOD_NS, Clock, Loop, clocks
from bench.machine.sample.sources import proportional_mib, resident_mib
from bench.runs.spool import read_spool, spool_path

ALLOCATOR = """
import sys
kept = []
for line in sys.stdin:
    kept.append(b"x" * (int(line) << 20))
    print("done", flush=True)
"""

JOB = planned().job


class Child:
    def __init__(self) -> None:
        words = [sys.executable, "-c", ALLOCATOR]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.allocate(0)

    def allocate(self, mib: int) -> None:
        print(mib, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    two = [Child(), Child()]
    yield two
    for child in two:
        child.end()


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    sampler = Sampler(device="cpu", gpus=(), spool=str(tmp_path), host="node1")
    yield sampler
    sampler.stop()
    assert not psutil.pid_exists(sampler.pid)


def moments(folder: Path, launch: int = 0) -> list[int]:
    return sorted({row["t_ns"] for row in read_spool(spool_path(str(folder), launch))["memory"]})


def test_missed_deadlines_are_skipped() -> None:
    clock = Clock(250)
    clock.start(1_000)
    deadlines = []
    for lateness in (0, 3, 120, 7, 249, 510, 1):
        deadlines.append(clock.due_ns)
        clock.done(clock.due_ns + lateness, clock.due_ns + lateness)
    assert deadlines == [1_000, 1_250, 1_500, 1_750, 2_000, 2_250, 3_000]


@pytest.mark.parametrize(
    ("durations_ms", "interval_ms"),
    [
        *(([0.1], 250), ([2.5], 250), ([2.6], 500), ([10.0], 1000), ([11.0], 1250)),
        *(([0.05] * 7 + [20.0], 500), ([20.0] + [0.05] * 8, 250)),  # one slow one, just now and a while ago
    ],
)
def test_slow_samples_keep_the_duty_cycle(durations_ms: list[float], interval_ms: int) -> None:
    clock = Clock(MEMORY_PERIOD_NS)
    clock.start(0)
    for duration_ms in durations_ms:
        due_ns = clock.due_ns
        clock.done(due_ns, due_ns + round(duration_ms * 1e6))
    assert clock.due_ns - due_ns == interval_ms * 1_000_000


def test_sizes_are_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that n processes share counts 1/n in a proportional size."""
    here = psutil.Process().memory_full_info()
    assert resident_mib(os.getpid()) == pytest.approx(here.rss / 2**20, rel=0.05)
    pss_mib, reason = proportional_mib(os.getpid())
    assert (pss_mib, reason) == (pytest.approx(here.pss / 2**20, rel=0.05), None)
    process = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert resident_mib(process.pid) is None
    process.wait()
    assert resident_mib(process.pid) is None and proportional_mib(process.pid) == (None, "the process had ended")

    def refused(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", refused)
    assert proportional_mib(1) == (None, "the kernel does not let us read /proc/1/smaps_rollup")


def test_proportional_sizes_after_the_steps(sampler: Sampler, children: list[Child], tmp_path: Path) -> None:
    for rank, child in enumerate(children):
        sampler.hear(JOB, {"event": "up", "rank": rank, "pid": child.pid})
    until(lambda: len(moments(tmp_path)) >= 3)
    sampler.hear(JOB, {"event": "phase", "phase": "record", "rank": 1})
    time.sleep(0.4)
    assert not [row for row in read_spool(spool_path(str(tmp_path), 0))["memory"] if row["pss_mib"] is not None]
    sampler.hear(JOB, {"event": "phase", "phase": "record", "rank": 0})
    memory, _ = sampler.finish(0)
    full = [row for row in memory if row["pss_mib"] is not None]
    assert [row["rank"] for row in full] == [0, 1]
    assert all(0 < row["pss_mib"] <= row["used_mib"] and row["reason"] is None for row in full)
    assert sampler.cost is not None and sampler.cost["pss"]["calls"] == 1


def a_loop(folder: Path) -> Loop:
    return Loop(Channel(socket.socketpair()[1]), device="cpu", gpus=[], spool=str(folder), host="h")


@pytest.mark.parametrize(("memory_ms", "device_ms"), [(20, 20), (20, 1), (1, 20)])
def test_both_clocks_together_stay_within_one_percent(memory_ms: int, device_ms: int) -> None:
    memory, device = clocks()
    now_ns, spent_ms, calls = 0, 0, Counter[Clock]()
    while now_ns < 300e9:
        clock = min(memory, device, key=lambda one: one.due_ns)
        start_ns, ms = max(now_ns, clock.due_ns), memory_ms if clock is memory else device_ms
        now_ns = start_ns + ms * 1_000_000
        clock.done(start_ns, now_ns)
        spent_ms, calls[clock] = spent_ms + ms, calls[clock] + 1
    assert 0.7 * DUTY_CYCLE < spent_ms / 300_000 <= 1.02 * DUTY_CYCLE and min(calls.values()) > 70


def test_what_waking_up_takes_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves by what is spent: 2.5 ms to wake up and 0.3 ms to look, in five minutes of a launch."""
    clock, loop = SimpleNamespace(now_ns=0, used_ns=0), a_loop(tmp_path)

    def spend(ms: float, found: Any = None) -> Any:
        clock.now_ns += round(ms * 1e6)
        clock.used_ns += round(ms * 1e6)
        return found

    monkeypatch.setattr(bench.machine.sample.sources, "resident_mib", lambda pid: spend(0.3, 1.0))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr(time, "process_time_ns", lambda: clock.used_ns)
    spend(5000)
    assert loop._sleep_ms() is None, "it sleeps while nothing is watched"
    loop._hear({"event": "watch", "launch": 0, "scenario": "s", "rank": 0, "pid": 1})
    clock.used_ns = 0
    while clock.now_ns < 300e9:
        clock.now_ns = max(clock.now_ns, loop.memory_clock.due_ns)
        spend(2.5)
        loop._sample()
    samples = loop.launches[0].costs["memory"].calls - 1  # the first was asked for
    assert clock.used_ns / 300e9 <= DUTY_CYCLE and (loop._sleep_ms() or 0.0) > 50
    assert 0.9 * 300 / 0.5 < samples <= 300 / 0.5, "2.8 ms: every 500 ms, and not less, for what was before them"


def test_a_rank_is_sampled_with_all_that_are_there_as_soon_as_it_is_watched(
    children: list[Child], tmp_path: Path
) -> None:
    loop = a_loop(tmp_path)
    for rank, child in enumerate(children):
        loop._hear({"event": "watch", "launch": 0, "scenario": "ddp", "rank": rank, "pid": child.pid})
        assert len(moments(tmp_path)) == rank + 1
    rows = read_spool(spool_path(str(tmp_path), 0))["memory"]
    assert [row["rank"] for row in rows if row["t_ns"] == rows[-1]["t_ns"]] == [0, 1]


def test_launches_have_their_own_rows(sampler: Sampler, children: list[Child], tmp_path: Path) -> None:
    """What a process allocates shows in its own. None of a process that has ended; of one that ended before it could be
    sampled, the reason."""
    gone, here = children
    sampler.watch(1, "ddp_o2", 0, here.pid)
    sampler.watch(1, "ddp_o2", 1, gone.pid)
    until(lambda: len(moments(tmp_path, 1)) >= 2)
    began_ns = time.perf_counter_ns()
    here.allocate(200)
    grown_ns = time.perf_counter_ns()
    until(lambda: moments(tmp_path, 1)[-1] > grown_ns)
    gone.end()
    ended_ns = time.perf_counter_ns()
    until(lambda: moments(tmp_path, 1)[-1] > ended_ns)
    second, device = sampler.finish(1)
    assert device == [] and all(list(row) == list(MEMORY_COLUMNS) for row in second)
    assert {(row["rank"], row["pid"]) for row in second if row["t_ns"] < ended_ns} == {(0, here.pid), (1, gone.pid)}
    assert {(row["host"], row["device"], row["source"], row["reason"]) for row in second} == {
        ("node1", "cpu", "rss", None)
    }
    for pid, rise in ((here.pid, 200), (gone.pid, 0)):
        sizes = {row["t_ns"]: row["used_mib"] for row in second if row["pid"] == pid}
        low = max(size for t_ns, size in sizes.items() if t_ns < began_ns)
        assert sizes[max(sizes)] - low == pytest.approx(rise, abs=10)
    assert {row["rank"] for row in second if row["t_ns"] > ended_ns} == {0} and all(row["used_mib"] for row in second)
    sampler.watch(0, "ddp", 0, gone.pid)
    sampler.watch(0, "ddp", 1, here.pid)
    first, _ = sampler.finish(0)
    assert {(row["launch"], row["scenario"]) for row in first} == {(0, "ddp")}
    early = (0, "unavailable", "the process had ended before its first sample")
    assert {(row["rank"], row["source"], row["reason"]) for row in first} == {early, (1, "rss", None)}
    assert {(row["launch"], row["scenario"]) for row in second} == {(1, "ddp_o2")}
    assert sampler.finish(2) == ([], [])


def test_the_sampler_begins_before_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = MagicMock()
    lab.start.side_effect = InterruptedError
    monkeypatch.setattr(launch, "execute", lab.start)
    with pytest.raises(InterruptedError):
        launch.perform(replace(JOB, launch=3), lab, "measuring", str)
    assert [call[:2] for call in lab.mock_calls if call[0] == "sampler.begin"] == [("sampler.begin", (3,))]


def test_a_killed_sampler_leaves_its_samples(sampler: Sampler, children: list[Child], tmp_path: Path) -> None:
    sampler.watch(0, "ddp", 0, children[0].pid)
    sampler.watch(0, "ddp", 1, children[1].pid)
    until(lambda: len(moments(tmp_path)) >= 4)
    died = sampler.pid
    os.kill(died, signal.SIGKILL)
    sampler.watch(0, "ddp", 2, children[1].pid + 1)
    memory, _ = sampler.finish(0)
    assert len({row["t_ns"] for row in memory if row["source"] == "rss"}) >= 4
    lost = [row for row in memory if row["source"] == "unavailable"]
    assert [(row["rank"], row["used_mib"]) for row in lost] == [(0, None), (1, None), (2, None)]
    assert all(list(row) == list(MEMORY_COLUMNS) for row in lost)
    assert all(str(died) in row["reason"] and "SIGKILL" in row["reason"] for row in lost)
    assert sampler.pid != died and sampler.findings is None
    sampler.watch(1, "ddp", 0, children[0].pid)
    later, _ = sampler.finish(1)
    assert {row["source"] for row in later} == {"rss"}


BENCH = """
import os, sys, time
from bench.machine.sample import Sampler
sampler = Sampler(device="cpu", gpus=(), spool=sys.argv[1], host="node1")
sampler.watch(0, "ddp", 0, os.getpid())
print(sampler.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_bench_even_while_it_is_stopped(tmp_path: Path) -> None:
    bench = subprocess.Popen([sys.executable, "-c", BENCH, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    sampler = int(bench.stdout.readline())
    until(lambda: len(moments(tmp_path)) >= 2)
    os.kill(sampler, signal.SIGSTOP)  # so that it cannot notice by itself that bench is gone
    try:
        bench.kill()
        bench.communicate()
        until(lambda: not alive(sampler), 5.0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(sampler, signal.SIGKILL)


def test_a_deaf_one(sampler: Sampler, children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler.watch(0, "ddp", 0, children[0].pid)
    until(lambda: len(moments(tmp_path)) >= 2)
    monkeypatch.setattr(bench.machine.sample, "ANSWER_LIMIT_S", 0.5)
    stopped = sampler.pid
    os.kill(stopped, signal.SIGSTOP)
    memory, _ = sampler.finish(0)
    assert [row["source"] for row in memory][-2:] == ["rss", "unavailable"]
    assert "did not answer within 0.5 s" in memory[-1]["reason"]
    assert not psutil.pid_exists(stopped)


def test_the_last_words_of_a_failed_sampler(sampler: Sampler, children: list[Child]) -> None:
    sampler.watch(0, "ddp", 0, children[0].pid)
    sampler._channel.send(event="finish", launch=99)
    memory, _ = sampler.finish(0)
    assert memory[-1]["source"] == "unavailable"
    assert "ended with exit code 1 (KeyError: 99)" in memory[-1]["reason"]


def test_the_sampler_survives_a_full_disk(tmp_path: Path) -> None:
    Path(spool_path(str(tmp_path), 0)).symlink_to("/dev/full")
    ours, theirs = socket.socketpair()
    line = Channel(ours)
    line.send(event="watch", launch=0, scenario="ddp", rank=0, pid=os.getpid())
    line.send(event="finish", launch=0)
    ours.shutdown(socket.SHUT_WR)
    Loop(Channel(theirs), device="cpu", gpus=[], spool=str(tmp_path), host="node1").run()
    reason = "the samples could not be written: No space left on device"
    assert line.receive()[0]["missing"] == [[os.getpid(), None, reason]]
