"""The sampler process: memory and device metrics, appended to a file after every sample.

No measured process waits for the driver or for this process, and its death costs only samples.
"""

import json
import select
import time
from collections import deque
from dataclasses import asdict, dataclass, field

from bench.core import children
from bench.core.channel import Channel, Message, die_with_parent
from bench.machine.nvml import Nvml, NvmlUnavailable, unknown_sample
from bench.machine.sample.attribution import Reading, unavailable
from bench.machine.sample.sources import GpuMemory, Nothing, Rss, given
from bench.runs.spool import Spool, spool_path

MEMORY_PERIOD_NS = 250_000_000
DEVICE_PERIOD_NS = 100_000_000
DUTY_CYCLE = 0.01
"""The share of the time that all sampling may take. Slower samples are taken less often."""
LINKS_EVERY = 10  # one sample in this many has the PCIe and NVLink counters: reading them is slow, and they only grow


class Clock:
    """Deadlines on a fixed grid, so that they never drift; missed ones are skipped.

    Samples that take more than their share of ``period_ns`` (mean of the last eight) skip points of the grid to stay
    within it. This is wall time: work in the driver and a wait for its lock look alike from here. The clock and the one
    ``beside`` it share :data:`DUTY_CYCLE`: each gets half of it, or more if free.
    """

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self.due_ns = 0
        self.beside: Clock | None = None
        self._taken = 0.0
        self._owed_ns = 0
        self._durations_ns: deque[int] = deque(maxlen=8)

    def start(self, due_ns: int) -> None:
        """Begin the grid at ``due_ns``, or later if earlier samples took that long."""
        self.due_ns = max(due_ns, self._owed_ns)

    def done(self, start_ns: int, end_ns: int) -> None:
        """Count a sample, and set the next deadline."""
        self._durations_ns.append(end_ns - start_ns)
        mean_ns = sum(self._durations_ns) / len(self._durations_ns)
        left = DUTY_CYCLE - (self.beside._taken if self.beside is not None else 0.0)
        duty = max(DUTY_CYCLE / 2, left)
        self._taken = min(duty, mean_ns / self.period_ns)
        self._owed_ns = start_ns + round(mean_ns / duty)
        earliest_ns = max(end_ns, self.due_ns + round(mean_ns / duty))
        points = -(-(earliest_ns - self.due_ns) // self.period_ns)
        self.due_ns += max(1, points) * self.period_ns

    @property
    def mean_ms(self) -> float:
        return sum(self._durations_ns) / max(1, len(self._durations_ns)) / 1e6


@dataclass(slots=True)
class Cost:
    """The time that one kind of sample took from a launch."""

    calls: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, duration_ns: int) -> None:
        self.calls += 1
        self.total_ms += duration_ns / 1e6
        self.max_ms = max(self.max_ms, duration_ns / 1e6)


@dataclass(slots=True, kw_only=True)
class Watched:
    """A launch that is being sampled.

    ``head``: launch, scenario and host of its rows. ``ranks``: rank by PID. ``devices``: by PID, None if unknown.
    ``seen``: the (PID, device) that had a row. ``answers``: by GPU, None once its processes could be listed, until then
    why not. ``probing``: PIDs with the probe. ``gaps``: GPUs whose list is no longer available. ``scrambled``: the
    driver's count at the start.
    """

    head: dict[str, object]
    spool: Spool
    ranks: dict[int, int] = field(default_factory=dict)
    devices: dict[int, tuple[str, ...] | None] = field(default_factory=dict)
    seen: set[tuple[int, str | None]] = field(default_factory=set)
    answers: dict[str, str | None] = field(default_factory=dict)
    probing: set[int] = field(default_factory=set)
    gaps: set[str] = field(default_factory=set)
    scrambled: int = 0
    costs: dict[str, Cost] = field(default_factory=lambda: {kind: Cost() for kind in ("memory", "device", "pss")})


