"""Which of many versions made it slower, where each launch scatters: a binary search that does not guess.

A block is one launch each of the good end, the candidate and the bad end, and every other block goes backwards, with
the candidate in the middle: a straight drift is in none of its comparisons. What counts of a block is by how much the
logarithm of the candidate's value is above the mean of the ends' (``x``), and by how much the bad end is above the
good one (``d``). Noise and change are unknown, and are estimated from all blocks so far.

1. The ends differ once Student's t of all ``d`` says so. Of the error of that test, block n has 1 / (n (n - 1)).
2. The candidate is as the bad end, or as the good one, once the ratio of their likelihoods is beyond (1 - a) / a
   (Wald's sequential test, 1945): half the change above the middle, or half of it below. No block has more than half of
   what is needed, so that one slow launch decides nothing. The change counts as a standard error smaller than it looks.
3. Each of the log2 n decisions, and the test of the ends, has the same part ``a`` of the error of the whole search.

Where noise is large, launches are added; where they do not suffice, the answer is the bracket that is left. Where the
test of the ends says that they are less than :data:`SMALLEST` apart, there is nothing to search for. A candidate that
cannot be launched is skipped, and its neighbour stands in. ``benchmarks/bisect_simulation.py`` shows how often a search
is wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bench.core.text import by_key

ERROR = 0.05  # of the whole search
FEWEST_BLOCKS = 3  # before the ends can differ
SMALLEST = 0.01  # change that is searched for
LEAST_VARIANCE = 1e-14  # of logarithms: less is rounding
CAUTION = 2.0  # over its degrees of freedom: the part by which a variance is taken to be larger than it looks


@dataclass(frozen=True, slots=True)
class Block:
    """Logarithms of the values of one launch each; ``candidate`` is None where there is none between the ends."""

    good: float
    bad: float
    candidate: str | None = None
    value: float = 0.0

    @property
    def change(self) -> float:
        return self.bad - self.good

    @property
    def above(self) -> float:
        """By how much the candidate is above the middle of the ends."""
        return self.value - (self.good + self.bad) / 2.0


@dataclass(slots=True)
class Bisection:
    """``candidates``: at least two, in order, the good end first and the bad one last.

    ``low``, ``high``: the bracket, by place: the last that is as the good end, and the first that is as the bad one.
    ``skipped``: those that cannot be launched, and why.
    """

    candidates: Sequence[str]
    smallest: float = SMALLEST
    blocks: list[Block] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    low: int = 0
    high: int = field(init=False)
    _current: str | None = None

    def __post_init__(self) -> None:
        self.high = len(self.candidates) - 1

    @property
    def error(self) -> float:
        """Of each decision."""
        return ERROR / (1 + math.ceil(math.log2(max(1, len(self.candidates) - 1))))

    @property
    def left(self) -> list[str]:
        """Those within the bracket that can be launched."""
        return [name for name in self.candidates[self.low + 1 : self.high] if name not in self.skipped]

    @property
    def candidate(self) -> str | None:
        """Which is launched next; None where nothing is left between the ends of the bracket."""
        left = self.left
        return self._current if self._current in left else left[len(left) // 2] if left else None

    @property
    def over(self) -> bool:
        return self.candidate is None and self.ends_differ

    def next_block(self) -> list[str]:
        """The launches of the next block, in order. Empty at the end of the search."""
        if self.over or self.ends_alike:
            return []
        names = [name for name in (self.candidates[0], self.candidate, self.candidates[-1]) if name is not None]
        return names[::-1] if len(self.blocks) % 2 else names

    def add(self, values: dict[str, float]) -> None:
        """The values (positive) of all launches of a block: of the ends, and of a candidate if there is one."""
        logs = {one: math.log(value) for one, value in values.items()}
        ends = logs.pop(self.candidates[0]), logs.pop(self.candidates[-1])
        (name, value), *_ = [*logs.items(), (None, 0.0)]
        self.blocks.append(Block(*ends, name, value))
        self._current = name
        while self.ends_differ and self.candidate is not None:
            odds, needed = self.log_odds, math.log((1.0 - self.error) / self.error)
            if abs(odds) < needed:
                return
            place = list(self.candidates).index(self.candidate)
            self.low, self.high = (self.low, place) if odds > 0.0 else (place, self.high)

    @property
    def change(self) -> float:
        """By how much the bad end is above the good one, as a logarithm."""
        return sum(block.change for block in self.blocks) / len(self.blocks)

    @property
    def distance(self) -> float:
        """Of the ends, in standard errors."""
        return abs(self.change) / self._error_of_change if len(self.blocks) > 1 else 0.0

    @property
    def _error_of_change(self) -> float:
        count, change = len(self.blocks), self.change
        squares = sum((block.change - change) ** 2 for block in self.blocks)
        return math.sqrt(max(squares / (count - 1), LEAST_VARIANCE) / count)

    @property
    def ends_differ(self) -> bool:
        return self._sure(self.distance)

    @property
    def ends_alike(self) -> bool:
        """Whether the ends are less than ``smallest`` apart, as surely as they would differ."""
        if len(self.blocks) < FEWEST_BLOCKS or self.ends_differ:
            return False
        return self._sure(max(0.0, math.log1p(self.smallest) / self._error_of_change - self.distance))

    def _sure(self, distance: float) -> bool:
        """Whether chance does not explain this many standard errors."""
        from bench.analyse.intervals import t_tail  # here and below: this is not for `bench --help`

        count = len(self.blocks)
        return count >= FEWEST_BLOCKS and t_tail(distance, count - 1) < 2.0 * self.error / (count * (count - 1))

    @property
    def _variance(self) -> tuple[float, float]:
        """Of one candidate above the middle of its ends, and its degrees of freedom. A change has 4/3 of it."""
        change = self.change
        squares = [0.75 * sum((block.change - change) ** 2 for block in self.blocks)]
        freedom = len(self.blocks) - 1
        by_candidate = by_key((one.candidate, one.above) for one in self.blocks if one.candidate is not None)
        for above in by_candidate.values():
            middle = fmean(above)
            squares.append(sum((one - middle) ** 2 for one in above))
            freedom += len(above) - 1
        return max(sum(squares) / max(1, freedom), LEAST_VARIANCE), freedom

    def _above(self, name: str | None) -> list[float]:
        return [block.above for block in self.blocks if block.candidate == name]

    @property
    def log_odds(self) -> float:
        """That the candidate is as the bad end, against as the good one: the logarithm of their likelihoods' ratio.
        Once the ends differ."""
        variance, freedom = self._variance
        doubt = math.sqrt(variance * 4.0 / 3.0 / len(self.blocks))
        change = math.copysign(max(0.0, abs(self.change) - doubt), self.change)
        most = math.log((1.0 - self.error) / self.error) / 2.0
        weight = change / (variance * (1.0 + CAUTION / max(1, freedom)))
        return sum(max(-most, min(most, above * weight)) for above in self._above(self.candidate))

    @property
    def blocks_left(self) -> int:
        """About how many more blocks the search takes."""
        variance, _ = self._variance
        needed = math.log((1.0 - self.error) / self.error)
        each = max(2.0, 2.0 * needed * variance / max(self.change**2, LEAST_VARIANCE))
        return math.ceil(min(1e6, math.ceil(math.log2(len(self.left) + 1)) * each))

    def levels(self) -> dict[str, tuple[float, float, float]]:
        """Of each that was launched its value over that of the good end, with a 95 % interval (the good end: 1)."""
        from bench.analyse.intervals import CONFIDENCE, t_quantile

        if len(self.blocks) < 2:
            return {}
        variance, freedom = self._variance
        middle, reach = self.change / 2.0, t_quantile(CONFIDENCE, freedom)
        levels = {self.candidates[0]: (0.0, 0.0)}
        for name in self.candidates[1:-1]:
            if above := self._above(name):
                error = math.sqrt(variance / len(above) + variance / 3.0 / len(self.blocks))
                levels[name] = fmean(above) + middle, reach * error
        levels[self.candidates[-1]] = self.change, reach * math.sqrt(variance * 4.0 / 3.0 / len(self.blocks))
        return {
            name: (math.exp(level), math.exp(level - half), math.exp(min(700.0, level + half)))
            for name, (level, half) in levels.items()
        }
