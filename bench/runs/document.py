"""run.json as values: every class is an object in it, every field a key.

    python -c "from bench.runs.reader import read; print(read('results/RUN').document.launches[0].effective)"

None is what is unknown. A field has a default where a run that has just begun has nothing to say of it; a file has them
all (:mod:`bench.core.codec`). The same as a JSON Schema is ``run.schema.json`` beside this module
(:mod:`bench.runs.schema`): whoever changes a field here changes what other programs read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_args

from bench.core.codec import AnyOf, Between, Named, hints
from bench.core.records import SCHEMA_VERSION, Gpu, Setting
from bench.runs.fields import (
    Amount,
    Batch,
    Count,
    Dash,
    DeviceKind,
    File,
    Hue,
    Name,
    Names,
    Parity,
    Pid,
    Several,
    Severity,
    Utc,
)
from bench.runs.launches import LaunchRecord, Record
from bench.seams import experiment

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request, as far as a report names it; ``more``: the other fields of ``experiments.plan.Request``."""

    scenarios: tuple[Name, ...]
    devices: Names = ()
    warmup: Count | None = None
    iters: Count | None = None
    launches: Count | None = None
    profile: str | None = None
    impl: str | None = None
    label: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """:class:`bench.core.job.Training` with its hash; None is what an imported or attached run does not say."""

    name: Name | None = None
    file: File | None = None
    sha256: str | None = None
    unit: str = "examples"
    unit_short: str = "ex"
    title: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    global_batch: Batch | None = None
    replicas: Several | None = None
    device: DeviceKind | None = None
    warmup: Count | None = None
    seed: int | None = None
    pool_batches: Count | None = None
    units_per_example: Several | None = None
    data: File | None = None
    data_sha256: str | None = None
    examples: Count | None = None
    code_sha256: str | None = None
    workers: Count | None = None
    prefetch: Count | None = None
    hash: str | None = None

    @property
    def units(self) -> int | None:
        """Units of a step, over all replicas."""
        return self.global_batch and self.global_batch * (self.units_per_example or 1)


