"""A strategy's declaration: how one model becomes a model on all devices.

A strategy is one file, ``bench/strategies/NAME.py``, or part of a scenario's own file: a declaration that needs the
standard library alone, and ``build(parts)``, which imports torch inside and returns a session:

    from bench.seams import Strategy, rank_per_device

    STRATEGY = Strategy(label="torch DDP", ranks=rank_per_device)

    def build(parts):
        from torch.nn.parallel import DistributedDataParallel

        return parts.session(wrap=DistributedDataParallel, quiet=lambda module: module.no_sync())

:class:`bench.worker.session.Parts` says what ``parts`` has. A strategy may also define ``probe(session, load, steps,
tick)``: one row a step with the times of its own parts, for the diagnostic launch (``probe`` of :class:`Strategy`).
``recipe()``, with the options of ``build``, says what a training script without bench does (:mod:`bench.seams.recipe`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

PRECISIONS = ("O0", "O1", "O2", "O3")
LEVELS = {level.lower(): level for level in PRECISIONS[1:]}
"""Precision levels by their name behind a scenario's: ``fsdp2+o1``."""

WEIGHTS = ("replicated", "sharded")
HUES = ("grey", "red", "orange", "olive", "green", "teal", "cyan", "blue", "violet", "magenta")
DASHES = ("solid", "dotted", "dashed", "dash-dot", "short")
AMP = ("native", "apex")
APEX_MODULES = ("apex.amp", "apex.parallel")
NOT_WITH_APEX_AMP = ("bf16", "compile", "checkpointing")
"""Switches that apex.amp cannot serve: its half is fp16, and it patches torch's functions and caches their casts."""
DDP = "torch.nn.parallel.distributed.DistributedDataParallel"
"""The wrapper of every strategy that is torch DDP with something besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of a launch: which of the chosen devices (CPU: ranks) it has, and how many parts of the batch.

    ``on_cpu``: how many parts where all devices are one CPU; default: as many.
    """

    role: str = "replica"
    devices: tuple[int, ...]
    replicas: int = 1
    on_cpu: int | None = None


def one_rank(devices: int) -> tuple[Rank, ...]:
    """One process on the first device, with the whole batch."""
    return (Rank(devices=(0,)),)


def one_rank_for_all(devices: int) -> tuple[Rank, ...]:
    """One process that drives all devices and cuts the batch up among them."""
    return (Rank(devices=tuple(range(devices)), replicas=devices),)


def rank_per_device(devices: int) -> tuple[Rank, ...]:
    """A process for each device, each with an equal part of the batch."""
    return tuple(Rank(devices=(device,)) for device in range(devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A way in which a strategy can be had. ``wrapper``: the class that must be seen. ``needs``: a module of apex."""

    name: str
    label: str
    wrapper: str | None
    needs: Annotated[str, APEX_MODULES] | None = None


def amp_obstacle(half: str, switches: Iterable[str]) -> str | None:
    """Why apex.amp does not do a precision level of a scenario with these switches; None where it does."""
    lacking = next((one for one in switches if one in NOT_WITH_APEX_AMP), "bf16" if half == "bf16" else None)
    return lacking and f"apex.amp does not go with {lacking}; use --impl auto or native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How one model becomes a model on all devices.

    ``ranks``: the processes for a number of devices. ``group``: whether they form a process group. ``implementations``:
    in order of preference; without any, whatever ``build`` gives is taken. ``alone_label``: what it is called with one
    replica. ``weights``: whether each rank holds all of them. ``differs``: what it does on purpose that changes the
    numbers, such as compressing gradients. ``amp``: whose ``precisions``. ``probe``: the name of what ``probe()``
    times. ``rpc``: whether it needs ``torch.distributed.rpc``. ``restarts``: whether there are launches of it in which
    a rank is killed and all are started again (:mod:`bench.worker.restart`). ``threads``: whether a rank with several
    GPUs has a thread for each, which torch gives no type of autocast but fp16 (``parallel_apply``). ``without``: the
    switches that it does not go with, and why. ``torch_on_cpu``: the first torch with which it runs on the CPU.
    ``slow_start``: how many times as long as others a launch may take until its first step is over.
    ``obstacle``: from ``cpu`` or ``cuda`` and the number of chosen devices to why it cannot run on them, or None; it
    may also take options of ``build``.

    Raises ``ValueError`` for ``ranks`` or ``obstacle`` that is not a function.
    """

    label: str
    ranks: Callable[[int], tuple[Rank, ...]] = rank_per_device
    group: bool = True
    implementations: tuple[Implementation, ...] = ()
    alone_label: str | None = None
    weights: Annotated[str, WEIGHTS] = "replicated"
    differs: str | None = None
    precisions: tuple[Annotated[str, PRECISIONS], ...] = PRECISIONS
    amp: tuple[Annotated[str, AMP], ...] = AMP
    probe: str | None = None
    rpc: bool = False
    restarts: bool = False
    threads: bool = False
    without: Mapping[str, str] = field(default_factory=dict)
    torch_on_cpu: tuple[int, int] = (2, 6)
    slow_start: float = 1.0
    obstacle: Callable[..., str | None] = lambda device, devices: None
    hue: Annotated[str, HUES] = "magenta"
    dash: Annotated[str, DASHES] = "short"

    def processes(self, devices: int) -> int:
        """How many ranks there are on ``devices`` chosen devices (CPU: on ``--ranks`` ranks)."""
        return len(self.ranks(devices))

    def replicas(self, devices: int) -> int:
        """How many equal parts of a batch there are: one on each device, or several where they are accumulated."""
        return sum(rank.replicas for rank in self.ranks(devices))

    def training_devices(self, devices: int) -> int:
        return len({device for rank in self.ranks(devices) if rank.replicas for device in rank.devices})

    def __post_init__(self) -> None:
        if not callable(self.obstacle):
            raise ValueError(f"obstacle={self.obstacle!r} is not a function of the device and how many there are")
        if not callable(self.ranks):
            raise ValueError(f"ranks={self.ranks!r} is not a function; take rank_per_device or one_rank of bench.seams")
