"""The step on numbers of devices that were not measured: computation without exchanges, these, and the fitted link.

Computation is that of ranks side by side, each with the batch that is predicted, so that what they share on a host is
in it: as many as are predicted, or for more than were measured as many as were. Nothing of the measured steps is in a
prediction, so that they can check it: each number is predicted from all-reduces over other numbers where there are any.
What is left out is said: ranks that wait for each other since they are not equally fast, and links that more ranks have
to share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.analyse.algorithms import RING, Algorithms
from bench.analyse.all_reduce import Link, fitted, samples
from bench.analyse.timeline import Costed, exposed_ms
from bench.core.records import PHASES
from bench.runs.experiments import ExchangesRecord, Scaling

MBIT_BYTES_PER_MS = 125.0  # bytes that a link of 1 Mbit/s carries in a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step (ms) on ``count`` devices. ``mode``: ``weak``, with the same batch on each, or ``strong``, with the same
    batch in all. ``efficiency``: T(1) / T(N), or T(1) / (N T(N)), both predicted. ``why_not``: why there is none; then
    the first three are None.

    ``measured_ms``: None for a number that was not measured; ``error``: by how much the prediction is above it,
    relative. ``left_out``: whether no all-reduce over this number is in the fit. ``beyond``: how many times as many
    devices as were measured.
    """

    mode: str
    count: int
    step_ms: float | None = None
    exposed_ms: float | None = None
    efficiency: float | None = None
    measured_ms: float | None = None
    error: float | None = None
    left_out: bool
    beyond: float
    why_not: str | None = None


def computing(scaling: Scaling, mode: str, count: int) -> list[ExchangesRecord]:
    """The steps without exchanges in which each rank has the batch that it has among this many devices."""
    batch = scaling.batch_of_rank(mode, count) or 0
    good = [one for one in scaling.exchanges if one.status == "ok" and one.why_not is None]
    return [one for one in good if one.global_batch == batch * one.processes]


def predicted_step(
    known: Sequence[ExchangesRecord], count: int, link: Link, algorithms: Algorithms = RING
) -> tuple[float, float] | None:
    """The time of a step on this many devices, and how much of that is waiting (ms); None where as few ranks were not
    measured. ``known``: steps that exchange nothing, all with the same batch on each rank.

    Raises :class:`UnknownAlgorithm` where no all-reduce of an algorithm that it takes is known to be in the fit.
    """
    of = max((one for one in known if one.processes <= count), key=lambda one: one.processes, default=None)
    if of is None:
        return None
    costed = []
    for one in of.exchanges if count > 1 else ():
        algorithm = algorithms.at(count, one.bytes)
        first, *others = [each.of(algorithm, one.bytes) for each in (link, *link.at_once)]
        if first is None:
            raise UnknownAlgorithm(algorithms.why(count))
        cost = Link.broadcast_ms if one.kind == "broadcast" else Link.all_reduce_ms
        costs_ms = tuple(cost(each, one.bytes, count) for each in (first, *filter(None, others)))
        costed.append(Costed(phase=one.phase, ready_ms=one.ready_ms, costs_ms=costs_ms))
    waits_ms = exposed_ms(of.ends_ms, costed)
    return of.ends_ms[PHASES[-1]] + waits_ms, waits_ms


class UnknownAlgorithm(Exception):
    """What is to be predicted may take an algorithm that is not in the fit. Says why."""


def with_bandwidth(link: Link, mbit: float) -> Link:
    """The same latency on a link of this bandwidth (Mbit/s), all of which an all-reduce gets; those at once lose the
    same share of it."""
    beta_ms = 1.0 / (MBIT_BYTES_PER_MS * mbit)
    at_once = [
        replace(one, beta_ms=one.beta_ms * beta_ms / link.beta_ms, pieces=(), algorithm="")
        for one in link.at_once
        if link.beta_ms
    ]
    return replace(link, beta_ms=beta_ms, pieces=(), algorithm="", at_once=tuple(at_once))


def why_not(scaling: Scaling) -> str | None:
    """Why nothing can be predicted; None where it can."""
    if not any(one.processes == 1 for one in computing(scaling, "weak", 1)):
        reasons = [one.why_not or f"a launch without exchanges failed ({one.reason})" for one in scaling.exchanges]
        return reasons[0] if reasons else "no launch without exchanges was done"
    return "no all-reduces were measured" if fitted(samples(scaling.bandwidth)) is None else None


def predictions(
    scaling: Scaling,
    mode: str,
    measured_ms: Mapping[int, float],
    counts: Sequence[int],
    what_if_mbit: float | None = None,
    algorithms: Algorithms = RING,
) -> list[Prediction]:
    """A prediction for each of ``counts`` on the curve ``mode``. ``measured_ms``: its steps by number of devices, to
    check with. None of them where :func:`why_not` has a reason, and none for a batch that was not computed. With
    ``what_if_mbit`` every all-reduce is a ring on that link."""
    if why_not(scaling) is not None:
        return []
    algorithms = algorithms if what_if_mbit is None else RING
    all_samples = samples(scaling.bandwidth, algorithms)
    predicted = []
    for count in counts:
        alone, step, left_out, unknown = None, None, False, None
        others = [one for one in all_samples if one.ranks != count]
        for over in (others, all_samples):  # all where the others do not tell
            if (link := fitted(over)) is None:
                continue
            link = link if what_if_mbit is None else with_bandwidth(link, what_if_mbit)
            alone = predicted_step(computing(scaling, mode, 1), 1, link)
            try:
                step = predicted_step(computing(scaling, mode, count), count, link, algorithms)
                left_out, unknown = len(over) < len(all_samples), None
                break
            except UnknownAlgorithm as error:
                unknown = str(error)
        if alone is None or (step is None and unknown is None):
            continue
        step_ms, waits_ms = step or (None, None)
        measured = None if what_if_mbit is not None or step is None else measured_ms.get(count)
        predicted.append(
            Prediction(
                mode=mode,
                count=count,
                step_ms=step_ms,
                exposed_ms=waits_ms,
                efficiency=step_ms and alone[0] / step_ms / (count if mode == "strong" else 1),
                measured_ms=measured,
                error=step_ms and measured and step_ms / measured - 1.0,
                left_out=left_out,
                beyond=count / max((*measured_ms, 1)),
                why_not=unknown,
            )
        )
    return predicted


def largest_error(checks: Sequence[Prediction]) -> float | None:
    """Of the numbers that were measured, on several devices; None without one."""
    return max((abs(one.error) for one in checks if one.error is not None and one.count > 1), default=None)
