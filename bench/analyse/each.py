"""Every device by itself: how fast each is, and which one is slow (:mod:`bench.analyse.outliers`)."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Estimate, estimate
from bench.analyse.outliers import Scan, scanned
from bench.analyse.scaling import launch_figures
from bench.runs.experiments import PointRecord, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device by itself. ``name``: host and device. ``slower``: than the median of all, relative; None: unknown.

    ``is_slow``: by more than chance; None if unknown. ``failed``: why a launch on it has no value.
    """

    name: str
    step: Estimate
    slower: float | None
    is_slow: bool | None
    failed: str | None


def devices(run: Analysed) -> list[Device]:
    """In the order in which they were chosen; empty for a run that measured them together."""
    scaling = run.document.of(Scaling)
    if scaling is None or not scaling.by_itself:
        return []
    of_slot: dict[int, list[PointRecord]] = defaultdict(list)
    for one in scaling.launches:
        of_slot[one.slot or 0].append(one)
    medians, scan = _medians(run), scan_of(run)
    found = []
    for _, launches in sorted(of_slot.items()):
        name, bad = _name(run, launches[0]), next((one for one in launches if one.status != "ok"), None)
        found.append(
            Device(
                name=name,
                step=estimate(medians.get(one.launch) for one in launches if one.status == "ok"),
                slower=scan.slower.get(name),
                is_slow=None if scan.bound is None or name not in scan.slower else name in scan.slow,
                failed=None if bad is None else f"{bad.status}: {bad.reason}",
            )
        )
    return found


def scan_of(run: Analysed) -> Scan:
    """Compares the devices over the rounds in which no launch failed."""
    scaling, medians = run.document.of(Scaling), _medians(run)
    rounds: dict[str, dict[int, float]] = defaultdict(dict)
    for one in scaling.launches if scaling else ():
        if one.status == "ok" and one.launch in medians:
            rounds[_name(run, one)][one.repeat] = medians[one.launch]
    whole = set.intersection(*(set(of) for of in rounds.values())) if rounds else set()
    if not whole:
        return Scan(slower={}, bound=None, slow=())
    return scanned({name: [of[repeat] for repeat in sorted(whole)] for name, of in rounds.items()})


def _name(run: Analysed, one: PointRecord) -> str:
    """Such as ``node1 GPU 2`` or ``node1 part 1 of 2 of the cores``."""
    host = next((rank.host for rank in one.ranks if rank.host), None) or "this host"
    slot, scaling = one.slot or 0, run.document.of(Scaling)
    chosen = run.document.request.devices
    if slot < len(chosen):
        index = next((gpu.index for gpu in run.document.machine.gpus if gpu.uuid == chosen[slot]), slot)
        return f"{host} GPU {index}"
    return f"{host} part {slot + 1} of {max(scaling.counts) if scaling else slot + 1} of the cores"


def _medians(run: Analysed) -> dict[int, float]:
    scaling = run.document.of(Scaling)
    figures, _ = launch_figures(run, [one.launch for one in scaling.launches] if scaling else [])
    frame: Any = figures.frame
    return dict(zip(frame["launch"].tolist(), frame["median_ms"].tolist(), strict=True))
