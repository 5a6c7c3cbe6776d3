"""A run of a training script that bench did not write: it runs unchanged, and a recorder in its processes notes steps.

    python -m bench attach -- torchrun --nproc-per-node 2 train.py
    python -m bench attach --base "python old.py" -- python new.py

Several commands alternate in rounds, every other one backwards, so that drift is the same for all. The recorder
(``bench/worker/attached``) is on the command's ``PYTHONPATH``, and nothing else of it is changed: it has our standard
streams, our terminal, and the signals that we get. What a step is: :data:`STEP`.
"""

import itertools
import math
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import bench
from bench import machine
from bench.console import count, say
from bench.core.codec import decode, encode
from bench.core.errors import INTERRUPTED
from bench.core.files import sha256
from bench.core.text import digits
from bench.experiments import interrupts
from bench.experiments.attached_command import Commanded, Side, perform, refuse_unknown
from bench.experiments.attached_notes import Notes, ranks_of, rows_of, usual_name, why_nothing
from bench.experiments.lab import NOT_PLANNED, judged
from bench.experiments.measure import slowest_ms
from bench.experiments.plan import in_turn
from bench.experiments.plan.interval_target import IntervalTarget
from bench.experiments.rows import Rows
from bench.machine import foreign, redact
from bench.machine.lock import acquire
from bench.machine.sample.noticed import allocator_rows
from bench.runs import document as stored
from bench.runs.files import check_writable
from bench.runs.frames import TableRow
from bench.runs.launches import Checks, Failure, LaunchRecord, RankRecord
from bench.runs.reader import Run
from bench.runs.writer import RunWriter
from bench.seams.experiment import Experiment, name_of

EXPERIMENT = Experiment(record=stored.Attached, no_resume=NOT_PLANNED)

STEP = (
    "from one call of the first optimizer that steps in a process to the next: with gradient accumulation several "
    "forward passes, and with a loss scaler also the calls that it skipped"
)
CUDA_TIMES, HOST_TIMES = "CUDA events on the current stream", "the host's clock"

