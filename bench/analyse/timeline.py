"""One training step as a timeline: when its exchanges begin and end, and what of them training waits for. Pure.

What is simulated is the order of things, not an assumed overlap. Exchanges go over one link, one after the other, each
as soon as it is handed over and the link is free. Those of the backward pass run while it goes on, and the optimizer
waits for the last of them; in any other phase the rank waits for each at once, as it does for DDP's buffers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.core.records import PHASES

OVERLAPPED = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """An exchange: the phase and the moment in which it is handed over, in a step whose exchanges take no time, and
    what it takes (ms)."""

    phase: str
    ready_ms: float
    cost_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``step_ms``: how long the step takes. ``exposed_ms``: what of it is waiting. ``busy_ms``: of the link.

    ``begins_ms``, ``ends_ms``: of each exchange.
    """

    step_ms: float
    exposed_ms: float
    busy_ms: float
    begins_ms: tuple[float, ...]
    ends_ms: tuple[float, ...]


def simulated(ends_ms: Mapping[str, float], exchanges: Sequence[Costed]) -> Step:
    """A step with these exchanges, in the order in which they are handed over. ``ends_ms``: when each phase ends where
    exchanges take no time, in the order of phases."""
    waited = free = 0.0
    begins, ends = [], []
    for phase in PHASES:
        for one in exchanges:
            if one.phase != phase:
                continue
            handed = one.ready_ms + waited
            begins.append(max(handed, free))
            free = begins[-1] + one.cost_ms
            ends.append(free)
            if phase != OVERLAPPED:
                waited += free - handed
        if phase == OVERLAPPED:
            waited += max(0.0, free - (ends_ms[phase] + waited))
    busy = sum(one.cost_ms for one in exchanges)
    whole = ends_ms[PHASES[-1]] + waited
    return Step(step_ms=whole, exposed_ms=waited, busy_ms=busy, begins_ms=tuple(begins), ends_ms=tuple(ends))
