"""A site: where launches run, and the engine that brings their ranks to life.

A site is one file, ``bench/sites/NAME.py`` or ``--site ./mine.py``: ``SITE = Site(summary="...")``, and
``connect(options)``, which returns what performs launches there. ``CONTRIBUTING.md`` has one whose ranks are started by
torchrun.

Results are values: nothing is read from a folder that only one host has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from bench.core.channel import Message as Event
from bench.core.job import Job as Job  # for the files of sites
from bench.core.job import Meet, Training
from bench.core.records import Host

__all__ = ["Connected", "Event", "Job", "Options", "Site"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The declaration of a site's file. ``summary``: one line."""

    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of ``connect``. ``hosts``: this host with its chosen GPUs. ``python``: the interpreter to measure,
    None for this one. ``fresh``: new interpreters for all ranks. ``log``: the file for what the site itself prints.
    ``locks``: descriptors that its processes inherit, so that nobody else uses the devices until the last has ended."""

    device: str
    hosts: tuple[Host, ...]
    log: str
    python: str | None = None
    fresh: bool = False
    apex_path: str | None = None
    locks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The view of a launch from a host other than the command line's: rows for the tables of memory and devices, and
    what its sampler says besides. ``foreign_cores``: how many of its cores others kept busy."""

    host: str
    memory: list[Event] = field(default_factory=list)
    device: list[Event] = field(default_factory=list)
    cost: Event | None = None
    findings: Event | None = None
    foreign_cores: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended. ``ranks``: rank, pid, last phase and step of each. ``cpu_s``: of all of them and the host.
    ``results``: of each rank that came to its end, in order. ``partial``: the steps of those that did not. ``failure``:
    where the first failed rank was, and the end of its log.

    On several hosts: ``blame``: of a failure, the least of all hosts' is the cause; None where nothing failed.
    ``elsewhere``: what the other hosts saw. ``lost``: why the run cannot go on, in one line: a host that is gone.
    """

    status: str
    reason: str | None
    first_failed_rank: int | None
    ranks: list[Event]
    cpu_s: float = 0.0
    failure: Event | None = None
    results: list[Event] = field(default_factory=list)
    partial: list[Event] = field(default_factory=list)
    blame: list[float] | None = None
    elsewhere: tuple[Elsewhere, ...] = ()
    lost: str | None = None


class Readable(Protocol):
    """A socket, or what has one."""

    def fileno(self) -> int: ...


class Beside(Protocol):
    """A watch on other hosts while a launch runs on this one, too. ``meet``: for this host's ranks."""

    meet: Meet

    def watched(self) -> Sequence[Readable]:
        """The sockets that may have something to say."""
        ...

    def heed(self, readable: Sequence[Readable]) -> Event | None:
        """Read those that are ``readable``. Returns why the launch is to be ended here, as ``WorkerHost`` sends it."""
        ...

    def slow(self) -> None:
        """A rank on this host has made no step for half the time after which it counts as stalled."""
        ...

    def listening(self, port: int) -> None:
        """Rank 0, on this host, is to be met at this port."""
        ...


def interpreter_of(description: Event, environment: str | None) -> Event:
    """The description of one of several interpreters, or of the only one."""
    return dict(description["environments"][environment]) if environment else description


class LaunchInterrupted(KeyboardInterrupt):
    """A launch was ended by Ctrl-C or its like. ``outcome``: how far it had come."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Connected(Protocol):
    """A site in use; leaving the context ends everything that it has started.

    ``hosts``: where ranks are placed. ``log``: as in :class:`Options`. ``description``: see ``bench.worker.host``.
    """

    hosts: tuple[Host, ...]
    log: str
    description: Event

    def __enter__(self) -> "Connected": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait_until_ready(self) -> dict[str, object]:
        """The description. Raises :class:`RequestError` when the interpreter has no usable torch."""
        ...

    def prepare(self, workload: Training) -> None:
        """Add what the workload needs to the description. Raises :class:`RequestError` if it cannot be trained."""
        ...

    def perform(self, job: Job, on_event: Callable[[Event], None]) -> Outcome:
        """Execute ``job`` and return when all of its ranks are gone. ``on_event`` hears what they report.

        Raises :class:`LaunchInterrupted` on ``KeyboardInterrupt``, once the launch has ended.
        """
        ...