MOST_WARMUP = 10  # steps, or a fifth of them if that is less


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request. ``warmup``: None for :data:`MOST_WARMUP`. ``launches``: of each side.

    ``until_precision``, ``budget_s``: as in :class:`IntervalTarget`. ``quiet``: what the commands print goes to
    standard error."""

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


def attach(wanted: Wanted, sides: tuple[Side, ...]) -> tuple[Commanded, Run | None]:
    """Run the commands in rounds until one of them fails, and write what was recorded. Returns the last one, and the
    run; None if nothing was recorded.

    Raises :class:`RequestError` before the first command is started.
    """
    for side in sides:
        refuse_unknown(side)
    with begun(wanted, sides=sides) as commands:
        try:
            launched = _in_rounds(wanted, sides, commands)
        except KeyboardInterrupt:
            if commands.last is None:
                raise
            launched = replace(commands.last, interrupted=True, code=commands.last.code or INTERRUPTED)
        return launched, commands.finish()


def _in_rounds(wanted: Wanted, sides: tuple[Side, ...], commands: "Commands") -> Commanded:
    target = None
    if wanted.until_precision is not None:
        target = IntervalTarget(wanted.until_precision, wanted.budget_s, started=time.monotonic())
    for repeat in itertools.count():
        if repeat >= wanted.launches:
            names = target.next_round(list(commands.last_ms)) if target is not None else []
            if target is None or not names or not target.affords(names):
                break
        for side in in_turn(sides, repeat):
            launched = commands.launch(side, repeat)
            if launched.why or launched.code or launched.interrupted:
                return launched
            if target is not None:
                target.add(launched.name, launched.step_ms, launched.wall_s)
        if len(sides) > 1:
            last = ", ".join(f"{name} {digits(ms, 4)} ms a step" for name, ms in commands.last_ms.items())
            say(f"bench: round {repeat + 1}: {last}")
    if target is not None and commands.writer is not None:
        commands.writer.note(target.outcome(list(commands.last_ms)))
    return launched


@contextmanager
def begun(
    wanted: Wanted, sides: tuple[Side, ...] = (), writer: RunWriter | None = None, experiment: object = None
) -> Iterator["Commands"]:
    """``sides``: those that are known by now. ``writer``: of a run that goes on; ``experiment``: the record of one that
    a new run begins with. Raises :class:`RequestError` where nothing can be measured."""
    check_writable(wanted.out)
    machine.refuse_missing_directory()
    machine.refuse_missing_libraries()
    machine.refuse_few_files(1)
    kind, gpus, left_out = machine.choose_device("auto")
    uuids = tuple(gpu.uuid for gpu in gpus)
    with acquire(uuids, wait=wanted.wait, say=say) as locks:
        foreign.refuse(gpus, uuids, force=wanted.force)
        here, begin = machine.describe(gpus, left_out), machine.state()
        yield Commands(wanted, sides, kind, uuids, here, begin, locks, writer, experiment)


@dataclass(slots=True)
class Commands:
    """Launches commands under one lock, and writes them to one run, which begins with the first that has steps.

    ``last_ms``: of each scenario the step time of its last launch; ``last``: the command that ended last."""

    wanted: Wanted
    sides: tuple[Side, ...]
    kind: str
    gpus: tuple[str, ...]
    here: stored.Machine
    begin: stored.State
    locks: tuple[int, ...]
    writer: RunWriter | None
    experiment: object
    last_ms: dict[str, float] = field(default_factory=dict)
    last: Commanded | None = None
    began: time.struct_time = field(default_factory=time.gmtime)

    def launch(self, side: Side, repeat: int) -> Commanded:
        """A signal that comes after the end of the command waits until what there is of it is on disk."""
        with ExitStack() as until_written:
            self.last = self._launched(side, repeat, lambda: until_written.enter_context(interrupts.held()))
        return self.last

    def _launched(self, side: Side, repeat: int, at_end: Callable[[], object]) -> Commanded:
        number = self.writer.document.next_launch if self.writer else 1
        done = perform(side, number, self.kind, self.gpus, self.locks, quiet=self.wanted.quiet, ended=at_end)
        ranks, left = ranks_of(done.notes)
        if not ranks or ranks[0].steps < 1:
            return replace(done, name=side.name or "", why=why_nothing(done.notes))
        done = replace(done, name=side.name or usual_name(ranks[0].ran))
        command = _command(side, ranks[0], self.wanted)
        if self.writer is None:
            self.writer = RunWriter(self.wanted.out, self._document(done.name, command, ranks), self.began)
        steps = _add(self.writer, done, ranks, left, command, repeat)
        self.last_ms[done.name] = statistics.median(slowest_ms(steps))
        return replace(done, step_ms=self.last_ms[done.name])

    def finish(self) -> Run | None:
        """Seal the run, if there is one. No signal keeps it from that."""
        if self.writer is None:
            return None
        for one in interrupts.SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        from bench.analyse.digest import of_run

        document = self.writer.document
        rounds = 1 + max((launch.repeat for launch in document.launches), default=0)  # some may have been added
        self.writer.note_request(replace(document.request, launches=max(document.request.launches or 1, rounds)))
        self.writer.finish(complete=True, digest=of_run(judged(self.writer)), end=machine.state())
        return self.writer.frames()

    def _document(self, scenario: str, command: stored.Command, ranks: list[Notes]) -> stored.RunDocument:
        """The document of the run: null is what neither the script's objects nor the options say."""
        first, steps = ranks[0], min(one.steps for one in ranks)
        asked = self.wanted.warmup
        warmup = min(MOST_WARMUP, steps // 5) if asked is None else min(asked, steps - 1)
        if asked is not None and asked > warmup:
            say(f"bench: --warmup {asked} leaves none of {steps} steps to measure: the last is measured all the same")
        kind = first.ran.device["type"]
        python, executable = first.who.python
        times = CUDA_TIMES if kind == "cuda" else HOST_TIMES
        attached = stored.Attached(commands={scenario: command}, step=STEP, times=times)
        first_record = {} if self.experiment is None else {name_of(type(self.experiment)): self.experiment}
        versions = {name: None if value is None else str(value) for name, value in first.ran.versions.items()}
        return stored.RunDocument(
            bench=bench.__version__,
            command=tuple(redact.command_line(sys.argv[1:])),
            request=stored.Asked(
                scenarios=tuple(side.name or scenario for side in self.sides),
                devices=tuple(uuid for uuid in self.gpus if any(uuid in one.who.devices for one in ranks)),
                warmup=warmup,
                iters=steps - warmup,
                launches=self.wanted.launches,
                label=self.wanted.label,
            ),
            workload=stored.WorkloadRecord(
                title=os.path.basename(command.script.file) if command.script else " ".join(command.command),
                global_batch=self.wanted.global_batch,
                replicas=first.ran.replicas,
                device=kind if kind in ("cpu", "cuda") else None,
                warmup=warmup,
            ),
            machine=self.here,
            versions={"python": python, "executable": executable, **versions},
            apex=stored.Apex(),
            experiments={"attaching": attached, **first_record},
            start=self.begin,
        )


def _add(
    writer: RunWriter, done: Commanded, ranks: list[Notes], left: list[str], command: stored.Command, repeat: int
) -> Rows:
    """A launch with its rows on disk. Returns those of its steps."""
    launch, scenario, host = writer.document.next_launch, done.name, os.uname().nodename
    request = writer.document.request
    if scenario not in request.scenarios:
        writer.note_request(replace(request, scenarios=(*request.scenarios, scenario)))
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
    by_pid = {one.who.pid: rank for rank, one in enumerate(ranks)}
    first_ns = {row["pid"]: row["t_ns"] for row in reversed(done.memory)}
    # of training: then its interpreter ends, and unloads libraries
    last_ns = {one.who.pid: max(one.end.at_ns or math.inf, first_ns.get(one.who.pid, 0)) for one in ranks}
    processes = [_process(pid, done.tree, by_pid) for pid in {**by_pid, **done.tree}]
    rank_of = {one.pid: one.rank for one in processes}
    of = {name: head[name] for name in ("launch", "scenario")}
    memory = [
        {**row, **of, "rank": rank_of[row["pid"]]}
        for row in done.memory
        if row["pid"] in rank_of and (row["pid"] in by_pid or row["used_mib"] is not None)
        if row["t_ns"] <= last_ns.get(row["pid"], math.inf)
    ]
    record = _record(done, ranks, head, warmup, fewest, kept)
    memory += allocator_rows(memory, record.ranks, launch=launch, scenario=scenario, host=host)
    if others := sum((Counter(one.end.others) for one in ranks), Counter()):
        calls, names = count(others.total(), "call"), ", ".join(others)
        left.append(f"{calls} of other optimizers ({names}): steps are those of the first")
    loss = ranks[0].end.final_loss
    if isinstance(loss, str):
        left.append(f"the final loss, which is {loss}")
    waits = [row["data_ms"] for row in steps if not row["warmup"] and row["rank"] == 0 and row["data_ms"] is not None]
    noted = stored.AttachedLaunch(
        launch=launch,
        exit_code=done.code,
        processes=tuple(processes),
        left_out=tuple(left),
        startup_ms=(ranks[0].marks_ns[0] - done.started_ns) / 1e6,
        wall_ms=None if done.interrupted else 1000.0 * done.wall_s,
        wait_ms=(statistics.fmean(waits) if waits else None) or None,
        final_loss=None if isinstance(loss, str) else loss,
        norms=ranks[0].end.norms,
    )
    attached = writer.document.begun(stored.Attached)
    commands = {**attached.commands, scenario: attached.commands.get(scenario, command)}
    experiment = replace(attached, commands=commands, launches=(*attached.launches, noted))
    writer.add(record, noted=experiment, steps=steps, memory=memory, device=[{**row, **of} for row in done.device])
    return steps


def _process(pid: int, tree: dict[int, tuple[int, str]], by_pid: dict[int, int]) -> stored.Process:
    parent = pid
    while parent in tree and parent not in by_pid:
        parent = tree[parent][0]
    return stored.Process(pid=pid, rank=by_pid.get(parent, 0), name=tree.get(pid, (0, None))[1])


def _record(
    done: Commanded, ranks: list[Notes], head: TableRow, warmup: int, fewest: int, kept: dict[str, int]
) -> LaunchRecord:
    first, ran = ranks[0], ranks[0].ran
    status, reason = "ok", "it was interrupted" if done.interrupted else None
    if done.code and not done.interrupted:
        status = "killed" if 128 < done.code < 128 + signal.NSIG else "error"  # above are codes such as exit(-1)'s
        reason = f"the command ended with exit code {done.code}"
    noticed = done.noticed
    if noticed["foreign"]:  # other processes of the command are not
        noticed["foreign"] = [one for one in noticed["foreign"] if one["pid"] not in done.tree]
    checks = encode(Checks(foreign_cores=done.foreign_cores, conservation_error=first.apart))
    return LaunchRecord(
        **head,
        strategy=None,
        precision=ran.precision,
        processes=len(ranks),
        replicas=ran.replicas,
        status=status,
        reason=reason,
        effective=ran,
        checks=decode(Checks, checks | noticed),
        ranks=tuple(
            RankRecord(
                rank=rank,
                pid=one.who.pid,
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
        failure=Failure(steps_kept=kept) if status != "ok" else None,
        warmup=warmup,
        iters=fewest - warmup,
    )


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