class Loop:
    """Answers the command line and samples what it watches.

    ``nested``: whether PIDs may be those of another namespace (default: as ``/proc`` shows).
    ``at_once``: memory of GPUs, too, is sampled when a launch is first watched, and not a period later.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        device: str,
        gpus: list[str],
        spool: str,
        host: str,
        nested: bool | None = None,
        at_once: bool = False,
    ) -> None:
        self.channel = channel
        self.gpus = gpus if device == "cuda" else []
        self.folder = spool
        self.host = host
        self.at_once = at_once
        self.launches: dict[int, Watched] = {}
        self.device_ticks = 0
        self.counted_ns = 0
        """The CPU time (ns) of this process when its last sample or message was done."""
        self.memory_clock, self.device_clock = clocks()
        self.nvml: Nvml | None = None
        self.memory: Rss | GpuMemory | Nothing = Rss()
        if device != "cpu":
            try:
                self.nvml = Nvml()
            except NvmlUnavailable as error:
                self.memory = Nothing(str(error))
            else:
                self.memory = GpuMemory(self.nvml, gpus, nested=children.nested() if nested is None else nested)
                self.memory.read({})  # the first query of each kind is the slow one
                for uuid in gpus:
                    self.nvml.device_sample(uuid)

    def run(self) -> None:
        """Until the command line closes its end."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while not self.channel.closed:
            if poll.poll(self._sleep_ms()):
                for message in self.channel.receive():
                    self._hear(message)
            self._sample()

    def _hear(self, message: Message) -> None:
        getattr(self, f"_on_{message.pop('event')}")(**message)
        self.counted_ns = time.process_time_ns()  # this was not sampling

    def _sleep_ms(self) -> float | None:
        if not self.launches:
            return None
        due_ns = self.memory_clock.due_ns
        if self.nvml is not None:
            due_ns = min(due_ns, self.device_clock.due_ns)
        return max(0.0, (due_ns - time.perf_counter_ns()) / 1e6)

    def _on_begin(self, launch: int) -> None:
        if isinstance(self.memory, GpuMemory):
            self.memory.begin()
        self.channel.send(event="begun", launch=launch)

    def _on_watch(
        self, launch: int, scenario: str, rank: int, pid: int, devices: list[str] | None = None, begun: bool = False
    ) -> None:
        t_ns = time.perf_counter_ns()
        if not self.launches:
            self.memory_clock.start(t_ns + (0 if self.at_once and self.gpus else self.memory_clock.period_ns))
            self.device_clock.start(t_ns)
            self.device_ticks = 0
        if launch not in self.launches:
            head = {"launch": launch, "scenario": scenario, "host": self.host}
            self.launches[launch] = Watched(head=head, spool=Spool(spool_path(self.folder, launch)))
            if isinstance(self.memory, GpuMemory):
                self.launches[launch].scrambled = self.memory.nvml.scrambled
                if not begun:
                    self.memory.begin(survey=False)
        watched = self.launches[launch]
        watched.ranks[pid] = rank
        watched.devices[pid] = None if devices is None else tuple(devices)
        if self.gpus and self.nvml is None:
            unknown = given(self.gpus, {pid: watched.devices[pid]})
            self._write_devices(t_ns, {uuid: unknown_sample(self.memory.missing) for uuid in unknown}, watched)
        if isinstance(self.memory, Rss):  # a rank that just came is on no GPU yet
            self._sample_memory(t_ns, watched)  # all ranks at one time: there may be no other

    def _on_edge(self, launch: int) -> None:
        """A sample of the devices where the measured window begins or ends, however rarely they are sampled within:
        two of the driver's counter are enough for energy, and one of the throttle reasons for those."""
        if launch in self.launches and self.nvml is not None:
            self._sample_devices(self.nvml, time.perf_counter_ns(), 0)

    def _on_full(self, launch: int) -> None:
        """Take the proportional set sizes now that the measured steps are over, and nothing of a rank's memory after:
        the probe of its numerics is not memory of the training."""
        if isinstance(self.memory, Rss) and launch in self.launches:
            watched, start_ns = self.launches[launch], time.perf_counter_ns()
            readings, _ = self.memory.read(watched.devices)
            self._write_memory(start_ns, self.memory.with_pss(readings), watched)
            watched.costs["pss"].add(time.perf_counter_ns() - start_ns)
            watched.probing.update(watched.ranks)

    def _on_probe(self, launch: int, pid: int, stage: str) -> None:
        watched = self.launches[launch]
        if stage == "freed":
            watched.probing.discard(pid)
        elif isinstance(self.memory, GpuMemory):
            watched.probing.add(pid)
            start_ns = time.perf_counter_ns()
            self.memory.probe(pid, stage, watched.devices)
            watched.costs["memory"].add(time.perf_counter_ns() - start_ns)

    def _on_finish(self, launch: int) -> None:
        watched = self.launches.pop(launch)
        missing: list[tuple[int, str | None, str]] = []
        unlisted = [(uuid, reason) for uuid, reason in watched.answers.items() if reason is not None]
        why = self.memory.why if isinstance(self.memory, GpuMemory) else {}
        seen = {pid for pid, _ in watched.seen}
        for pid in watched.ranks:
            if watched.spool.problem is not None:
                missing.append((pid, None, watched.spool.problem))
            elif unlisted:
                missing += [(pid, uuid, reason) for uuid, reason in unlisted]
            elif pid not in seen:
                more = f": {why[pid]}" if why.get(pid) else ""
                missing.append((pid, None, self._slowness(watched) or f"{self.memory.missing}{more}"))
        watched.spool.close()
        self.channel.send(
            event="finished",
            launch=launch,
            missing=missing,
            cost={kind: asdict(cost) for kind, cost in watched.costs.items()},
            findings=self._findings(watched),
        )

    def _slowness(self, watched: Watched) -> str | None:
        """Why a launch has no sample at all: the last lists took too long."""
        if watched.answers or not isinstance(self.memory, GpuMemory):
            return None
        clock = self.memory_clock
        every = f"they come every {clock.period_ns / 1e9:g} s or more seldom"
        why = f"asking the driver takes {clock.mean_ms:.0f} ms and sampling may take {DUTY_CYCLE:.0%} of the time"
        return f"no sample was due while it ran: {every}, since {why}"

    def _findings(self, watched: Watched) -> dict[str, object]:
        findings: dict[str, object] = {"foreign": [], "scrambled_lists": 0, "probes": {}}
        if isinstance(self.memory, GpuMemory):
            nvml = self.memory.nvml
            findings["foreign"] = [
                {"device": uuid, "pid": pid, "name": nvml.process_name(pid), "peak_mib": peak_mib, "certain": certain}
                for (uuid, pid), (peak_mib, certain) in self.memory.foreign.items()
            ]
            findings["scrambled_lists"] = nvml.scrambled - watched.scrambled
            findings["probes"] = {watched.ranks[pid]: listed for pid, listed in self.memory.probed.items()}
        return findings

    def _sample(self) -> None:
        """Take the samples that are due. The first one includes the cost of waking up, which may be as large."""
        if not self.launches:
            return
        t_ns = time.perf_counter_ns()
        nvml = self.nvml if t_ns >= self.device_clock.due_ns else None
        memory_due = t_ns >= self.memory_clock.due_ns
        if nvml is None and not memory_due:
            return
        waking_ns = time.process_time_ns() - self.counted_ns
        if nvml is not None:
            self._sample_devices(nvml, t_ns, waking_ns)
            waking_ns = 0
        if memory_due:
            start_ns = time.perf_counter_ns()
            for watched in self.launches.values():
                self._sample_memory(t_ns, watched)
            self.memory_clock.done(start_ns - waking_ns, time.perf_counter_ns())
        self.counted_ns = time.process_time_ns()

    def _sample_devices(self, nvml: Nvml, t_ns: int, waking_ns: int) -> None:
        start_ns = time.perf_counter_ns()
        links = self.device_ticks % LINKS_EVERY == 0
        for watched in self.launches.values():
            gpus = given(self.gpus, watched.devices)
            self._write_devices(t_ns, {uuid: nvml.device_sample(uuid, links=links) for uuid in gpus}, watched)
        self.device_ticks += 1
        end_ns = time.perf_counter_ns()
        self.device_clock.done(start_ns - waking_ns, end_ns)
        for watched in self.launches.values():
            watched.costs["device"].add(end_ns - start_ns)

    def _sample_memory(self, t_ns: int, watched: Watched) -> None:
        start_ns = time.perf_counter_ns()
        readings, answers = self.memory.read(watched.devices)
        readings = [reading for reading in readings if reading.pid not in watched.probing]
        for uuid, reason in answers.items():
            readings += self._gap(watched, uuid, reason)
            if reason is None or uuid not in watched.answers:
                watched.answers[uuid] = reason
        self._write_memory(t_ns, readings, watched)
        watched.costs["memory"].add(time.perf_counter_ns() - start_ns)

    def _gap(self, watched: Watched, uuid: str, reason: str | None) -> list[Reading]:
        """If a GPU's list is no longer available: a row with the reason for each rank on it."""
        if reason is None:
            watched.gaps.discard(uuid)
            return []
        if uuid in watched.gaps or watched.answers.get(uuid, reason) is not None:
            return []
        watched.gaps.add(uuid)
        return [unavailable(pid, uuid, reason) for pid in sorted(pid for pid, device in watched.seen if device == uuid)]

    def _write_memory(self, t_ns: int, readings: list[Reading], watched: Watched) -> None:
        head = watched.head | {"t_ns": t_ns}
        watched.seen.update((reading.pid, reading.device) for reading in readings)
        watched.spool.append("memory", [reading.row(watched.ranks[reading.pid], **head) for reading in readings])

    def _write_devices(self, t_ns: int, samples: dict[str, dict[str, object]], watched: Watched) -> None:
        head = watched.head | {"t_ns": t_ns}
        watched.spool.append("device", [{**head, "device": uuid, **sample} for uuid, sample in samples.items()])


def clocks() -> tuple[Clock, Clock]:
    """Of memory and of devices."""
    memory, device = Clock(MEMORY_PERIOD_NS), Clock(DEVICE_PERIOD_NS)
    memory.beside, device.beside = device, memory
    return memory, device


def main(arguments: list[str]) -> int:
    """``FD PARENT_PID CONFIG``: CONFIG is a JSON object with the named parameters of :class:`Loop`."""
    fd, parent, config = arguments
    die_with_parent(int(parent))
    channel = Channel.from_fd(int(fd))
    loop = Loop(channel, **json.loads(config))
    channel.send(event="ready")
    loop.run()
    return 0
