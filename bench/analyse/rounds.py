"""Scenarios of one run against each other, with what the machine did meanwhile taken out.

Launches are interleaved in rounds so that drift hits all scenarios alike; a test that knows nothing of rounds takes the
drift for noise and finds nothing. Here the logarithm of a launch's figure is the level of its scenario, plus the drift,
plus noise as large as is usual for its scenario, by least squares over all launches of the run:

1. The drift is a straight line over the launches in their order. It costs one degree of freedom in all.
2. Where rounds differ from that line beyond chance (F test at :data:`BLOCKED_AT`), each round has a level of its own
   instead (randomised blocks). With two scenarios that is the paired t test. The level of the test is strict because to
   look first and choose then finds too much: at 5 %, 59 of 1,000 A/A comparisons of 5 launches.
3. The interval is Welch's, with a variance for each scenario: its squared rests, over what the fit left of them.

``benchmarks/statistics_simulation.py`` shows how often that is wrong, with and without drift.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.analyse.intervals import CONFIDENCE, Ratio, figures, geometric_mean, ratio_from
from bench.runs.frames import LaunchFigures

Array = NDArray[np.float64]
Places = NDArray[np.int64]

BLOCKED_AT = 0.01
FEWEST_LEFT = 4
"""Launches beyond one for each scenario: three of each of two. With fewer, drift cannot be told from noise."""
NOTHING = 1e-9
"""Rests and degrees of freedom below this are rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Least squares on logarithms of shape (..., launches).

    ``weights``: of each launch in the level of each scenario. ``variances``, of shape (..., scenarios), and their
    degrees of ``freedom``. ``squares``: the sum of the squared rests.
    """

    logs: Array
    scenario: Places
    weights: Array
    variances: Array
    freedom: Array
    squares: Array

    @classmethod
    def of(cls, logs: Array, scenario: Places, drift: Array) -> Self:
        """``scenario``: of each launch, from 0. ``drift``: a row for each launch, a column for each part of it."""
        count = int(scenario.max()) + 1
        design = np.column_stack([np.eye(count)[scenario], drift])
        solution = np.linalg.pinv(design)
        squared = (logs - logs @ solution.T @ design.T) ** 2
        freedom = np.bincount(scenario, 1.0 - np.sum(design * solution.T, axis=1), count).astype("float64")
        of_each = np.stack([squared[..., scenario == one].sum(axis=-1) for one in range(count)], axis=-1)
        variances = np.where(freedom > NOTHING, of_each / np.maximum(freedom, NOTHING), 0.0)
        return cls(logs, scenario, solution[:count], variances, freedom, squared.sum(axis=-1))

    def change(self, base: int, new: int) -> tuple[Array, Array, Array]:
        """By how much ``new`` is above ``base``, the standard error of that, and its degrees of freedom."""
        weights = self.weights[new] - self.weights[base]
        parts = np.bincount(self.scenario, weights**2, len(self.freedom)) * self.variances
        variance = parts.sum(axis=-1)
        freedom = variance**2 / np.maximum((parts**2 / np.maximum(self.freedom, NOTHING)).sum(axis=-1), 1e-300)
        return self.logs @ weights, np.sqrt(variance), freedom


@dataclass(frozen=True, slots=True, eq=False)
class Drifting:
    """The fit with a line, that with rounds where there is one, and for which of the leading axes the latter counts."""

    line: Fit
    rounds: Fit | None
    blocked: NDArray[np.bool_]

    @classmethod
    def of(cls, logs: Array, scenario: Places, rounds: Places, order: Places) -> Self:
        """``logs``: of shape (..., launches); ``scenario``, ``rounds``, ``order``: of each launch."""
        none = np.zeros(logs.shape[:-1], dtype="bool")
        count = int(scenario.max()) + 1
        in_turn = bool((np.diff(rounds[np.argsort(order)]) >= 0).all())
        time = (order if in_turn else rounds).astype("float64")
        if len(scenario) - count < FEWEST_LEFT or np.ptp(time) == 0.0:
            return cls(Fit.of(logs, scenario, np.empty((len(scenario), 0))), None, none)
        line = Fit.of(logs, scenario, (time - time.mean())[:, None] / np.ptp(time))
        known = np.unique(rounds)
        blocks = Fit.of(logs, scenario, (rounds[:, None] == known[1:]).astype("float64"))
        left = float(blocks.freedom.sum())
        more = float(line.freedom.sum()) - left
        if more < 0.5 or left < 1.5:
            return cls(line, None, none)
        gained = np.maximum(line.squares - blocks.squares, 0.0) / more
        excess = gained / np.maximum(blocks.squares / left, 1e-300)
        return cls(line, blocks, special.fdtrc(more, left, excess) < BLOCKED_AT)

    def change(self, base: int, new: int) -> tuple[Array, Array, Array]:
        line = self.line.change(base, new)
        if self.rounds is None:
            return line
        both = zip(self.rounds.change(base, new), line, strict=True)
        change, error, freedom = (np.where(self.blocked, block, other) for block, other in both)
        return change, error, freedom


class Rounds:
    """One figure of all launches of a run, to set its scenarios against each other."""

    def __init__(
        self,
        scenarios: Sequence[str],
        repeats: Sequence[int],
        launches: Sequence[int],
        values: Iterable[float | None],
    ) -> None:
        """Of each launch its scenario, its round, its number and its figure; unknown figures are left out."""
        given = np.array([math.nan if value is None else value for value in values], dtype="float64")
        known = ~np.isnan(given)
        named = np.array(scenarios, dtype=object)[known]
        self.values = {name: figures(given[known][named == name]) for name in dict.fromkeys(named.tolist())}
        self._place = {name: place for place, name in enumerate(self.values)}
        self._fit: Drifting | None = None
        if self.values:
            middle = {name: geometric_mean(mine) for name, mine in self.values.items()}
            logs = np.log(given[known] / np.array([middle[name] for name in named], dtype="float64"))
            self._middle = middle
            scenario = np.array([self._place[name] for name in named])
            self._fit = Drifting.of(logs, scenario, np.array(repeats)[known], np.array(launches)[known])

    @classmethod
    def of(cls, launches: LaunchFigures, column: str = "median_ms") -> Self:
        frame: Any = launches.frame
        return cls(*(frame[name].tolist() for name in ("scenario", "repeat", "launch", column)))

    def ratio(self, base: str, new: str, confidence: float = CONFIDENCE) -> Ratio:
        """``new`` over ``base``, as :func:`bench.analyse.intervals.ratio_of` where a run had no drift."""
        below, above = (self.values.get(name, ()) for name in (base, new))
        if min(len(below), len(above)) == 0:
            return Ratio(value=None, low=None, high=None, p=None)
        plain = self._middle[new] / self._middle[base]
        assert self._fit is not None
        if min(len(below), len(above)) == 1 or base == new:
            return Ratio(value=plain, low=None, high=None, p=None)
        change, error, freedom = (float(one) for one in self._fit.change(self._place[base], self._place[new]))
        return ratio_from(plain, change, error, freedom, confidence)
