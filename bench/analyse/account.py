"""The account of a step: parts that are measured one by one, and what is left over.

The parts of a launch that takes a step apart (:mod:`bench.worker.limits`) are held against its own plain steps.
Nothing is scaled to fit: what is left over is ``unexplained``, and negative where the parts are more than the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Ratio, mean_interval
from bench.analyse.rounds import Rounds
from bench.core.records import PHASES
from bench.core.text import by_key
from bench.runs.document import RunDocument
from bench.runs.experiments import Ceilings, Limits, LimitsLaunch, Operator, Prediction, Proofs
from bench.runs.frames import TableRow
from bench.runs.launches import Tf32

PARTS = {
    "arithmetic": "arithmetic and its memory traffic, at this device's measured ceilings",
    "kernels": "convolutions, matrix products and attention, alone and warm, beyond that",
    "memory": "operators that compute next to nothing, alone and warm: batch norm, activations, copies",
    "optimizer": "the optimizer's operators, alone and warm",
    "fresh": "memory that is new to the process: the system zeroes each page at its first touch",
    "contention": "operators take longer in the step than alone and warm: cold caches, other ranks",
    "communication": "exchange of gradients or weights that nothing hides",
    "stragglers": "waiting for the rank that comes last",
    "data": "waiting for the batch",
    "host": "Python and torch between operators",
}
"""Of a step, in the order of the waterfall, and what they are; ``unexplained`` is what is left over."""

ADDS_UP = 0.05  # of the step, what may be left over
AHEAD = 0.1  # of the step: a host that is never less ahead of its GPU keeps it busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Of one launch, in milliseconds: the ``step`` and its ``parts``; ``limit_ms``: what the step cannot beat on this
    device, None where no ceilings are known."""

    scenario: str
    launch: int
    step_ms: float
    parts: Mapping[str, float]
    limit_ms: float | None
    own_limit_ms: float | None

    @property
    def unexplained_ms(self) -> float:
        return self.step_ms - sum(self.parts.values())

    @property
    def values(self) -> dict[str, float | None]:
        """The parts, and what stands beside them in a table."""
        whole = {"unexplained": self.unexplained_ms, "step": self.step_ms, "limit": self.limit_ms}
        return {**self.parts, **whole, "own limit": self.own_limit_ms}

    @property
    def adds_up(self) -> bool:
        return abs(self.unexplained_ms) <= ADDS_UP * self.step_ms


def accounts(run: Analysed) -> list[Account]:
    """Of each launch that took a step apart and ended well."""
    limits = run.document.begun(Limits)
    first = {one.scenario: one for one in reversed(limits.launches) if one.operators}
    return [
        account(one, first.get(one.scenario, one), limits.ceilings_of(one), rows)
        for one in limits.launches
        if one.status == "ok" and one.effective and profiled(one)
        for rows in (run.diagnostics[run.diagnostics["launch"] == one.launch],)
        if rows["synchronised"].nunique() == 2  # a stranger may have left out one kind of step
    ]


def profiled(launch: LimitsLaunch) -> bool:
    """Whether the profiler saw what its steps are spent on: on a GPU it may see no kernel."""
    return any(ms for spent in launch.spent_ms for ms in spent.values())


