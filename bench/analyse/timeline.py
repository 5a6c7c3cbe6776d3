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


def exposed_ms(ends_ms: Mapping[str, float], exchanges: Sequence[Costed]) -> float:
    """How long a step waits for these exchanges, in the order in which they are handed over. ``ends_ms``: when each
    phase ends where exchanges take no time."""
    waited = 0.0
    for phase in PHASES:
        of_phase = [one for one in exchanges if one.phase == phase]
        if phase == OVERLAPPED:
            ends = sharing([one.ready_ms + waited for one in of_phase], [one.costs_ms for one in of_phase])
            waited += max(0.0, max(ends, default=0.0) - (ends_ms[phase] + waited))
        else:
            for one in of_phase:
                waited += one.costs_ms[0]
    return waited


def sharing(handed: Sequence[float], costs: Sequence[tuple[float, ...]]) -> list[float]:
    """When each ends. Of n at once, each advances by dt / (n times what it takes with n at once)."""
    ends, left = [0.0] * len(handed), [1.0] * len(handed)
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
            following += 1
    return ends
