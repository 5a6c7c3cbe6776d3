"""Values that cross processes and files: the workload, the job of a rank, the columns of the tables.

The command line and the workers import it, so it needs the standard library alone. Units are in the names.
"""

from dataclasses import asdict, dataclass, field, replace

SCHEMA_VERSION = 1  # of run.json and of the tables beside it; a reader refuses any other by name
PROBE_MIB = 512.0  # a rank in a container allocates as much once: its PID is the one whose figure rises by that
STATUSES = ("ok", "oom", "timeout", "killed", "unsupported", "error")
PARITIES = ("same", "within half precision", "differs by design", "cannot tell", "diverged", "not finite")
"""The verdicts on numerics, from the best to the worst."""
PHASES = ("data", "forward", "backward", "optimizer")
CHECKPOINTS = ("torch", "dcp", "dcp_async")
MOST_CHECKPOINT_STEPS = 50  # of a cycle of steps with one save, however seldom there is to be one

LAUNCH_COLUMNS = {"launch": "int32", "scenario": "string"}  # the first columns of every table

STEP_COLUMNS = {
    **LAUNCH_COLUMNS,
    **dict.fromkeys(("repeat", "rank", "step"), "int32"),
    "warmup": "bool",
    "start_ns": "int64",
    **{f"{phase}_ms": "float64" for phase in (*PHASES, "step")},
    "loss": "float64",
    "host": "string",
}
"""One row per rank and step, warm-up steps included. ``start_ns``: CLOCK_MONOTONIC of ``host``; other hosts' differ."""

MEMORY_COLUMNS = {
    **LAUNCH_COLUMNS,
    "host": "string",
    "t_ns": "int64",
    "pid": "int64",
    "rank": "int32",
    "device": "string",
    "used_mib": "float64",
    "source": "string",
    "reason": "string",
    "pss_mib": "float64",
}
"""One row per sample, process and device. ``used_mib`` is null with a ``reason`` where it is unknown, never 0.

``source``: ``nvml_pid``, ``nvml_probe``, ``nvml_device_delta`` (see ``bench.machine.sample.attribution``),
``torch_allocator`` (a peak, not a sample), ``rss`` or ``unavailable``. ``pss_mib``: a CPU rank's proportional set size,
seldom taken.
"""

MEMORY_SOURCES = ("nvml_pid", "nvml_probe", "nvml_device_delta", "torch_allocator", "rss", "unavailable")

ACTIVITY_COLUMNS = ("sm_percent", "tensor_percent", "dram_percent", "nvlink_tx_mib_s", "nvlink_rx_mib_s")

LINK_COLUMNS = ("pcie_tx_kib", "pcie_rx_kib", "nvlink_tx_kib", "nvlink_rx_kib")

DEVICE_COLUMNS = {
    **LAUNCH_COLUMNS,
    "host": "string",
    "t_ns": "int64",
    "device": "string",
    **dict.fromkeys(("utilisation_percent", "power_w", "energy_mj"), "float64"),
    **dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz", "temperature_c"), "float64"),
    "throttle_reasons": "int64",
    "used_mib": "float64",
    "reason": "string",
    **dict.fromkeys(LINK_COLUMNS, "float64"),
    "mig": "bool",
    **dict.fromkeys(ACTIVITY_COLUMNS, "float64"),
    "activity_reason": "string",
}
"""One row per sample and GPU. ``energy_mj``: the driver's counter in millijoules; ``throttle_reasons``: NVML's bits.

``pcie_*`` and ``nvlink_*``: counters, in every tenth sample, null where the driver has none. On the CPU one row per
sample and package with ``energy_mj`` alone (RAPL). NVML's GPM metrics, of the time since the sample before:
``sm_percent`` (busy SMs), ``tensor_percent`` (time in tensor cores), ``dram_percent`` (of its bandwidth) and
``nvlink_*_mib_s``; null with ``activity_reason`` where unknown.
"""

