"""Every device by itself: how fast each is, and which one is slow (:mod:`bench.analyse.outliers`)."""

from collections import defaultdict
from dataclasses import dataclass

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
    of_device: dict[str, list[PointRecord]] = defaultdict(list)
    for one in sorted(scaling.launches, key=lambda one: one.slot or 0):
        of_device[_name(run, one, scaling)].append(one)
    medians, scan = _medians(run, scaling), scan_of(run)
    rows = []
    for name, launches in of_device.items():
        bad = next((one for one in launches if one.status != "ok"), None)
        rows.append(
            Device(
                name=name,
                step=estimate(medians.get(one.launch) for one in launches if one.status == "ok"),
                slower=scan.slower.get(name),
                is_slow=None if scan.bound is None or name not in scan.slower else name in scan.slow,
                failed=None if bad is None else f"{bad.status}: {bad.reason}",
            )
        )
    return rows


def scan_of(run: Analysed) -> Scan:
    """Compares the devices over the rounds in which no launch failed."""
    scaling = run.document.of(Scaling)
    if scaling is None:
        return Scan(slower={}, bound=None, slow=())
    medians = _medians(run, scaling)
    rounds: dict[str, dict[int, float]] = defaultdict(dict)
    for one in scaling.launches:
        if one.status == "ok" and one.launch in medians:
            rounds[_name(run, one, scaling)][one.repeat] = medians[one.launch]
    whole = set.intersection(*(set(of) for of in rounds.values())) if rounds else set()
    if not whole:
        return Scan(slower={}, bound=None, slow=())
    return scanned({name: [of[repeat] for repeat in sorted(whole)] for name, of in rounds.items()})


def _name(run: Analysed, one: PointRecord, scaling: Scaling) -> str:
    """Such as ``node1 GPU 2`` or ``node1 part 1 of 2 of the cores``."""
    host = next((rank.host for rank in one.ranks if rank.host), None) or "this host"
    slot, chosen = one.slot or 0, run.document.request.devices
    if slot < len(chosen):
        index = next((gpu.index for gpu in run.document.machine.gpus if gpu.uuid == chosen[slot]), slot)
        return f"{host} GPU {index}"
    return f"{host} part {slot + 1} of {max(scaling.counts)} of the cores"


def _medians(run: Analysed, scaling: Scaling) -> dict[int, float]:
    frame = launch_figures(run, [one.launch for one in scaling.launches])[0].frame
    return dict(zip(frame["launch"].tolist(), frame["median_ms"].tolist(), strict=True))
