"""A run of a training script that bench did not write: it runs unchanged, and a recorder in its processes notes steps.

    python -m bench attach -- torchrun --nproc-per-node 2 train.py
    python -m bench attach --base "python old.py" -- python new.py

Several commands alternate in rounds, every other one backwards, so that drift is the same for all. The recorder
(``bench/worker/attached``) is on the command's ``PYTHONPATH``, and nothing else of it is changed: it has our standard
streams, our terminal, and the signals that we get. What a step is: :data:`STEP`.
"""

import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from glob import glob
from itertools import count, islice

import bench
from bench import machine
from bench.core.children import state_and_parent
from bench.core.codec import Damaged, decode, encode
from bench.core.errors import RequestError, described
from bench.core.files import Json, open_regular, parse_json, scratch_folder
from bench.experiments.lab import judged
from bench.experiments.measure import slowest_ms
from bench.experiments.plan.interval_target import IntervalTarget
from bench.experiments.rows import Rows
from bench.machine import foreign, redact
from bench.machine.lock import acquire
from bench.machine.sample import Sampler
from bench.machine.sample.noticed import allocator_rows, checks
from bench.runs import document as stored
from bench.runs.fields import Amount, Count, Names, Pid
from bench.runs.files import check_writable, sha256
from bench.runs.frames import TableRow
from bench.runs.launches import Checks, Effective, Failure, LaunchRecord, RankRecord
from bench.runs.reader import Run
from bench.runs.writer import RunWriter
from bench.seams.experiment import Experiment
from bench.seams.experiment import name_of as name_of_record

EXPERIMENT = Experiment(
    record=stored.Attached,
    no_resume=("that run was imported or attached, and not planned by bench", "start a run of its workload"),
)

RECORDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "worker", "attached")
FOLDER_VARIABLE = "BENCH_ATTACH"

STEP = (
    "from one call of the first optimizer that steps in a process to the next: with gradient accumulation several "
    "forward passes, and with a loss scaler also the calls that it skipped"
)
CUDA_TIMES, HOST_TIMES = "CUDA events on the current stream", "the host's clock"

MOST_WARMUP = 10  # steps, or a fifth of them if that is less
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SENT_BY_THE_KERNEL = 0x80  # `si_code` of Ctrl-C, which the terminal sends to the command, too
LOOK_S = 0.25
NOTES_BYTES = 1 << 30  # of one process: a step takes some 40
GRACE_S = 10.0  # between SIGTERM and SIGKILL, for a command that took too long
TREE_S = 1.0  # between two searches for new ranks, and for new processes

