"""The worker host: imports torch and torchvision once, then forks the ranks of each launch.

It touches no device and starts no thread, so that every fork is pristine; it asserts the latter. It sleeps in
``select`` while ranks run, ends a launch whose first rank fails or whose ranks make no progress, and relays what they
say. With ``--fresh`` it imports nothing and starts new interpreters instead. It is told what to do, and answers, over
an inherited socket; it dies with its parent, and its ranks die with it.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from bench.bootstrap import program
from bench.channel import Channel, die_with_parent
from bench.records import Job, job_from_json, job_to_json

STARTUP_TIMEOUT_S = 120.0
SLOW_STEP_FACTOR = 5.0
GRACE_AFTER_FAILURE_S = 1.0
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(slots=True)
class Rank:
    """A rank that is alive or was: its process, its channel, and what was last heard of it."""

    number: int
    pid: int
    channel: Channel
    heard_s: float
    phase: str = "start"
    step: int = 0
    longest_gap_s: float = 0.0
    finished: bool = False
    exit_status: int | None = None
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One sign that a launch went wrong. ``collateral``: only because another rank was gone."""

    rank: int
    kind: str
    reason: str
    collateral: bool = False


@dataclass(slots=True)
class Launch:
    """The ranks of the launch in hand, and the signs of failure in the order in which they came."""

    job: Job
    ranks: list[Rank]
    failures: list[Failure] = field(default_factory=list)
    failed_at_s: float | None = None
    killed: bool = False

    @property
    def over(self) -> bool:
        return all(rank.exit_status is not None for rank in self.ranks)

    def fail(self, failure: Failure) -> None:
        if self.killed:
            return  # the consequence of our own signal
        self.failures.append(failure)
        if self.failed_at_s is None:
            self.failed_at_s = time.monotonic()

    def cause(self) -> Failure | None:
        """The first failure that is not the consequence of another."""
        own = [failure for failure in self.failures if not failure.collateral]
        return next(iter(own or self.failures), None)

    def kill(self) -> None:
        """End every process of the launch's group, which holds nothing but what this launch made."""
        if not self.killed and not self.over:
            self.killed = True
            os.killpg(self.ranks[0].pid, signal.SIGKILL)


def serve(channel: Channel, *, fresh: bool, apex_path: str | None, locks: tuple[int, ...] = ()) -> int:
    """Answer ``launch`` messages until the channel closes. ``fresh``: new interpreters instead of forks.

    ``locks``: descriptors that the ranks inherit, so that a lock is held until the last of them is gone.
    """
    started = time.monotonic()
    for name in BLAS_THREADS:
        os.environ[name] = "1"  # libraries read these on import; a pool of threads would not survive the fork
    try:
        description = _describe(apex_path)
    except Exception as error:  # noqa: BLE001  # whatever import raises is told to the parent, which turns it into a line
        traceback.print_exc()
        channel.send(event="failed", reason=f"{type(error).__name__}: {error}")
        return 1
    for name in BLAS_THREADS:
        del os.environ[name]
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        channel.send(event="failed", reason=f"the worker host has {threads} threads where forking needs exactly 1")
        return 1
    channel.send(event="ready", pid=os.getpid(), ready_s=time.monotonic() - started, **description)
    while not channel.closed:
        for message in channel.receive():
            if message["event"] == "launch":
                job = job_from_json(message["job"])
                _supervise(start_launch(job, channel, fresh=fresh, locks=locks), channel)
    return 0


def _describe(apex_path: str | None) -> dict[str, Any]:
    """Import what the ranks will need, and say what is here. Apex is tried in a child (see ``bench.worker.apex``)."""
    import torch
    import torchvision

    import bench.worker.rank  # noqa: F401  # so that the ranks inherit it, imported
    from bench.worker import apex, session

    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda_built": torch.version.cuda,
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "distributed": torch.distributed.is_available(),
        "models": session.model_names(),
        "apex": _in_child(lambda: apex.probe(apex_path)),
    }


