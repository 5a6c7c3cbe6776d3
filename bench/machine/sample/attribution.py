"""Whose memory is it? From the driver's list of a GPU to values of bench's own ranks, each with its source.

In a container the list may have host PIDs, PIDs without values, or nothing. The sources, best first:

``nvml_pid``            the list has its PID, or a PID that ``/proc`` shows to be the same process (``NSpid``)
``nvml_probe``          the list has a PID that rose by as much as the rank allocated for a probe
``nvml_device_delta``   the rise of the device's level since before the launch, if nobody else can have moved it: one
                        rank belongs there, no process was there before, and at most one PID came since
``unavailable``         none of these, with the reason
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.core.records import MEMORY_COLUMNS, PROBE_MIB

Level = Callable[[], tuple[float | None, str | None]]
Rows = Sequence[tuple[int, float | None]]  # PID and MiB of each process in the driver's list
PROBE_TOLERANCE_MIB = 32.0
"""By how much a rise may differ from the probe: the driver allocates pages of 2 MiB, and kernels load lazily."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The memory of one process on one device at one moment."""

    pid: int
    device: str | None
    used_mib: float | None
    source: str
    reason: str | None = None
    pss_mib: float | None = None

    def row(self, rank: int, **head: object) -> dict[str, object]:
        """As in ``MEMORY_COLUMNS``. ``head``: ``launch``, ``scenario``, ``host`` and ``t_ns``."""
        fields = {**head, "rank": rank, **asdict(self)}
        return {name: fields[name] for name in MEMORY_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A device before the launch; None is unknown."""

    used_mib: float | None
    pids: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The driver's answer about one device. ``reason``: why the list, or a value in it, is missing."""

    device: str
    rows: Rows
    reason: str | None
    mig: bool = False

    @property
    def known(self) -> bool:
        return bool(self.rows) or self.reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """``ranks``: PID as the rank knows it -> its devices, None if unknown. ``aliases``: PID in the driver's list ->
    (the rank's PID, source). ``earlier``: PIDs of earlier launches, which the driver may list a moment longer.
    ``nested``: bench runs in its own PID namespace."""

    ranks: Mapping[int, tuple[str, ...] | None]
    aliases: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    earlier: frozenset[int] = frozenset()
    nested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """``why``: ranks without any reading and the reason. ``foreign``: processes that are not bench's, as (PID, MiB or
    None, whether that is certain: in a container an unknown PID may be the rank itself)."""

    readings: list[Reading]
    why: dict[int, str]
    foreign: list[tuple[int, float | None, bool]]


def attribute(listing: Listing, known: Known, before: Before | None, level: Level) -> Attributed:
    """Values of the ranks on one device. ``level`` asks for the device's used MiB; called only if needed."""

    def rise_of(pid: int) -> float | str:
        """The rise (MiB) of the device's level since before the launch where that is the memory of this rank; else why
        it is not, empty if a device is unknown."""
        if somewhere:
            return ""
        if listing.mig:
            return "the device's level is that of all its MIG instances"
        if not listing.known:
            return f"the driver's list could not be read ({listing.reason})"
        if before is None or before.used_mib is None or before.pids is None:
            return "the device's level before the launch is unknown"
        if before.pids:
            return f"a process was on the device before the launch ({_pids(before.pids)})"
        if belonging != [pid]:
            return f"{len(belonging)} ranks are on the device, and its level does not tell them apart"
        if len(strangers) > (pid not in bare):
            return f"PIDs that cannot be told apart are on the device ({_pids([one for one, _ in strangers])})"
        used_mib, reason = level()
        if used_mib is None:
            return f"the device's level is unknown ({reason})"
        if used_mib <= before.used_mib:  # it has no context yet, or none any more: as if it were not in a list
            return "the device's level did not rise above that before the launch"
        return used_mib - before.used_mib

    readings: list[Reading] = []
    bare: list[int] = []
    strangers: list[tuple[int, float | None]] = []
    for pid, used_mib in listing.rows:
        owner, source = (pid, "nvml_pid") if pid in known.ranks else known.aliases.get(pid, (None, ""))
        if owner is None:
            if pid not in known.earlier:
                strangers.append((pid, used_mib))
        elif used_mib is None:
            bare.append(owner)
        else:
            readings.append(Reading(pid=owner, device=listing.device, used_mib=used_mib, source=source))
    with_reading = {reading.pid for reading in readings}
    belonging = [pid for pid, devices in known.ranks.items() if devices is not None and listing.device in devices]
    somewhere = None in known.ranks.values()
    sought = sorted({*bare, *(pid for pid in belonging if known.nested and pid not in with_reading)})
    why: dict[int, str] = {}
    for pid in sought:
        rise = rise_of(pid)
        if not isinstance(rise, str):
            reason = "not named by the driver: the rise of the device's level since before the launch"
            readings.append(
                Reading(pid=pid, device=listing.device, used_mib=rise, source="nvml_device_delta", reason=reason)
            )
        elif pid in bare:
            readings.append(unavailable(pid, listing.device, "; ".join(filter(None, (listing.reason, rise)))))
        else:
            why[pid] = rise
    there = (before and before.pids) or frozenset()
    foreign = [(pid, used_mib, not known.nested or pid in there) for pid, used_mib in strangers]
    hidden = len(known.ranks) if somewhere else sum(pid not in with_reading for pid in belonging)
    if sum(not certain for *_, certain in foreign) <= hidden:  # any of them may be a rank
        foreign = [one for one in foreign if one[-1]]
    return Attributed(readings=readings, why=why, foreign=foreign)


def unavailable(pid: int, device: str | None, reason: str) -> Reading:
    return Reading(pid=pid, device=device, used_mib=None, source="unavailable", reason=reason)


def _pids(pids: Sequence[int] | frozenset[int]) -> str:
    return f"PID {', '.join(map(str, sorted(pids)[:4]))}{' and more' if len(pids) > 4 else ''}"


def match_probe(
    before: Mapping[int, float | None], after: Mapping[int, float | None], taken: frozenset[int] | set[int]
) -> int | None:
    """The only PID whose value rose by ``PROBE_MIB``, or None. PIDs that are ``taken`` or new do not count."""
    rises = {
        pid: after_mib - before_mib
        for pid, after_mib in after.items()
        if pid not in taken and after_mib is not None and (before_mib := before.get(pid)) is not None
    }
    fitting = [pid for pid, rise in rises.items() if abs(rise - PROBE_MIB) <= PROBE_TOLERANCE_MIB]
    return fitting[0] if len(fitting) == 1 else None
