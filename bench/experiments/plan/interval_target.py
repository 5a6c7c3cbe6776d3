"""Launches until the answer is precise enough, or the time for it is spent.

An interval that decides when to stop is too narrow: it stops where chance made the scatter small. Of launches with a
scatter of 3 % that are added until ±2 % is reached, from three on and of each scenario for itself, 90 in 100 intervals
hold the truth. So the first stage is large enough to know the scatter by (Stein 1945), and then all scenarios go on,
round by round, until all are known (Chow and Robbins 1965): no scenario stops at its own luck, and all have the same
rounds. ``benchmarks/chance.py`` shows the coverage.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bench.runs.experiments import IntervalTargetRecord, Reached

FEWEST_LAUNCHES = 3  # below this an interval is too wide for any precision
FIRST_STAGE = 5  # launches of each scenario before anything is decided

MOST_LAUNCHES = 100


@dataclass(slots=True)
class IntervalTarget:
    """Whether there is to be another round. ``target``: relative half-width of the 95 % interval of the step time.

    ``budget_s`` counts from ``started``, and ``later`` launches come after the measured ones (of diagnosis and of
    numerics), for which time is kept. A scenario with a launch that failed gets no more.
    """

    target: float
    budget_s: float
    started: float
    later: int = 0
    clock: Callable[[], float] = time.monotonic
    medians: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    refused: bool = False

    def add(self, scenario: str, median_ms: float | None, wall_s: float) -> None:
        """Add a finished launch. ``median_ms``: of its steps; None if it failed."""
        if median_ms is None:
            self.failed.add(scenario)
            return
        self.medians[scenario].append(median_ms)
        self.seconds.setdefault(scenario, []).append(wall_s)

    def half_width(self, scenario: str) -> float | None:
        """Relative half-width of the 95 % interval, its larger side; None below two launches."""
        from bench.analyse.intervals import estimate

        percent = estimate(self.medians[scenario]).half_width_percent
        return None if percent is None else percent / 100.0

    def next_round(self, scenarios: Sequence[str]) -> list[str]:
        """Those of ``scenarios`` that have another launch: all that can, while one of them is not precise enough."""
        able = [name for name in scenarios if name not in self.failed and len(self.medians[name]) < MOST_LAUNCHES]
        return able if any(not self._reached(name) for name in able) else []

    def affords(self, scenarios: Sequence[str]) -> bool:
        """Whether one more launch of each, as long as its others were on average, ends within the budget."""
        took = [self.seconds[scenario] for scenario in scenarios if scenario in self.seconds]
        all_s = [seconds for each in self.seconds.values() for seconds in each]
        expected = sum(map(fmean, took)) + (self.later * fmean(all_s) if all_s else 0.0)
        affordable = self.spent_s + expected <= self.budget_s
        self.refused |= not affordable
        return affordable

    @property
    def spent_s(self) -> float:
        return self.clock() - self.started

    def _reached(self, scenario: str) -> bool:
        """Whether the interval is narrow enough, by launches enough that it means something."""
        width = self.half_width(scenario)
        return len(self.medians[scenario]) >= FEWEST_LAUNCHES and width is not None and width <= self.target

    def outcome(self, scenarios: Sequence[str]) -> IntervalTargetRecord:
        """The target and what came of it, for run.json."""
        reached = {
            one: Reached(launches=len(self.medians[one]), half_width=self.half_width(one), reached=self._reached(one))
            for one in scenarios
        }
        measured = [state.reached for name, state in reached.items() if name not in self.failed]
        stopped_by = "failures" if not measured else "budget" if self.refused else "launches"
        return IntervalTargetRecord(
            target=self.target,
            budget_s=self.budget_s,
            spent_s=self.spent_s,
            stopped_by="precision" if measured and all(measured) else stopped_by,
            scenarios=reached,
        )
