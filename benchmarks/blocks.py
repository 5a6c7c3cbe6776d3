"""A scenario that measures blocks of steps in turn, for ``overhead.py`` and ``sampler_effect.py``.

It runs in the ranks of a real launch: forked by the worker host, in its process group, with the session, the batches
and the progress messages that the launch has anyway. Once warm, and in place of the measured window, the ranks do
rounds ``ABBA`` and ``BAAB`` of short blocks until the time is up. A block is timed from outside, by the same lines for
A and for B, from a barrier until the device is done; marks are prepared, garbage is collected and collection is held
off before that. Beside each round stands how much of the machine other work took meanwhile: on a machine that is
shared, that is most of the noise.

BENCH_BLOCKS is a JSON object: ``what`` (``overhead`` or ``sampler``), ``strategy``, ``seconds``, ``block_ms``.
"""

import gc
import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.sample import Sampler
from bench.scenario import Scenario
from bench.worker import loop
from bench.worker.data import Batch
from bench.worker.parallel import STRATEGIES
from bench.worker.session import RankJob, Session, session_for

SCENARIO = Scenario(summary="blocks of steps in turn, for benchmarks/", strategy="custom", needs=("distributed",))

ORDERS = ("ABBA", "BAAB")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def setup(job: RankJob) -> Session:
    """The session of the scenario that was asked for, in a rank whose second window is preceded by the blocks."""
    ask = json.loads(os.environ["BENCH_BLOCKS"])
    run_window = loop.run_window
    warmed: list[loop.Timings] = []

    def window(
        session: Session,
        load: Callable[[], Batch],
        steps: int,
        *,
        device: torch.device,
        on_step: Callable[[int], None] = lambda step: None,
    ) -> loop.Timings:
        if warmed:
            steady_ms = sorted(warmed[0].step_ms)[len(warmed[0].step_ms) // 2]
            length = agree(max(2, -int(-ask["block_ms"] // steady_ms)), device)
            measure = {"overhead": overhead, "sampler": sampler}[ask["what"]]
            result = measure(Block(session, load, length, device, on_step), job, ask["seconds"])
            with open(os.path.join(job.job.scratch, f"blocks{job.rank}.json"), "w", encoding="utf-8") as file:
                json.dump({"steps": length, **result}, file)
        warmed.append(run_window(session, load, steps, device=device, on_step=on_step))
        return warmed[-1]

    loop.run_window = window  # of this rank alone, which is a process of this one launch
    return session_for(job, STRATEGIES[ask["strategy"]])


class Block:
    """``steps`` steps of one session, as bench measures them or bare, and how long they take."""

    def __init__(
        self,
        session: Session,
        load: Callable[[], Batch],
        steps: int,
        device: torch.device,
        on_step: Callable[[int], None],
    ) -> None:
        self.session = session
        self.load = load
        self.steps = steps
        self.device = device
        self.on_step = on_step
        self.clock = loop.clock_for(device)
        gc.collect()
        gc.freeze()  # so that collecting before each block takes no time to speak of
        gc.disable()

    def seconds(self, chain: Callable[[], None]) -> float:
        """Wall time of ``chain`` on this rank, from a barrier until its device is done."""
        self.clock.prepare(self.steps * loop.MARKS_PER_STEP + 1)
        gc.collect()
        barrier()
        self.wait()
        start = time.perf_counter_ns()
        chain()
        self.wait()
        return (time.perf_counter_ns() - start) / 1e9

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def bare(self) -> None:
        """The training loop and nothing else."""
        for _ in range(self.steps):
            images, labels = self.load()
            loss = self.session.forward(images, labels)
            self.session.backward(loss)
            self.session.optimize()

    def instrumented(self) -> None:
        """What :func:`bench.worker.loop.run_window` times: marks, losses and progress messages around the same."""
        losses: list[Tensor] = []
        loop._chain(self.session, self.load, self.steps, self.clock.mark, losses, self.on_step)


def overhead(block: Block, job: RankJob, seconds: float) -> dict[str, Any]:
    """A: bare; B: instrumented. And what instrumenting takes where the step does nothing."""
    chains = {"A": block.bare, "B": block.instrumented}
    return {
        "rounds": rounds(lambda kind: {"s": block.seconds(chains[kind])}, block.device, job.rank, seconds),
        "alone_us": loop_alone_us(block),
        "report_us": report_us(block),
    }


def sampler(block: Block, job: RankJob, seconds: float) -> dict[str, Any]:
    """A: the sampler process sleeps; B: it samples every rank of this launch. It belongs to rank 0.

    Asleep it is blocked in ``poll`` without a timeout, which costs nothing and spares a start before each block.
    """
    pids: list[int] = [0] * job.world_size
    pids[job.rank] = os.getpid()
    if dist.is_initialized():
        dist.all_gather_object(pids, os.getpid())
    process = None
    if job.rank == 0:
        process = Sampler.start(device=block.device.type, gpus=job.job.devices, spool=job.job.scratch, host="localhost")
        process.watch(-1, "blocks", 0, os.getpid())
        process.finish(-1)  # returns when it is up
    launches = iter(range(1_000_000))

    def measure(kind: str) -> dict[str, Any]:
        if process is None or kind == "A":
            return {"s": block.seconds(block.instrumented)}
        launch = next(launches)
        before_s = cpu_s(process.pid)
        for rank, pid in enumerate(pids):
            process.watch(launch, "blocks", rank, pid)
        watched_ns = time.perf_counter_ns()
        end_s = block.seconds(block.instrumented)
        on_ns = time.perf_counter_ns() - watched_ns
        memory, _ = process.finish(launch)
        samples = len({row["t_ns"] for row in memory if row["t_ns"] > watched_ns and row["used_mib"] is not None})
        return {"s": end_s, "on_s": on_ns / 1e9, "samples": samples, "sampler_cpu_s": cpu_s(process.pid) - before_s}

    barrier()
    started_s = cpu_s(process.pid) if process else 0.0
    result: dict[str, Any] = {
        "rounds": rounds(measure, block.device, job.rank, seconds, process.pid if process else None)
    }
    if process is not None:
        result["sampler_cpu_s"] = cpu_s(process.pid) - started_s
        result["sampler_cost"] = process.cost
        process.stop()
    return result


def rounds(
    measure: Callable[[str], dict[str, Any]], device: torch.device, rank: int, seconds: float, *helpers: int | None
) -> list[dict[str, Any]]:
    """As many rounds as ``seconds`` allow, rank 0 deciding. ``helpers``: PIDs that belong to the launch."""
    end = time.monotonic() + seconds
    done: list[dict[str, Any]] = []
    while agree(int(time.monotonic() < end), device):
        start_s, busy_s, ours_s = time.monotonic(), machine_busy_s(), own_cpu_s(rank, *helpers)
        blocks = [{"kind": kind, **measure(kind)} for kind in ORDERS[len(done) % 2]]
        done.append(
            {
                "blocks": blocks,
                "wall_s": time.monotonic() - start_s,
                "machine_busy_s": machine_busy_s() - busy_s,
                "own_cpu_s": own_cpu_s(rank, *helpers) - ours_s,
            }
        )
    return done


def machine_busy_s() -> float:
    """CPU seconds of all cores since boot in which anything ran, of a hypervisor's other guests too."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK_S


def own_cpu_s(rank: int, *helpers: int | None) -> float:
    """CPU seconds of this rank; for rank 0 also those of the worker host, of the command line and of the helpers."""
    used = time.process_time()
    if rank == 0:
        host = os.getppid()
        used += sum(cpu_s(pid) for pid in (host, parent_of(host), *helpers) if pid is not None)
    return used


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_S


def parent_of(pid: int) -> int:
    return int(stat_fields(pid)[1])


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on, after the name, which may hold anything."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rsplit(")", 1)[1].split()


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


def agree(value: int, device: torch.device) -> int:
    """Rank 0's value, on every rank."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor([value], device=device)
    dist.broadcast(shared, 0)
    return int(shared.item())


class Nothing:
    """A session whose step does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), device=device)

    def load(self) -> tuple[Tensor, Tensor]:
        return self.loss, self.loss

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.loss

    def backward(self, loss: Tensor) -> None:
        pass

    def optimize(self) -> None:
        pass


def loop_alone_us(block: Block) -> float:
    """Microseconds that instrumenting adds to a step that does nothing, without messages (median over blocks)."""
    nothing: Any = Nothing(block.device)
    empty = Block(nothing, nothing.load, 50, block.device, lambda step: None)
    taken: dict[str, list[int]] = {"A": [], "B": []}
    for kind in "ABBA" * 250:
        empty.clock.prepare(empty.steps * loop.MARKS_PER_STEP + 1)
        start = time.perf_counter_ns()
        (empty.bare if kind == "A" else empty.instrumented)()
        taken[kind].append(time.perf_counter_ns() - start)
    median = {kind: sorted(values)[len(values) // 2] for kind, values in taken.items()}
    return (median["B"] - median["A"]) / empty.steps / 1e3


def report_us(block: Block) -> float:
    """Microseconds that one progress message takes of a rank (median of 40)."""
    taken = []
    for _ in range(40):
        time.sleep(0.01)
        start = time.perf_counter_ns()
        block.on_step(0)
        taken.append(time.perf_counter_ns() - start)
    return sorted(taken)[len(taken) // 2] / 1e3