NUMERICS_COLUMNS = {
    **LAUNCH_COLUMNS,
    **dict.fromkeys(("rank", "replicas"), "int32"),
    "twin": "bool",
    "quantity": "string",
    "position": "int32",
    "value": "float64",
    **dict.fromkeys(("computation", "step", "tensor"), "int32"),
}
"""One row per number that says what was trained (see ``bench.worker.probe`` and ``bench.worker.reference``).

``quantity``: of a launch in double precision and of the reference, by step and tensor, and ``position`` in its sketch,
``probed`` (the gradient) and ``buffer`` (what the step did to a buffer); ``alone`` (the gradient of the first replica
by itself). ``own``: the gradient of a measured launch in its own types, in a run of several interpreters.
``update_error`` and ``update_bound``: of a tensor and a step. ``loss`` of a step (``position``) of the reference.
``rank`` is null for the reference, and ``computation``, the place in its ``computations``, for a launch. ``twin``: with
weights moved by a rounding.
"""

DIAGNOSTIC_COLUMNS = {
    **LAUNCH_COLUMNS,
    "rank": "int32",
    "look": "string",
    **dict.fromkeys(("step", "pair"), "int32"),
    "synchronised": "bool",
    **{f"{phase}_ms": "float64" for phase in PHASES},
    **dict.fromkeys(("compute_ms", "comm_ms", "overlap_ms"), "float64"),
    **dict.fromkeys(("scatter_ms", "replicate_ms", "parallel_apply_ms", "gather_ms"), "float64"),
}
"""One row per rank and step of a diagnostic launch. A column is null where the probe ``look`` does not have it."""

ALWAYS_KNOWN = {  # by table the columns that are never null
    "steps": (*LAUNCH_COLUMNS, "repeat", "rank", "step", "warmup", "step_ms"),
    "memory": (*LAUNCH_COLUMNS, "t_ns", "pid", "rank", "source"),
    "device": (*LAUNCH_COLUMNS, "t_ns", "device"),
    "numerics": (*LAUNCH_COLUMNS, "quantity", "position", "value"),
    "diagnostics": (*LAUNCH_COLUMNS, "rank", "look", "step"),
}
RANGES: dict[str, tuple[int, int]] = {  # the least and the most of a number in any table
    **dict.fromkeys(
        ("launch", "repeat", "rank", "step", "replicas", "position", "pair", "computation", "tensor"), (0, 2**31 - 1)
    ),
    **dict.fromkeys(("start_ns", "t_ns", "pid", "throttle_reasons"), (0, 2**63 - 1)),
    **dict.fromkeys((f"{phase}_ms" for phase in (*PHASES, "step")), (0, 10**12)),
    **dict.fromkeys(("used_mib", "pss_mib", "power_w", "sm_clock_mhz", "memory_clock_mhz"), (0, 10**9)),
    **dict.fromkeys(("utilisation_percent", *ACTIVITY_COLUMNS[:3]), (0, 100)),
    **dict.fromkeys(ACTIVITY_COLUMNS[3:], (0, 10**9)),
    "temperature_c": (-273, 1000),
    **dict.fromkeys(("energy_mj", *LINK_COLUMNS), (0, 10**18)),
    **dict.fromkeys(("comm_ms", "compute_ms", "overlap_ms"), (-(10**12), 10**12)),
    **dict.fromkeys(("loss", "value"), (-(10**40), 10**40)),
    **dict.fromkeys((f"{part}_ms" for part in ("scatter", "replicate", "parallel_apply", "gather")), (0, 10**12)),
}
NOT_FINITE = ("loss", "value")  # columns of what a training computes, which may be NaN or infinite

Setting = str | int | float | bool

EXAMPLES = 3
"""Of a replica in double precision: batch norm needs two, and a mistake that drops all but two shows with three."""

