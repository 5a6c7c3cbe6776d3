"""A strategy that measures blocks of steps in turn, for the other scripts here.

It runs in the ranks of a real launch: brought to life by the worker host, in its process group, with the session, the
batches and the progress messages that the launch has anyway. Once warm, and before the measured window, the ranks do
blocks of steps of different kinds in turn. A block is timed from outside, by the same lines for every kind, from a
barrier until the device is done; marks are prepared, garbage is collected and collection is held off before that.

Blocks are short, on the CPU a single step, because what disturbs a step on a shared machine disturbs its neighbours
too: between neighbours it cancels. (Measured here: for the same total time, blocks of one step gave a standard error a
third of that of blocks of eight.) What happens only now and then in a run, a progress message or a sample, is made to
happen in every block of one kind; whoever reads the values weighs it with how often it happens.

``ask.json`` in the launch's folder: ``strategy``, and one after the other the ``measures`` of ``launching.Measure``.
Each rank leaves a list of what came of them.
"""

import gc
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from bench.core.channel import Channel
from bench.machine.sample import Sampler
from bench.seams import Strategy
from bench.worker import loop
from bench.worker.beats import Beats
from bench.worker.data import Batch
from bench.worker.session import Parts, Session

STRATEGY = Strategy(label="blocks of steps in turn")

TWO_KINDS = ("ABBA", "BAAB")
THREE_KINDS = ("ABCCBA", "CABBAC", "BCAACB")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def build(parts: Parts) -> Session:
    """The session of the scenario that was asked for, in a rank whose measured window is preceded by the blocks."""
    job = parts.job
    ask = json.loads(Path(job.logs, "ask.json").read_text())
    if any(one["what"] == "gate" for one in ask["measures"]):  # processes that are compared
        torch.backends.cudnn.benchmark = False  # its choice by timing differs from one to the next
    run_window = loop.run_window
    done = 0

    def window(
        session: Session,
        load: Callable[[], Batch],
        steps: int,
        *,
        device: torch.device,
        on_step: Callable[[int], None] = lambda step: None,
        note: Callable[[], None] | None = None,
    ) -> loop.Timings:
        nonlocal done
        if done == job.workload.warmup:  # which may come in several windows
            results = []
            for one in ask["measures"]:
                block = Block(session, load, one["steps"], device, on_step, one["times"])
                measure = {"overhead": overhead, "sampler": sampler, "gate": gate}[one["what"]]
                results.append(measure(block, parts, one["seconds"], one["peace_s"]))
            Path(job.logs, f"blocks{parts.rank}.json").write_text(json.dumps(results))
        done += steps
        return run_window(session, load, steps, device=device, on_step=on_step, note=note)

    loop.run_window = window  # of this rank alone, which is a process of this one launch
    return parts.build(ask["strategy"])


@dataclass
class Block:
    """``steps`` steps of one session, as bench measures them or bare, and how long they take.

    With ``times`` above 1 each step is preceded by ``times - 1`` steps that do nothing, bare ones in a bare block and
    instrumented ones in an instrumented block: instrumenting a step is lines of the host's that take microseconds, so
    many times over it shows.
    """

    session: Session
    load: Callable[[], Batch]
    steps: int
    device: torch.device
    on_step: Callable[[int], None]
    times: int = 1

    def __post_init__(self) -> None:
        self.clock = loop.clock_for(self.device)
        self.beats: Beats | None = None
        self.note: Callable[[], None] | None = None
        self.empty = empty_block(self.device, self.times - 1) if self.times > 1 else None
        gc.collect()
        gc.freeze()  # so that collecting before each block takes no time to speak of
        gc.disable()

    def seconds(self, chain: Callable[[], None], before: Callable[[], None] = lambda: None) -> float:
        """Wall time of ``chain`` on this rank, from a barrier (and ``before``) until its device is done."""
        self.prepare()
        gc.collect()
        if dist.is_initialized():
            dist.barrier()
        self.wait()
        before()
        start = time.perf_counter_ns()
        chain()
        self.wait()
        return (time.perf_counter_ns() - start) / 1e9

    def prepare(self, blocks: int = 1) -> None:
        """The marks of as many blocks."""
        self.clock.prepare(blocks * (self.steps * loop.MARKS_PER_STEP + 1))
        if self.beats is not None:
            self.beats.close()
        self.beats = Beats.create(1, 0, blocks * (self.steps + 1))
        self.note = self.beats.notes(0)
        if self.empty:
            self.empty.prepare(self.steps)

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def bare(self) -> None:
        """The training loop and nothing else."""
        for _ in range(self.steps):
            if self.empty:
                self.empty.bare()
            loss = self.session.forward(self.load())
            self.session.backward(loss)
            self.session.optimize()

    def instrumented(self) -> None:
        """What ``run_window`` times: the same with marks (in shared memory too), losses and a look at the clock."""
        self._instrumented(ignore)

    def reporting(self) -> None:
        """The same, with a progress message to the worker host after the first step."""
        self._instrumented(self.on_step)

    def _instrumented(self, on_step: Callable[[int], None]) -> None:
        losses: list[Tensor] = []
        mark = loop._noted(self.clock.mark, self.note)
        loop._chain(self.session, self._load_after_empty, self.steps, mark, losses, [], on_step)

    def _load_after_empty(self) -> Batch:
        if self.empty:
            self.empty.instrumented()
        return self.load()


def ignore(step: int) -> None:
    """In the place of a progress message."""


