"""The work of one launch, as it goes to every rank: what is trained, where, and how much of it is measured.

The command line and the workers import it, so it needs the standard library alone. Units are in the names.
"""

import hashlib
from dataclasses import asdict, dataclass, field, replace

from bench.core.records import Setting, SwitchOn, canonical_json

CHECKPOINTS = ("torch", "dcp", "dcp_async")
MOST_CHECKPOINT_STEPS = 50  # of a cycle of steps with one save, however seldom there is to be one

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
        """The same training from other weights, for :data:`SMALL_STEPS` of this many ``examples``."""
        small = replace(self, seed=seed, warmup=1, global_batch=examples, pool_batches=SMALL_STEPS)
        return replace(small, workers=None, prefetch=None)

    def hash(self) -> str:
        """SHA-256 (hex) of the canonical JSON of all fields but paths, the title and the short unit."""
        names = ("file", "title", "unit_short", "data")
        identity = {name: value for name, value in asdict(self).items() if name not in names}
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


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
    def devices(self) -> int:
        """How many train: GPUs, or ranks on the CPU."""
        gpus = {uuid for rank in self.ranks for uuid in rank.devices}
        return len(gpus) or sum(rank.replicas > 0 for rank in self.ranks)

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
