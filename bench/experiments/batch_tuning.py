"""``bench tune --tune-batch``: the batch is chosen too, by the time for an example and not by the time for a step.

The first search is at the requested batch. Its finalists are searched again at twice the batch, and so on, as long as
the winner's fresh launches take clearly less time for an example than those of the previous winner. Each search is a
separate run with its own reference, so what diverges, or does not fit, at one batch is left out only there. Two batches
are compared over two runs: if the machine drifts in between, the ratio shifts, and the interval does not show it.
"""

import time
from dataclasses import replace
from statistics import geometric_mean

from bench.core.errors import RequestError
from bench.core.text import ends_text
from bench.experiments.lab import Start
from bench.experiments.plan import Request
from bench.experiments.plan.batch_search import next_batch
from bench.experiments.tuning import Searched, tune
from bench.runs.experiments import Tuning
from bench.seams.discover import Found

FIRST = 0.5  # the part of the budget that the first search may take


def tune_batches(
    request: Request, candidates: tuple[Found, ...], search: Tuning, start: Start
) -> tuple[Searched, dict[int, str]]:
    """The search at the batch that is fastest for an example, and by global batch what came of it. Raises
    :class:`RequestError` as the first search does."""
    began_s = time.monotonic()
    best = tune(request, candidates, replace(search, budget_s=FIRST * search.budget_s), start)
    tried, gains = {request.global_batch: _in_words(best)}, {request.global_batch: True}
    while best.finalists and all(gains.values()) and (batch := next_batch(gains, unit=1)) is not None:
        request = replace(request, global_batch=batch)
        left = replace(search, allow=(), budget_s=max(0.0, search.budget_s - (time.monotonic() - began_s)))
        try:
            larger = tune(request, best.finalists, left, start)
        except RequestError as error:  # of a budget that is spent, or a batch that cannot be had
            tried[batch] = f"not tried: {error.problem}"
            break
        ratio, gains[batch] = _per_example(best, larger)
        tried[batch] = _in_words(larger) + ratio
        best = larger if gains[batch] else best
    return best, tried


def _in_words(searched: Searched) -> str:
    from bench.words.tuned import nothing_usable

    tuning, times = searched.run.document.begun(Tuning), _times(searched)
    if not times:
        return "no fresh launch of a finalist ended well" if tuning.finalists else nothing_usable(tuning)
    per_s = 1 / geometric_mean(times)
    return f"{searched.finalists[0].name}, {per_s:,.1f} {searched.run.document.workload.unit_short}/s"


def _times(searched: Searched) -> list[float]:
    """Seconds for an example (image, token) of each fresh launch of the winner."""
    if not searched.finalists:
        return []
    units = searched.run.document.workload.units or 1
    return [ms / 1000 / units for ms in searched.run.rounds.values.get(searched.finalists[0].name, ())]


def _per_example(before: Searched, now: Searched) -> tuple[str, bool]:
    """How much faster an example is, in words, and whether that is beyond noise."""
    from bench.analyse.intervals import ratio_of

    ratio = ratio_of(_times(now), _times(before))
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return "", False
    return f", {ratio.value:.2f} times the speed ({ends_text(ratio.low, ratio.high)})", ratio.low > 1.0
