"""Scenarios against each other, with what the machine did meanwhile taken out: of one run, or of two.

Launches are interleaved in rounds so that drift hits all scenarios alike; a test that knows nothing of rounds takes the
drift for noise and finds nothing. Here the logarithm of a launch's value is the level of its scenario, plus the drift,
plus noise as large as is usual for its scenario, by least squares over all launches of the run:

1. The drift is a straight line over the launches in their order. It costs one degree of freedom in all.
2. Where rounds differ from that line beyond chance (F test at :data:`BLOCKED_AT`), each round has a level of its own
   instead (randomised blocks). With two scenarios that is the paired t test. The level of the test is strict because to
   look first and choose then finds too much: at 5 %, 59 of 1,000 A/A comparisons of 5 launches. Up to
   :data:`ROUNDS_UNSURE` rounds cannot show it, and the wider of the two intervals counts.
3. Each scenario has a variance: its squared rests, over what the fit left of them, moderated over the scenarios of the
   run (:mod:`bench.analyse.scatter`).

Two runs have a fit each; a level of one is set against a level of the other. ``benchmarks/chance.py`` shows how often
all of that is wrong, with and without drift.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.analyse.intervals import CONFIDENCE, LEAST_ERROR, Ratio, freedom_of, geometric_mean, positive, ratio_from
from bench.analyse.scatter import moderated
from bench.runs.frames import LaunchStats

Array = NDArray[np.float64]
Places = NDArray[np.int64]

BLOCKED_AT = 0.01
FEWEST_LEFT = 4
"""Launches beyond one for each scenario: three of each of two. With fewer, drift cannot be told from noise."""
ROUNDS_UNSURE = 3
NOTHING = 1e-9  # rests and degrees of freedom below this are rounding


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A scenario's level, or a difference of two: the estimate, of shape (...).

    ``parts``, of shape (..., scenarios): the variance of that by whose noise it is from, with the degrees of
    ``freedom`` of each, and those of all together. ``cautious``: as in :func:`bench.analyse.intervals.freedom_of`.
    """

    value: Array
    parts: Array
    freedom: Array
    total: float
    cautious: float = 0.0

    def minus(self, other: Self) -> "Level":
        """The difference from a level of another run."""
        return Level(
            self.value - other.value,
            np.concatenate([self.parts, other.parts], axis=-1),
            np.concatenate([self.freedom, other.freedom], axis=-1),
            self.total + other.total,
            cautious=1.0,
        )

    @property
    def error(self) -> Array:
        """The standard error."""
        return np.asarray(np.sqrt(self.parts.sum(axis=-1)))

    @property
    def degrees(self) -> Array:
        """Of freedom of the standard error: no more than all launches have."""
        return np.minimum(freedom_of(self.parts, self.freedom, self.cautious), max(self.total, NOTHING))


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Least squares on logarithms of shape (..., launches).

    ``weights``: of each launch in the level of each scenario. ``variances``, of shape (..., scenarios), and their
    degrees of ``freedom``; ``total``: those of all rests. ``squares``: the sum of the squared rests.
    """

    logs: Array
    scenario: Places
    weights: Array
    variances: Array
    freedom: Array
    total: float
    squares: Array

    @classmethod
    def of(cls, logs: Array, scenario: Places, drift: Array) -> Self:
        """``scenario``: of each launch, from 0. ``drift``: a row for each launch, a column for each part of it."""
        count = int(scenario.max()) + 1
        design = np.column_stack([np.eye(count)[scenario], drift - drift.mean(axis=0)])
        solution = np.linalg.pinv(design)
        squared = (logs - logs @ solution.T @ design.T) ** 2
        own = np.bincount(scenario, 1.0 - np.sum(design * solution.T, axis=1), count).astype("float64")
        of_each = np.stack([squared[..., scenario == one].sum(axis=-1) for one in range(count)], axis=-1)
        several = own > NOTHING
        variances, freedom = np.zeros(of_each.shape), np.zeros(of_each.shape)
        variances[..., several], freedom[..., several] = moderated(of_each[..., several] / own[several], own[several])
        return cls(logs, scenario, solution[:count], variances, freedom, float(own.sum()), squared.sum(axis=-1))

    def level(self, scenario: int, base: int | None = None) -> Level:
        """Of a scenario; by how much it is above that of ``base``."""
        weights = self.weights[scenario] - (0.0 if base is None else self.weights[base])
        parts = np.bincount(self.scenario, weights**2, self.variances.shape[-1]) * self.variances
        return Level(self.logs @ weights, parts, self.freedom, self.total)


@dataclass(frozen=True, slots=True, eq=False)
class Drifting:
    """The fit with a line, that with rounds where there is one, and for which of the leading axes the latter counts.

    ``unsure``: whether there are too few rounds to tell, so that the wider interval counts.
    """

    line: Fit
    rounds: Fit | None
    blocked: NDArray[np.bool_]
    unsure: bool = False

    @classmethod
    def of(cls, logs: Array, scenario: Places, rounds: Places, order: Places) -> Self:
        """``logs``: of shape (..., launches); ``scenario``, ``rounds``, ``order``: of each launch."""
        none = np.zeros(logs.shape[:-1], dtype="bool")
        count = int(scenario.max()) + 1
        in_turn = bool((np.diff(rounds[np.argsort(order)]) >= 0).all())
        time = (order if in_turn else rounds).astype("float64")
        if len(scenario) - count < FEWEST_LEFT or np.ptp(time) == 0.0:
            return cls(Fit.of(logs, scenario, np.empty((len(scenario), 0))), None, none, unsure=True)
        line = Fit.of(logs, scenario, time[:, None] / np.ptp(time))
        numbers = np.unique(rounds)
        blocks = Fit.of(logs, scenario, (rounds[:, None] == numbers[1:]).astype("float64"))
        if (more := line.total - blocks.total) < 0.5 or blocks.total < 1.5:
            return cls(line, None, none)
        gained = np.maximum(line.squares - blocks.squares, 0.0) / more
        excess = gained / np.maximum(blocks.squares / blocks.total, 1e-300)
        blocked = special.fdtrc(more, blocks.total, excess) < BLOCKED_AT
        return cls(line, blocks, blocked, len(numbers) <= ROUNDS_UNSURE)

    def level(self, scenario: int, base: int | None = None) -> Level:
        """As :meth:`Fit.level`."""
        line = self.line.level(scenario, base)
        if self.rounds is None:
            return replace(line, cautious=float(self.unsure))
        rounds, chosen = self.rounds.level(scenario, base), self.blocked
        if self.unsure:
            chosen = chosen | (_reach(rounds) > _reach(line))
        parts, freedom = (
            np.where(chosen[..., None], of_rounds, of_line)
            for of_rounds, of_line in ((rounds.parts, line.parts), (rounds.freedom, line.freedom))
        )
        value = np.where(chosen, rounds.value, line.value)
        return Level(value, parts, freedom, line.total, cautious=float(self.unsure))


def _reach(level: Level) -> Array:
    return np.asarray(special.stdtrit(level.degrees, 0.5 + CONFIDENCE / 2.0) * level.error)


class Rounds:
    """One value of all launches of a run, to set its scenarios against each other or against those of another run."""

    def __init__(self, launches: Iterable[tuple[str, int, int, float | None]]) -> None:
        """Of each launch its scenario, its round, its number and its value; unknown values are left out."""
        measured = [one for one in launches if one[3] is not None and not math.isnan(one[3])]
        named, repeats, numbers, given = (np.array([one[place] for one in measured]) for place in range(4))
        self.values = {name: positive(given[named == name]) for name in dict.fromkeys(named.tolist())}
        self._place = {name: place for place, name in enumerate(self.values)}
        self._middle = {name: geometric_mean(values) for name, values in self.values.items()}
        if self.values:
            logs = np.log(given / np.array([self._middle[name] for name in named], dtype="float64"))
            self._fit = Drifting.of(logs, np.array([self._place[name] for name in named]), repeats, numbers)

    @classmethod
    def of(cls, launches: LaunchStats, column: str = "median_ms") -> Self:
        return cls(launches.frame[["scenario", "repeat", "launch", column]].itertuples(index=False, name=None))

    def ratio(self, base: str, new: str) -> Ratio:
        """``new`` over ``base``, as :func:`bench.analyse.intervals.ratio_of` where a run had no drift."""
        return self.over(self, base, new)

    def over(self, other: Self, base: str, new: str) -> Ratio:
        """``new`` of this run over ``base`` of another one."""
        below, above = other.values.get(base, ()), self.values.get(new, ())
        if min(len(below), len(above)) == 0:
            return Ratio()
        plain = self._middle[new] / other._middle[base]
        if min(len(below), len(above)) == 1 or (other is self and base == new):
            return Ratio(ratio=plain)
        ours = self._fit.level(self._place[new])
        theirs = other._fit.level(other._place[base])
        change = self._fit.level(self._place[new], self._place[base]) if other is self else ours.minus(theirs)
        error, freedom = float(change.error), float(change.degrees)
        of_base = float(theirs.error) ** 2 / max(error, LEAST_ERROR) ** 2
        ratio = ratio_from(plain, float(change.value), error, freedom, CONFIDENCE)
        return replace(ratio, of_base=min(1.0, of_base) if other is self else 0.0)
