"""Watches the ranks of one launch: relays what they report, and ends a launch that fails or makes no progress.

It sleeps in ``select`` while ranks run. The worker host (:mod:`bench.worker.host`) starts them.
"""

import errno
import os
import re
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.core.channel import Channel, Message
from bench.core.children import KILL_PATIENCE_S, end_children
from bench.core.errors import EXHAUSTED, remedy_of
from bench.core.files import log_end, text_from
from bench.core.job import TOO_SLOW, Job, Meet
from bench.worker import processes
from bench.worker.beats import Beats
from bench.worker.door import Door

STARTUP_FACTOR, FEWEST_STARTUP_S = 4.0, 30.0
"""How many times the stall timeout a rank may take from its start to the end of its first step, and at least."""

SLOW_STEP_FACTOR = 5.0
GRACE_AFTER_FAILURE_S = 1.0
EXIT_PATIENCE_S = 5.0
LOOK_EVERY_S = 1.0
SIGN_OF_LIFE_S = 5.0
PHASE_ORDER = ("start", "rendezvous", "build", "warmup", "measure", "record", "probe", "seal")


@dataclass(slots=True)
class Rank:
    """A rank that is alive or was. ``stopped_s``: since when a signal or a debugger holds it. ``result``: as JSON."""

    number: int
    pid: int
    channel: Channel
    log: str
    heard_s: float
    phase: str = "start"
    step: int = 0
    marks: int = 0
    longest_gap_s: float = 0.0
    result: str | None = None
    exit_status: int | None = None
    stopped_s: float | None = None
    loop_s: float | None = None

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def in_loop(self) -> bool:
        return self.phase in ("warmup", "measure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One sign that a launch went wrong. ``collateral``: only because another rank was gone. ``behind``: of a rank that
    hangs, its :func:`order`.
    """

    rank: int
    kind: str
    reason: str
    collateral: bool = False
    memory: dict[str, object] | None = None
    behind: tuple[float, ...] = ()


@dataclass(slots=True)
class Launch:
    """The ranks of the launch in hand, and its failures in order; a foreign launcher's ranks come in by ``door``."""

    job: Job
    beats: Beats | None
    oom_kills: int = 0
    launcher: subprocess.Popen[bytes] | None = None
    launcher_status: int | None = None
    door: Door | None = None
    meet: Meet | None = None
    started_s: float = field(default_factory=time.monotonic)
    cpu_s: float = 0.0
    ranks: list[Rank] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    failed_at_s: float | None = None
    killed_at_s: float | None = None
    last_look_s: float = 0.0
    doubted: bool = False

    @property
    def children(self) -> list[int]:
        """The PIDs of the children of the host; the first has the number of the group."""
        return [self.launcher.pid] if self.launcher is not None else [rank.pid for rank in self.ranks]

    @property
    def absent(self) -> list[int]:
        """The ranks of a foreign launcher that have not come yet."""
        expected = range(self.job.processes if self.door is not None else 0)
        return sorted(set(expected) - {rank.number for rank in self.ranks})

    @property
    def numbers(self) -> list[int]:
        """The ranks that this host starts."""
        ranks, meet = self.job.ranks, self.meet
        return [number for number, rank in enumerate(ranks) if meet is None or rank.host == meet.host]

    @property
    def launcher_log(self) -> str:
        return os.path.join(self.job.logs, self.job.log_name("launcher"))

    @property
    def over(self) -> bool:
        if self.launcher is not None:
            return self.launcher_status is not None
        return all(rank.exit_status is not None for rank in self.ranks)

    def fail(self, rank: int, kind: str, reason: str, **about: Any) -> None:
        """``about``: the other fields of :class:`Failure`."""
        if self.killed_at_s is None:  # else it is the consequence of our own signal
            self.failures.append(Failure(rank=rank, kind=kind, reason=reason, **about))
            self.failed_at_s = self.failed_at_s or time.monotonic()

    def silent(self, rank: Rank) -> bool:
        """Whether a rank that has ended has said nothing of how it went."""
        return not rank.finished and not any(failure.rank == rank.number for failure in self.failures)

    def cause(self) -> Failure | None:
        """The first failure that is not the consequence of another."""
        return min(self.failures, key=lambda failure: failure.collateral, default=None)

    def kill(self) -> None:
        """End the launch: its process group, and each rank that has left the group. All are reaped when it is over, so
        that no number can mean another process.
        """
        if self.killed_at_s is None and self.children:
            self.killed_at_s = time.monotonic()
            _kill(self.children)

    def where(self, rank: Rank) -> str:
        """The phase and step that a rank is in, as exactly as is known."""
        position = self.beats.position(rank.number) if self.beats is not None and rank.in_loop else None
        if position is None or position.done >= self.job.steps:
            return f"phase {rank.phase}, step {rank.step}"
        return f"phase {rank.phase}, {position.phase} of step {position.done}"


def _kill(pids: list[int]) -> None:
    """End the group that the first of these processes leads, and each of them, which may be in another group by now."""
    with suppress(ProcessLookupError):  # all of the group is gone
        os.killpg(pids[0], signal.SIGKILL)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def supervise(launch: Launch, control: Channel) -> None:
    """Wait for the ranks, relaying what they say; end them all when one fails or makes no progress."""
    own_cpu_s, last_sign_s = time.process_time(), time.monotonic()
    while not launch.over:
        if launch.killed_at_s is not None and time.monotonic() - launch.killed_at_s > KILL_PATIENCE_S:
            break  # a rank is stuck in the kernel, where no signal ends it
        open_channels = [rank.channel for rank in launch.ranks if not rank.channel.closed]
        doors: list[Any] = [launch.door.listener, *launch.door.callers] if launch.door is not None else []
        dying = any(rank.channel.closed and rank.exit_status is None for rank in launch.ranks)
        patience_s = 0.02 if dying else 0.2 if launch.failures else 1.0  # at most until progress is next checked
        readable, _, _ = select.select([control, *open_channels, *doors], [], [], patience_s)
        if control in readable:
            _obey(launch, control)
        _let_in(launch, readable)
        for rank in launch.ranks:
            if rank.channel in readable:
                _listen(launch, rank, control)
        _reap(launch, control)
        _check_progress(launch, control)
        if launch.failed_at_s is not None and time.monotonic() - launch.failed_at_s >= GRACE_AFTER_FAILURE_S:
            launch.kill()
        if time.monotonic() - last_sign_s > SIGN_OF_LIFE_S:
            control.send(event="alive")
            last_sign_s = time.monotonic()
    _bury(launch)
    cause = launch.cause()
    control.send(
        event="over",
        status=cause.kind if cause else "ok",
        reason=cause.reason if cause else None,
        first_failed_rank=cause.rank if cause else None,
        failure=_describe_failure(launch, cause) if cause else None,
        blame=[float(cause.collateral), float(cause.kind == "timeout"), *cause.behind] if cause else None,
        cpu_s=launch.cpu_s + time.process_time() - own_cpu_s,
        ranks=[{"rank": rank.number, "pid": rank.pid, "phase": rank.phase, "step": rank.step} for rank in launch.ranks],
        results=[rank.result for rank in launch.ranks if rank.finished],
        partial=_measured_so_far(launch) if launch.failures else [],
    )
    if launch.beats is not None:
        launch.beats.close()


def _let_in(launch: Launch, readable: list[object]) -> None:
    """Give the job to the ranks that have come from a foreign launcher."""
    for number, pid, channel in launch.door.admit(readable) if launch.door is not None else []:
        if number in launch.absent:
            log = os.path.join(launch.job.logs, launch.job.log_name(number))
            launch.ranks.append(Rank(number, pid, channel, log, time.monotonic()))
            launch.ranks.sort(key=lambda rank: rank.number)
            channel.send(event="job", job=asdict(launch.job))
        else:
            channel.close()


def _obey(launch: Launch, control: Channel) -> None:
    for message in control.receive():
        if message["event"] == "abort" and message["stalled"] and not launch.failures:
            _end_stalled(launch, message["reason"])
        elif message["event"] == "abort":
            first = launch.ranks[0].number if launch.ranks else 0
            launch.fail(first, "killed", message["reason"], collateral=message["collateral"])
            launch.kill()
    if control.closed:
        launch.kill()


def _listen(launch: Launch, rank: Rank, control: Channel) -> None:
    """Hear what a rank says. What no rank of bench says comes from the scenario, and fails its launch."""
    try:
        for message in rank.channel.receive():
            _hear(launch, rank, message, control)
    except (ValueError, RecursionError):
        rank.channel.closed = True
        where = f"rank {rank.number} in {launch.where(rank)}"
        launch.fail(rank.number, "error", f"{where}: it sent an invalid message")


def _hear(launch: Launch, rank: Rank, message: Message, control: Channel) -> None:
    match message:
        case {"event": "step", "step": int(step), "of": int()}:
            _progress(rank, step)
        case {"event": "phase", "phase": str(phase)}:
            rank.phase = phase
            if rank.in_loop and rank.loop_s is None:
                rank.loop_s = time.monotonic()
        case {"event": "error", "kind": "oom" | "error" as kind, "reason": str(reason), "collateral": bool(collateral)}:
            launch.fail(rank.number, kind, reason, collateral=collateral, memory=message.get("memory"))
        case {"event": "done", "result": str(result)}:
            rank.result = result
            message = {"event": "done"}
        case {"event": "up", "pid": int()} | {"event": "probe", "pid": int(), "stage": str()}:
            pass  # for the sampler
        case _:
            raise ValueError(message)
    rank.heard_s = time.monotonic()
    control.send(**message | {"rank": rank.number})


def _progress(rank: Rank, step: int) -> None:
    """A rank has come to the end of ``step`` steps: how long it was silent says how slow a step may be."""
    if rank.in_loop and rank.step:
        rank.longest_gap_s = max(rank.longest_gap_s, time.monotonic() - rank.heard_s)
    rank.step = step


def _hear_the_last(launch: Launch, rank: Rank, control: Channel) -> None:
    """Read a rank's last messages, from before it ended."""
    while not rank.channel.closed and select.select([rank.channel], [], [], 0)[0]:
        _listen(launch, rank, control)


def _reap(launch: Launch, control: Channel) -> None:
    """See which ranks have ended. They stay zombies until the launch is over, so that no PID means something else."""
    if launch.launcher is not None:
        _reap_launcher(launch, launch.launcher.pid, control)
        return
    for rank in launch.ranks:
        if rank.exit_status is not None:
            continue
        ended = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            continue
        _hear_the_last(launch, rank, control)
        rank.exit_status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        where = f"rank {rank.number} in {launch.where(rank)}"
        if rank.exit_status < 0:
            name = signal.Signals(-rank.exit_status).name
            out_of_memory = rank.exit_status == -signal.SIGKILL and oom_kills() > launch.oom_kills
            kind, by = ("oom", " when the machine was out of memory") if out_of_memory else ("killed", "")
            said = re.findall(r"what\(\): *(.+)", "\n".join(log_end(rank.log)))[:1]  # by gloo, or by NCCL's watchdog
            launch.fail(rank.number, kind, ": ".join((f"{where}: ended by {name}{by}", *said)))
        elif launch.silent(rank):
            *_, last = ["", *log_end(rank.log)]
            limit = f" ({last}; {remedy})" if (remedy := remedy_of(last)) else ""
            launch.fail(rank.number, "error", f"{where}: left with exit status {rank.exit_status} and no result{limit}")


def _reap_launcher(launch: Launch, pid: int, control: Channel) -> None:
    """See whether a foreign launcher has ended, and which of its ranks: those are its children and not the host's."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    for rank in launch.ranks:
        if rank.exit_status is not None or not (ended or rank.channel.closed):
            continue
        _hear_the_last(launch, rank, control)
        rank.exit_status = 0 if rank.finished else 1
        if launch.silent(rank):
            kind = "oom" if oom_kills() > launch.oom_kills else "killed"
            launch.fail(rank.number, kind, f"rank {rank.number} in {launch.where(rank)}: ended without a result")
    if ended:
        launch.launcher_status = ended.si_status
        if launch.absent:
            *_, last = ["nothing was printed", *log_end(launch.launcher_log)]
            reason = f"the launcher ended with status {ended.si_status} before rank {launch.absent[0]} came: {last}"
            launch.fail(launch.absent[0], "error", reason)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say (as in some sandboxes)."""
    counts = dict(line.split() for line in text_from("/proc/vmstat", 0).splitlines())
    return int(counts.get("oom_kill", 0))


def _check_progress(launch: Launch, control: Channel) -> None:
    """End a launch whose rank was silent for too long: slow machines get more time once a step has been timed."""
    now = time.monotonic()
    if now - launch.last_look_s < LOOK_EVERY_S or launch.failures:
        return
    launch.last_look_s = now
    stall_s = launch.job.stall_timeout_s
    startup_s = max(STARTUP_FACTOR * stall_s, FEWEST_STARTUP_S) * launch.job.slow_start
    if launch.absent:
        if now - launch.started_s > startup_s:
            reason = f"rank {launch.absent[0]} did not come within {startup_s:.0f} s; see {launch.launcher_log}"
            launch.fail(launch.absent[0], "timeout", reason)
            launch.kill()
    elif all(rank.finished and now - rank.heard_s > EXIT_PATIENCE_S for rank in launch.ranks):
        launch.kill()  # all results are there, and something that the scenario started keeps a rank from leaving
    for rank in launch.ranks:
        if rank.finished or rank.exit_status is not None:
            continue
        _look_at(launch, rank)
        starting = not rank.in_loop or rank.step == 0
        allowance = max(stall_s, startup_s if starting else 0.0, SLOW_STEP_FACTOR * rank.longest_gap_s)
        if launch.meet is not None and now - rank.heard_s > allowance / 2 and not launch.doubted:
            launch.doubted = True
            control.send(event="slow")  # that hosts look whether the others are there: nothing is measured any more
        if now - rank.heard_s > allowance:
            _end_stalled(launch, f"no progress for {allowance:.0f} s")
            return
        if rank.stopped_s is not None and now - rank.stopped_s > stall_s:
            _end_stalled(launch, f"a rank was stopped for {stall_s:.0f} s")
            return
        limit_s = launch.job.loop_limit_s
        if limit_s is not None and rank.in_loop and rank.loop_s is not None and now - rank.loop_s > limit_s:
            reason = f"{TOO_SLOW}: {rank.step} of {launch.job.steps} steps in {limit_s:.0f} s"
            launch.fail(rank.number, "timeout", reason)
            launch.kill()
            return


def _look_at(launch: Launch, rank: Rank) -> None:
    """Look at a rank without disturbing it: the marks of its loop, and whether it is stopped."""
    now = time.monotonic()
    if not processes.stopped(rank.pid):
        rank.stopped_s = None
    elif rank.stopped_s is None:
        rank.stopped_s = now
    position = launch.beats.position(rank.number) if launch.beats is not None and rank.in_loop else None
    marks = launch.beats.marks(rank.number) if launch.beats is not None else 0
    if position is not None and marks > rank.marks:
        if position.done > rank.step:
            _progress(rank, position.done)
        rank.marks, rank.heard_s = marks, now


def _end_stalled(launch: Launch, what: str) -> None:
    """Name the rank that hangs, and end the launch."""
    if not (alive := [rank for rank in launch.ranks if not rank.finished and rank.exit_status is None]):
        launch.kill()
        return
    lines = processes.lines({rank.pid: rank.log for rank in alive})
    seen = {
        rank.number: f"in {launch.where(rank)}"
        + (", stopped" if rank.stopped_s is not None else f", at {line.text}" if (line := lines[rank.pid]) else "")
        for rank in alive
    }
    culprit = min(alive, key=lambda rank: order(launch, rank, lines))
    others = "".join(f"; rank {number} waits {text}" for number, text in seen.items() if number != culprit.number)
    how = "hangs" if len(alive) > 1 and launch.meet is None else "is"
    remedy = "raise --stall-timeout if the machine is just slow"
    if launch.job.workload.device == "cuda" and launch.job.group and len(alive) > 1 and culprit.step == 0:
        remedy = f"if it trains with NCCL_P2P_DISABLE=1, peer access hangs (see IOMMU and ACS); {remedy}"
    for rank in alive:
        if (most := processes.most_files(rank.pid)) is not None:
            remedy = f"rank {rank.number} has {most} files open; {EXHAUSTED[errno.EMFILE]}"
    reason = f"{what}: rank {culprit.number} {how} {seen[culprit.number]}{others}; {remedy}"
    launch.fail(culprit.number, "timeout", reason, behind=order(launch, culprit, lines))
    launch.kill()


def order(launch: Launch, rank: Rank, lines: dict[int, processes.Line | None]) -> tuple[float, ...]:
    """The least is of the rank for which the others wait, on whichever host: one that is stopped; else the one that is
    behind all others; among equals the one in a line of the scenario and not in torch, where those that wait are; then
    the one that was silent for longest.
    """
    line = lines[rank.pid]
    marks = launch.beats.marks(rank.number) if launch.beats is not None else rank.step
    phase = PHASE_ORDER.index(rank.phase) if rank.phase in PHASE_ORDER else len(PHASE_ORDER)
    return rank.stopped_s is None, phase, marks, line is None or not line.own, rank.heard_s - time.monotonic()


def _bury(launch: Launch) -> None:
    """End whatever else the launch made, in its group or out of it, and wait for its ranks."""
    for rank in launch.ranks:
        rank.channel.close()
    if launch.door is not None:
        launch.door.close()
    if mine := launch.children:
        _kill(mine)
    if strays := end_children(but=mine):  # left by a rank, and ours since then: orphans of ranks come to the host
        reason = f"what a rank had started could not be ended (PID {strays[0]})"
        launch.failures.insert(0, Failure(rank=launch.numbers[0], kind="timeout", reason=reason))
    for number, pid in zip(launch.numbers, mine, strict=False):
        ended, _, used = os.wait4(pid, os.WNOHANG)
        launch.cpu_s += used.ru_utime + used.ru_stime
        if not ended:
            reason = f"rank {number} (PID {pid}) is stuck in the kernel and could not be ended"
            launch.failures.insert(0, Failure(rank=number, kind="timeout", reason=reason))


def _measured_so_far(launch: Launch) -> list[dict[str, object]]:
    """The steps of each rank that sent no result. None on a GPU, where a mark only says when work was issued."""
    beats = launch.beats
    if beats is None or launch.job.workload.device != "cpu" or launch.job.purpose != "measure":
        return []
    partial = [(rank.number, beats.steps(rank.number)) for rank in launch.ranks if not rank.finished]
    return [{"rank": number, "steps": steps} for number, steps in partial if steps]


def _describe_failure(launch: Launch, cause: Failure) -> dict[str, object]:
    rank = next((rank for rank in launch.ranks if rank.number == cause.rank), None)
    return {
        "rank": cause.rank,
        "phase": rank.phase if rank else "start",
        "step": rank.step if rank else 0,
        "where": launch.where(rank) if rank and launch.beats is not None else None,
        "memory": cause.memory,
        "log_end": log_end(rank.log) if rank else [],
        "others": [
            {"rank": other.rank, "kind": other.kind, "reason": other.reason, "collateral": other.collateral}
            for other in launch.failures
            if other is not cause
        ],
    }