SMALL_STEPS = 3
"""In double precision, the first of them for warm-up: a mistake of the measured steps shows, and so does one of every
other step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A workload file with its settings, apart from how much of it is trained at once.

    ``sha256``: of the file if it is the user's own, None for a built-in one; ``code_sha256``: of the code of a built-in
    one (:func:`bench.seams.code.code_sha256`), else None. ``unit``: what is counted, such as ``images``, and
    ``unit_short`` in tables; ``units_per_example``: how many of it one example has, None for one. ``title``: what it is
    called. ``data``: the folder of real data, None for made-up data; ``data_sha256``: of the names and sizes of its
    files; ``examples``: how many it has.
    """

    name: str
    file: str
    sha256: str | None
    unit: str
    unit_short: str
    title: str
    settings: dict[str, Setting]
    units_per_example: int | None = None
    data: str | None = None
    data_sha256: str | None = None
    examples: int | None = None
    code_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Task):
    """The training of every scenario of a run. Equal hashes mean the same training, whatever the number of measured
    steps.

    ``global_batch``: examples per step over all replicas. ``replicas``: the chosen devices (CPU: ranks) that share it.
    ``pool_batches``: distinct global batches, visited in turn, without ``data``. ``workers``: processes of each rank
    that load its batches, 0 for none; None: all batches lie ready in memory. ``prefetch``: batches that each of them
    loads ahead.
    """

    global_batch: int
    replicas: int
    device: str
    warmup: int
    seed: int = 0
    pool_batches: int = 4
    workers: int | None = None
    prefetch: int | None = None

    @property
    def units(self) -> int:
        """Units of a step, over all replicas."""
        return self.global_batch * (self.units_per_example or 1)

    def in_small(self, seed: int, examples: int) -> "Training":
        """The same training from other weights, for :data:`SMALL_STEPS` of so many ``examples``."""
        small = replace(self, seed=seed, warmup=1, global_batch=examples, pool_batches=SMALL_STEPS)
        return replace(small, workers=None, prefetch=None)

    def hash(self) -> str:
        """SHA-256 (hex) of the canonical JSON of all fields but paths, the title and the short unit."""
        import hashlib  # here and below: none of it is for 'bench list', which answers at once

        names = ("file", "title", "unit_short", "data")
        identity = {name: value for name, value in asdict(self).items() if name not in names}
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. ``index``: its place in PCI order, which is what ``--gpus`` counts; None: unknown to the driver.

    ``compute_capability``: such as ``"9.0"``. ``power_limit_w``: the limit in force. ``driver``: the driver's version.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_total_mib: float | None
    compute_capability: str | None
    power_limit_w: float | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of a site: its name, the cores that bench may use there, and the UUIDs of its GPUs that were chosen."""

    name: str
    cores: int
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The work of one rank, and its place.

    ``role``: as in :class:`bench.seams.Rank`. ``replicas``: how many of the equal parts of the global batch it trains.
    ``threads``: its intra-op threads. ``devices``: UUIDs of its GPUs; empty on the CPU. ``core_set``: which of how many
    equal parts of the host's cores it is bound to, from 0; None for all cores.
    """

    role: str
    replicas: int
    host: str
    local_rank: int
    threads: int
    devices: tuple[str, ...] = ()
    core_set: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """Where the ranks of a launch on several hosts meet, for one of these.

    ``host``: that one's name. ``address``: of the host of rank 0, as this one reaches it. ``port``: None on the host of
    rank 0, which binds one that is free. ``interface``: the one that leads there, None for the libraries' own choice.
    """

    host: str
    address: str
    port: int | None
    interface: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """How the reference computes: the batch in ``replicas`` chunks, on ``threads`` (0 on a GPU). In double precision
    the batch has ``examples``."""

    replicas: int
    threads: int
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOn:
    """A switch that is on: its name, the file that defines it, and its value, which is True if it takes none.

    ``usual``: whether that is its default, which its name leaves out.
    """

    name: str
    file: str
    value: Setting = True
    usual: bool = True

    @property
    def spec(self) -> str:
        """As it is asked for, such as ``bucket_mb=50``."""
        return self.name if self.usual else f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """``every``: steps from one checkpoint to the next. ``how``: of :data:`CHECKPOINTS`. ``folder``: for its files."""

    every: int
    how: str = "torch"
    folder: str = ""

    @property
    def steps(self) -> int:
        """Of a cycle that is measured."""
        return min(self.every, MOST_CHECKPOINT_STEPS)

    @property
    def job_file(self) -> str:
        """Where the ranks that an engine starts find their job."""
        return f"{self.folder}/job.json"


