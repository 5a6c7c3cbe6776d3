"""run.json as values: every class is an object in it, every field a key.

    python -c "from bench.runs.reader import read; print(read('results/RUN').document.launches[0].effective)"

None is what is unknown. A field has a default where a run that has just begun has nothing to say of it; a file has them
all (:mod:`bench.core.codec`). Older files are brought up to this form first (:mod:`bench.runs.migrate`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Self, TypedDict

from bench.core.codec import Between, Moment, OneOf
from bench.core.records import CHECKPOINTS, PARITIES, PHASES, SCHEMA_VERSION, STATUSES, Computation, Setting
from bench.machine.nvml import Gpu

Names = tuple[str, ...]

BUSY = 0.10
"""The part of the cores that others may keep busy before it counts as load."""
Count = Annotated[int, Between(0, 10**9)]
"""How many, or which of them, from 0."""
Several = Annotated[int, Between(1, 10**6)]
"""Of ranks, replicas and what else there is at least one of."""
Batch = Annotated[int, Between(1, 10**9)]
Amount = Annotated[float, Between(0, 10**15)]
"""Of time, memory, energy: what is measured, in the unit that is in the name."""
Utc = Annotated[str, Moment()]
Status = Annotated[str, OneOf(STATUSES)]
Parity = Annotated[str, OneOf(PARITIES)]
Severity = Annotated[str, OneOf(("invalid", "warning"))]
DeviceKind = Annotated[str, OneOf(("cpu", "cuda"))]
Half = Annotated[str, OneOf(("fp16", "bf16"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for, as far as a report names it; ``more``: the other fields of :class:`bench.plan.Request`."""

    scenarios: Names
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
    """:class:`bench.core.records.Training` with its hash; None is what an imported or attached run does not say."""

    name: str | None = None
    file: str | None = None
    sha256: str | None = None
    unit: str = "examples"
    unit_short: str = "ex"
    title: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    global_batch: Batch | None = None
    replicas: Several | None = None
    device: DeviceKind | None = None
    half: Half | None = None
    warmup: Count | None = None
    seed: int | None = None
    pool_batches: Count | None = None
    units_per_example: Several | None = None
    data: str | None = None
    data_sha256: str | None = None
    examples: Count | None = None
    code_sha256: str | None = None
    workers: Count | None = None
    prefetch: Count | None = None
    hash: str | None = None

    @property
    def units(self) -> int | None:
        """What a step counts, over all replicas."""
        return self.global_batch and self.global_batch * (self.units_per_example or 1)


def what_is_trained(title: str | None, global_batch: int | None) -> str:
    """What is trained, as far as it is known."""
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
    path: str | None = None
    amp: bool | None = None
    parallel: bool | None = None
    explanation: str | None = None
    version: str | None = None
    problems: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    file: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRecord:
    """What a strategy declares and a reader of the run needs (:class:`bench.seams.Strategy`)."""

    hue: str = "magenta"
    dash: str = "short"
    not_comparable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    utc: Utc | None
    load_1min: Amount | None = None
    memory_available_gib: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One of several hosts of a run, the leader first. ``clock_offset_s``: how far its clock is ahead of the leader's,
    known within ``clock_error_s``.
    """

    name: str
    machine: Machine
    versions: Mapping[str, str | None]
    start: State
    clock_offset_s: float | None = None
    clock_error_s: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What started bench on several hosts. ``run``: what the engine calls the job; ``parent``: the process that started
    the leader. Either shows that a later start is of the same job. ``attempt``: the last one, from 0.
    """

    name: str
    run: str | None
    parent: str
    attempt: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(State):
    """When a run was gone on with. ``launch``: the first of that part. ``force``: also on GPUs in use."""

    launch: Count
    force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tf32:
    cudnn: bool
    matmul: bool


