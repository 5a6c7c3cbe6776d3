"""The sampler process: memory and device metrics on a clock of its own, appended to a file.

It is a process of its own so that no measured process waits for the driver or for a lock of this one, and so that its
death costs samples and nothing else. It sleeps between samples; what it has seen is on disk after every sample.
"""

import json
import os
import select
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.channel import Channel, die_with_parent
from bench.nvml import Nvml, NvmlUnavailable, unknown_sample
from bench.sample.rss import resident_mib

MEMORY_PERIOD_NS = 250_000_000
DEVICE_PERIOD_NS = 100_000_000
DUTY_CYCLE = 0.01
"""The share of the time that a kind of sample may take. One that is slower comes at longer intervals instead."""


class Clock:
    """Deadlines on a fixed grid, so that they never drift; those that were missed are skipped.

    ``period_ns``: the spacing of the grid. A sample that takes longer than :data:`DUTY_CYCLE` of it (mean of the last
    eight) leaves out as many points of the grid as it takes to stay within.
    """

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self.due_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=8)

    def start(self, due_ns: int) -> None:
        """Lay the grid through ``due_ns``, the first deadline."""
        self.due_ns = due_ns

    def done(self, start_ns: int, end_ns: int) -> None:
        """Take in a sample made from ``start_ns`` to ``end_ns``, and set the next deadline."""
        self._durations_ns.append(end_ns - start_ns)
        mean_ns = sum(self._durations_ns) / len(self._durations_ns)
        earliest_ns = max(end_ns, self.due_ns + round(mean_ns / DUTY_CYCLE))
        points = -(-(earliest_ns - self.due_ns) // self.period_ns)
        self.due_ns += max(1, points) * self.period_ns


@dataclass(slots=True)
class Cost:
    """What one kind of sample took out of a launch."""

    calls: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, duration_ns: int) -> None:
        """Take in one sample."""
        self.calls += 1
        self.total_ms += duration_ns / 1e6
        self.max_ms = max(self.max_ms, duration_ns / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The memory of one process on one device at one moment."""

    pid: int
    device: str
    used_mib: float | None
    source: str
    reason: str | None = None


class Rss:
    """Host memory, for CPU ranks."""

    missing = "the process had ended before its first sample"

    def read(self, pids: Iterable[int]) -> tuple[list[Reading], dict[str, str | None]]:
        """A reading for each process that lives."""
        sizes = [(pid, resident_mib(pid)) for pid in pids]
        return [Reading(pid=pid, device="cpu", used_mib=mib, source="rss") for pid, mib in sizes if mib is not None], {}


class GpuMemory:
    """Device memory per process, from the driver's list of the chosen GPUs."""

    missing = "the driver lists no process with this PID (a container's PID namespace?)"

    def __init__(self, nvml: Nvml, gpus: list[str]) -> None:
        self.nvml = nvml
        self.gpus = gpus

    def read(self, pids: Iterable[int]) -> tuple[list[Reading], dict[str, str | None]]:
        """A reading for each process on each GPU that it is on, and per GPU why its list could not be had, or None."""
        wanted = set(pids)
        readings = []
        answers: dict[str, str | None] = {}
        for uuid in self.gpus:
            rows, reason = self.nvml.processes(uuid)
            answers[uuid] = None if rows else reason
            for pid, used_mib in rows:
                if pid not in wanted:
                    continue
                if used_mib is None:
                    reading = Reading(pid=pid, device=uuid, used_mib=None, source="unavailable", reason=reason)
                else:
                    reading = Reading(pid=pid, device=uuid, used_mib=used_mib, source="nvml_pid")
                readings.append(reading)
        return readings, answers


class Nothing:
    """In the place of a driver that cannot be asked."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self, pids: Iterable[int]) -> tuple[list[Reading], dict[str, str | None]]:
        """No reading."""
        return [], {}


class Spool:
    """The file that the samples of one launch are appended to, one JSON document a line: ``[table, row]``.

    Where the disk refuses, ``problem`` says why, and the launch goes on without further samples.
    """

    def __init__(self, path: str) -> None:
        self.problem: str | None = None
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            self._refused(error)

    def append(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Hand rows to the operating system, so that the death of this process does not lose them."""
        lines = "".join(json.dumps([table, row]) + "\n" for row in rows).encode()
        try:
            while lines and self.problem is None and self._fd is not None:
                lines = lines[os.write(self._fd, lines) :]
        except OSError as error:
            self._refused(error)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)

    def _refused(self, error: OSError) -> None:
        self.problem = f"the samples could not be written: {error.strerror}"


@dataclass(slots=True, kw_only=True)
class Watched:
    """A launch that is being sampled.

    ``ranks``: rank by PID. ``seen``: the PIDs that had a row. ``answers``: for each GPU None once its processes could
    be listed, and until then why not.
    """

    scenario: str
    spool: Spool
    ranks: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    answers: dict[str, str | None] = field(default_factory=dict)
    memory_cost: Cost = field(default_factory=Cost)
    device_cost: Cost = field(default_factory=Cost)


