"""The records of experiments in run.json: their launches and results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from bench.core.codec import OneOf
from bench.core.records import PHASES
from bench.runs.fields import Amount, Batch, Count, Elements, Flops, Name, Names, Several, Utc
from bench.runs.launches import DoubleRecord, LaunchRecord, ReferenceRecord

NO_KERNELS = "the profiler saw no kernel of the GPU; another profiler has it, or the driver denies it to this user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    steps: Count
    step_ms: Amount
    categories: Mapping[str, float]
    trace: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPath:
    """The way that NCCL took (:mod:`bench.worker.nccl_path`): channels by transport, such as ``P2P/CUMEM``, and by
    algorithm and protocol the bytes of the smallest and of the largest collective. ``reason``: why none is known."""

    transports: Mapping[str, Count]
    algorithms: Mapping[str, tuple[Count, ...]]
    reason: str | None


NO_NCCL = NcclPath(transports={}, algorithms={}, reason="NCCL took no part in this launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The look of a rank of a diagnostic launch: by probe why it has no rows, its profile, and NCCL's path."""

    reasons: Mapping[str, str | None]
    profile: Profile
    nccl: NcclPath = NO_NCCL


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticRecord(LaunchRecord):
    timed: ClassVar[bool] = False
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    launches: tuple[DiagnosticRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The launches that others are judged by. ``references``: one of each environment; ``doubles``: of some scenarios
    each, in double precision."""

    doubles: tuple[DoubleRecord, ...] = ()
    references: tuple[ReferenceRecord, ...] = ()

    def reference_of(self, environment: str | None) -> ReferenceRecord | None:
        return next((one for one in self.references if one.environment == environment), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a step, in fp32: FLOPs of an example (:mod:`bench.worker.work`), in all and of convolutions, trained
    ``parameters``, the bytes that the optimizer reads and writes, and those of the gradients, which replicas exchange.
    """

    forward_flops: Flops
    backward_flops: Flops
    convolution_flops: Flops
    parameters: Elements
    exchanged_bytes: Elements
    optimizer_bytes: Elements

    @property
    def convolves(self) -> bool:
        return self.convolution_flops > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The ceilings of devices of this kind, measured by all ranks at the same time, a value for each rank.

    ``device``: the GPU's name, or the CPU's. ``tflops``: by operator and type, such as ``convolutions bf16``.
    ``gib_per_s``: of reading, writing, an optimizer's step, and copies to the device. ``launch_us``: that an operator's
    call costs the host. ``reasons``: why something is missing. ``utc``: when it was measured.
    """

    device: str
    driver: str | None
    torch: str | None
    processes: Several
    threads: Count
    utc: Utc
    tflops: Mapping[str, tuple[Amount, ...]]
    gib_per_s: Mapping[str, tuple[Amount, ...]]
    launch_us: tuple[Amount, ...]
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingsLaunch(LaunchRecord):
    """A launch that trains nothing, and measures what the devices can do."""

    timed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator of a step with arguments of one form: how often, its FLOPs and the bytes of its tensors each time,
    and how long it takes alone and warm; None if it could not be repeated."""

    name: str
    phase: Annotated[str, OneOf(PHASES)]
    type: str
    count: Count
    flops: Elements
    bytes: Elements
    alone_ms: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsLaunch(LaunchRecord):
    """A launch that takes a step apart (:mod:`bench.worker.limits`).

    Of each rank that trains: ``spent_ms``, what a profiled step without an exchange is spent on, by class, of exchanges
    on a GPU what no other kernel hides; ``fresh_ms``, what first touches of memory take in a ``step`` without an
    exchange, and in one that is ``profiled``, empty on a GPU; ``lead_ms``, how far its host was ahead of the GPU where
    it was least ahead, in steps without an exchange, null on the CPU.
    ``all_reduce_ms``: of all gradients alone, of the slowest rank. ``operators``: of the first rank; those of the first
    launch of a scenario stand for all. ``reasons``: why something is missing.
    """

    timed: ClassVar[bool] = False
    spent_ms: tuple[Mapping[str, Amount], ...] = ()
    fresh_ms: tuple[Mapping[str, Amount], ...] = ()
    lead_ms: tuple[float | None, ...] = ()
    all_reduce_ms: Amount | None = None
    operators: tuple[Operator, ...] = ()
    reasons: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The work of a step, the ceilings of this machine, and launches that take a step apart."""

    work: Work | None = None
    ceilings: tuple[Ceilings, ...] = ()
    measured: tuple[CeilingsLaunch, ...] = ()
    launches: tuple[LimitsLaunch, ...] = ()

    def ceilings_of(self, launch: LaunchRecord) -> Ceilings | None:
        """Those of as many ranks with as many threads as a launch has, and of its torch if that is known; None if they
        were not measured."""
        threads = {rank.threads for rank in launch.ranks}
        same = [one for one in self.ceilings if one.processes == launch.processes and {one.threads} == threads]
        if launch.effective is not None:
            same = [one for one in same if one.torch == launch.effective.versions.get("torch")]
        return next(iter(same), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The expected gain of a switch: how many times as fast, with the interval of the account that it follows from."""

    scenario: Name
    gain: Amount
    low: Amount | None
    high: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofLaunch(LaunchRecord):
    """A launch of either side. ``step_ms``: the median of its steps, None where it failed."""

    step_ms: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """The predictions of ``--prove``, the best first, for ``base``, and its launches of that and of the best.

    ``reason``: why nothing was measured.
    """

    base: Name | None = None
    predictions: tuple[Prediction, ...] = ()
    launches: tuple[ProofLaunch, ...] = ()
    reason: str | None = None


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
class Reached:
    """How precisely a step time is known; ``half_width``: relative, of its 95 % interval."""

    launches: Count
    half_width: Amount | None
    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalTargetRecord:
    """The result of ``--until-precision``. ``stopped_by``: ``precision``, ``budget``, ``launches`` or ``failures``."""

    target: Amount
    budget_s: Amount
    spent_s: Amount
    stopped_by: str
    scenarios: Mapping[str, Reached]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The result of ``--find-batch`` for a scenario. ``too_large``: the smallest that does not train, and
    ``why_not``."""

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
    launches: tuple[TryRecord, ...] = ()
    scenarios: Mapping[str, LargestBatch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSweep:
    """The launches of ``--input-sweep``, before those of the run. ``counts``: of workers of each rank, in order."""

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
    """The search of ``bench tune``: the launches of its race, which chose the ``finalists``, the winner first.

    ``memory_limit_mib``: of a device, None for what it has. ``floor``: ``same`` or ``half``, the numerics that are good
    enough. ``allow``: the switches and precision levels to try. ``baseline``: what the gain is counted from. ``asked``:
    the candidates that it began with. ``launches`` of the run are fresh ones of the finalists. ``stopped_by``: ``race``
    or ``budget``; None while it runs. ``spent_s``: of the budget, by the race.
    """

    budget_s: Amount
    memory_limit_mib: Amount | None
    floor: str
    allow: Names
    baseline: Name | None
    asked: tuple[Name, ...]
    launches: tuple[LaunchRecord, ...] = ()
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    finalists: tuple[Name, ...] = ()
    leanest: Name | None = None
    stopped_by: str | None = None
    spent_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The value of a candidate over that of the good end, with its 95 % interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """The result of ``bench bisect``. ``candidates``: in order, the good end first, each with what it is. ``low``,
    ``high``: the bracket, the last that is as the good end and the first that is as the bad one. ``metric``: of the
    launches, by which they were told apart. ``ends_differ``: beyond noise; ``ends_alike``: surely by less than counts.
    ``decided``: nothing is left between ``low`` and ``high`` that can be launched. ``launches``: of the blocks that
    counted. ``skipped``: why."""

    of: str
    candidates: Mapping[Name, str]
    metric: str
    error: float
    low: Name
    high: Name
    ends_differ: bool = False
    ends_alike: bool = False
    decided: bool = False
    launches: Count = 0
    levels: Mapping[Name, Level] = field(default_factory=dict)
    skipped: Mapping[Name, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Over what ranks talk. ``interface``: of their sockets, or what links GPUs of a host. ``nominal_mbit``: what it
    sends at most. ``reason``: why something is unknown."""

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

    timed: ClassVar[bool] = False
    transport: Transport | None
    sizes: tuple[AllReduces, ...]
    left_out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A hand-over of a step to the process group: how much, and how long after the step's start.

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

    timed: ClassVar[bool] = False
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
    """The launches of ``bench scale`` beside the launches of the run, which are those on all devices.

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
    def to_predict(self) -> tuple[int, ...]:
        """By default 2, 4 and 8 times as many devices as were measured."""
        return self.predict or tuple(times * max(self.counts) for times in (2, 4, 8))

    def batch_of_rank(self, mode: str, count: int) -> int | None:
        """On this many devices; None where the batch in all cannot be shared by them."""
        whole = max(self.counts) * self.batch_per_rank
        if mode != "strong":
            return self.batch_per_rank
        return None if whole % count else whole // count
