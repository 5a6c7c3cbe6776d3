"""The worker host: imports torch, and what the workload needs, once; then forks the ranks of each launch.

It touches no device and starts no thread, so that every fork is pristine; if what it imports starts one, it goes on as
with ``--fresh``: new interpreters. For a site with a launcher of its own it starts that launcher, whose ranks then
connect to it. It sleeps in ``select`` while ranks run, relays what they report, and ends a launch that fails or makes
no progress. It dies with its parent, and its ranks die with it.
"""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from os import _exit
from typing import Any

from bench.core.bootstrap import program
from bench.core.channel import Channel, adopt_orphans, die_with_parent
from bench.core.children import KILL_PATIENCE_S, Unanswered, ask, end_children
from bench.core.errors import EXHAUSTED, RequestError, remedy_of
from bench.core.files import log_end
from bench.core.records import TOO_SLOW, Job, Meet, Training, job_from_json, job_to_json
from bench.worker import processes
from bench.worker.beats import FD_VARIABLE, Beats
from bench.worker.door import Door

STARTUP_FACTOR, FEWEST_STARTUP_S = 4.0, 30.0
"""How many times the stall timeout a rank may take from its start to the end of its first step, and at least."""

SLOW_STEP_FACTOR = 5.0
GRACE_AFTER_FAILURE_S = 1.0
EXIT_PATIENCE_S = 5.0
ANSWER_LIMIT_S = 120.0
"""For apex to be tried, and for a workload's first example to be made, with what it takes to be imported."""
TRIAL_LIMIT_S = 20.0
"""For a workload's model and loss to be tried."""
LOOK_EVERY_S = 1.0
SIGN_OF_LIFE_S = 5.0
PHASE_ORDER = ("start", "rendezvous", "build", "warmup", "measure", "record", "probe", "seal")
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


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
    memory: dict[str, Any] | None = None
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

    def fail(self, failure: Failure) -> None:
        if self.killed_at_s is not None:
            return  # the consequence of our own signal
        self.failures.append(failure)
        if self.failed_at_s is None:
            self.failed_at_s = time.monotonic()

    def cause(self) -> Failure | None:
        """The first failure that is not the consequence of another."""
        own = [failure for failure in self.failures if not failure.collateral]
        return next(iter(own or self.failures), None)

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


def serve(channel: Channel, *, fresh: bool, apex_path: str | None, locks: tuple[int, ...] = ()) -> int:
    """Answer ``prepare`` and ``launch`` messages until the channel closes. ``locks``: descriptors that the ranks
    inherit, so that a lock is held until the last of them is gone.
    """
    started = time.monotonic()
    try:
        with _no_pools():
            description = _describe(apex_path)
    except Exception as error:  # noqa: BLE001  # whatever import raises goes to the parent, which turns it into a line
        traceback.print_exc()
        channel.send(event="failed", reason=f"{type(error).__name__}: {error}")
        return 1
    adopt_orphans()
    fresh = fresh or _threads() != 1  # a library of this interpreter started some: every fork would be a gamble
    about = {"pid": os.getpid(), "ready_s": time.monotonic() - started, "fresh": fresh, "threads": _threads()}
    channel.send(event="ready", **about, **description)
    while not channel.closed:
        for message in channel.receive():
            if message["event"] == "prepare":
                prepared = _prepare(Training(**message["workload"]))
                fresh = fresh or _threads() != 1
                channel.send(event="prepared", fresh=fresh, threads=_threads(), **prepared)
            if message["event"] == "launch":
                job = job_from_json(message["job"])
                how: dict[str, Any] = {"fresh": fresh, "locks": locks, "command": message["command"]}
                how["meet"] = Meet(**message["meet"]) if message["meet"] else None
                _supervise(start_launch(job, channel, **how), channel)
    return 0


@contextmanager
def _no_pools() -> Iterator[None]:
    """Libraries that are imported in this context start no pool of threads, which would not survive a fork."""
    os.environ |= dict.fromkeys(BLAS_THREADS, "1")
    try:
        yield
    finally:
        for name in BLAS_THREADS:
            del os.environ[name]


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _prepare(workload: Training) -> dict[str, Any]:
    """Import, once, what the workload's functions import, and try its settings in a child."""
    from bench.worker.workload import examine, prepare, versions

    try:
        with _no_pools():
            prepare(workload)
    except RequestError as error:
        return {"refused": [error.option, error.problem, error.remedy]}
    try:
        examined = ask(lambda: examine(workload), ANSWER_LIMIT_S)
        tried = {} if examined["refused"] else _tried(workload)
        return {"needs_two": False, **examined, **tried, "imports": versions()}
    except Unanswered as error:
        what = f"{workload.file}: the process that made its first example {error}"
        return {"refused": ["--workload", what, "fix the file"]}