class Loop:
    """Answers the messages of the command line and samples what it watches; asleep otherwise."""

    def __init__(self, channel: Channel, *, device: str, gpus: list[str], spool: str, host: str) -> None:
        self.channel = channel
        self.gpus = gpus if device == "cuda" else []
        self.folder = spool
        self.host = host
        self.launches: dict[int, Watched] = {}
        self.memory_clock = Clock(MEMORY_PERIOD_NS)
        self.device_clock = Clock(DEVICE_PERIOD_NS)
        self.nvml: Nvml | None = None
        self.memory: Rss | GpuMemory | Nothing = Rss()
        if device == "cuda":
            try:
                self.nvml = Nvml()
            except NvmlUnavailable as error:
                self.memory = Nothing(str(error))
            else:
                self.memory = GpuMemory(self.nvml, gpus)
                self.memory.read(())  # the first query of each kind is the slow one
                for uuid in gpus:
                    self.nvml.device_sample(uuid)

    def run(self) -> None:
        """Until the command line closes its end."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while not self.channel.closed:
            if poll.poll(self._sleep_ms()):
                for message in self.channel.receive():
                    if message["event"] == "watch":
                        self._watch(message["launch"], message["scenario"], message["rank"], message["pid"])
                    else:
                        self._finish(message["launch"])
            self._sample()

    def _sleep_ms(self) -> float | None:
        if not self.launches:
            return None
        due_ns = self.memory_clock.due_ns
        if self.nvml is not None:
            due_ns = min(due_ns, self.device_clock.due_ns)
        return max(0.0, (due_ns - time.perf_counter_ns()) / 1e6)

    def _watch(self, launch: int, scenario: str, rank: int, pid: int) -> None:
        t_ns = time.perf_counter_ns()
        if not self.launches:
            self.memory_clock.start(t_ns + MEMORY_PERIOD_NS)
            self.device_clock.start(t_ns)
        if launch not in self.launches:
            self.launches[launch] = Watched(scenario=scenario, spool=Spool(spool_path(self.folder, launch)))
            if self.gpus and self.nvml is None:
                self._write_devices(t_ns, {uuid: unknown_sample(self.memory.missing) for uuid in self.gpus}, launch)
        self.launches[launch].ranks[pid] = rank
        self._sample_memory(t_ns, launch, [pid])

    def _finish(self, launch: int) -> None:
        watched = self.launches.pop(launch)
        missing: list[tuple[int, str | None, str]] = []
        unlisted = [(uuid, reason) for uuid, reason in watched.answers.items() if reason is not None]
        for pid in watched.ranks:
            if watched.spool.problem is not None:
                missing.append((pid, None, watched.spool.problem))
            elif unlisted:
                missing += [(pid, uuid, reason) for uuid, reason in unlisted]
            elif pid not in watched.seen:
                missing.append((pid, None, self.memory.missing))
        watched.spool.close()
        self.channel.send(
            event="finished",
            launch=launch,
            missing=missing,
            cost={"memory": asdict(watched.memory_cost), "device": asdict(watched.device_cost)},
        )

    def _sample(self) -> None:
        if not self.launches:
            return
        t_ns = time.perf_counter_ns()
        if self.nvml is not None and t_ns >= self.device_clock.due_ns:
            start_ns = time.perf_counter_ns()
            self._write_devices(t_ns, {uuid: self.nvml.device_sample(uuid) for uuid in self.gpus}, *self.launches)
            end_ns = time.perf_counter_ns()
            self.device_clock.done(start_ns, end_ns)
            for watched in self.launches.values():
                watched.device_cost.add(end_ns - start_ns)
        if t_ns >= self.memory_clock.due_ns:
            start_ns = time.perf_counter_ns()
            for launch, watched in self.launches.items():
                self._sample_memory(t_ns, launch, watched.ranks)
            self.memory_clock.done(start_ns, time.perf_counter_ns())

    def _sample_memory(self, t_ns: int, launch: int, pids: Iterable[int]) -> None:
        start_ns = time.perf_counter_ns()
        watched = self.launches[launch]
        readings, answers = self.memory.read(pids)
        for uuid, reason in answers.items():
            if reason is None or uuid not in watched.answers:
                watched.answers[uuid] = reason
        head = {"launch": launch, "scenario": watched.scenario, "host": self.host, "t_ns": t_ns}
        rows = [
            {
                **head,
                "pid": reading.pid,
                "rank": watched.ranks[reading.pid],
                "device": reading.device,
                "used_mib": reading.used_mib,
                "source": reading.source,
                "reason": reading.reason,
            }
            for reading in readings
        ]
        watched.seen.update(reading.pid for reading in readings)
        watched.spool.append("memory", rows)
        watched.memory_cost.add(time.perf_counter_ns() - start_ns)

    def _write_devices(self, t_ns: int, samples: dict[str, dict[str, Any]], *launches: int) -> None:
        for launch in launches:
            watched = self.launches[launch]
            head = {"launch": launch, "scenario": watched.scenario, "host": self.host, "t_ns": t_ns}
            watched.spool.append("device", [{**head, "device": uuid, **sample} for uuid, sample in samples.items()])


def spool_path(folder: str, launch: int) -> str:
    """Where the samples of a launch are."""
    return os.path.join(folder, f"samples-{launch}.jsonl")


def main(arguments: list[str]) -> int:
    """``FD PARENT_PID CONFIG``: CONFIG is a JSON object with ``device``, ``gpus``, ``spool`` and ``host``."""
    fd, parent, config = arguments
    die_with_parent(int(parent))
    channel = Channel.from_fd(int(fd))
    loop = Loop(channel, **json.loads(config))
    channel.send(event="ready")
    loop.run()
    return 0
