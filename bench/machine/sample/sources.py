"""Where values of memory come from: the resident set of CPU ranks, or the driver's lists of the chosen GPUs."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from bench.machine.nvml import Nvml
from bench.machine.sample.attribution import Before, Known, Listing, Reading, attribute, match_probe

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20

Ranks = Mapping[int, tuple[str, ...] | None]  # PID of each watched rank -> its devices; None if unknown


def given(gpus: Collection[str], ranks: Ranks) -> list[str]:
    """The GPUs of these ranks; all of them if that is unknown, or there is no rank."""
    if not ranks or None in ranks.values():
        return list(gpus)
    return [uuid for uuid in gpus if any(uuid in devices for devices in ranks.values() if devices)]


def rank_of(listed: int, ranks: Collection[int], proc: str = "/proc") -> int | None:
    """Which rank the driver calls ``listed``, where ``/proc`` is that of an outer PID namespace: by its PID in every
    namespace, the outermost first. Or None.

    Two containers may use the same inner PID, so it counts only if the kernel shows that the namespace is this one.
    """
    try:
        with open(f"{proc}/{listed}/status", encoding="ascii", errors="replace") as file:
            pids = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [])
        if os.readlink(f"{proc}/{listed}/ns/pid") != os.readlink("/proc/self/ns/pid"):
            return None
    except OSError:
        return None
    inner = int(pids[-1]) if pids else listed
    return inner if inner in ranks and inner != listed else None


def resident_mib(pid: int) -> float | None:
    """RSS in MiB (second field of ``/proc/PID/statm``); None when the process has ended, as a zombie too."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            pages = int(file.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pages * _PAGE_MIB if pages else None


def proportional_mib(pid: int) -> tuple[float | None, str | None]:
    """PSS in MiB, in which a page that n processes share counts 1/n, so these add up. Or None and why. The kernel walks
    the whole page table for it: 10 ms and more for 1 GiB, during which the process cannot map memory."""
    import psutil

    try:
        return psutil.Process(pid).memory_full_info().pss / 2**20, None
    except psutil.NoSuchProcess:
        return None, "the process had ended"
    except psutil.AccessDenied:
        return None, f"the kernel does not let us read /proc/{pid}/smaps_rollup"
    except AttributeError:  # so psutil has it for a kernel without smaps
        return None, "this kernel has no proportional set size"


class Rss:
    """Host memory of CPU ranks. They share the worker host's pages, so resident sizes do not add up to the host's."""

    missing = "the process had ended before its first sample"

    def __init__(self) -> None:
        import psutil  # noqa: F401  # now, and not within a launch

    def read(self, ranks: Ranks) -> tuple[list[Reading], dict[str, str | None]]:
        """A reading for each process that lives."""
        sizes = [(pid, resident_mib(pid)) for pid in ranks]
        return [Reading(pid=pid, device="cpu", used_mib=mib, source="rss") for pid, mib in sizes if mib is not None], {}

    def with_pss(self, readings: list[Reading]) -> list[Reading]:
        """The same with the proportional set sizes, which take about a hundred times as long."""
        whole = []
        for reading in readings:
            pss_mib, reason = proportional_mib(reading.pid)
            whole.append(replace(reading, pss_mib=pss_mib, reason=reason and f"pss_mib: {reason}"))
        return whole


