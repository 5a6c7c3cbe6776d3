"""``bench run --prove``: the switch that should help the fastest scenario most, measured beside it.

What a switch may recover stands in its file (``recovers``). The account of the fastest scenario's step says how much
there is of it; the best switch is then measured in turns with the scenario, and the prediction is scored.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.core.errors import RequestError
from bench.core.text import by_key
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform
from bench.experiments.measure import how_fast, median_step_ms
from bench.experiments.plan import Request, in_turns, job_of
from bench.experiments.resume import ended, scenario_of
from bench.runs.document import RunDocument
from bench.runs.experiments import Limits, Prediction, ProofLaunch, Proofs, Work
from bench.runs.launches import LaunchRecord
from bench.seams import discover, switching
from bench.seams.discover import SWITCH, Found
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

    from bench.analyse.analysed import Analysed

FEWEST = 3  # launches of each side: what an interval takes


def after(lab: Lab) -> None:
    """Predict, and measure the best switch in turns with the fastest scenario."""
    if "prove" not in lab.request.experiments or not lab.writer.document.good:
        return
    proofs = lab.writer.document.of(Proofs)
    if proofs is None:
        proofs = predicted(lab)
        lab.writer.note(proofs)
    for name, repeat in _left(proofs, lab.request):
        lab.progress.expect([name])
        job = job_of(lab.request, scenario_of(lab.writer.document, name), lab.next_launch(), repeat, lab.site.hosts)
        perform(job, lab, "proving", lambda done: _kept(lab, done))


def _left(proofs: Proofs, request: Request) -> list[tuple[str, int]]:
    """Scenario and repeat of the launches that are left to do."""
    if proofs.reason is not None:
        return []
    sides, done = (proofs.base or "", proofs.predictions[0].scenario), ended(proofs.launches)
    return [one for one in in_turns(sides, max(FEWEST, request.launches)) if one not in done]


def _kept(lab: Lab, done: Performed) -> str:
    lab.writer.add_to(Proofs, ProofLaunch.of(done.record, step_ms=median_step_ms(done)), **done.tables)
    return how_fast(done)


def predicted(lab: Lab) -> Proofs:
    """For the fastest scenario of the run whose step was taken apart, the gain of each switch that goes with it."""
    from bench.analyse.account import accounts, gain
    from bench.analyse.analysed import Analysed

    run = Analysed.of(lab.writer.frames())
    of_each = by_key((one.scenario, one) for one in accounts(run))
    table = run.overview.dropna(subset=["step_median_ms"]).sort_values("step_median_ms")
    measured = [name for name in table["scenario"] if name in of_each]
    if not measured:
        return Proofs(reason="there is no account of a step")
    found = next(one for one in lab.scenarios if one.name == measured[0])
    launch = next(one for one in lab.writer.document.good if one.scenario == found.name)
    predictions = []
    for name, recovers in candidates(found, lab.request.device, launch, lab.writer.document.begun(Limits).work):
        value, low, high = gain(of_each[found.name], recovers)
        predictions.append(Prediction(scenario=name, gain=value, low=low, high=high))
    predictions.sort(key=lambda one: -one.gain)
    reason = None if predictions else f"no switch that goes with {found.name} says what it recovers"
    return Proofs(base=found.name, predictions=tuple(predictions), reason=reason)


def candidates(
    found: Found, device: str, launch: LaunchRecord, work: Work | None
) -> Iterator[tuple[str, dict[str, float]]]:
    """The scenario with each switch that goes with it here, and what that recovers: parts of a step by name."""
    for name, file in discover.names(SWITCH).items():
        declared = switching.load_switch(name, file)
        on, recovers = {one.name for one in found.switches}, declared.recovers.get(device, {})
        if not recovers or name in on or (declared.already and getattr(launch.effective, declared.already)):
            continue
        if declared.convolutions and work and not work.convolves:
            continue
        try:
            switched = switching.with_switches(found, [name], "--prove")
            why_not = switching.switch_obstacle(switching.switch_on(name, "--prove"), device)
        except RequestError:
            continue  # it does not go with this scenario
        if why_not is None:
            yield switched.name, dict(recovers)


def missing(document: RunDocument, request: Request) -> bool:
    """Whether a launch of the proof is left to do."""
    if "prove" not in request.experiments or not document.good:
        return False
    proofs = document.of(Proofs)
    return proofs is None or bool(_left(proofs, request))


def tables(run: "Analysed") -> "dict[str, pd.DataFrame]":
    from bench.analyse.account import proofs

    return {"switch-predictions": proofs(run.document)}


def sentences(run: "Analysed") -> list[str]:
    from bench.words.limits import proved

    return proved(run.document)


EXPERIMENT = Experiment(
    record=Proofs,
    option={
        "action": "store_true",
        "help": "take steps apart, predict which switch helps the fastest scenario most, measure it beside that, and "
        "score the prediction",
    },
    asked=bool,
    one_host="operators are repeated on one host",
    missing=missing,
    order=5,
    after=after,
    sentences=sentences,
    tables=tables,
)
