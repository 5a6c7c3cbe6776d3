"""A command that trains, run to its end as from a shell: watched by a sampler, with our signals handed on to it."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob

from bench import machine
from bench.core.children import state_and_parent
from bench.core.errors import RequestError, described
from bench.core.files import scratch_folder
from bench.experiments import interrupts
from bench.experiments.attached_notes import About, Notes, read, usual_name
from bench.experiments.rows import Rows
from bench.machine.sample import Sampler
from bench.machine.sample.noticed import checks
from bench.runs.frames import TableRow

RECORDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "worker", "attached")
FOLDER_VARIABLE = "BENCH_ATTACH"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SENT_BY_THE_KERNEL = 0x80  # `si_code` of Ctrl-C, which the terminal sends to the command, too
LOOK_S = 0.25
GRACE_S = 10.0  # between SIGTERM and SIGKILL, for a command that took too long
TREE_S = 1.0  # between two searches for new ranks, and for new processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A command. ``name``: its scenario; None: by what trains. ``cwd``: None for the folder that bench is in.
    ``environment``: what it has besides ours. ``limit_s``: how long it may take."""

    command: tuple[str, ...]
    name: str | None = None
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """The command, ended. ``code``: as a shell has it. ``interrupted``: by Ctrl-C or SIGTERM. ``tree``: names of
    processes. Once it is recorded ``name``, of its scenario, and ``step_ms``, the median of its slowest rank's measured
    steps, None where ``why`` says why nothing was recorded."""

    code: int
    interrupted: bool
    started_utc: str
    started_ns: int
    wall_s: float
    foreign_cores: float
    notes: tuple[Notes, ...]
    tree: dict[int, tuple[int, str]]
    memory: Rows
    device: Rows
    noticed: TableRow
    name: str = ""
    step_ms: float | None = None
    why: str | None = None


def perform(
    side: Side,
    launch: int,
    device: str,
    gpus: tuple[str, ...],
    locks: tuple[int, ...],
    *,
    quiet: bool,
    ended: Callable[[], object] = lambda: None,
) -> Commanded:
    """Run a command to its end, with a recorder in its processes and a sampler beside them. ``ended`` is called at its
    end, before any later signal is heeded."""
    with scratch_folder("bench-attach-") as spool:
        watch = _Watch(launch, side.name, device, gpus, spool)
        try:
            started_utc, started, busy = machine.utc_now(), time.monotonic(), machine.busy_s() - sum(os.times()[:4])
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})  # they wait to be asked for
            try:
                started_ns = time.perf_counter_ns()
                command = _start(side, spool, locks, mask, quiet)
                code, interrupted = _supervise(command, watch, side.limit_s)
                ended()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            wall_s = time.monotonic() - started
            memory, devices = watch.sampler.finish(launch)
            noticed = {"sampling": watch.sampler.cost, **checks(watch.sampler.findings, devices, [])}
        finally:
            watch.sampler.stop()
        return Commanded(
            code=code,
            interrupted=interrupted,
            started_utc=started_utc,
            started_ns=started_ns,
            wall_s=wall_s,
            foreign_cores=machine.foreign_cores(machine.busy_s() - sum(os.times()[:4]) - busy, wall_s),
            notes=(*watch.problems, *(read(path) for path in sorted(glob(os.path.join(spool, "*.jsonl"))))),
            tree=watch.tree,
            memory=memory,
            device=devices,
            noticed=noticed,
        )


def _start(side: Side, spool: str, locks: tuple[int, ...], mask: Iterable[int], quiet: bool) -> subprocess.Popen[bytes]:
    command, environment = side.command, {**os.environ, **side.environment}
    paths = [RECORDER, *filter(None, [environment.get("PYTHONPATH")])]
    sys.stdout.flush()
    try:
        return subprocess.Popen(
            command,
            cwd=side.cwd,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths), FOLDER_VARIABLE: spool},
            stdout=2 if quiet else None,
            pass_fds=locks,  # for as long as something of it runs, nobody else measures here
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
        )
    except OSError as error:
        raise _not_started(side, error) from error


def refuse_unknown(side: Side) -> None:
    """Raises :class:`RequestError` for a program that is not there, before another side has run for hours."""
    program, path = side.command[0], {**os.environ, **side.environment}.get("PATH")
    place = os.path.join(side.cwd or "", program) if os.sep in program else program
    if shutil.which(place, path=path) is None:
        number = errno.EACCES if os.path.exists(place) else errno.ENOENT
        raise _not_started(side, OSError(number, os.strerror(number)))


def _not_started(side: Side, error: OSError) -> RequestError:
    program, remedy = side.command[0], "give it as in a shell: -- python train.py"
    if isinstance(error, FileNotFoundError):
        problem = f"there is no command {program!r}" + (f" in {side.cwd}" if side.cwd else "")
        return RequestError("COMMAND", problem, remedy)
    remedy = f"write -- python {program}" if program.endswith(".py") else remedy
    return RequestError("COMMAND", f"{program} cannot be started: {error.strerror}", remedy)