class Nothing:
    """For a driver that cannot be asked: no reading."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self, ranks: Ranks) -> tuple[list[Reading], dict[str, str | None]]:
        return [], {}


class GpuMemory:
    """Device memory per process, from the driver's lists of the chosen GPUs (see ``bench.machine.sample.attribution``).

    ``why``: ranks that have no reading yet, and the reason. ``foreign``: by (device, PID) the most MiB of a process
    that is not bench's, and whether that is certain. ``probed``: by rank the PID that its probe showed, or None.
    """

    missing = "the driver lists no process with this PID (a container's PID namespace?)"

    def __init__(self, nvml: Nvml, gpus: list[str], *, nested: bool) -> None:
        self.nvml = nvml
        self.gpus = gpus
        self.nested = nested
        self._ours: set[int] = set()
        self._earlier: frozenset[int] = frozenset()
        self.begin(survey=False)

    def begin(self, *, survey: bool = True) -> None:
        """A launch begins: what is on the devices now was there before it. Without ``survey`` that is unknown."""
        self.why: dict[int, str] = {}
        self.foreign: dict[tuple[str, int], tuple[float | None, bool]] = {}
        self.probed: dict[int, int | None] = {}
        self._before: dict[str, Before] = {}
        self._aliases: dict[tuple[str, int], tuple[int, str]] = {}
        self._seen: set[int] = set()
        self._probes: dict[int, dict[str, dict[int, float | None]]] = {}
        self._earlier, self._ours = self._earlier | self._ours, set()
        if not (survey and self.nested):
            return  # on the host the lists have our own PIDs in them
        for uuid in self.gpus:
            rows, reason = self.nvml.processes(uuid)
            listed = bool(rows) or reason is None
            pids = frozenset(pid for pid, _ in rows if pid not in self._earlier) if listed else None
            self._before[uuid] = Before(used_mib=self.nvml.used_mib(uuid)[0], pids=pids)

    def read(self, ranks: Ranks) -> tuple[list[Reading], dict[str, str | None]]:
        """A reading for each process on each GPU of the ranks, and by GPU why there is no list, or None."""
        self._ours.update(ranks)
        readings: list[Reading] = []
        answers: dict[str, str | None] = {}
        for uuid in given(self.gpus, ranks):
            rows, reason = self.nvml.processes(uuid)
            answers[uuid] = None if rows else reason
            for listed in {pid for pid, _ in rows} - {*ranks} - self._seen:
                self._seen.add(listed)
                if (rank := rank_of(listed, ranks)) is not None:  # under another number
                    self._alias(listed, rank, "nvml_pid", self.gpus)
            aliases = {pid: rank for (device, pid), rank in self._aliases.items() if device == uuid}
            mig = any(mib is None for _, mib in rows) and self.nvml.mig(uuid)
            listing = Listing(device=uuid, rows=rows, reason=reason, mig=mig)
            known = Known(ranks=ranks, aliases=aliases, earlier=self._earlier, nested=self.nested)
            attributed = attribute(listing, known, self._before.get(uuid), partial(self.nvml.used_mib, uuid))
            readings += attributed.readings
            self.why.update(attributed.why)
            drawing = dict(self.nvml.graphics(uuid)) if attributed.foreign else {}  # a desktop may stay
            for pid, used_mib, certain in (one for one in attributed.foreign if one[0] not in drawing):
                most, sure = self.foreign.get((uuid, pid), (None, False))
                sizes = [mib for mib in (most, used_mib) if mib is not None]
                self.foreign[uuid, pid] = max(sizes, default=None), sure or certain
        for reading in readings:
            self.why.pop(reading.pid, None)
        return readings, answers

    def probe(self, rank: int, stage: str, ranks: Ranks) -> None:
        """Take the lists ``before`` and after a rank has ``allocated`` the probe: the PID that rose is the rank's."""
        own = given(self.gpus, {rank: ranks.get(rank)})  # others may probe theirs at the same time
        lists = {uuid: dict(self.nvml.processes(uuid)[0]) for uuid in own}
        if stage == "before":
            self._probes[rank] = lists
            return
        before = self._probes.pop(rank, {})
        taken = {uuid: {*ranks, *(pid for device, pid in self._aliases if device == uuid)} - {rank} for uuid in own}
        risen = {match_probe(before.get(uuid, {}), lists[uuid], taken[uuid]) for uuid in own} - {None}
        listed = risen.pop() if len(risen) == 1 else None
        self.probed[rank] = listed
        if listed is not None and listed != rank:
            self._alias(listed, rank, "nvml_probe", own)

    def _alias(self, listed: int, rank: int, source: str, gpus: Collection[str]) -> None:
        """On these GPUs. What a probe shows is true of the rank's own: a sandbox such as gVisor gives all its processes
        one PID, and on another GPU that is another rank."""
        for uuid in gpus:
            self._aliases[uuid, listed] = rank, source
            self.foreign.pop((uuid, listed), None)  # so it was one of ours