def _tried(workload: Training) -> dict[str, Any]:
    """Why its model and its loss do not fit together, and whether it needs two examples at once. A trial without an end
    says nothing: a launch will tell."""
    from bench.worker.trial import needs_two, refusal

    try:
        found: dict[str, Any] = ask(
            lambda: {"refused": refusal(workload), "needs_two": needs_two(workload)}, TRIAL_LIMIT_S
        )
    except Unanswered:
        return {}
    return found


def _describe(apex_path: str | None) -> dict[str, Any]:
    """Import what the ranks will need, and say what is here. Apex is tried in a child (see ``bench.worker.apex``)."""
    import torch
    import torch._dynamo  # which an optimizer imports when it is made, for seconds, in each rank

    import bench.worker.rank  # noqa: F401  # so that the ranks inherit it, imported
    from bench.worker import apex, cpu

    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "torch": torch.__version__,
        "cuda_built": torch.version.cuda,
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "distributed": torch.distributed.is_available(),
        "rpc": torch.distributed.is_available() and torch.distributed.rpc.is_available(),
        "bf16_instructions": cpu.bf16_instructions(),
        "apex": ask(lambda: apex.probe(apex_path), ANSWER_LIMIT_S),
    }


def start_launch(
    job: Job,
    control: Channel,
    *,
    fresh: bool,
    locks: tuple[int, ...] = (),
    command: list[str] | None = None,
    meet: Meet | None = None,
) -> Launch:
    """Start the ranks of ``job`` in a process group of their own, or ``command``, the launcher that starts them. Of a
    job on several hosts (``meet``) those of this one. Where the system refuses (no descriptors, processes or memory),
    the launch has failed with that reason.
    """
    if command is not None:
        return _start_launcher(job, command, locks)
    launch = Launch(job, _make_beats(job), oom_kills=_oom_kills(), meet=meet)
    try:
        with _listener(launch) as listener:
            common = _environment(job, launch) | _rendezvous(launch, listener)
            if meet is not None and listener is not None:
                control.send(event="listening", port=int(common["MASTER_PORT"]))
            for number in launch.numbers:
                _start_rank(launch, number, common, listener, control, fresh=fresh, locks=locks)
    except OSError as error:
        traceback.print_exc()
        number, remedy = launch.numbers[len(launch.ranks)], remedy_of(str(error)) or "see the limits ('ulimit -a')"
        reason = f"rank {number} could not be started: {error.strerror}; {remedy}, or use fewer ranks"
        launch.fail(Failure(rank=number, kind="error", reason=reason))
        launch.kill()
    return launch


def _listener(launch: Launch) -> AbstractContextManager[socket.socket | None]:
    """What rank 0 listens on for the others; None on a host that has no rank 0."""
    address = "127.0.0.1" if launch.meet is None else launch.meet.address
    if launch.meet is not None and launch.meet.port is not None:
        return nullcontext()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=max(128, launch.job.processes))


def _make_beats(job: Job) -> Beats | None:
    try:
        return Beats.create(job.processes, job.steps)
    except OSError:
        traceback.print_exc()
        return None  # a launch does without: progress is then known from messages alone


def _start_rank(
    launch: Launch,
    number: int,
    common: dict[str, str],
    listener: socket.socket | None,
    control: Channel,
    *,
    fresh: bool,
    locks: tuple[int, ...],
) -> None:
    job, ranks = launch.job, launch.ranks
    log = os.path.join(job.logs, job.log_name(number))
    ours, theirs = socket.socketpair()
    mine = job.ranks[number]
    environment = common | {
        "RANK": str(number),
        "LOCAL_RANK": str(mine.local_rank),
        "LOCAL_WORLD_SIZE": str(len(job.on_host(mine.host))),
        "OMP_NUM_THREADS": str(mine.threads),
    }
    group = ranks[0].pid if ranks else 0
    try:
        if fresh:
            beats = (launch.beats.fd,) if launch.beats is not None else ()
            server = (listener.fileno(),) if listener is not None else ()
            inherited = (theirs.fileno(), *server, *beats, *locks)
            pid = _start_fresh(log, environment, theirs, inherited, group)
        else:
            pid = _fork(job, log, environment, theirs, [ours, control, *(rank.channel for rank in ranks)], group)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    ranks.append(Rank(number, pid, Channel(ours), log, time.monotonic()))
    if fresh:
        ranks[-1].channel.send(event="job", job=job_to_json(job))


