"""Which bounds which, the loader or training, and how many workers are enough: from the rates of an input sweep. Pure.

L is what the loader alone gives with some number of workers, T what training alone reaches. Without workers a rank
loads and trains in turn, so both together give 1 / (1/L + 1/T), and that is enough where at most :data:`INPUT_BOUND`
of a step is loading. With workers both happen at once and the smaller of L and T is the bound: enough where L is at
least T.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from bench.analyse.intervals import Estimate, columns, estimate, overlap
from bench.runs.document import RunDocument
from bench.runs.experiments import InputSweep
from bench.runs.frames import LaunchStats

INPUT_BOUND = 0.10  # from this share of a step on that waits for data, the input bounds training

LESS = 0.10  # by how much both together stay below the bound before that is worth a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The rates of a sweep, over all ranks, in units a second (``unit``: the short one).

    ``loader``: L by the number of workers of each rank. ``training``: T. ``first``: of the first reading, with the most
    workers, None where no data was given; ``first_mib``: what it read from a disk, None if that is unknown.
    """

    unit: str
    loader: Mapping[int, Estimate]
    training: Estimate
    first: float | None
    first_mib: float | None

    def bound(self, workers: int) -> float:
        """The highest rate that both together can reach."""
        loads, trains = _value(self.loader[workers]), _value(self.training)
        return min(loads, trains) if workers else 1.0 / (1.0 / loads + 1.0 / trains)

    def is_enough(self, workers: int) -> bool:
        return self.bound(workers) >= _value(self.training) * (1.0 if workers else 1.0 - INPUT_BOUND)

    @property
    def enough(self) -> int | None:
        """The fewest workers that are enough; None if no number of them is."""
        return next((workers for workers in self.loader if self.is_enough(workers)), None)

    @property
    def workers(self) -> int:
        """The fewest that are enough, else those with which both together can reach the most."""
        return max(self.loader, key=self.bound) if self.enough is None else self.enough


def found_by(document: RunDocument) -> Swept | None:
    """The rates of a run's sweep; None without one, or where launches that it rests on failed."""
    if (sweep := document.of(InputSweep)) is None:
        return None
    good, first = ([one for one in sweep.good if one.first_reading is before] for before in (False, True))
    counts = (*sweep.counts, None)
    rates = {workers: estimate(one.throughput_per_s for one in good if one.workers == workers) for workers in counts}
    if any(rate.value is None for rate in rates.values()):
        return None
    read = [one.disk_mib for one in first if one.disk_mib is not None]
    return Swept(
        unit=document.workload.unit_short,
        training=rates.pop(None),
        loader={workers: rate for workers, rate in rates.items() if workers is not None},
        first=first[-1].throughput_per_s if first and document.workload.data else None,
        first_mib=sum(read) if first and len(read) == len(first) else None,
    )


def why_open(document: RunDocument) -> str | None:
    """Why a sweep gave no answer; None where it did, and for a run without one."""
    if (sweep := document.of(InputSweep)) is None or found_by(document) is not None:
        return None
    for one in sweep.launches:
        if one.status != "ok":
            what = "training alone" if one.workers is None else f"the loader alone with {_workers(one.workers)}"
            return f"The sweep of the input has no answer: {what} failed ({one.status}: {one.reason})."
    return "The sweep of the input has no answer: the run ended before it was through."


def together(document: RunDocument, stats: LaunchStats) -> Estimate:
    """The rate of loading and training at once, over the launches of ``stats``; of nothing without any, or where the
    units of a step are unknown (a script that was attached without its batch)."""
    units = document.workload.units
    return estimate(() if units is None else (1000 * units / mean for mean in stats.frame["mean_ms"]))


def sentence(swept: Swept, both: Estimate) -> str:
    """Which bounds which, and how many workers are enough."""
    gives = f"with {_workers(swept.workers)} the loader gives {_text(swept.loader[swept.workers])} {swept.unit}/s"
    rates = f"{gives} where training alone reaches {_text(swept.training)}"
    rates += "" if both.value is None else f", and both together reach {_text(both)}"
    if swept.enough is None:
        return f"The loader bounds training with any number of workers up to {max(swept.loader)}: {rates}."
    if not swept.enough:
        return f"Training bounds the input, so --workers 0 is enough: {rates}."
    bound = _number(max(swept.bound(workers) for workers in swept.loader if workers < swept.enough))
    few = f"With fewer than {swept.enough} workers" if swept.enough > 1 else "Without workers"
    limit = f"{few} the loader bounds training to at most {bound} {swept.unit}/s"
    return f"{limit}; --workers {swept.enough} is enough: {rates}."


def remarks(swept: Swept, both: Estimate, cores: int | None) -> list[str]:
    """Remarks on the rates, a sentence each."""
    texts = []
    bound = swept.bound(swept.workers)
    if both.value is not None and both.value < (1.0 - LESS) * bound and (both.high or both.value) < bound:
        less = f"Both together reach {100 * (1 - both.value / bound):.0f} % less than the two alone allow"
        texts.append(f"{less}: the ranks and their workers share {cores} cores.")
    if near := [workers for workers, rate in swept.loader.items() if workers and overlap(rate, swept.training)]:
        few = " or ".join(map(str, near)) + f" worker{'s' * (near != [1])}"
        texts.append(f"With {few} the loader may be as fast as training: more --launches would tell.")
    if swept.first is not None:
        where = "" if swept.first_mib is None else f" ({swept.first_mib:,.0f} MiB of it from a disk)"
        texts.append(
            f"The first reading of the data, which does not count, gave {_number(swept.first)} {swept.unit}/s with "
            f"{_workers(max(swept.loader))}{where}; later ones {_text(swept.loader[max(swept.loader)])}."
        )
    return texts


def what_to_do(swept: Swept) -> str:
    """The remedy for waiting for data in a run that was swept."""
    if swept.enough is None:
        most = f"the loader gives at most {_text(swept.loader[swept.workers])} {swept.unit}/s here"
        return f"{most} (--workers {swept.workers}): decode less, or take more cores for each rank"
    alone = f"by itself the loader is fast enough with --workers {swept.enough}"
    return f"{alone}: give the workers cores of their own, or decode less"


def rates(swept: Swept, both: Estimate) -> pd.DataFrame:
    """One row for each rate: ``what`` (``loader``, ``training`` or ``both``), ``workers`` (null for training alone),
    ``launches, throughput_per_s, throughput_low_per_s, throughput_high_per_s``; ``bound_per_s``: what both together can
    reach with this many workers; ``enough``: whether they are enough."""
    rows = [
        _row("loader", workers, rate) | {"bound_per_s": swept.bound(workers), "enough": swept.is_enough(workers)}
        for workers, rate in swept.loader.items()
    ]
    rows.append(_row("training", None, swept.training))
    if both.value is not None:
        rows.append(_row("both", swept.workers, both))
    return pd.DataFrame(rows).astype({"workers": "Int64", "enough": "boolean", "bound_per_s": "float64"})


def _row(what: str, workers: int | None, rate: Estimate) -> dict[str, object]:
    return {"what": what, "workers": workers, "launches": rate.n, **columns("throughput{}_per_s", rate)}


def _value(rate: Estimate) -> float:
    assert rate.value is not None, "found_by() leaves out what is unknown"
    return rate.value


def _text(rate: Estimate) -> str:
    return _number(_value(rate))


def _number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1}f}"


def _workers(count: int) -> str:
    return "no workers" if not count else f"{count} worker{'s' if count > 1 else ''} for each rank"