Say = Callable[[str], None]


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
class Wanted:
    """The request. ``warmup``: None for :data:`MOST_WARMUP`. ``launches``: of each side.

    ``until_precision``, ``budget_s``: as in :class:`IntervalTarget`. ``quiet``: what the commands print goes to
    standard error."""

    sides: tuple[Side, ...]
    out: str
    label: str | None = None
    global_batch: int | None = None
    warmup: int | None = None
    launches: int = 1
    until_precision: float | None = None
    budget_s: float = 0.0
    wait: bool = False
    force: bool = False
    record_command: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who a process says that it is. ``python``: its version and its executable. ``effective``: what trains there."""

    pid: Pid
    rank: Count
    script: str | None
    python: tuple[str, ...]
    devices: Names
    effective: Effective


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A process's last note. ``calls``: of the first optimizer; ``others``: of the others, by class."""

    calls: Count = 0
    others: Mapping[str, Count] = field(default_factory=dict)
    allocator: Mapping[str, Amount] | None = None
    final_loss: float | str | None = None
    norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Notes:
    """The notes of a process. ``waits_ms``: for data, by mark. ``spans_ms``: steps by CUDA events, of the first
    marks."""

    about: About | None = None
    marks_ns: list[int] = field(default_factory=list)
    waits_ms: list[float | None] = field(default_factory=list)
    spans_ms: list[float] = field(default_factory=list)
    end: End = field(default_factory=End)
    problem: str | None = None

    @property
    def who(self) -> About:
        """Of a process that has begun to step."""
        assert self.about is not None
        return self.about

    @property
    def ran(self) -> Effective:
        return self.who.effective

    @property
    def pid(self) -> int:
        return self.who.pid

    @property
    def cuda(self) -> bool:
        return self.ran.device["type"] == "cuda"

    @property
    def steps(self) -> int:
        return len(self.spans_ms) if self.cuda else max(0, len(self.marks_ns) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """The command, ended. ``code``: as a shell has it. ``interrupted``: by Ctrl-C. ``tree``: its processes' names."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``code``: of the last command. ``run``: None if nothing was recorded. ``why``: nothing was of the last one, which
    is ``side``."""

    code: int
    run: Run | None
    why: str | None
    side: str | None
    interrupted: bool = False


def attach(wanted: Wanted, say: Say) -> Outcome:
    """Run the commands in rounds until one of them fails, and write what was recorded.

    Raises :class:`RequestError` before the first command is started.
    """
    with begun(wanted, say) as commands:
        target = None
        if wanted.until_precision is not None:
            target = IntervalTarget(wanted.until_precision, wanted.budget_s, started=time.monotonic())
        for repeat in count():
            sides = wanted.sides if repeat % 2 == 0 else wanted.sides[::-1]
            if repeat >= wanted.launches and not _another_round(commands, target):
                break
            for side in sides:
                launched = commands.launch(side, repeat)
                if launched.why or launched.code or launched.interrupted:
                    return commands.finish(launched)
                if target is not None:
                    target.add(launched.name, launched.step_ms, launched.wall_s)
            if len(sides) > 1:
                last = ", ".join(f"{name} {ms:,.4g} ms a step" for name, ms in commands.last_ms.items())
                say(f"bench: round {repeat + 1}: {last}")
        return commands.finish(launched)


def _another_round(commands: "Commands", target: IntervalTarget | None) -> bool:
    names = target.next_round(list(commands.last_ms)) if target is not None else []
    return target is not None and bool(names) and target.affords(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A command that has ended. ``step_ms``: median of its slowest rank's measured steps, None where ``why`` says why
    nothing was recorded."""

    name: str
    code: int
    interrupted: bool
    wall_s: float
    launch: int | None = None
    step_ms: float | None = None
    why: str | None = None


@contextmanager
def begun(wanted: Wanted, say: Say, writer: RunWriter | None = None, experiment: object = None) -> Iterator["Commands"]:
    """``writer``: of a run that goes on; ``experiment``: the record of one that a new run begins with. Raises
    :class:`RequestError` where nothing can be measured."""
    check_writable(wanted.out)
    machine.refuse_missing_directory()
    machine.refuse_few_files(1)
    kind, gpus, left_out = machine.choose_device("auto")
    uuids = tuple(gpu.uuid for gpu in gpus)
    with acquire(uuids, wait=wanted.wait, say=say) as locks:
        foreign.refuse(gpus, uuids, force=wanted.force)
        here, begin = machine.describe(gpus, left_out), machine.state()
        yield Commands(wanted, kind, uuids, here, begin, locks.descriptors, writer, experiment)


class Commands:
    """Launches commands under one lock, and writes them to one run, which begins with the first that has steps."""

    def __init__(
        self,
        wanted: Wanted,
        kind: str,
        gpus: tuple[str, ...],
        here: stored.Machine,
        begin: stored.State,
        locks: tuple[int, ...],
        writer: RunWriter | None,
        experiment: object,
    ) -> None:
        self.writer, self._experiment = writer, experiment
        self.last_ms: dict[str, float] = {}
        """Of each scenario the step time of its last launch."""
        self._wanted, self._kind, self._gpus, self._locks = wanted, kind, gpus, locks
        self._here, self._begin, self._began = here, begin, time.gmtime()

    def launch(self, side: Side, repeat: int) -> Launched:
        number = self.writer.document.next_launch if self.writer else 1
        with scratch_folder("bench-attach-") as spool:
            done = self._perform(side, number, spool)
        ranks, left = ranks_of(done.notes)
        ended: TableRow = {"code": done.code, "interrupted": done.interrupted, "wall_s": done.wall_s}
        if not ranks or ranks[0].steps < 1:
            return Launched(name=side.name or "", why=_why_nothing(done, ranks), **ended)
        name = side.name or name_of(ranks[0].ran)
        command = _command(side, ranks[0], self._wanted)
        if self.writer is None:
            document = _document(self._wanted, name, command, ranks, self._here, self._begin, self._gpus)
            if self._experiment is not None:
                first = {name_of_record(type(self._experiment)): self._experiment}
                document = replace(document, experiments={**document.experiments, **first})
            self.writer = RunWriter(self._wanted.out, document, self._began)
        steps = _add(self.writer, done, ranks, left, name, command, repeat)
        step_ms = statistics.median(slowest_ms(steps) or [row["step_ms"] for row in steps])
        self.last_ms[name] = step_ms
        return Launched(name=name, launch=number, step_ms=step_ms, **ended)

    def finish(self, last: Launched) -> Outcome:
        """Seal the run."""
        about: TableRow = {"code": last.code, "why": last.why, "side": last.name or None}
        if self.writer is None:
            return Outcome(run=None, interrupted=last.interrupted, **about)
        self.writer.note_request(*_as_launched(self.writer.document))
        run = judged(self.writer)
        from bench.analyse.digest import of_run

        self.writer.finish(complete=True, digest=of_run(run), end=machine.state())
        return Outcome(run=self.writer.frames(), interrupted=last.interrupted, **about)

    def _perform(self, side: Side, launch: int, spool: str) -> Commanded:
        watch = _Watch(launch, side.name, self._kind, self._gpus, spool)
        try:
            started_utc, started, busy = machine.utc_now(), time.monotonic(), machine.busy_s() - _cpu_s()
            with _signals_wait() as mask:
                started_ns = time.perf_counter_ns()
                command = _start(side, spool, self._locks, mask, quiet=self._wanted.quiet)
                code, interrupted = _supervise(command, watch, side.limit_s)
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
            foreign_cores=max(0.0, machine.busy_s() - _cpu_s() - busy) / wall_s,
            notes=(*watch.problems, *(read(path) for path in sorted(glob(os.path.join(spool, "*.jsonl"))))),
            tree=watch.tree,
            memory=memory,
            device=devices,
            noticed=noticed,
        )


def _as_launched(document: stored.RunDocument) -> tuple[stored.Asked, stored.WorkloadRecord]:
    """The request with as many launches as there were, since rounds may have been added."""
    most = max((launch.repeat for launch in document.launches), default=0) + 1
    return replace(document.request, launches=max(document.request.launches or 1, most)), document.workload


def _cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@contextmanager
def _signals_wait() -> Iterator[set[int]]:
    """Within this context signals wait to be asked for. Yields the mask from before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    try:
        yield {int(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(side: Side, spool: str, locks: tuple[int, ...], mask: set[int], *, quiet: bool) -> "subprocess.Popen[bytes]":
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
    except FileNotFoundError as error:
        problem = f"there is no command {command[0]!r}" + (f" in {side.cwd}" if side.cwd else "")
        raise RequestError("COMMAND", problem, "give it as in a shell: -- python train.py") from error
    except OSError as error:
        what = f"{command[0]} cannot be started: {error.strerror}"
        script = command[0].endswith(".py")
        remedy = f"write -- python {command[0]}" if script else "give it as in a shell: -- python train.py"
        raise RequestError("COMMAND", what, remedy) from error


def _supervise(command: "subprocess.Popen[bytes]", watch: "_Watch", limit_s: float | None) -> tuple[int, bool]:
    """Wait for the command's end, asleep. Returns its exit code as a shell has it, and whether Ctrl-C came.

    One that takes longer than ``limit_s`` gets SIGTERM, and :data:`GRACE_S` later SIGKILL, and so do its processes.
    """
    interrupted, begun_s, ending = False, time.monotonic(), signal.SIGTERM
    while True:
        with suppress(InterruptedError):
            received = signal.sigtimedwait([*FORWARDED, signal.SIGCHLD], LOOK_S)
            if received is not None and received.si_signo != signal.SIGCHLD:
                interrupted |= received.si_signo == signal.SIGINT
                if received.si_code != SENT_BY_THE_KERNEL:
                    command.send_signal(received.si_signo)
        watch.look(command.pid)
        code = command.poll()
        if code is not None:
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
        self.sampler = Sampler.start(device=device, gpus=gpus, spool=samples, host=os.uname().nodename)

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
            if notes.about and notes.pid not in self._ranks:
                self._ranks[notes.pid] = notes.about
                self._watch_rank(notes)
        if self._ranks and time.monotonic() - self._looked_s > TREE_S:
            self._looked_s = time.monotonic()
            self._look_at_tree(command)

    def _watch_rank(self, notes: Notes) -> None:
        process = notes.who
        self._scenario = self._scenario or name_of(notes.ran)
        if self._device == "cuda" and not notes.cuda:
            self.sampler.stop()  # there are GPUs, and it trains on none
            self._sample("cpu", ())
        devices = process.devices or None
        self._watched.add(process.pid)
        self.sampler.watch(self._launch, self._scenario, process.rank, process.pid, devices)

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


def name_of(ran: Effective) -> str:
    """The scenario that this is, by bench's name."""
    names = {"torch DDP": "ddp", "apex DDP": "apex_ddp", "DataParallel": "dp", "torch FSDP": "fsdp"}
    plain = "single" if ran.world_size == 1 else "custom"
    return names.get(ran.label, "fsdp2" if ran.label == "torch FSDP2" else plain)


def read(path: str, lines: int | None = None) -> Notes:
    """The notes of a process in the first ``lines`` (None: all), up to where it was killed or noted what it cannot."""
    notes, number = Notes(), 0
    written, _, code = os.path.basename(path).removesuffix(".jsonl").partition("-errno-")
    try:
        with open_regular(path, limit=NOTES_BYTES) as file:
            for number, line in enumerate(islice(file, lines), 1):  # noqa: B007
                if not line.endswith(b"\n"):
                    break
                _take(notes, parse_json(line))
        if notes.marks_ns != sorted(notes.marks_ns) or (notes.about and notes.steps >= max(1, len(notes.marks_ns))):
            notes.about = None
            raise Damaged("are not those of steps", "marks_ns")
        if code.isdecimal():
            notes.problem = f"PID {written.partition('-')[0]} could not write its notes: {os.strerror(int(code))}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        owner = error.strerror if isinstance(error, OSError) else f"{error}, in line {number}"
        notes.problem = f"{path} is not what the recorder writes, or not readable for this user ({owner})"
    return notes


def _take(notes: Notes, line: Json) -> None:
    """Add a line. Raises what comes of one that the recorder has not written."""
    if "begin" in line:
        about = decode(About, line["begin"])
        if len(about.python) != 2 or not about.effective.device["type"] or notes.about:
            raise Damaged("is not that of a process", "begin")
        notes.about = about
    if "ran" in line:
        if notes.about is None:
            raise Damaged("is of a process that has not begun", "ran")
        notes.about = replace(notes.about, effective=decode(Effective, line["ran"]))
    if "problem" in line:
        notes.problem = decode(str, line["problem"])
    if "end" in line:
        notes.end = decode(End, encode(End()) | line["end"])
    notes.marks_ns += decode(tuple[int, ...], line.get("marks_ns", ()))
    notes.waits_ms += decode(tuple[float | None, ...], line.get("data_ms", ()))
    notes.spans_ms += decode(tuple[Amount, ...], line.get("cuda_ms", ()))


def ranks_of(notes: Sequence[Notes]) -> tuple[list[Notes], list[str]]:
    """The processes that are the ranks, in order, and what is left out. Of two with one number: the one of more steps.

    Numbers have no gaps: they count the ranks that step an optimizer on this host.
    """
    chosen: dict[int, Notes] = {}
    left = [one.problem for one in notes if one.problem]
    for one in sorted((one for one in notes if one.about), key=lambda one: -one.steps):
        rank = one.who.rank
        if rank in chosen:
            left.append(f"PID {one.pid} with {one.steps} steps, as rank {rank} is PID {chosen[rank].pid}")
        elif one.steps:
            chosen[rank] = one
    ranks = [chosen[rank] for rank in sorted(chosen)]
    world = max((one.ran.world_size for one in ranks), default=0)
    if world > len(ranks):
        left.append(f"{world - len(ranks)} of {world} ranks, which step no optimizer on this host")
    return ranks, left


def _why_nothing(done: Commanded, ranks: list[Notes]) -> str:
    problems = [one.problem for one in done.notes if one.problem]
    if problems:
        return problems[0]
    stepped = sum(len(one.marks_ns) for one in done.notes)
    if stepped:
        return f"an optimizer stepped {stepped} time{'s' * (stepped > 1)} only, and a step lies between two"
    kept_out = "python -I, -E and -S keep bench out, and so does another user"
    return f"no optimizer of torch stepped in any Python process of it ({kept_out})"


def rows_of(notes: Notes, steps: int, warmup: int) -> Rows:
    """The first ``steps`` of a rank."""
    rows = []
    start_ns = notes.marks_ns[0] if notes.marks_ns else 0
    for step in range(steps):
        host_ms = (notes.marks_ns[step + 1] - notes.marks_ns[step]) / 1e6
        step_ms = notes.spans_ms[step] if notes.cuda else host_ms
        data_ms = notes.waits_ms[step + 1] if step + 1 < len(notes.waits_ms) else None
        rows.append(
            {"step": step, "warmup": step < warmup, "start_ns": start_ns, "data_ms": data_ms, "step_ms": step_ms}
        )
        start_ns += round(step_ms * 1e6)
    return rows


def _warmup(wanted: Wanted, steps: int) -> int:
    return min(MOST_WARMUP, steps // 5) if wanted.warmup is None else min(wanted.warmup, steps - 1)


def _add(
    writer: RunWriter,
    done: Commanded,
    ranks: list[Notes],
    left: list[str],
    scenario: str,
    command: stored.Command,
    repeat: int,
) -> Rows:
    """A launch with its rows on disk. Returns those of its steps."""
    launch, host = writer.document.next_launch, os.uname().nodename
    request = writer.document.request
    if scenario not in request.scenarios:
        writer.note_request(replace(request, scenarios=(*request.scenarios, scenario)), writer.document.workload)
    well = done.code == 0 or done.interrupted
    fewest = min(one.steps for one in ranks)
    kept = {str(rank): fewest if well else one.steps for rank, one in enumerate(ranks)}
    if well and fewest < max(one.steps for one in ranks):
        left.append(f"steps after the {fewest} that every rank has")
    warmup = min(writer.document.workload.warmup or 0, fewest - 1)
    head = {"launch": launch, "scenario": scenario, "repeat": repeat}
    steps = [
        {**head, "rank": rank, "host": host, **row}
        for rank, one in enumerate(ranks)
        for row in rows_of(one, kept[str(rank)], warmup)
    ]
    by_pid = {one.pid: rank for rank, one in enumerate(ranks)}
    processes = [_process(pid, done.tree, by_pid) for pid in {**by_pid, **done.tree}]
    rank_of = {one.pid: one.rank for one in processes}
    of = {name: head[name] for name in ("launch", "scenario")}
    memory = [
        {**row, **of, "rank": rank_of[row["pid"]]}
        for row in done.memory
        if row["pid"] in rank_of and (row["pid"] in by_pid or row["used_mib"] is not None)
    ]
    device = [{**row, **of} for row in done.device]
    record = _record(done, ranks, head, warmup, fewest, kept)
    memory += allocator_rows(memory, record.ranks, launch=launch, scenario=scenario, host=host)
    loss = ranks[0].end.final_loss
    if isinstance(loss, str):
        left.append(f"the final loss, which is {loss}")
    waits = [row["data_ms"] for row in steps if not row["warmup"] and row["rank"] == 0 and row["data_ms"] is not None]
    noted = stored.AttachedLaunch(
        launch=launch,
        exit_code=done.code,
        calls={str(rank): len(one.marks_ns) for rank, one in enumerate(ranks)},
        others=dict(sum((Counter(one.end.others) for one in ranks), Counter())),
        processes=tuple(processes),
        left_out=tuple(left),
        startup_ms=(ranks[0].marks_ns[0] - done.started_ns) / 1e6,
        wall_ms=None if done.interrupted else 1000.0 * done.wall_s,
        wait_ms=(statistics.fmean(waits) if waits else None) or None,
        final_loss=None if isinstance(loss, str) else loss,
        norms=ranks[0].end.norms,
    )
    attached = writer.document.of(stored.Attached)
    assert attached is not None
    commands = {**attached.commands, scenario: attached.commands.get(scenario, command)}
    experiment = replace(attached, commands=commands, launches=(*attached.launches, noted))
    writer.add(record, noted=experiment, steps=steps, memory=memory, device=device)
    return steps


def _process(pid: int, tree: dict[int, tuple[int, str]], by_pid: dict[int, int]) -> stored.Process:
    name = tree.get(pid, (0, None))[1]
    if pid in by_pid:
        return stored.Process(pid=pid, rank=by_pid[pid], role="rank", name=name)
    parent = pid
    while parent in tree and parent not in by_pid:
        parent = tree[parent][0]
    role = "helper" if parent in by_pid else "launcher"
    return stored.Process(pid=pid, rank=by_pid.get(parent, 0), role=role, name=name)


def _record(
    done: Commanded, ranks: list[Notes], head: TableRow, warmup: int, fewest: int, kept: dict[str, int]
) -> LaunchRecord:
    first = ranks[0]
    ran = first.ran
    status, reason = "ok", "Ctrl-C ended it" if done.interrupted else None
    if done.code and not done.interrupted:
        status = "killed" if done.code > 128 else "error"
        reason = f"the command ended with exit code {done.code}"
    noticed = done.noticed
    if noticed["foreign"]:  # other processes of the command are not
        noticed["foreign"] = [one for one in noticed["foreign"] if one["pid"] not in done.tree]
    return LaunchRecord(
        launch=head["launch"],
        scenario=head["scenario"],
        repeat=head["repeat"],
        strategy=None,
        precision=ran.precision,
        processes=len(ranks),
        replicas=ran.replicas,
        status=status,
        reason=reason,
        effective=ran,
        checks=decode(
            Checks, encode(Checks(foreign_cores=done.foreign_cores, conservation_error=_apart(first))) | noticed
        ),
        ranks=tuple(
            RankRecord(
                rank=rank,
                pid=one.pid,
                host=os.uname().nodename,
                threads=one.ran.threads,  # as many as the script wanted
                ran_threads=one.ran.threads,
                cores=one.ran.affinity,
                step=one.steps,
                device=one.ran.device,
                allocator=one.end.allocator,
            )
            for rank, one in enumerate(ranks)
        ),
        started_utc=done.started_utc,
        ended_utc=machine.utc_now(),
        wall_s=done.wall_s,
        failure=replace(Failure(), steps_kept=kept) if status != "ok" else None,
        warmup=warmup,
        iters=fewest - warmup,
    )


def _apart(notes: Notes) -> float | None:
    """How far the steps by CUDA events are from the host's time for them; the host runs ahead of the device."""
    if not notes.cuda:
        return None
    host_ms = (notes.marks_ns[notes.steps] - notes.marks_ns[0]) / 1e6
    return abs(sum(notes.spans_ms) - host_ms) / host_ms


def _command(side: Side, first: Notes, wanted: Wanted) -> stored.Command:
    script = first.who.script if first.who.script and os.path.isfile(first.who.script) else None
    whole = (redact.RECORD,) if wanted.record_command else ()
    return stored.Command(
        command=tuple(redact.command_line((*whole, "--", *side.command))[len(whole) + 1 :]),
        cwd=os.path.abspath(side.cwd or "."),
        environment=tuple(redact.command_line([f"{name}={value}" for name, value in side.environment.items()])),
        script=stored.Source(file=script, sha256=sha256(script)) if script else None,
        git=machine.git(os.path.dirname(script)) if script else None,
    )


def _document(
    wanted: Wanted,
    scenario: str,
    command: stored.Command,
    ranks: list[Notes],
    here: stored.Machine,
    begin: stored.State,
    gpus: tuple[str, ...],
) -> stored.RunDocument:
    """The document of the run: null is what neither the script's objects nor the options say."""
    first, steps = ranks[0], min(one.steps for one in ranks)
    kind = first.ran.device["type"]
    python, executable = first.who.python
    attached = stored.Attached(
        commands={scenario: command}, step=STEP, times=CUDA_TIMES if kind == "cuda" else HOST_TIMES
    )
    versions = {name: None if value is None else str(value) for name, value in first.ran.versions.items()}
    return stored.RunDocument(
        bench=bench.__version__,
        command=tuple(redact.command_line(sys.argv[1:])),
        request=stored.Asked(
            scenarios=tuple(side.name or scenario for side in wanted.sides),
            devices=tuple(uuid for uuid in gpus if any(uuid in one.who.devices for one in ranks)),
            warmup=_warmup(wanted, steps),
            iters=steps - _warmup(wanted, steps),
            launches=wanted.launches,
            label=wanted.label,
        ),
        workload=stored.WorkloadRecord(
            title=os.path.basename(command.script.file) if command.script else " ".join(command.command),
            global_batch=wanted.global_batch,
            replicas=first.ran.replicas,
            device=kind if kind in ("cpu", "cuda") else None,
            warmup=_warmup(wanted, steps),
        ),
        machine=here,
        versions={"python": python, "executable": executable, **versions},
        apex=stored.Apex(),
        experiments={"attaching": attached},
        start=begin,
    )