def _start_launcher(job: Job, command: list[str], locks: tuple[int, ...]) -> Launch:
    """Start a foreign launcher, which starts the ranks; it dies with the host, and they die with it."""
    door = Door(job.processes)
    launch = Launch(job, None, oom_kills=_oom_kills(), door=door)
    log = _open_log(launch.launcher_log)
    try:
        launch.launcher = subprocess.Popen(
            command,
            env=os.environ | _environment(job) | door.environment | _off_the_path(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=locks,
            process_group=0,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    except OSError as error:
        reason = f"{command[0]} could not be started: {error.strerror}"
        launch.fail(Failure(rank=0, kind="error", reason=reason))
    finally:
        os.close(log)
    return launch


def _off_the_path() -> dict[str, str]:
    """What keeps the working directory off a launcher's import path, unless that is where its ranks find bench."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {} if os.getcwd() == os.path.dirname(package) else {"PYTHONSAFEPATH": "1"}


def _environment(job: Job, launch: Launch | None = None) -> dict[str, str]:
    """What all ranks of a launch on this host find in their environment beside what was there."""
    first = job.ranks[launch.numbers[0] if launch is not None else 0]
    interface = "lo" if launch is None or launch.meet is None else launch.meet.interface
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {
        "BENCH_BORN_NS": str(time.perf_counter_ns()),
        "OMP_NUM_THREADS": str(first.threads),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(job.devices_on(first.host)),
        **({name: os.environ.get(name, interface) for name in names} if interface else {}),
    }


def _rendezvous(launch: Launch, listener: socket.socket | None) -> dict[str, str]:
    """What those that the host starts itself find there for meeting each other."""
    meet, beats = launch.meet, launch.beats
    port = listener.getsockname()[1] if listener is not None else meet and meet.port
    return {
        "WORLD_SIZE": str(launch.job.processes),
        "MASTER_ADDR": "127.0.0.1" if meet is None else meet.address,
        "MASTER_PORT": str(port),
        "BENCH_STORE_FD": str(listener.fileno() if listener is not None else -1),
    } | ({FD_VARIABLE: str(beats.fd)} if beats is not None else {})


def _open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _fork(job: Job, log: str, environment: dict[str, str], theirs: socket.socket, others: list[Any], group: int) -> int:
    """``others``: what the rank inherits from the host and is none of its business."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.setpgid(pid, group or pid)
        return pid
    status = 1
    try:
        die_with_parent(parent)
        output = _open_log(log)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for other in others:
            other.close()
        os.environ.update(environment)
        from bench.worker.rank import Identity, execute

        execute(job, Identity.from_environment(os.environ), Channel(theirs), int(environment["BENCH_BORN_NS"]))
        status = 0
    except BaseException:  # noqa: BLE001  # the rank ends here, whatever it was
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # whatever a scenario made of these: past this line it would be a second host
            _exit(status)  # the host's exit handlers are not this process's to run


def _start_fresh(
    log_path: str, environment: dict[str, str], theirs: socket.socket, inherited: tuple[int, ...], group: int
) -> int:
    log = _open_log(log_path)
    arguments = ["rank", str(theirs.fileno()), str(os.getpid())]
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
    process.returncode = 0  # so that it is reaped here and nowhere else, when the launch is over
    return process.pid


def _supervise(launch: Launch, control: Channel) -> None:
    """Wait for the ranks, relaying what they say; end them all when one fails or makes no progress."""
    own_cpu_s, last_sign_s = time.process_time(), time.monotonic()
    while not launch.over and not _given_up(launch):
        open_channels = [rank.channel for rank in launch.ranks if not rank.channel.closed]
        doors: list[Any] = [launch.door.listener, *launch.door.callers] if launch.door is not None else []
        readable, _, _ = select.select([control, *open_channels, *doors], [], [], _patience_s(launch))
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
    partial = _measured_so_far(launch) if launch.failures else []
    cause = launch.cause()
    failure = _describe_failure(launch, cause) if cause else None
    if launch.beats is not None:
        launch.beats.close()
    control.send(
        event="over",
        launch=launch.job.launch,
        status=cause.kind if cause else "ok",
        reason=cause.reason if cause else None,
        first_failed_rank=cause.rank if cause else None,
        failure=failure,
        blame=[float(cause.collateral), float(cause.kind == "timeout"), *cause.behind] if cause else None,
        cpu_s=launch.cpu_s + time.process_time() - own_cpu_s,
        ranks=[{"rank": rank.number, "pid": rank.pid, "phase": rank.phase, "step": rank.step} for rank in launch.ranks],
        results=[rank.result for rank in launch.ranks if rank.finished],
        partial=partial,
    )


def _let_in(launch: Launch, readable: list[Any]) -> None:
    """Give the job to the ranks that have come from a foreign launcher."""
    for number, pid, channel in launch.door.admit(readable) if launch.door is not None else []:
        if number in launch.absent:
            log = os.path.join(launch.job.logs, launch.job.log_name(number))
            launch.ranks.append(Rank(number, pid, channel, log, time.monotonic()))
            launch.ranks.sort(key=lambda rank: rank.number)
            channel.send(event="job", job=job_to_json(launch.job))
        else:
            channel.close()


def _patience_s(launch: Launch) -> float:
    """How long ``select`` may sleep: a moment while a rank is dying, otherwise until progress is next checked."""
    dying = any(rank.channel.closed and rank.exit_status is None for rank in launch.ranks)
    return 0.02 if dying else 0.2 if launch.failures else 1.0


def _given_up(launch: Launch) -> bool:
    """Whether a rank is stuck in the kernel, where no signal ends it."""
    return launch.killed_at_s is not None and time.monotonic() - launch.killed_at_s > KILL_PATIENCE_S


def _obey(launch: Launch, control: Channel) -> None:
    for message in control.receive():
        if message["event"] == "abort" and message["stalled"] and not launch.failures:
            _end_stalled(launch, message["reason"])
        elif message["event"] == "abort":
            first = launch.ranks[0].number if launch.ranks else 0
            about = {"reason": message["reason"], "collateral": message["collateral"]}
            launch.fail(Failure(rank=first, kind="killed", **about))
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
        reason = f"rank {rank.number} in {launch.where(rank)}: it sent what no rank of bench sends"
        launch.fail(Failure(rank=rank.number, kind="error", reason=reason))


def _hear(launch: Launch, rank: Rank, message: Any, control: Channel) -> None:
    match message:
        case {"event": "step", "step": int(step), "of": int()}:
            _progress(rank, step)
        case {"event": "phase", "phase": str(phase)}:
            rank.phase = phase
            if rank.in_loop and rank.loop_s is None:
                rank.loop_s = time.monotonic()
        case {"event": "error", "kind": "oom" | "error" as kind, "reason": str(reason), "collateral": bool(collateral)}:
            about = {"kind": kind, "reason": reason, "collateral": collateral, "memory": message.get("memory")}
            launch.fail(Failure(rank=rank.number, **about))
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
    """What a rank said before it ended, since its channel was last read."""
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
            out_of_memory = rank.exit_status == -signal.SIGKILL and _oom_kills() > launch.oom_kills
            kind, by = ("oom", " when the machine was out of memory") if out_of_memory else ("killed", "")
            launch.fail(Failure(rank=rank.number, kind=kind, reason=f"{where}: ended by {name}{by}"))
        elif not rank.finished and not any(failure.rank == rank.number for failure in launch.failures):
            reason = f"{where}: left with exit status {rank.exit_status} and no result"
            *_, last = ["", *log_end(rank.log)]
            limit = remedy_of(last)
            reason += f" ({last}; {limit})" if limit else ""
            launch.fail(Failure(rank=rank.number, kind="error", reason=reason))


def _reap_launcher(launch: Launch, pid: int, control: Channel) -> None:
    """See whether a foreign launcher has ended, and which of its ranks: those are its children and not the host's."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    for rank in launch.ranks:
        if rank.exit_status is not None or not (ended or rank.channel.closed):
            continue
        _hear_the_last(launch, rank, control)
        rank.exit_status = 0 if rank.finished else 1
        if not rank.finished and not any(failure.rank == rank.number for failure in launch.failures):
            kind = "oom" if _oom_kills() > launch.oom_kills else "killed"
            reason = f"rank {rank.number} in {launch.where(rank)}: ended without a result"
            launch.fail(Failure(rank=rank.number, kind=kind, reason=reason))
    if ended:
        launch.launcher_status = ended.si_status
        if launch.absent:
            *_, last = ["nothing was printed", *log_end(launch.launcher_log)]
            reason = f"the launcher ended with status {ended.si_status} before rank {launch.absent[0]} came: {last}"
            launch.fail(Failure(rank=launch.absent[0], kind="error", reason=reason))


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say (as in some sandboxes)."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            counts = dict(line.split() for line in file)
    except OSError:
        return 0
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
            launch.fail(Failure(rank=launch.absent[0], kind="timeout", reason=reason))
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
            launch.fail(Failure(rank=rank.number, kind="timeout", reason=reason))
            launch.kill()
            return


def _look_at(launch: Launch, rank: Rank) -> None:
    """What can be seen of a rank without disturbing it: the marks of its loop, and whether it is stopped."""
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
    alive = [rank for rank in launch.ranks if not rank.finished and rank.exit_status is None]
    if not alive:
        launch.kill()
        return
    lines = processes.lines({rank.pid: rank.log for rank in alive})
    seen = {
        rank.number: f"in {launch.where(rank)}"
        + (", stopped" if rank.stopped_s is not None else f", at {lines[rank.pid]}" if lines[rank.pid] else "")
        for rank in alive
    }
    culprit = hanging(launch, alive, lines)
    others = "".join(f"; rank {number} waits {text}" for number, text in seen.items() if number != culprit.number)
    how = "hangs" if len(alive) > 1 and launch.meet is None else "is"
    remedy = "raise --stall-timeout if the machine is just slow"
    for rank in alive:
        if (most := processes.most_files(rank.pid)) is not None:
            remedy = f"rank {rank.number} has {most} files open; {EXHAUSTED[errno.EMFILE]}"
    reason = f"{what}: rank {culprit.number} {how} {seen[culprit.number]}{others}; {remedy}"
    behind = order(launch, culprit, lines)
    launch.fail(Failure(rank=culprit.number, kind="timeout", reason=reason, behind=behind))
    launch.kill()


def hanging(launch: Launch, alive: list[Rank], lines: dict[int, processes.Line | None]) -> Rank:
    """The rank for which the others wait: one that is stopped; else the one that is behind all others; among equals the
    one in a line of the scenario and not in torch, where those that wait are; then the one that was silent for longest.
    """

    return min(alive, key=lambda rank: order(launch, rank, lines))


def order(launch: Launch, rank: Rank, lines: dict[int, processes.Line | None]) -> tuple[float, ...]:
    """By what :func:`hanging` chooses; the least is the one that hangs, on whichever host."""
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
    mine = launch.children
    if mine:
        _kill(mine)
    if strays := end_children(but=mine):  # left by a rank, and ours since then: orphans of ranks come to the host
        reason = f"what a rank had started could not be ended (PID {strays[0]})"
        launch.failures.insert(0, Failure(rank=0, kind="timeout", reason=reason))
    for number, pid in enumerate(mine):
        ended, _, used = os.wait4(pid, os.WNOHANG)
        launch.cpu_s += used.ru_utime + used.ru_stime
        if not ended:
            reason = f"rank {number} (PID {pid}) is stuck in the kernel and could not be ended"
            launch.failures.insert(0, Failure(rank=number, kind="timeout", reason=reason))


def _measured_so_far(launch: Launch) -> list[dict[str, Any]]:
    """The steps of each rank that sent no result. None on a GPU, where a mark only says when work was issued."""
    beats = launch.beats
    if beats is None or launch.job.workload.device != "cpu" or launch.job.purpose != "measure":
        return []
    partial = [(rank.number, beats.steps(rank.number)) for rank in launch.ranks if not rank.finished]
    return [{"rank": number, "steps": steps} for number, steps in partial if steps]


def _describe_failure(launch: Launch, cause: Failure) -> dict[str, Any]:
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