class Nothing(Session):
    """A session whose step does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), device=device)
        self.kept = Tensor.detach

    def load(self) -> Batch:
        return self.loss, self.loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss

    def backward(self, loss: Tensor) -> None:
        pass

    def optimize(self) -> None:
        pass


def empty_block(device: torch.device, steps: int) -> Block:
    """So many steps that do nothing."""
    nothing = Nothing(device)
    return Block(nothing, nothing.load, steps, device, ignore)


def overhead(block: Block, parts: Parts, seconds: float, peace_s: float) -> dict[str, Any]:
    """A: bare; B: instrumented; C: instrumented, with a progress message in each block."""
    chains = {"A": block.bare, "B": block.instrumented, "C": block.reporting}
    return {
        "rounds": rounds(THREE_KINDS, lambda kind: block.seconds(chains[kind]), block.device, parts.rank, seconds),
        "alone_us": alone_us(block.device),
    }


def sampler(block: Block, parts: Parts, seconds: float, peace_s: float) -> dict[str, Any]:
    """A: the sampler process sleeps; B: it is told to watch this launch as the block starts, and samples it at once.

    The process belongs to rank 0. Asleep it is blocked in ``poll`` without a timeout. At the end it watches at its own
    pace for a while, for what it takes then.
    """
    pids: list[int] = [os.getpid()] * parts.world_size
    if dist.is_initialized():
        dist.all_gather_object(pids, os.getpid())
    if parts.rank > 0:
        both = rounds(TWO_KINDS, lambda kind: block.seconds(block.instrumented), block.device, parts.rank, seconds)
        rounds((" ",), lambda kind: block.seconds(block.reporting), block.device, parts.rank, 0)
        return {"rounds": both}
    process = Sampler(
        device=block.device.type,
        gpus=parts.job.devices_on(parts.job.ranks[0].host),
        spool=parts.job.logs,
        host=os.uname().nodename,
        at_once=True,
    )
    launch = 0

    def watch() -> None:
        for rank, pid in enumerate(pids):
            process.watch(launch, "blocks", rank, pid)

    def measure(kind: str) -> float:
        nonlocal launch
        if kind == "A":
            return block.seconds(block.instrumented)
        launch += 1
        taken = block.seconds(block.instrumented, before=watch)
        process.finish(launch)
        return taken

    watch()
    process.finish(launch)  # returns when it is up
    both = rounds(TWO_KINDS, measure, block.device, 0, seconds, process.pid)
    launch += 1
    watch()
    started, before_s = time.monotonic(), cpu_s(process.pid)
    rounds((" ",), lambda kind: block.seconds(block.reporting), block.device, 0, peace_s)
    used_s, sampled_s = cpu_s(process.pid) - before_s, time.monotonic() - started
    process.finish(launch)
    process.stop()
    return {"rounds": both, "sampler_cpu_s": used_s, "sampled_s": sampled_s, "sampler_cost": process.cost}


def gate(block: Block, parts: Parts, seconds: float, peace_s: float) -> dict[str, Any]:
    """A block each time that the command line asks for one, so that two launches can take turns."""
    channel = None
    if parts.rank == 0:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.path.join(parts.job.logs, "gate"))
        channel = Channel(connection)
    done: list[dict[str, Any]] = []
    while True:
        asked = channel.wait_for("turn")["go_on"] if channel else 0
        if not agree(int(asked), block.device):
            return {"blocks": done}
        load = load_now(parts.rank, os.getppid())
        done.append({**load, "seconds": block.seconds(block.reporting)})
        if channel:
            channel.send(event="done")


def rounds(
    orders: tuple[str, ...],
    measure: Callable[[str], float],
    device: torch.device,
    rank: int,
    seconds: float,
    *helpers: int,
) -> list[dict[str, Any]]:
    """As many rounds as ``seconds`` allow, rank 0 deciding. ``helpers``: PIDs of others that belong to the launch.

    Beside each round stands the load at its start.
    """
    host = os.getppid()
    command_line = psutil.Process(host).ppid()
    end = time.monotonic() + seconds
    done: list[dict[str, Any]] = []
    while agree(int(time.monotonic() < end), device):
        load = load_now(rank, host, command_line, *helpers)
        blocks = [(kind, measure(kind)) for kind in orders[len(done) % len(orders)]]
        done.append({**load, "blocks": blocks})
    return done


def load_now(rank: int, *helpers: int) -> dict[str, float]:
    """The time, and the CPU seconds used so far by the machine and by this rank; rank 0 answers for the helpers too."""
    own_s = time.process_time() + (sum(map(cpu_s, helpers)) if rank == 0 else 0.0)
    return {"t_s": time.monotonic(), "machine_s": machine_s(), "own_s": own_s}


def machine_s() -> float:
    """CPU seconds of all cores since boot in which anything ran, of a hypervisor's other guests too."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK_S


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system, by the kernel's clock of it: /proc has ticks of 10 ms.

    The layout of that clock's id is in ``include/linux/posix-timers_types.h``; see ``man 3 clock_getcpuclockid``.
    """
    return time.clock_gettime((~pid << 3) | 2)


def agree(value: int, device: torch.device) -> int:
    """Rank 0's value, on every rank."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor([value], device=device)
    dist.broadcast(shared, 0)
    return int(shared.item())


def alone_us(device: torch.device) -> float:
    """Microseconds that instrumenting adds to a step that does nothing, without messages (median over blocks)."""
    empty = empty_block(device, 50)
    taken: dict[str, list[int]] = {"A": [], "B": []}
    for kind in "ABBA" * 250:
        empty.prepare()
        start = time.perf_counter_ns()
        (empty.bare if kind == "A" else empty.instrumented)()
        taken[kind].append(time.perf_counter_ns() - start)
    median = {kind: sorted(values)[len(values) // 2] for kind, values in taken.items()}
    return (median["B"] - median["A"]) / empty.steps / 1e3
