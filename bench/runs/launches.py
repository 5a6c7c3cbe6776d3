"""A launch in run.json: what ran, what was verified about it, and how it failed.

A field is None if it is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypedDict

from bench.core.job import EXAMPLES, Computation
from bench.runs.fields import Amount, Count, Elements, Name, Names, Pid, Precision, Several, Status, Utc

BUSY = 0.10  # the part of the cores that others may keep busy before it counts as load
REPLICATES_WANTED = 3  # launches; with fewer nothing is said about chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Tf32:
    """Whether convolutions (``cudnn``; None in a model that has none) and matrix products of fp32 take TF32."""

    cudnn: bool | None
    matmul: bool


Scaler = TypedDict("Scaler", {"class": str, "dynamic": bool, "scale": float})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """``torch.compile`` in a launch: how long it took in all, and how many graphs it made of the model.

    ``graph_breaks``: places where it gave up and went on with Python.
    """

    seconds: Amount
    graphs: Count
    graph_breaks: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The implementation that ran on the first rank, read off its live objects (:mod:`bench.worker.effective`).

    ``norm_parts``: into how many parts a batch is cut for batch norm. ``switches``: of each that was on what was seen
    instead of it, None where it took effect. ``affinity``: the cores that it could use; ``bound_cores``: those that a
    switch left it, None if none took any away; ``chosen_threads``: those that a switch gave it, None if none did.

    ``label``: what the strategy is called. ``*_dtypes``: elements by type. ``backend_class``: whose NCCL it is, which
    torch 2.15 has two of. ``apex_kernels`` and ``bf16_instructions`` are null where they do not apply.
    ``bf16_by_fp32``: whether bf16 was computed in fp32 and rounded (:class:`bench.worker.by_fp32.ByFp32`).
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
    bf16_by_fp32: bool
    threads: Count
    affinity: Count
    bound_cores: Count | None
    chosen_threads: Count | None
    versions: Mapping[str, str | int | None]
    precision: Precision | None
    apex_kernels: bool | None
    switches: Mapping[str, str | None]
    compiled: Compiled | None

    @property
    def computation(self) -> Computation:
        """The computation that its numerics are compared with. Only the CPU's sums depend on the number of threads."""
        threads = self.threads if self.tf32 is None else 0
        return Computation(replicas=self.norm_parts, threads=threads, examples=EXAMPLES * self.replicas)


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
    """The checks of a launch; None where nothing was verified.

    ``conservation_error``: the largest relative difference between the steps of a rank's measured window and the host's
    wall time for it. ``ranks_differ``: differing fields of ``effective``. ``foreign_cores``: how many of the usable
    cores others kept busy. ``foreign``: others' processes on the launch's GPUs, None if the sampler died.
    ``scrambled_lists``: how many of the driver's process lists were left out. ``probes``: by rank the PID that its
    probe showed.
    """

    conservation_error: Amount | None = None
    conservation_ok: bool | None = None
    ranks_differ: Names | None = None
    skipped_steps: Count | None = None
    finite_loss: bool | None = None
    initial_weights_alike: bool | None = None
    final_weights_alike: bool | None = None
    foreign_cores: Amount | None = None
    sampling: Mapping[str, Cost] | None = None
    foreign: tuple[ForeignProcess, ...] | None = ()
    scrambled_lists: Count | None = None
    probes: Mapping[str, Pid] | None = None
    throttle: Throttle | None = None

    def held_up(self, cores: int | None) -> bool:
        """Whether the steps miss wall time while others used more of this many cores than :data:`BUSY`."""
        return self.conservation_ok is False and (self.foreign_cores or 0.0) > BUSY * (cores or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHeld:
    """The memory that a rank held, by purpose (:mod:`bench.worker.memory_parts`). Of the parts no more than the
    activations, what is alive when the forward pass ends, can be unknown: ``reason``.

    ``before_mib``: what it held before there was a model. ``early_gradients_mib``: of the gradients, those that are
    there when the forward pass ends.
    """

    parameters_mib: Amount | None
    masters_mib: Amount | None
    optimizer_mib: Amount | None
    buffers_mib: Amount | None
    buckets_mib: Amount | None
    batch_mib: Amount | None
    gradients_mib: Amount | None
    activations_mib: Amount | None
    reason: str | None
    before_mib: Amount
    gathered_mib: Amount
    early_gradients_mib: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """A rank of a launch. ``phase`` and ``step``: where it was last. ``allocator``: its peaks (MiB) by name.

    ``host_lead_ms``: how far its host was ahead of the GPU at the end of a step (median); null on the CPU, where the
    host is the device. ``threads``: how many were planned; ``ran_threads`` and ``cores``: how many it had, and cores to
    run them on.
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
    host_lead_ms: float | None = None
    initial_sha256: str | None = None
    final_sha256: str | None = None
    memory: MemoryHeld | None = None


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
class Record:
    """A launch of any kind, and how it ended."""

    launch: Count
    status: Status
    reason: str | None = None
    wall_s: Amount | None = None

    @classmethod
    def of(cls, record: "Record", **more: Any) -> Self:
        """The same launch as another kind: what both have, and the fields ``more``."""
        names = [field.name for field in fields(cls) if field.name not in more and hasattr(record, field.name)]
        return cls(**{name: getattr(record, name) for name in names}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord(Record):
    """``effective``: None if no rank came that far. ``replicas``: equal parts of a batch. ``devices``: how many
    train (:attr:`bench.core.job.Job.devices`). ``warmup``, ``iters``: its steps if they are not the run's.
    ``environment``: of several interpreters the one that ran it."""

    timed: ClassVar[bool] = True
    """Whether its steps are in steps.parquet."""

    scenario: Name
    repeat: Count
    strategy: Name | None
    precision: Precision | None
    processes: Several
    replicas: Several | None
    devices: Several | None = None
    first_failed_rank: Count | None = None
    effective: Effective | None = None
    checks: Checks = Checks()
    ranks: tuple[RankRecord, ...] = ()
    started_utc: Utc | None = None
    ended_utc: Utc | None = None
    first_forward_s: Amount | None = None
    failure: Failure | None = None
    warmup: Count | None = None
    iters: Count | None = None
    environment: Name | None = None

    def contradiction(self) -> str | None:
        """A rank that is there twice or is none of the launch's; None if there is none."""
        ranks = [rank.rank for rank in self.ranks]
        failed = [] if self.first_failed_rank is None else [self.first_failed_rank]
        if len(set(ranks)) < len(ranks) or max([*ranks, *failed], default=0) >= self.processes:
            return f"has ranks {', '.join(map(str, [*ranks, *failed]))} and {self.processes} processes"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleRecord(Record):
    """A launch in double precision. ``scenarios``: those that it stands for, which differ in their levels alone.
    ``left_out``: switches of them that it went without."""

    scenarios: Names
    left_out: Names = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRecord(Record):
    """The launch that all numerics of an ``environment`` are held against. ``step_ms``: for each of the
    ``computations`` the quickest of a few steps in fp32. ``narrow``: whether the model in double precision had fewer
    weights."""

    computations: tuple[Computation, ...] = ()
    step_ms: tuple[Amount | None, ...] = ()
    narrow: bool = False
    environment: Name | None = None
