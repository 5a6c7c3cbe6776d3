"""One training step as a timeline: when its exchanges begin and end, and how long training waits for them. Pure.

The overlap is not assumed: it follows from the order of events. Exchanges begin in the order in which they are handed
over. At most as many share the link as were measured at once; the others wait. Those of the backward pass run beside
it, and the optimizer waits for the last of them. In any other phase the rank waits for each at once, as for DDP's
buffers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.core.records import PHASES

OVERLAPPED = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """An exchange: the phase and the moment in which it is handed over, in a step whose exchanges take no time, and
    what it takes (ms): alone, then its share of the time of two at once, of three and so on, as far as known."""

    phase: str
    ready_ms: float
    costs_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``step_ms``: how long the step takes. ``exposed_ms``: how much of that is waiting.

    ``begins_ms``, ``ends_ms``: of each exchange, phase by phase.
    """

    step_ms: float
    exposed_ms: float
    begins_ms: tuple[float, ...]
    ends_ms: tuple[float, ...]


def simulated(ends_ms: Mapping[str, float], exchanges: Sequence[Costed]) -> Step:
    """A step with these exchanges, in the order in which they are handed over. ``ends_ms``: when each phase ends where
    exchanges take no time, in the order of phases."""
    waited = 0.0
    begins: list[float] = []
    ends: list[float] = []
    for phase in PHASES:
        of_phase = [one for one in exchanges if one.phase == phase]
        if phase == OVERLAPPED:
            handed = [one.ready_ms + waited for one in of_phase]
            started, ended = _sharing(handed, [one.costs_ms for one in of_phase])
            begins += started
            ends += ended
            waited += max(0.0, max(ended, default=0.0) - (ends_ms[phase] + waited))
            continue
        for one in of_phase:
            begins.append(one.ready_ms + waited)
            waited += one.costs_ms[0]
            ends.append(one.ready_ms + waited)
    whole = ends_ms[PHASES[-1]] + waited
    return Step(step_ms=whole, exposed_ms=waited, begins_ms=tuple(begins), ends_ms=tuple(ends))


def _sharing(handed: Sequence[float], costs: Sequence[tuple[float, ...]]) -> tuple[list[float], list[float]]:
    """When each begins and ends. Of n at once, each advances by dt / (n times what it takes with n at once)."""
    begins, ends, left = [0.0] * len(handed), [0.0] * len(handed), [1.0] * len(handed)
    most = min(map(len, costs), default=1)
    running: list[int] = []
    now, following = 0.0, 0
    while running or following < len(handed):
        comes = max(now, handed[following]) if following < len(handed) and len(running) < most else math.inf
        whole = {one: len(running) * costs[one][len(running) - 1] for one in running}
        goes = {one: now + left[one] * whole[one] for one in running}
        first = min(running, key=goes.__getitem__, default=None)
        until = min(comes, math.inf if first is None else goes[first])
        for one in running:
            left[one] -= (until - now) / whole[one] if until > now else 0.0
        now = until
        if first is not None and goes[first] <= comes:
            running.remove(first)
            ends[first] = now
        else:
            running.append(following)
            begins[following] = now
            following += 1
    return begins, ends