def _supervise(command: subprocess.Popen[bytes], watch: "_Watch", limit_s: float | None) -> tuple[int, bool]:
    """Wait for the command's end, asleep. Returns its exit code as a shell has it, and whether Ctrl-C or SIGTERM came.

    One that takes longer than ``limit_s`` gets SIGTERM, and :data:`GRACE_S` later SIGKILL, and so do its processes.
    """
    interrupted, begun_s, ending = False, time.monotonic(), signal.SIGTERM
    while True:
        with suppress(InterruptedError):
            received = signal.sigtimedwait([*FORWARDED, signal.SIGCHLD], LOOK_S)
            if received is not None and received.si_signo != signal.SIGCHLD:
                interrupted |= received.si_signo in (signal.SIGINT, signal.SIGTERM)
                if received.si_code != SENT_BY_THE_KERNEL:
                    command.send_signal(received.si_signo)
        watch.look(command.pid)
        if (code := command.poll()) is not None:
            for number in interrupts.SIGNALS if interrupted else ():  # what there is is sealed, and 'timeout' sends two
                signal.signal(number, signal.SIG_IGN)
            return (code if code >= 0 else 128 - code), interrupted
        if limit_s is not None and time.monotonic() - begun_s > limit_s:
            watch.end(command.pid, ending)
            begun_s, limit_s, ending = time.monotonic(), GRACE_S, signal.SIGKILL


class _Watch:
    """Has the sampler watch the ranks as soon as they have begun to step, and the command's other processes."""

    def __init__(self, launch: int, scenario: str | None, device: str, gpus: tuple[str, ...], spool: str) -> None:
        self.problems: list[Notes] = []
        """Why it no longer looks, at most one."""
        self.tree: dict[int, tuple[int, str]] = {}
        """By PID the parent's, and the name."""
        self._launch, self._scenario, self._spool = launch, scenario, spool
        self._files: set[str] = set()
        self._ranks: dict[int, About] = {}
        self._watched: set[int] = set()
        self._looked_s = 0.0
        self._sample(device, gpus)
        self.sampler.begin(launch)

    def _sample(self, device: str, gpus: tuple[str, ...]) -> None:
        self._device = device
        samples = os.path.join(self._spool, f"samples-{device}")
        os.makedirs(samples)
        self.sampler = Sampler(device=device, gpus=gpus, spool=samples, host=os.uname().nodename)

    def look(self, command: int) -> None:
        """Never raises: the command is waited for, whatever becomes of its notes."""
        try:
            if not self.problems:
                self._look(command)
        except Exception as error:  # noqa: BLE001
            self.problems = [Notes(problem=f"the notes cannot be followed ({described(error)})")]

    def end(self, command: int, number: int) -> None:
        """Send a signal to the command and to those of its processes that are there."""
        self._look_at_tree(command)
        for pid in (command, *(pid for pid in self.tree if state_and_parent(pid)[1] == self.tree[pid][0])):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _look(self, command: int) -> None:
        for name in sorted({name for name in os.listdir(self._spool) if name.endswith(".jsonl")} - self._files):
            notes = read(os.path.join(self._spool, name), lines=1)
            if notes.about or notes.problem:
                self._files.add(name)
            if (rank := notes.about) and rank.pid not in self._ranks:
                self._ranks[rank.pid] = rank
                self._scenario = self._scenario or usual_name(notes.ran)
                if self._device == "cuda" and not notes.cuda:
                    self.sampler.stop()  # there are GPUs, and it trains on none
                    self._sample("cpu", ())
                self._watched.add(rank.pid)
                self.sampler.watch(self._launch, self._scenario, rank.rank, rank.pid, rank.devices or None)
        if self._ranks and time.monotonic() - self._looked_s > TREE_S:
            self._looked_s = time.monotonic()
            self._look_at_tree(command)

    def _look_at_tree(self, command: int) -> None:
        """Find the processes of the command. On the CPU they are sampled; GPUs list the processes that are on them."""
        parents = {int(entry): state_and_parent(int(entry))[1] for entry in os.listdir("/proc") if entry.isdigit()}
        for pid in parents:
            line = [pid]
            while line[-1] != command and parents.get(line[-1]):
                line.append(parents[line[-1]] or 0)
            if line[-1] != command or pid in self.tree:
                continue
            with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                self.tree[pid] = parents[pid] or 0, file.read().strip()
                if self._device == "cpu" and pid not in self._watched:
                    self._watched.add(pid)
                    rank = next((self._ranks[one].rank for one in line if one in self._ranks), 0)
                    assert self._scenario is not None  # since there is a rank
                    self.sampler.watch(self._launch, self._scenario, rank, pid)