def account(launch: LimitsLaunch, of_operators: LimitsLaunch, ceilings: Ceilings | None, rows: pd.DataFrame) -> Account:
    """``of_operators``: the launch of the scenario whose operators stand for all; ``rows``: its diagnostics."""
    assert launch.effective is not None
    phases = [f"{phase}_ms" for phase in PHASES]
    timed = rows.assign(step_ms=rows[phases].sum(axis=1), begun_ms=rows["data_ms"] + rows["forward_ms"])
    of_ranks = timed.groupby(["synchronised", "step"])[["data_ms", "begun_ms", "step_ms"]].agg(["mean", "max"])
    plain, quiet = of_ranks.loc[True], of_ranks.loc[False]
    step_ms, data_ms = middle_mean(plain["step_ms", "max"]), middle_mean(plain["data_ms", "mean"])
    alike = launch.reasons.get("communication") is not None
    # a late rank is seen where none waits for it; where all do, in how far the others are when they begin to wait
    waited_ms = middle_mean(plain["begun_ms", "max"] - plain["begun_ms", "mean"]) if alike else 0.0
    ends_ms = (plain if alike else quiet)["step_ms"]
    stragglers_ms = waited_ms + middle_mean(ends_ms["max"] - ends_ms["mean"])
    spent = pd.DataFrame([dict(one) for one in launch.spent_ms]).mean()
    # what nothing hides of exchanges in a step without one of gradients
    spent["communication"] = max(0.0, float(spent["communication"]) - waited_ms)
    quieter_ms = 0.0 if alike else step_ms - middle_mean(quiet["step_ms", "max"])
    alone = _alone(of_operators.operators, ceilings, launch.effective.tf32)
    classes = ("arithmetic", "memory", "optimizer")
    host_ms = _host_ms(launch, spent, middle_mean(quiet["step_ms", "mean"]) - data_ms - waited_ms)
    parts: dict[str, float] = {"data": data_ms, "stragglers": stragglers_ms, "host": host_ms}
    parts["communication"] = max(0.0, quieter_ms) + float(spent["communication"])
    # what is quicker in the step than alone counts as it is there
    own = {name: min(alone[name], float(spent[name])) if alone else float(spent[name]) for name in classes}
    parts |= own
    if alone:
        parts["arithmetic"] = min(own["arithmetic"], alone["limit"])
        parts["kernels"] = own["arithmetic"] - parts["arithmetic"]
        beyond_ms = sum(float(spent[name]) - own[name] for name in classes)
        if launch.fresh_ms:
            fresh = pd.DataFrame([dict(one) for one in launch.fresh_ms]).mean()
            within_ms = min(beyond_ms, float(fresh["profiled"]))
            parts["fresh"] = max(0.0, float(fresh["step"] - fresh["profiled"]) + within_ms)
            beyond_ms -= within_ms
        parts["contention"] = beyond_ms
    return Account(
        scenario=launch.scenario,
        launch=launch.launch,
        step_ms=step_ms,
        parts={name: parts[name] for name in PARTS if name in parts},
        limit_ms=alone["limit"] + alone["traffic"] if alone and ceilings else None,
        own_limit_ms=sum(alone[name] for name in classes) if alone else None,
    )


