"""Every device by itself: how fast each is, and which one is slow (:mod:`bench.analyse.outliers`)."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Estimate, estimate
from bench.analyse.outliers import Scan, scanned
from bench.analyse.scaling import launch_stats
from bench.core.text import by_key
from bench.runs.document import RunDocument
from bench.runs.experiments import PointRecord, Scaling


def each_alone(document: RunDocument) -> bool:
    """Whether a run measured devices, each by itself, and no scenario beside others."""
    scaling = document.of(Scaling)
    return scaling is not None and scaling.by_itself


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
    if not each_alone(run.document):
        return []
    in_order = sorted(_launches(run), key=lambda row: row[1].slot or 0)
    of_device = by_key((name, (one, median_ms)) for name, one, median_ms in in_order)
    scan = scan_of(run)
    return [
        Device(
            name=name,
            step=estimate(median_ms for _, median_ms in launches),
            slower=scan.slower.get(name),
            is_slow=None if scan.bound is None or name not in scan.slower else name in scan.slow,
            failed=next((f"{one.status}: {one.reason}" for one, _ in launches if one.status != "ok"), None),
        )
        for name, launches in of_device.items()
    ]


def scan_of(run: Analysed) -> Scan:
    """Compares the devices over the rounds in which no launch failed."""
    rounds: dict[str, dict[int, float]] = defaultdict(dict)
    for name, one, median_ms in _launches(run) if each_alone(run.document) else ():
        if median_ms is not None:
            rounds[name][one.repeat] = median_ms
    whole = set.intersection(*map(set, rounds.values())) if rounds else set()
    if not whole:
        return Scan(slower={}, bound=None, slow=())
    return scanned({name: [of[repeat] for repeat in sorted(whole)] for name, of in rounds.items()})


def _launches(run: Analysed) -> Iterator[tuple[str, PointRecord, float | None]]:
    """Each launch with its device, such as ``node1 GPU 2`` or ``node1 part 1 of 2 of the cores``, and its median step
    (ms), None where it failed."""
    scaling = run.document.begun(Scaling)
    medians = launch_stats(run, [one.launch for one in scaling.launches])["median_ms"].to_dict()
    indices = {gpu.uuid: gpu.index for gpu in run.document.gpus}
    for one in scaling.launches:
        host = next((rank.host for rank in one.ranks if rank.host), None) or "this host"
        slot, chosen = one.slot or 0, run.document.request.devices
        name = f"{host} part {slot + 1} of {max(scaling.counts)} of the cores"
        if slot < len(chosen):
            name = f"{host} GPU {indices.get(chosen[slot], slot)}"
        yield name, one, medians.get(one.launch) if one.status == "ok" else None