def _in_child(question: Any) -> Any:
    """The answer to ``question()``, asked in a forked child; it must be JSON."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with os.fdopen(writer, "w") as out:
                json.dump(question(), out)
            status = 0
        except BaseException:  # noqa: BLE001  # the child ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def start_launch(job: Job, control: Channel, *, fresh: bool, locks: tuple[int, ...] = ()) -> Launch:
    """Bring the ranks of ``job`` to life in a process group of their own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=max(128, job.processes))
    common = _environment(job, listener)
    ranks: list[Rank] = []
    for number in range(job.processes):
        ours, theirs = socket.socketpair()
        environment = common | {"RANK": str(number), "LOCAL_RANK": str(number)}
        group = ranks[0].pid if ranks else 0
        if fresh:
            inherited = (theirs.fileno(), listener.fileno(), *locks)
            pid = _start_fresh(job, number, environment, theirs, inherited, group)
        else:
            pid = _fork(job, number, environment, theirs, [control, *(rank.channel for rank in ranks)], ours, group)
        theirs.close()
        ranks.append(Rank(number, pid, Channel(ours), time.monotonic()))
    listener.close()
    return Launch(job, ranks)


def _environment(job: Job, listener: socket.socket) -> dict[str, str]:
    """What the ranks of a launch find in their environment beside what was there."""
    environment = {
        "WORLD_SIZE": str(job.processes),
        "LOCAL_WORLD_SIZE": str(job.processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        "BENCH_STORE_FD": str(listener.fileno()),
        "BENCH_BORN_NS": str(time.perf_counter_ns()),
        "OMP_NUM_THREADS": str(job.threads),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(job.devices),
    }
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        environment[name] = os.environ.get(name, "lo")
    return environment


def log_name(launch: int, scenario: str, rank: int) -> str:
    """The file under ``logs/`` that holds what a rank wrote to standard output and error."""
    return f"launch-{launch:03d}-{scenario}-rank{rank}.log"


def _open_log(job: Job, number: int) -> int:
    path = os.path.join(job.logs, log_name(job.launch, job.scenario, number))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _fork(
    job: Job,
    number: int,
    environment: dict[str, str],
    theirs: socket.socket,
    others: list[Channel],
    ours: socket.socket,
    group: int,
) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.setpgid(pid, group or pid)
        return pid
    status = 1
    try:
        die_with_parent(parent)
        log = _open_log(job, number)
        os.dup2(log, 1)
        os.dup2(log, 2)
        ours.close()
        for channel in others:
            channel.close()
        os.environ.update(environment)
        from bench.worker.rank import Identity, execute

        execute(job, Identity.from_environment(os.environ), Channel(theirs), int(environment["BENCH_BORN_NS"]))
        status = 0
    except BaseException:  # noqa: BLE001  # the rank ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the host's exit handlers are not this process's to run
    raise AssertionError


def _start_fresh(
    job: Job, number: int, environment: dict[str, str], theirs: socket.socket, inherited: tuple[int, ...], group: int
) -> int:
    job_file = os.path.join(job.scratch, "job.json")
    with open(job_file, "w", encoding="utf-8") as file:
        json.dump(job_to_json(job), file)
    log = _open_log(job, number)
    arguments = ["rank", str(theirs.fileno()), str(os.getpid()), job_file]
    process = subprocess.Popen(
        [sys.executable, "-c", program("bench.worker.start"), *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=inherited,
        process_group=group,
    )
    os.close(log)
    return process.pid


def _supervise(launch: Launch, control: Channel) -> None:
    """Wait for the ranks, relaying what they say; end them all when one fails or makes no progress."""
    own_cpu_s = time.process_time()
    while not launch.over:
        open_channels = [rank.channel for rank in launch.ranks if not rank.channel.closed]
        readable, _, _ = select.select([control, *open_channels], [], [], _patience_s(launch))
        if control in readable:
            _obey(launch, control)
        for rank in launch.ranks:
            if rank.channel in readable:
                for message in rank.channel.receive():
                    _hear(launch, rank, message, control)
        _reap(launch)
        _check_progress(launch)
        if launch.failed_at_s is not None and time.monotonic() - launch.failed_at_s >= GRACE_AFTER_FAILURE_S:
            launch.kill()
    for rank in launch.ranks:
        rank.channel.close()
    cause = launch.cause()
    control.send(
        event="over",
        launch=launch.job.launch,
        status=cause.kind if cause else "ok",
        reason=cause.reason if cause else None,
        first_failed_rank=cause.rank if cause else None,
        cpu_s=sum(rank.cpu_s for rank in launch.ranks) + time.process_time() - own_cpu_s,
        ranks=[{"rank": rank.number, "pid": rank.pid, "phase": rank.phase, "step": rank.step} for rank in launch.ranks],
    )


def _patience_s(launch: Launch) -> float:
    """How long ``select`` may sleep: a moment while a rank is dying, otherwise until progress is next checked."""
    dying = any(rank.channel.closed and rank.exit_status is None for rank in launch.ranks)
    return 0.02 if dying else 0.2 if launch.failures else 1.0


def _obey(launch: Launch, control: Channel) -> None:
    for message in control.receive():
        if message["event"] == "abort":
            launch.fail(Failure(rank=0, kind="killed", reason=message["reason"]))
            launch.kill()
    if control.closed:
        launch.kill()


def _hear(launch: Launch, rank: Rank, message: dict[str, Any], control: Channel) -> None:
    now = time.monotonic()
    event = message["event"]
    if event == "step":
        if rank.phase in ("warmup", "measure") and rank.step:
            rank.longest_gap_s = max(rank.longest_gap_s, now - rank.heard_s)
        rank.step = message["step"]
    elif event == "phase":
        rank.phase = message["phase"]
    elif event == "error":
        launch.fail(
            Failure(rank=rank.number, kind=message["kind"], reason=message["reason"], collateral=message["collateral"])
        )
    elif event == "done":
        rank.finished = True
    rank.heard_s = now
    control.send(**message)


def _reap(launch: Launch) -> None:
    for rank in launch.ranks:
        if rank.exit_status is not None:
            continue
        pid, status, used = os.wait4(rank.pid, os.WNOHANG)
        if pid == 0:
            continue
        rank.exit_status = os.waitstatus_to_exitcode(status)
        rank.cpu_s = used.ru_utime + used.ru_stime
        where = f"rank {rank.number} in phase {rank.phase}, step {rank.step}"
        if rank.exit_status < 0:
            name = signal.Signals(-rank.exit_status).name
            launch.fail(Failure(rank=rank.number, kind="killed", reason=f"{where}: ended by {name}"))
        elif not rank.finished and not any(failure.rank == rank.number for failure in launch.failures):
            reason = f"{where}: left with exit status {rank.exit_status} and no result"
            launch.fail(Failure(rank=rank.number, kind="error", reason=reason))


def _check_progress(launch: Launch) -> None:
    """End a launch whose rank was silent for too long: slow machines get more time once a step has been timed."""
    now = time.monotonic()
    for rank in launch.ranks:
        starting = rank.phase not in ("warmup", "measure") or rank.step == 0
        allowance = max(
            launch.job.stall_timeout_s,
            STARTUP_TIMEOUT_S if starting else 0.0,
            SLOW_STEP_FACTOR * rank.longest_gap_s,
        )
        if not rank.finished and rank.exit_status is None and now - rank.heard_s > allowance:
            behind = min((other for other in launch.ranks if not other.finished), key=lambda other: other.step)
            where = ", ".join(f"rank {other.number} in {other.phase} at step {other.step}" for other in launch.ranks)
            reason = f"no progress for {allowance:.0f} s ({where}); raise --stall-timeout if the machine is just slow"
            launch.fail(Failure(rank=behind.number, kind="timeout", reason=reason))
            launch.kill()
            return