def what_is_trained(title: str | None, global_batch: int | None) -> str:
    """Title and batch, as far as they are known."""
    words = (title, f"global batch {global_batch}" if global_batch else None)
    return ", ".join(word for word in words if word) or "an unknown workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    commit: str
    dirty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    host: str | None = None
    os: str | None = None
    python: str | None = None
    cpu: str | None = None
    cores_usable: Count | None = None
    cores_online: Count | None = None
    memory_gib: Amount | None = None
    governor: str | None = None
    turbo_disabled: str | None = None
    container: str | None = None
    gpus: tuple[Gpu, ...] = ()
    gpus_reason: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    git: Git | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Apex:
    """Which apex there was. ``problems``: by module why it cannot be imported, None where it can."""

    kind: str | None = None
    path: File | None = None
    amp: bool | None = None
    parallel: bool | None = None
    explanation: str | None = None
    version: str | None = None
    problems: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    file: File
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRecord:
    """The part of a strategy's declaration that a reader of the run needs (:class:`bench.seams.Strategy`)."""

    hue: Hue = "magenta"
    dash: Dash = "short"
    differs: str | None = None
    restarts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    utc: Utc | None
    load_1min: Amount | None = None
    memory_available_gib: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One of several hosts of a run, the leader first."""

    name: str
    machine: Machine
    versions: Mapping[str, str | None]
    start: State


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """The engine that started bench on several hosts. ``run``: its name for the job; ``parent``: the process that
    started the leader. Either shows that a later start is of the same job. ``attempt``: the last one, from 0."""

    name: str
    run: str | None
    parent: str
    attempt: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(State):
    """When the run was resumed. ``launch``: the first of that part. ``force``: also on GPUs in use."""

    launch: Count
    force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem with the values of a launch, or of a scenario (``launch`` is None), and its remedy.

    ``severity``: ``invalid`` or ``warning``. ``size``: the more the worse, comparable within one code and remedy.
    """

    launch: Count | None = None
    scenario: Name = ""
    code: str
    severity: Severity
    text: str
    remedy: str
    size: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRecord:
    """The verdict on the numerics of a launch (:func:`bench.analyse.parity.parity`)."""

    launch: Count
    scenario: Name
    verdict: Parity | None
    reason: str | None
    replicas: float | None
    gradient_error: float | None
    buffer_error: float | None
    update_error: float | None
    bound: float | None
    gradient_alone: float | None
    own_update_error: float | None
    own_update_bound: float | None
    loss_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The way to train. ``parallel``: the same among scenarios on several replicas, None if that adds nothing."""

    fastest: Name | None = None
    leanest: Name | None = None
    not_told_apart: tuple[Name, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    parallel: "Recommendation | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Where an imported run came from. ``times``: what its step times mean."""

    file: str
    sha256: str
    utc: Utc
    measured_utc: Utc | None
    hardware: Names
    times: str
    left_out: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Of an attached command. One that a rank started counts with it, one that started ranks with the first."""

    pid: Pid
    rank: Count
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedLaunch:
    """Of rank 0: ``startup_ms`` from the command's start to its first optimizer step, ``wait_ms`` for data (mean of a
    step), ``final_loss`` (mean of its last ten steps). ``norms``: of its gradients and weights in its first steps,
    where asked for. ``wall_ms``: of the whole command; None where it was interrupted.
    """

    launch: Count
    exit_code: int
    processes: tuple[Process, ...]
    left_out: Names
    startup_ms: Amount | None = None
    wall_ms: Amount | None = None
    wait_ms: Amount | None = None
    final_loss: float | None = None
    norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One that bench was attached to. ``environment``: what it had besides bench's. ``git``: of the script's folder."""

    command: Names
    cwd: str
    environment: Names
    script: Source | None
    git: Git | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """Commands that bench was attached to, by scenario. ``step``: what delimits one. ``times``: by which clock."""

    commands: Mapping[Name, Command]
    step: str
    times: str
    launches: tuple[AttachedLaunch, ...] = ()

    @property
    def git(self) -> Git | None:
        """Of the command that was asked for last."""
        return next((one.git for one in reversed([*self.commands.values()])), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A file of a run as it was when run.json was written. ``rows``: of a table, or lines."""

    sha256: str
    rows: Count


def launches_of(experiment: Any) -> Iterator[Record]:
    """Every launch in the record of an experiment, by the order of its fields."""
    for value in (getattr(experiment, one.name) for one in fields(experiment)):
        yield from (one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, Record))


def _kinds() -> tuple[type[Record], ...]:
    """The types of launches that there are: those in the fields of the records of experiments, and their bases."""
    of_fields = [hint for record in experiment.records().values() for hint in hints(record).values()]
    inner = [one for hint in of_fields for one in (hint, *get_args(hint)) if isinstance(one, type)]
    return tuple(dict.fromkeys([LaunchRecord, *(kind for kind in inner if issubclass(kind, Record))]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """``environments``: of several interpreters the versions of each, by name; ``versions``: those that they share."""

    schema_version: Annotated[int, Between(SCHEMA_VERSION, SCHEMA_VERSION)] = SCHEMA_VERSION
    run: str = ""
    bench: str
    command: Names = ()
    request: Asked
    workload: WorkloadRecord
    machine: Machine
    hosts: tuple[HostRecord, ...] = ()
    engine: EngineRecord | None = None
    versions: Mapping[str, str | None]
    environments: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    fresh: bool | None = None
    apex: Apex
    sources: Mapping[str, Source] = field(default_factory=dict)
    strategies: Mapping[str, StrategyRecord] = field(default_factory=dict)
    start: State
    launches: tuple[LaunchRecord, ...] = ()
    experiments: Annotated[Mapping[str, object], Named(experiment.records)] = field(default_factory=dict)
    probe_seed: int | None = None
    validity: tuple[Finding, ...] = ()
    parity: tuple[ParityRecord, ...] = ()
    recommendation: Recommendation | None = None
    superseded: tuple[Annotated[Record, AnyOf(_kinds)], ...] = ()
    resumed: tuple[Resumed, ...] = ()
    end: State | None = None
    complete: bool = False
    files: Mapping[str, Sealed] = field(default_factory=dict)
    seal: str | None = None

    @property
    def planned(self) -> bool:
        """Whether bench planned what ran; of another run much is unknown."""
        return self.of(Imported) is None and self.of(Attached) is None

    @property
    def good(self) -> list[LaunchRecord]:
        return [launch for launch in self.launches if launch.status == "ok"]

    def of(self, kind: type[T]) -> T | None:
        """The record of the experiment that has one of this type; None if the run has none of it."""
        return next((one for one in self.experiments.values() if isinstance(one, kind)), None)

    def begun(self, kind: type[T]) -> T:
        """The same, or a new record, which has no launch yet; of a type that must say more, such a run has one."""
        return self.of(kind) or kind()

    @property
    def machines(self) -> list[Machine]:
        """All hosts, the leader first."""
        return [host.machine for host in self.hosts] or [self.machine]

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that were asked for, of all hosts."""
        return [gpu for machine in self.machines for gpu in machine.gpus if gpu.uuid in self.request.devices]

    @property
    def instead(self) -> str | None:
        """The run's work in place of measuring; None if it measured."""
        experiments = experiment.experiments()
        return next((experiments[name].instead for name in self.experiments if experiments[name].instead), None)

    def strategy_of(self, launch: LaunchRecord) -> StrategyRecord:
        """The declaration of a launch's strategy; the defaults if it is unknown."""
        return self.strategies.get(launch.strategy or "", StrategyRecord())

    @property
    def records(self) -> list[Record]:
        """Every launch of any kind, superseded ones too, in the order of their numbers."""
        return sorted([*self.launches, *self.superseded, *self.beside], key=lambda record: record.launch)

    @property
    def beside(self) -> list[Record]:
        """The launches of experiments, which are none of the measured ones."""
        return [launch for one in self.experiments.values() for launch in launches_of(one)]

    @property
    def timed(self) -> list[LaunchRecord]:
        """Every launch that has steps, superseded ones too."""
        return [one for one in self.records if isinstance(one, LaunchRecord) and one.timed]

    @property
    def next_launch(self) -> int:
        """Launches are counted from 1."""
        return max((record.launch for record in self.records), default=0) + 1

    def contradiction(self) -> str | None:
        """A launch that is there twice or was not asked for, or what is named without a launch; None if all is well."""
        launches = [record.launch for record in self.records]
        if twice := [launch for launch, times in Counter(launches).items() if times > 1]:
            return f"has launch {twice[0]} twice"
        for launch in (*(one.launch for one in self.validity), *(one.launch for one in self.parity)):
            if launch is not None and launch not in launches:
                return f"has a verdict on launch {launch}, which has no record"
        if stray := {launch.scenario for launch in self.launches} - {*self.request.scenarios}:
            return f"has a launch of {min(stray)!r}, which was not asked for"
        scenarios = {launch.scenario for launch in self.timed}
        advice = self.recommendation
        while advice is not None:
            for name in (advice.fastest, advice.leanest, *advice.not_told_apart):
                if name is not None and name not in scenarios:
                    return f"recommends {name!r}, which has no launch"
            advice = advice.parallel
        return None
