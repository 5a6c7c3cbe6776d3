"""The worker host: imports torch, and what the workload needs, once; then forks the ranks of each launch.

It touches no device and starts no thread, so that every fork is pristine; if what it imports does, it goes on as with
``--fresh``: new interpreters. For a site with a launcher of its own it starts that launcher, whose ranks then
connect to it. It dies with its parent, and its ranks die with it. Meanwhile it watches them
(:mod:`bench.worker.supervisor`).
"""

import gc
import os
import pkgutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from os import _exit
from typing import Any

from bench.core.bootstrap import program
from bench.core.channel import Channel, adopt_orphans, die_with_parent
from bench.core.children import Unanswered, ask, become_launcher
from bench.core.codec import decode
from bench.core.errors import RequestError, remedy_of
from bench.core.job import Job, Meet, Training
from bench.seams.execute import PACKAGE
from bench.worker.beats import FD_VARIABLE, Beats
from bench.worker.door import Door
from bench.worker.supervisor import Launch, Rank, oom_kills, supervise

ANSWER_LIMIT_S = 120.0
"""For apex to be tried, and for a workload's first example to be made, with what it takes to be imported."""
TRIAL_LIMIT_S = 20.0
"""For a workload's model and loss to be tried."""
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def serve(channel: Channel, *, fresh: bool, apex_path: str | None, locks: tuple[int, ...] = ()) -> int:
    """Answer ``prepare`` and ``launch`` messages until the channel closes. ``locks``: descriptors that the ranks
    inherit, so that a lock is held until the last of them is gone.
    """
    cores = os.sched_getaffinity(0)
    try:
        with _importing():
            description = _describe(apex_path)
    except Exception as error:  # noqa: BLE001  # whatever import raises goes to the parent, which turns it into a line
        traceback.print_exc()
        channel.send(event="failed", reason=f"{type(error).__name__}: {error}")
        return 1
    adopt_orphans()
    fresh = fresh or _threads() != 1  # a library of this interpreter started some: every fork would be a gamble
    bound = os.sched_getaffinity(0) != cores
    channel.send(event="ready", bound=bound, fresh=fresh, threads=_threads(), **description)
    while not channel.closed:
        for message in channel.receive():
            if message["event"] == "prepare":
                prepared = _prepare(Training(**message["workload"]))
                fresh = fresh or _threads() != 1 or prepared.pop("cuda_asked", False) is True
                channel.send(event="prepared", fresh=fresh, threads=_threads(), **prepared)
            if message["event"] == "launch":
                job, command = decode(Job, message["job"]), message["command"]
                meet = Meet(**message["meet"]) if message["meet"] else None
                supervise(start_launch(job, channel, fresh=fresh, locks=locks, command=command, meet=meet), channel)
    return 0


@contextmanager
def _importing() -> Iterator[None]:
    """Libraries that are imported in this context start no pool of threads, which would not survive a fork."""
    os.environ |= dict.fromkeys(BLAS_THREADS, "1")
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 1000)  # by the usual one the collector goes through all of torch several times
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        for name in BLAS_THREADS:
            del os.environ[name]


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _prepare(workload: Training) -> dict[str, object]:
    """Import, once, what the workload's functions import, and try its settings in a child."""
    from bench.worker.trial import in_rows, try_out
    from bench.worker.workload import prepare, versions

    try:
        with _importing():
            prepare(workload)
        prepared: dict[str, object] = {"refused": None, "needs_two": False, "in_rows": True, "imports": versions()}
        prepared |= ask(lambda: _examined(workload), ANSWER_LIMIT_S)
        with suppress(Unanswered):  # a trial without an end says nothing: a launch will tell
            prepared |= ask(lambda: {**try_out(workload), "in_rows": in_rows(workload)}, TRIAL_LIMIT_S)
    except RequestError as error:
        return {"refused": [error.option, error.problem, error.remedy]}
    except Unanswered as error:
        what = f"{workload.file}: the process that made its first example {error}"
        return {"refused": ["--workload", what, "fix the file"]}
    return prepared


def _examined(workload: Training) -> dict[str, object]:
    """In a fork. ``cuda_asked``: what was imported asked CUDA something, if only whether there is any, which torch then
    refuses to forks."""
    import torch

    from bench.worker.workload import examine

    return {"cuda_asked": workload.device == "cuda" and torch.cuda._is_in_bad_fork(), **examine(workload)}


def _describe(apex_path: str | None) -> dict[str, object]:
    """Import what the ranks will need, and say what is here. Apex is tried in a child (see ``bench.worker.apex``)."""
    import torch
    import torch._dynamo  # which an optimizer imports when it is made, for seconds, in each rank

    import bench.worker.rank  # noqa: F401  # so that the ranks inherit it, imported
    from bench.worker import apex, live

    flags = torch._C._cuda_getArchFlags if torch.version.cuda else str  # once called, forks are refused CUDA
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "torch": torch.__version__,
        "cuda_built": torch.version.cuda,
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available(),
        "rpc": torch.distributed.rpc.is_available(),
        "bf16_instructions": live.bf16_instructions(),
        "packages": sorted({one.name for one in pkgutil.iter_modules()}),
        **ask(lambda: {"apex": apex.probe(apex_path), "architectures": flags().split()}, ANSWER_LIMIT_S),
    }


