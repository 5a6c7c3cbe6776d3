"""Weak and strong scaling efficiency over launches, and where the rest of the time goes.

    weak    T(1) / T(N)        the same batch on each device, so that the work grows with them
    strong  T(1) / (N T(N))    the same batch in all, so that each device has less to do

Ratios come with 95 % intervals over launches, with the drift of the machine taken out (:mod:`bench.analyse.rounds`).
A diagnostic launch shows where the time goes that a step takes beyond an efficiency of 1. Its steps are in pairs, with
and without synchronisation. Communication is the difference of the slowest ranks. Skew is how much longer the slowest
rank takes than the mean of all when nobody waits. The rest of the increase of that mean is input (waiting for data) and
computation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.analyse.algorithms import Algorithms
from bench.analyse.analysed import Analysed
from bench.analyse.communication import slowest_of_pairs
from bench.analyse.intervals import Estimate, Ratio, estimate, mean_interval
from bench.analyse.predicted import Prediction, predictions
from bench.analyse.rounds import Rounds
from bench.analyse.steps import per_iteration, per_launch
from bench.core.records import PHASES
from bench.runs.experiments import PointDiagnostic, Scaling
from bench.runs.frames import Iterations
from bench.runs.launches import LaunchRecord

WEAK, STRONG = "weak", "strong"
PARTS = ("communication", "skew", "input", "computation")
NOISE = 0.02
"""Of a step: how far below 0 a part of its loss may be by noise. Beyond that the parts are no account of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How much longer a step is than at an efficiency of 1 (ms), and the parts of that; None: unknown, for ``reason``.
    ``communication`` has a 95 % interval over pairs of steps. ``rest``: how much longer the measured step is than that
    of the diagnostic launch, which the parts are from."""

    total_ms: float | None = None
    communication_ms: float | None = None
    communication_low_ms: float | None = None
    communication_high_ms: float | None = None
    skew_ms: float | None = None
    input_ms: float | None = None
    computation_ms: float | None = None
    rest_ms: float | None = None
    reason: str | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The part of each of :data:`PARTS` in what the diagnostic launch lost; empty if it lost nothing."""
        parts = {name: getattr(self, f"{name}_ms") for name in PARTS}
        if None in parts.values() or sum(parts.values()) <= 0.0:
            return {}
        return {name: part / sum(parts.values()) for name, part in parts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A point of a curve. ``step``: of the slowest rank (ms), over launches. ``per_s``: units a second in all."""

    mode: str
    count: int
    global_batch: int
    step: Estimate
    per_s: float | None
    efficiency: Ratio
    loss: Loss
    failed: str | None


def scaled(run: Analysed) -> list[Scaled]:
    """Every point of every curve, weak before strong; empty for a run that is not of ``bench scale``."""
    scaling = run.document.of(Scaling)
    if scaling is None or scaling.by_itself:
        return []
    whole = (max(scaling.counts), max(scaling.counts) * scaling.batch_per_rank)
    of_points: dict[tuple[int, int], list[LaunchRecord]] = {whole: [*run.document.launches]}
    for one in scaling.launches:
        of_points.setdefault((one.replicas or 0, one.global_batch), []).append(one)
    stats = launch_stats(run, [one.launch for launches in of_points.values() for one in launches])
    medians = stats["median_ms"].to_dict()
    rounds = Rounds(
        (str(point), one.repeat, one.launch, medians.get(one.launch))
        for point, launches in of_points.items()
        for one in launches
        if one.status == "ok"
    )
    points = []
    for mode in scaling.modes:
        first, *others = curve(scaling, mode)
        alone_ms = estimate(rounds.values.get(str(first), ())).value
        numbers = [one.launch for one in of_points.get(first, [])]
        waits = (stats["data_share"] * stats["mean_ms"]).reindex(numbers).dropna()
        data_ms = float(waits.mean()) if len(waits) else 0.0
        for here in (first, *others):
            count, batch = here
            share = 1.0 if mode == WEAK else 1.0 / count
            step = estimate(rounds.values.get(str(here), ()))
            ratio = rounds.ratio(str(here), str(first))
            ends = {name: getattr(ratio, name) for name in ("ratio", "low", "high")}
            bad = next((one for one in of_points.get(here, []) if one.status != "ok"), None)
            loss = Loss()
            if count > 1:
                diagnostics = [one for one in scaling.diagnostics if (one.replicas, one.global_batch) == here]
                loss = _loss(run.diagnostics, diagnostics, step.value, alone_ms and share * alone_ms, share * data_ms)
            points.append(
                Scaled(
                    mode=mode,
                    count=count,
                    global_batch=batch,
                    step=step,
                    per_s=step.value and 1000 * batch * (run.document.workload.units_per_example or 1) / step.value,
                    efficiency=Ratio(**{name: end and end * share for name, end in ends.items()}),
                    loss=loss,
                    failed=None if bad is None else f"{bad.status}: {bad.reason}",
                )
            )
    return points


def curve(scaling: Scaling, mode: str) -> list[tuple[int, int]]:
    """The numbers of devices of a curve, each with its global batch."""
    whole = max(scaling.counts) * scaling.batch_per_rank
    counts = sorted({1, *scaling.counts})
    return [(count, whole if mode == STRONG else count * scaling.batch_per_rank) for count in counts]


def launch_stats(run: Analysed, launches: Sequence[int]) -> pd.DataFrame:
    """The table of these launches (:func:`bench.analyse.steps.per_launch`), by number."""
    timed = run.timed if isinstance(run.timed, Iterations) else per_iteration(run.timed)
    return per_launch(timed.only(timed.frame["launch"].isin(launches))).frame.set_index("launch")


def _loss(
    rows: pd.DataFrame,
    launches: Sequence[PointDiagnostic],
    step_ms: float | None,
    ideal_ms: float | None,
    ideal_data_ms: float,
) -> Loss:
    """``ideal_data_ms``: what of the ideal step is waiting for data."""
    total = None if step_ms is None or ideal_ms is None else step_ms - ideal_ms
    if not launches:
        return Loss(total_ms=total, reason="there is no diagnostic launch")
    record = launches[-1]
    pairs = rows[(rows["launch"] == record.launch) & (rows["look"] == "pairs")]
    if pairs.empty or ideal_ms is None:
        looked = record.looks[0].reasons.get("pairs") if record.looks else None
        why = record.reason or looked or "there were no steps without synchronisation to compare with"
        return Loss(total_ms=total, reason=why)
    whole = pairs[[f"{phase}_ms" for phase in PHASES]].sum(axis=1)
    slowest, alone_ms = slowest_of_pairs(pairs, whole), whole[~pairs["synchronised"].astype(bool)]
    middle = alone_ms.groupby(pairs["pair"]).mean()  # of all ranks, when nobody waits
    communication, low, high = mean_interval((slowest[True] - slowest[False]).to_numpy())
    skew = float((slowest[False] - middle).mean())
    data = float(pairs.loc[~pairs["synchronised"].astype(bool), "data_ms"].mean()) - ideal_data_ms
    computation = float(middle.mean()) - ideal_ms - data
    parts = dict(zip(PARTS, (communication, skew, data, computation), strict=True))
    least = min(parts, key=lambda name: parts[name])
    if parts[least] < -NOISE * ideal_ms:
        why = f"in the diagnostic launch {least} takes {-parts[least]:,.1f} ms less than with one device"
        return Loss(total_ms=total, reason=f"{why}: measure on an idle machine")
    times: dict[str, Any] = {f"{name}_ms": max(0.0, part) for name, part in parts.items()}
    rest_ms = None if total is None else total - sum(parts.values())
    return Loss(total_ms=total, communication_low_ms=low, communication_high_ms=high, rest_ms=rest_ms, **times)


def foreseen(
    run: Analysed, predict: Sequence[int] = (), what_if_mbit: float | None = None
) -> tuple[list[Prediction], list[Prediction]]:
    """Predictions for the measured numbers of devices, to check them, and for those that were asked for: weak ones, and
    strong ones if that was measured."""
    scaling = run.document.begun(Scaling)
    points = {(one.count, one.global_batch): one.step.value for one in scaled(run)}
    checks, asked = list[Prediction](), list[Prediction]()
    algorithms = Algorithms.of(run.document)
    for mode in dict.fromkeys((WEAK, *scaling.modes)):
        at = {count: points.get((count, batch)) for count, batch in curve(scaling, mode)}
        measured = {count: value for count, value in at.items() if value is not None}
        checks += predictions(scaling, mode, measured, [count for count in measured if count > 1], None, algorithms)
        wanted, mbit = predict or scaling.to_predict, what_if_mbit or scaling.what_if_mbit
        asked += predictions(scaling, mode, measured, wanted, mbit, algorithms)
    return checks, asked