TOO_SLOW = "too slow"  # begins the reason of a launch that was stopped at its ``loop_limit_s``


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of one launch; the same for all of its ranks.

    ``purpose``: ``measure``; ``diagnose`` (where its time goes); ``checkpoint`` (what one costs); ``restart`` (what the
    loss of a rank costs); ``probe`` (its numerics, in double precision); ``reference`` (what those are held against);
    ``loading`` (how fast the loader alone is); ``bandwidth`` (how fast an all-reduce is); ``exchanges`` (what a step
    exchanges, and when); ``limits`` (what the parts of a step are); ``ceilings`` (what the devices can do).
    ``environment``: of several interpreters the one that runs it; None where there is one. ``options``: the scenario's,
    for ``build`` of its strategy. ``switches``: in the order in which they are applied. ``apex_problems``: why a module
    of apex cannot be imported, or None where it can; None as a whole where nobody has looked yet. ``logs``: the folder
    for what ranks print. ``computations``: for the reference, those asked for. ``probe_seed``: what the numerics are
    drawn from, None without; a scenario does not see it. ``trace``: the file for the profile, with ``{rank}`` in its
    name; empty to keep none. ``memory_probe``: whether ranks in a container show the sampler which PIDs of the driver's
    lists they are. ``checkpoint``: what a launch saves that is about that, or about restarts. ``slow_start``: how many
    times as long as usual it may take until its first step is over. ``loop_limit_s``: over which its steps are stopped,
    None for no limit.
    """

    launch: int
    scenario: str
    repeat: int
    strategy: str
    strategy_file: str
    precision: str
    half: str
    ranks: tuple[Placement, ...]
    group: bool
    impl: str
    workload: Training
    iters: int
    options: dict[str, Setting] = field(default_factory=dict)
    switches: tuple[SwitchOn, ...] = ()
    apex_path: str | None = None
    apex_problems: dict[str, str | None] | None = None
    logs: str = ""
    rendezvous_timeout_s: float = 300.0
    stall_timeout_s: float = 30.0
    purpose: str = "measure"
    computations: tuple[Computation, ...] = ()
    probe_seed: int | None = None
    trace: str = ""
    memory_probe: bool = True
    checkpoint: Checkpoint | None = None
    slow_start: float = 1.0
    loop_limit_s: float | None = None
    environment: str | None = None

    @property
    def steps(self) -> int:
        return self.workload.warmup + self.iters

    @property
    def processes(self) -> int:
        return len(self.ranks)

    @property
    def replicas(self) -> int:
        return sum(rank.replicas for rank in self.ranks)

    def on_host(self, host: str) -> tuple[Placement, ...]:
        """The ranks on a host, in the order of local ranks."""
        return tuple(rank for rank in self.ranks if rank.host == host)

    def devices_on(self, host: str) -> tuple[str, ...]:
        """UUIDs of the GPUs that the ranks on a host may see, in the order of local ranks; empty on the CPU."""
        return tuple(dict.fromkeys(uuid for rank in self.on_host(host) for uuid in rank.devices))

    def parts_of(self, rank: int) -> range:
        """Which of the equal parts of every batch a rank trains."""
        first = sum(before.replicas for before in self.ranks[:rank])
        return range(first, first + self.ranks[rank].replicas)

    def log_name(self, who: int | str) -> str:
        """The file in the folder ``logs`` that holds what a rank, or ``launcher``, wrote to its standard streams."""
        return f"launch-{self.launch:03d}-{self.scenario}-{who if isinstance(who, str) else f'rank{who}'}.log"

    @property
    def batch_per_replica(self) -> int:
        return self.workload.global_batch // self.replicas


def job_to_json(job: Job) -> dict[str, object]:
    return asdict(job)


def job_from_json(document: object) -> Job:
    from bench.core.codec import decode

    return decode(Job, document)


def canonical_json(value: object) -> str:
    """One text for one value: sorted keys, no spaces, no NaN (raises ``ValueError``)."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