def start_launch(
    job: Job, control: Channel, *, fresh: bool, locks: tuple[int, ...], command: list[str] | None, meet: Meet | None
) -> Launch:
    """Start the ranks of ``job`` in a process group of their own, or ``command``, the launcher that starts them. Of a
    job on several hosts (``meet``) those of this one. Where the system refuses (no descriptors, processes or memory),
    the launch has failed with that reason.
    """
    if command is not None:
        return _start_launcher(job, command, locks)
    launch = Launch(job, _make_beats(job), oom_kills=oom_kills(), meet=meet)
    try:
        with _listener(launch) as listener:
            common = _environment(launch) | _rendezvous(launch, listener)
            descriptors = [one.fileno() for one in (listener,) if one] + [one.fd for one in (launch.beats,) if one]
            inherited = (*descriptors, *locks) if fresh else None
            if meet is not None and listener is not None:
                control.send(event="listening", port=int(common["MASTER_PORT"]))
            for number in launch.numbers:
                _start_rank(launch, number, common, control, inherited)
    except OSError as error:
        traceback.print_exc()
        number, remedy = launch.numbers[len(launch.ranks)], remedy_of(str(error)) or "see the limits ('ulimit -a')"
        reason = f"rank {number} could not be started: {error.strerror}; {remedy}, or use fewer ranks"
        launch.fail(number, "error", reason)
        launch.kill()
    return launch


def _listener(launch: Launch) -> AbstractContextManager[socket.socket | None]:
    """The socket on which rank 0 meets the others; None on a host without rank 0."""
    address = "127.0.0.1" if launch.meet is None else launch.meet.address
    if launch.meet is not None and launch.meet.port is not None:
        return nullcontext()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=max(128, launch.job.processes))


def _make_beats(job: Job) -> Beats | None:
    try:
        return Beats.create(job.processes, job.workload.warmup, job.iters)
    except OSError:
        traceback.print_exc()
        return None  # a launch does without: progress is then known from messages alone


def _start_rank(
    launch: Launch, number: int, common: dict[str, str], control: Channel, inherited: tuple[int, ...] | None
) -> None:
    """``inherited``: descriptors for a new interpreter; None: the rank is a fork of this process, and has them all."""
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
        if inherited is None:
            pid = _fork(job, log, environment, theirs, [ours, control, *(rank.channel for rank in ranks)], group)
        else:
            pid = _start_fresh(log, environment, theirs, (theirs.fileno(), *inherited), group)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    ranks.append(Rank(number, pid, Channel(ours), log, time.monotonic()))
    if inherited is not None:
        ranks[-1].channel.send(event="job", job=asdict(job))


def _start_launcher(job: Job, command: list[str], locks: tuple[int, ...]) -> Launch:
    """Start a foreign launcher, which starts the ranks; it dies with the host, and they die with it."""
    launch = Launch(job, None, oom_kills=oom_kills())
    try:
        launch.door = Door(job.processes)
        environment = os.environ | _environment(launch) | launch.door.environment
        if os.getcwd() != os.path.dirname(PACKAGE):  # where ranks find bench
            environment["PYTHONSAFEPATH"] = "1"  # keeps the working directory off a launcher's import path
        with open(launch.launcher_log, "ab") as log:
            launch.launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=locks,
                process_group=0,
                preexec_fn=partial(become_launcher, os.getpid(), environment),
            )
    except OSError as error:
        launch.fail(0, "error", f"{error.filename or command[0]}: {error.strerror}, so no rank was started")
    return launch


def _environment(launch: Launch) -> dict[str, str]:
    """The environment of all ranks of a launch on this host, beside the host's own."""
    first = launch.job.ranks[launch.numbers[0]]
    interface = "lo" if launch.meet is None else launch.meet.interface
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {
        "BENCH_BORN_NS": str(time.perf_counter_ns()),
        "OMP_NUM_THREADS": str(first.threads),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(launch.job.devices_on(first.host)),
        **({name: os.environ.get(name, interface) for name in names} if interface else {}),
    }


def _rendezvous(launch: Launch, listener: socket.socket | None) -> dict[str, str]:
    """The variables by which ranks that the host starts itself meet each other."""
    meet, beats = launch.meet, launch.beats
    port = listener.getsockname()[1] if listener is not None else meet and meet.port
    return {
        "WORLD_SIZE": str(launch.job.processes),
        "MASTER_ADDR": "127.0.0.1" if meet is None else meet.address,
        "MASTER_PORT": str(port),
        "BENCH_STORE_FD": str(listener.fileno() if listener is not None else -1),
    } | ({FD_VARIABLE: str(beats.fd)} if beats is not None else {})


def _fork(job: Job, log: str, environment: dict[str, str], theirs: socket.socket, others: list[Any], group: int) -> int:
    """``others``: what the rank inherits from the host and is none of its business."""
    parent = os.getpid()
    if pid := os.fork():
        os.setpgid(pid, group or pid)
        return pid
    status = 1
    try:
        die_with_parent(parent)
        with open(log, "ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        for other in others:
            other.close()
        os.environ.update(environment)
        from bench.worker.rank import execute

        execute(job, int(environment["RANK"]), Channel(theirs), int(environment["BENCH_BORN_NS"]))
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
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program("bench.worker.start"), "rank", str(theirs.fileno()), str(os.getpid())],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherited,
            process_group=group,
        )
    process.returncode = 0  # so that it is reaped here and nowhere else, when the launch is over
    return process.pid