def middle_mean(times_ms: "pd.Series[float]") -> float:
    """Of the steps that are neither among the shortest nor among the longest quarter. A median would be of one kind
    alone where steps are of two, such as with and without new memory in turns."""
    return float(times_ms.sort_values().iloc[len(times_ms) // 4 : len(times_ms) - len(times_ms) // 4].mean())


def _host_ms(launch: LimitsLaunch, spent: "pd.Series[float]", working_ms: float) -> float:
    """On the CPU what lies between operators. A GPU waits for its host in what its kernels leave of ``working_ms``, a
    step that waits for nothing else, unless the host is ahead of it all the time."""
    if not (leads := [one for one in launch.lead_ms if one is not None]):
        return float(spent["host"])
    return max(0.0, working_ms - float(spent.drop("host").sum())) if min(leads) < AHEAD * working_ms else 0.0


def _alone(operators: Sequence[Operator], ceilings: Ceilings | None, tf32: Tf32 | None) -> dict[str, float] | None:
    """Milliseconds of all operators of a step, alone and warm, by class; ``limit``: those with FLOPs at the ceilings,
    ``traffic``: the others at the memory's. An operator that is faster than a ceiling, such as one whose data are in a
    cache, counts as it is."""
    known = [(one, one.alone_ms) for one in operators if one.alone_ms is not None]
    if not known:
        return None
    sums = dict.fromkeys(("arithmetic", "memory", "optimizer", "limit", "traffic"), 0.0)
    for one, alone_ms in known:
        name = "arithmetic" if one.flops else "optimizer" if one.phase == "optimizer" else "memory"
        sums[name] += one.count * alone_ms
        sums["limit" if one.flops else "traffic"] += one.count * min(alone_ms, bound_ms(one, ceilings, tf32))
    return sums


def bound_ms(one: Operator, ceilings: Ceilings | None, tf32: Tf32 | None) -> float:
    """The least time of an operator: its FLOPs or its bytes over the measured ceiling, whichever takes longer.

    ``tf32``: whether convolutions and products of fp32 take it.
    """
    if ceilings is None:
        return float("inf")
    convolution = "convolution" in one.name
    takes_tf32 = one.type == "fp32" and tf32 is not None and (tf32.cudnn if convolution else tf32.matmul)
    kind, what = "tf32" if takes_tf32 else one.type, "convolutions" if convolution else "matrix products"
    tflops, gib = ceilings.tflops.get(f"{what} {kind}"), ceilings.gib_per_s["read"]
    computing_ms = one.flops / (min(tflops) * 1e9) if tflops else 0.0
    return max(computing_ms, one.bytes / (min(gib) * 2**30) * 1e3)


LIMITS = ("scenario", "part", "ms", "low_ms", "high_ms", "share", "share_low", "share_high", "launches")


def limits(run: Analysed) -> pd.DataFrame:
    """A row for each scenario and part of its step: :data:`LIMITS`, means over launches with 95 % intervals.

    ``share``: of the step. The parts are those of :data:`PARTS`, then ``unexplained``; ``step`` is the whole,
    ``limit`` what it cannot beat on this device, and ``own limit`` what it cannot beat with these kernels.
    """
    rows: list[TableRow] = []
    for scenario, launches in by_key((one.scenario, one) for one in accounts(run)).items():
        for part in (*PARTS, "unexplained", "step", "limit", "own limit"):
            if values := [(ms, ms / one.step_ms) for one in launches if (ms := one.values.get(part)) is not None]:
                times, shares = (pd.Series(column).to_numpy() for column in zip(*values, strict=True))
                intervals = (*mean_interval(times), *mean_interval(shares))
                rows.append(dict(zip(LIMITS, (scenario, part, *intervals, len(values)), strict=True)))
    return pd.DataFrame(rows, columns=list(LIMITS))


def gain(of_launches: Sequence[Account], recovers: Mapping[str, float]) -> tuple[float, float | None, float | None]:
    """How many times as fast a step would be without what a switch recovers of it, and the 95 % interval over launches.

    ``recovers``: by part the share of it, from 0 to 1, as the switch's file declares.
    """
    saved = [sum(one.parts.get(part, 0.0) * recovers[part] for part in recovers) / one.step_ms for one in of_launches]
    return mean_interval(pd.Series(1.0 / (1.0 - share) for share in saved).to_numpy())


PROOFS = (
    *("base", "scenario", "predicted", "predicted_low", "predicted_high", "measured", "measured_low", "measured_high"),
    *("launches", "verdict"),
)
RIGHT, TOO_HIGH, TOO_LOW, UNDECIDED, UNTRIED = "right", "too high", "too low", "undecided", "not measured"


def proofs(document: RunDocument) -> pd.DataFrame:
    """A row for each switch whose gain was predicted, the best first: :data:`PROOFS`.

    A gain is how many times as fast the scenario with the switch is. ``verdict``: whether the intervals of predicted
    and measured overlap, or else how the prediction was; a side of one launch is its value. It is ``undecided`` where
    the measured interval also holds 1, no gain at all.
    """
    recorded = document.begun(Proofs)
    good = [one for one in recorded.launches if one.step_ms is not None]
    rounds = Rounds((one.scenario, one.repeat, one.launch, one.step_ms) for one in good)
    rows = []
    for one in recorded.predictions:
        launches = sum(of.scenario == one.scenario for of in good)
        ratio = rounds.ratio(one.scenario, recorded.base or "")
        row = (recorded.base, one.scenario, one.gain, one.low, one.high, ratio.value, ratio.low, ratio.high, launches)
        rows.append((*row, _verdict(one, ratio)))
    return pd.DataFrame(rows, columns=list(PROOFS))


def _verdict(one: Prediction, measured: Ratio) -> str:
    if measured.value is None:
        return UNTRIED
    low, high = (one.gain if end is None else end for end in (one.low, one.high))
    least, most = (measured.value if end is None else end for end in (measured.low, measured.high))
    if low > most or high < least:
        return TOO_HIGH if low > most else TOO_LOW
    return UNDECIDED if least <= 1.0 <= most else RIGHT