Elements = Annotated[int, Between(0, 10**15)]
Pid = Annotated[int, Between(0, 2**63 - 1)]
Scaler = TypedDict("Scaler", {"class": str, "dynamic": bool, "scale": float})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What ``torch.compile`` did in a launch: how long it took in all, and how many graphs it made of the model.

    ``graph_breaks``: places where it gave up and went on with Python. ``cached``: graphs that it found in its cache.
    """

    seconds: Amount
    graphs: Count
    graph_breaks: Count
    cached: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What really ran on the first rank, read off its live objects (:mod:`bench.worker.effective`).

    ``norm_parts``: into how many parts a batch is cut for batch norm. ``switches``: of each that was on what was seen
    instead of it, None where it took effect. ``affinity``: the cores that it could use; ``bound_cores``: those that a
    switch left it, None if none took any away.

    ``label``: what the strategy is called. ``*_dtypes``: elements by type. ``backend_class``: whose NCCL it is, which
    torch 2.15 has two of. ``apex_kernels`` and ``bf16_instructions`` are null where they do not apply.
    """

    model: str | None
    label: str
    wrapper: str
    parallel_impl: str | None
    precision_impl: str | None
    replicas: Several
    norm_parts: Several
    weights: str | None
    parameter_dtypes: Mapping[str, Elements]
    gradient_dtypes: Mapping[str, Elements]
    batch_norm_dtypes: Mapping[str, Elements]
    compute_dtypes: Names
    optimizer: str
    optimizer_fused: bool
    optimizer_settings: Mapping[str, Any] | None
    optimizer_dtypes: Mapping[str, Elements]
    scaler: Scaler | None
    backend: str | None
    backend_class: str | None
    world_size: Several
    device: Mapping[str, str | int | None]
    memory_format: str
    tf32: Tf32 | None
    cudnn_benchmark: bool | None
    bf16_instructions: bool | None
    threads: Count
    affinity: Count
    bound_cores: Count | None
    versions: Mapping[str, str | int | None]
    precision: str | None
    apex_kernels: bool | None
    switches: Mapping[str, str | None]
    compiled: Compiled | None

    @property
    def computation(self) -> Computation:
        """What its numerics are held against. Only the CPU's sums depend on the number of threads."""
        return Computation(
            replicas=self.norm_parts,
            threads=self.threads if self.tf32 is None else 0,
            precision=self.precision or "",
            dtype=", ".join(self.compute_dtypes),
            tf32=(self.tf32.cudnn, self.tf32.matmul) if self.tf32 else (False, False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    """A process on a launch's GPU that is not bench's. ``certain``: it is not a rank under another PID."""

    device: str
    pid: Pid
    name: str | None
    peak_mib: Amount | None
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    verdict: str
    devices: Mapping[str, Names | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How often the sampler looked at one kind of thing, and how long that took."""

    calls: Count
    total_ms: Amount
    max_ms: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What was verified about a launch; None if nothing was.

    ``conservation_error``: the largest relative difference between the steps of a rank's measured window and the host's
    wall time for it. ``ranks_differ``: differing fields of ``effective``. ``foreign_cores``: how many others kept busy.
    ``foreign``: others' processes on the launch's GPUs, None if the sampler died. ``scrambled_lists``: how many of the
    driver's process lists were left out. ``probes``: by rank the PID that its probe showed.
    """

    conservation_error: Amount | None = None
    conservation_ok: bool | None = None
    ranks_differ: Names | None = None
    skipped_steps: Count | None = None
    skipped_warmup_steps: Count | None = None
    finite_loss: bool | None = None
    initial_weights_alike: bool | None = None
    final_weights_alike: bool | None = None
    foreign_cores: Amount | None = None
    sampling: Mapping[str, Cost] | None = None
    foreign: tuple[ForeignProcess, ...] | None = ()
    scrambled_lists: Count | None = None
    probes: Mapping[str, Pid] | None = None
    cpu_energy: Mapping[str, str | None] | None = None
    throttle: Throttle | None = None

    def held_up(self, cores: int | None) -> bool:
        """Whether the steps miss wall time while others used more of so many cores than :data:`BUSY`."""
        return self.conservation_ok is False and (self.foreign_cores or 0.0) > BUSY * (cores or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """What the memory of a rank holds, by what it is for (:mod:`bench.worker.memory_parts`).

    ``before_mib``: what it held before there was a model. ``early_gradients_mib``: of the gradients, those that are
    there when the forward pass ends. ``reason``: why the activations are unknown.
    """

    before_mib: Amount
    parameters_mib: Amount
    masters_mib: Amount
    optimizer_mib: Amount
    buffers_mib: Amount
    buckets_mib: Amount
    gathered_mib: Amount
    batch_mib: Amount
    gradients_mib: Amount
    early_gradients_mib: Amount
    activations_mib: Amount | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """A rank of a launch. ``phase`` and ``step``: where it was last. ``allocator``: its peaks (MiB) by name.

    ``threads``: how many were planned; ``ran_threads`` and ``cores``: how many it had, and cores to run them on.
    """

    rank: Count
    pid: Pid | None
    host: str | None = None
    threads: Count | None = None
    ran_threads: Count | None = None
    cores: Count | None = None
    phase: str | None = None
    step: int | None = None
    log: str | None = None
    device: Mapping[str, str | int | None] | None = None
    allocator: Mapping[str, Amount] | None = None
    initial_sha256: str | None = None
    final_sha256: str | None = None
    memory: MemoryParts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a launch failed: where its first failed rank was, the end of its log, what the others reported.

    ``memory``: of a rank that ran out of it. ``steps_kept``: how many steps there are of each rank.
    """

    rank: Count | None = None
    phase: str | None = None
    step: int | None = None
    where: str | None = None
    memory: Mapping[str, Any] | None = None
    log_end: Names = ()
    others: tuple[Mapping[str, Any], ...] = ()
    steps_kept: Mapping[str, Count] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """``effective``: None if no rank came that far. ``warmup``, ``iters``: its steps if they are not the run's."""

    launch: Count
    scenario: str
    repeat: Count
    strategy: str | None
    precision: str | None
    processes: Several
    replicas: Several | None
    status: Status
    reason: str | None = None
    first_failed_rank: Count | None = None
    effective: Effective | None = None
    checks: Checks = Checks()
    ranks: tuple[RankRecord, ...] = ()
    started_utc: Utc | None = None
    ended_utc: Utc | None = None
    wall_s: Amount | None = None
    first_forward_s: Amount | None = None
    failure: Failure | None = None
    warmup: Count | None = None
    iters: Count | None = None

    @classmethod
    def of(cls, record: "LaunchRecord", **more: Any) -> Self:
        """The same launch as a kind that has the fields ``more``."""
        return cls(**{field.name: getattr(record, field.name) for field in fields(record)} | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    steps: Count
    step_ms: Amount
    categories: Mapping[str, float]
    trace: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a rank of a diagnostic launch saw: by probe why it has no rows, and its profile."""

    reasons: Mapping[str, str | None]
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """What the memory of rank 0 was predicted to hold without running it (:mod:`bench.worker.memory_forecast`).

    ``activations_mib``: what is alive when the forward pass ends. ``method``: what predicted it. ``reason``: why
    something is unknown.
    """

    parameters_mib: Amount | None
    masters_mib: Amount | None
    optimizer_mib: Amount | None
    buffers_mib: Amount | None
    buckets_mib: Amount | None
    batch_mib: Amount | None
    gradients_mib: Amount | None
    activations_mib: Amount | None
    peak_mib: Amount | None
    method: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticRecord(LaunchRecord):
    looks: tuple[Look, ...] = ()
    forecast: MemoryForecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLook:
    """What a rank saw of checkpoints: cycles of steps that begin with a save, and as many without (ms).

    ``save_ms``: until training goes on. ``next_step_ms``: the first step after a checkpoint was loaded.
    """

    saving_ms: tuple[Amount, ...]
    plain_ms: tuple[Amount, ...]
    save_ms: tuple[Amount, ...]
    load_ms: Amount
    next_step_ms: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord(LaunchRecord):
    """``steps``: of a cycle; a save is planned for ``every`` so many. ``how``: of ``bench.core.records.CHECKPOINTS``.

    ``saves``: what each rank saw of them. ``size_mib``: of the files of one.
    """

    every: Several
    steps: Several
    how: Annotated[str, OneOf(CHECKPOINTS)]
    size_mib: Amount | None
    saves: tuple[CheckpointLook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLook:
    """What came of killing a rank after its step ``killed_step``: all went on from the checkpoint of ``resumed_step``.

    Times (ms) run from the kill until the last rank was there: its new interpreter had imported torch (``up_ms``), it
    had met the others (``joined_ms``) and loaded the checkpoint (``loaded_ms``), its next step was over
    (``next_step_ms``), and the first step that had not been trained before (``caught_up_ms``). ``step_ms``: the median
    step before. ``loss_error``: how far the losses of steps that were trained twice are apart, relative.
    """

    killed_rank: Count
    killed_step: Count
    resumed_step: Count
    up_ms: Amount
    joined_ms: Amount
    loaded_ms: Amount
    next_step_ms: Amount
    caught_up_ms: Amount
    step_ms: Amount | None
    loss_error: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRecord(LaunchRecord):
    """A launch in which a rank was killed, with a checkpoint ``every`` so many steps."""

    every: Several
    restart: RestartLook | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TryRecord(LaunchRecord):
    """``why_not``: None if the batch trains."""

    global_batch: Batch
    peak_mib: Amount | None
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord(LaunchRecord):
    """A launch of an input sweep: the loader alone, or training alone with its batches ready in memory (``workers`` is
    None).

    ``first_reading``: the one before all others, whose files the page cache may not have had. ``throughput_per_s``:
    over all ranks. ``disk_mib``: what its processes read from a disk, None where the kernel does not count it.
    """

    workers: Count | None
    first_reading: bool
    throughput_per_s: Amount | None
    disk_mib: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRecord:
    """The launch that all numerics are compared with. ``computations``: of every pass, of training and of the probe;
    none before schema 6."""

    launch: Count
    replica_counts: tuple[Several, ...]
    status: Status
    reason: str | None
    wall_s: Amount | None
    half: Half
    unit_roundoff: float | None
    computations: tuple[Computation, ...] = ()


Record = LaunchRecord | ReferenceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How precisely a step time is known; ``half_width``: relative, of its 95 % interval."""

    launches: Count
    half_width: Amount | None
    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalTargetRecord:
    """What came of ``--until-precision``. ``stopped_by``: ``precision``, ``budget``, ``launches`` or ``failures``."""

    target: Amount
    budget_s: Amount
    spent_s: Amount
    stopped_by: str
    scenarios: Mapping[str, Reached]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """What ``--find-batch`` found of a scenario. ``too_large``: the smallest that does not train, and ``why_not``."""

    largest: Batch | None
    throughput_per_s: Amount | None
    peak_mib: Amount | None
    too_large: Batch | None
    why_not: str | None
    tries: Count
    failed: bool
    stopped_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    capacity_mib: Amount
    kept_free: Amount
    launches: tuple[TryRecord, ...] = ()
    scenarios: Mapping[str, LargestBatch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSweep:
    """What ``--input-sweep`` measured before the launches of the run. ``counts``: of workers of each rank, in order."""

    counts: tuple[Count, ...]
    launches: tuple[InputRecord, ...] = ()

    @property
    def good(self) -> list[InputRecord]:
        return [launch for launch in self.launches if launch.status == "ok"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """How a way to train fared in the race of ``bench tune``. ``step_ms``: its level, with the drift taken out.

    ``why_not``: why it cannot be used, or ``beaten``: by what; both None for one that was still in. ``round``: the last
    that it took part in.
    """

    launches: Count
    round: Count
    step_ms: Amount | None
    throughput_per_s: Amount | None
    peak_mib: Amount | None
    why_not: str | None
    beaten: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What ``bench tune`` did: the launches of its race, which chose the ``finalists``, the winner first.

    ``asked``: the candidates that it began with. ``launches`` of the run are fresh ones of the finalists.
    ``stopped_by``: ``race`` or ``budget``; None while it runs. ``spent_s``: of the budget, by the race.
    """

    asked: Names
    budget_s: Amount
    memory_limit_mib: Amount | None
    floor: str
    allow: Names
    baseline: str | None
    launches: tuple[LaunchRecord, ...] = ()
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    finalists: Names = ()
    leanest: str | None = None
    stopped_by: str | None = None
    spent_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Over what ranks talk. ``interface``: of their sockets. ``reason``: why something is unknown."""

    backend: str
    library: str | None
    interface: str | None
    nominal_mbit: Amount | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduces:
    """All-reduces of one size, ``at_once`` at a time. ``times_ms``: of all at once over their number, a value for each
    sample, of the slowest rank."""

    bytes: Elements
    at_once: Count = 1
    times_ms: tuple[Amount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRecord(LaunchRecord):
    """A launch of all-reduces and nothing else. ``left_out``: why larger sizes are missing."""

    transport: Transport | None
    sizes: tuple[AllReduces, ...]
    left_out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a step hands over to the process group: how much, and how long after the step's start.

    A median over steps whose exchanges take no time. ``phase``: of :data:`bench.core.records.PHASES`.
    """

    kind: Annotated[str, OneOf(("all_reduce", "broadcast"))]
    phase: Annotated[str, OneOf(PHASES)]
    bytes: Elements
    ready_ms: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangesRecord(LaunchRecord):
    """A launch of ranks that compute side by side and hand over their gradients to nobody; values of the slowest rank.

    ``ends_ms``: of each phase, since the step's start. ``why_not``: why nothing is known of the exchanges.
    """

    global_batch: Batch
    ends_ms: Mapping[str, Amount]
    exchanges: tuple[Exchange, ...]
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord(LaunchRecord):
    """A launch with another number of devices, or another batch, than those of the run. ``slot``: of one device by
    itself which of those that were chosen it is, from 0."""

    global_batch: Batch
    slot: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointDiagnostic(DiagnosticRecord):
    global_batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What ``bench scale`` measured beside the launches of the run, which are those on all devices.

    ``modes``: ``weak`` (the same batch on each rank) and ``strong`` (the same batch in all), or ``each`` for every
    device by itself, which is all that such a run has. ``predict``: numbers of devices to predict; ``what_if_mbit``:
    the bandwidth to assume for that, None for the measured one.
    """

    counts: tuple[Several, ...]
    modes: Names
    batch_per_rank: Batch
    predict: tuple[Several, ...] = ()
    what_if_mbit: Amount | None = None
    launches: tuple[PointRecord, ...] = ()
    diagnostics: tuple[PointDiagnostic, ...] = ()
    bandwidth: tuple[BandwidthRecord, ...] = ()
    exchanges: tuple[ExchangesRecord, ...] = ()

    @property
    def by_itself(self) -> bool:
        """Whether every device was measured by itself."""
        return self.modes == ("each",)

    @property
    def records(self) -> tuple[LaunchRecord, ...]:
        return (*self.launches, *self.diagnostics, *self.bandwidth, *self.exchanges)


OfAnyKind = LaunchRecord | DiagnosticRecord | CheckpointRecord | RestartRecord | ReferenceRecord | InputRecord
OfScaling = PointRecord | PointDiagnostic | BandwidthRecord | ExchangesRecord
Superseded = OfAnyKind | OfScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with the values of a launch, or of a scenario (``launch`` is None), and what to do about it.

    ``severity``: ``invalid`` or ``warning``. ``size``: the more the worse, comparable within one code and remedy.
    """

    launch: Count | None = None
    scenario: str = ""
    code: str
    severity: Severity
    text: str
    remedy: str
    size: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRecord:
    """The verdict on the numerics of a launch (:func:`bench.analyse.parity.parity`).

    Before schema 6 ``gradient_*`` are of the first step's gradient as a whole, and what came later is null.
    """

    launch: Count
    scenario: str
    verdict: Parity | None
    reason: str | None
    replicas: float | None
    gradient_error: float | None
    gradient_bound: float | None
    gradient_alone: float | None
    loss_error: float | None
    loss_bound: float | None
    loss_step: float | None
    update_error: float | None = None
    update_bound: float | None = None
    trained_error: float | None = None
    trained_bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to train with. ``parallel``: the same among scenarios on several replicas, None if that adds nothing."""

    fastest: str | None = None
    leanest: str | None = None
    not_told_apart: Names = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    parallel: "Recommendation | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Where an imported run came from. ``times``: what its step times mean. ``more``: what else the file says."""

    kind: str
    file: str
    sha256: str
    utc: Utc
    measured_utc: Utc | None
    hardware: Names
    times: str
    left_out: Names
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Of an attached command. ``role``: ``rank``, ``helper`` (started by a rank) or ``launcher``. In tables a helper
    counts with its rank, and a launcher with the first rank.
    """

    pid: Pid
    rank: Count
    role: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedLaunch:
    """``calls``: by rank of the optimizer that delimits its steps. ``others``: of the other optimizers, by class."""

    launch: Count
    exit_code: int
    calls: Mapping[str, Count]
    others: Mapping[str, Count]
    processes: tuple[Process, ...]
    left_out: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What bench was attached to. ``step``: what delimits one. ``times``: by which clock. ``git``: of its folder."""

    command: Names
    cwd: str
    script: Source | None
    git: Git | None
    step: str
    times: str
    launches: tuple[AttachedLaunch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A file of a run as it was when run.json was written. ``rows``: of a table, or lines."""

    sha256: str
    rows: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    schema_version: int = SCHEMA_VERSION
    run: str = ""
    bench: str
    command: Names = ()
    request: Asked
    workload: WorkloadRecord
    machine: Machine
    hosts: tuple[HostRecord, ...] = ()
    engine: EngineRecord | None = None
    versions: Mapping[str, str | None]
    fresh: bool | None = None
    apex: Apex
    sources: Mapping[str, Source] = field(default_factory=dict)
    strategies: Mapping[str, StrategyRecord] = field(default_factory=dict)
    imported: Imported | None = None
    attached: Attached | None = None
    start: State
    launches: tuple[LaunchRecord, ...] = ()
    diagnostics: tuple[DiagnosticRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    restarts: tuple[RestartRecord, ...] = ()
    probe_seed: int | None = None
    reference: ReferenceRecord | None = None
    interval_target: IntervalTargetRecord | None = None
    validity: tuple[Finding, ...] = ()
    parity: tuple[ParityRecord, ...] = ()
    recommendation: Recommendation | None = None
    superseded: tuple[Superseded, ...] = ()
    resumed: tuple[Resumed, ...] = ()
    batch_search: BatchSearch | None = None
    input_sweep: InputSweep | None = None
    tuning: Tuning | None = None
    scaling: Scaling | None = None
    end: State | None = None
    complete: bool = False
    files: Mapping[str, Sealed] = field(default_factory=dict)
    seal: str | None = None

    @property
    def planned(self) -> bool:
        """Whether bench planned what ran; of another run much is unknown."""
        return self.imported is None and self.attached is None

    @property
    def good(self) -> list[LaunchRecord]:
        return [launch for launch in self.launches if launch.status == "ok"]

    def strategy_of(self, launch: LaunchRecord) -> StrategyRecord:
        """What the strategy of a launch declares; the defaults if it is unknown."""
        return self.strategies.get(launch.strategy or "", StrategyRecord())

    @property
    def records(self) -> list[Record]:
        """Every launch of any kind, superseded ones too, in the order of their numbers."""
        reference = (self.reference,) if self.reference else ()
        everything: list[Record] = [*self.launches, *self.diagnostics, *self.checkpoints, *self.restarts]
        everything += [*self.superseded, *self.aside, *reference]
        if self.scaling is not None:
            everything += [*self.scaling.diagnostics, *self.scaling.bandwidth, *self.scaling.exchanges]
        return sorted(everything, key=lambda record: record.launch)

    @property
    def aside(self) -> list[LaunchRecord]:
        """Launches with steps that are none of the measured ones: of a search, of an input sweep, or with other numbers
        of devices."""
        experiments = (self.batch_search, self.input_sweep, self.tuning, self.scaling)
        return [launch for experiment in experiments if experiment for launch in experiment.launches]

    @property
    def next_launch(self) -> int:
        """Launches are counted from 1, as progress shows them; runs of bench 0.1 counted from 0."""
        return max((record.launch for record in self.records), default=0) + 1
