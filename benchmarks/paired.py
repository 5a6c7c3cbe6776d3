"""Paired comparisons on a noisy machine: the ratio of every pair, on logarithms, and its 95 % bound.

Two ways A and B of doing the same are measured in turn, in one run: a round is ``ABBA``, the next one ``BAAB``. The
ratio of a round is the geometric mean of its two Bs over that of its two As, in which whatever the machine's speed does
linearly over the round cancels. What is left is heavy-tailed, since other work comes and goes; so a *pair*, the unit
that the bound counts, is the interquartile mean of some successive rounds: nearly as hard to disturb as the median, and
steadier. Logarithms make "twice as slow" and "twice as fast" equally far from 1.

Over the pairs the logarithms are averaged; Student's t gives the bound, because pairs are few and their spread is
estimated from themselves. A benchmark passes when the *bound* is within what is allowed: noise makes a bound wider, so
it can fail a benchmark and hardly ever pass one.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMPILED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a command that is timed: compiled once, as an installed package is."""
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)  # `python benchmarks/NAME.py` puts benchmarks/ on the path, and bench lies beside it


LONG = ("ABBA", "BAAB")
SHORT = ("AB", "BA")
"""The orders of successive rounds; the short ones for measurements of many seconds."""

Round = Mapping[str, Sequence[float]]
"""What one round measured: seconds by kind, ``A`` and ``B`` (and others), as many of each."""


def round_of(values: Iterable[tuple[str, float]]) -> Round:
    """From ``(kind, seconds)`` in the order in which they were measured."""
    made: dict[str, list[float]] = {}
    for kind, taken in values:
        made.setdefault(kind, []).append(taken)
    return made


def log_ratio(one: Round, candidate: str = "B", baseline: str = "A") -> float:
    """Of the geometric means."""
    return statistics.fmean(map(math.log, one[candidate])) - statistics.fmean(map(math.log, one[baseline]))


def rounds(
    count: int,
    measure: Callable[[str], float],
    orders: tuple[str, str] = LONG,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[Round]:
    """Do ``count`` rounds. ``measure(kind)`` does one measurement of A or B and returns its seconds."""
    done = []
    for number in range(count):
        done.append(round_of([(kind, measure(kind)) for kind in orders[number % 2]]))
        on_round(number + 1)
    return done


def pairs(measured: Sequence[Round], count: int, candidate: str = "B", baseline: str = "A") -> list[float]:
    """The log ratios of ``count`` pairs, each made of as many successive rounds as there are for it."""
    count = min(count, len(measured))
    edges = [len(measured) * index // count for index in range(count + 1)] if count else []
    return [
        middle(log_ratio(one, candidate, baseline) for one in measured[start:end]) for start, end in pairwise(edges)
    ]


def middle(values: Iterable[float]) -> float:
    """The interquartile mean: of what is left without the lowest and the highest quarter."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The candidate over the baseline, and whether that is within what is allowed.

    ``log_ratios``: one for each pair. ``a_s``, ``b_s``: every measured value, in seconds. ``allowed``: the upper 95 %
    bound of the ratio may not be larger. ``margin``: instead, the whole 95 % interval must lie within 1 +- margin.
    ``level``: of the bounds, where they are looked at more than once and 95 % is to hold for all looks together.
    """

    name: str
    a: str
    b: str
    log_ratios: Sequence[float]
    a_s: Sequence[float]
    b_s: Sequence[float]
    allowed: float | None = None
    margin: float | None = None
    level: float = 0.95

    @classmethod
    def of_rounds(cls, measured: Sequence[Round], count: int, **fields: Any) -> "Comparison":
        """Over ``count`` pairs made from these rounds."""
        return cls(
            log_ratios=pairs(measured, count),
            a_s=[taken for one in measured for taken in one["A"]],
            b_s=[taken for one in measured for taken in one["B"]],
            **fields,
        )

    @property
    def ratio(self) -> float:
        """The geometric mean over the pairs."""
        return math.exp(statistics.fmean(self.log_ratios))

    @property
    def upper(self) -> float:
        """The upper bound of the ratio at ``level``, 95 % unless said otherwise (one-sided)."""
        return self._around(2.0 * self.level - 1.0)[1]

    @property
    def lower(self) -> float:
        """The lower bound of the ratio at ``level`` (one-sided)."""
        return self._around(2.0 * self.level - 1.0)[0]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the ratio (two-sided)."""
        return self._around(0.95)

    def _around(self, confidence: float) -> tuple[float, float]:
        """An interval of the ratio, two-sided."""
        from bench.analyse.intervals import t_quantile  # not for the processes that measure

        mean, count = statistics.fmean(self.log_ratios), len(self.log_ratios)
        half = t_quantile(confidence, count - 1) * statistics.stdev(self.log_ratios) / math.sqrt(count)
        return math.exp(mean - half), math.exp(mean + half)

    @property
    def passed(self) -> bool:
        """Whether the bound is within what is allowed; never so with fewer than two pairs."""
        if len(self.log_ratios) < 2:
            return False
        if self.margin is not None:
            low, high = self.interval
            return 1 - self.margin <= low and high <= 1 + self.margin
        return self.allowed is not None and self.upper <= self.allowed

    def lines(self) -> list[str]:
        """For people."""
        if len(self.log_ratios) < 2:
            return [f"{self.name}: {len(self.log_ratios)} pairs are too few for a bound: FAIL"]
        width = max(len(self.a), len(self.b))
        digits = 4 if self.margin or (self.allowed or 0) < 1.1 else 2 if (self.allowed or 0) >= 1 else 3
        if self.margin is not None:
            low, high = self.interval
            judged = f"95 % interval {low:.{digits}f} to {high:.{digits}f}, allowed 1 +- {self.margin:g}"
        else:
            judged = f"upper {100 * self.level:g} % bound {self.upper:.{digits}f}, allowed {self.allowed:g}"
        return [
            f"{self.name}:",
            f"  {self.a:<{width}}  {seconds(statistics.median(self.a_s))} (median of {len(self.a_s)})",
            f"  {self.b:<{width}}  {seconds(statistics.median(self.b_s))} (median of {len(self.b_s)})",
            f"  ratio {self.ratio:.{digits}f} over {len(self.log_ratios)} pairs, {judged}: "
            + ("PASS" if self.passed else "FAIL"),
        ]

    def document(self) -> dict[str, Any]:
        """For machines, with the raw values."""
        enough = len(self.log_ratios) >= 2
        return {
            "name": self.name,
            "a": self.a,
            "b": self.b,
            "a_s": list(self.a_s),
            "b_s": list(self.b_s),
            "pair_ratios": [math.exp(value) for value in self.log_ratios],
            "ratio": self.ratio if enough else None,
            "upper_95": self.upper if enough and self.level == 0.95 else None,
            "level": self.level,
            "lower": self.lower if enough else None,
            "upper": self.upper if enough else None,
            "interval_95": self.interval if enough else None,
            "allowed": self.allowed,
            "margin": self.margin,
            "passed": self.passed,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """A statement beside the ratios that must hold too.

    ``by_noise``: where it does not, noise or want of data is why, and nothing is said of what is measured.
    """

    text: str
    passed: bool
    by_noise: bool = False


def parser(doc: str | None, *, pairs: int | None = None) -> argparse.ArgumentParser:
    """The options that every benchmark has. ``doc``: its module docstring. ``pairs``: the default, if it has any."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="one JSON document on standard output, raw values included")
    if pairs:
        of_ratio = f"replicates of the ratio (default: {pairs})"
        made.add_argument("--pairs", type=int, default=pairs, metavar="N", help=of_ratio)
    return made


def bench(*words: str) -> Any:
    """What a command of bench prints as JSON."""
    command = [sys.executable, "-m", "bench", *words]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout)


def progress(text: str) -> None:
    """One line for people while it runs."""
    print(text, file=sys.stderr, flush=True)


def seconds(value: float) -> str:
    """A duration in the unit that fits it."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.2f} us"


def count(number: int, one: str) -> str:
    """``1 step``, ``3 steps``."""
    return f"{number} {one}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a benchmark found. ``more``: besides, for machines."""

    benchmark: str
    comparisons: Sequence[Comparison]
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything did."""
        return all(one.passed for one in self.comparisons) and all(one.passed for one in self.checks)

    def document(self) -> dict[str, Any]:
        """For machines, with the raw values."""
        return {
            "benchmark": self.benchmark,
            "passed": self.passed,
            "comparisons": [comparison.document() for comparison in self.comparisons],
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load_1min": os.getloadavg()[0]},
            **self.more,
        }

    def lines(self) -> list[str]:
        """For people."""
        lines = [line for comparison in self.comparisons for line in comparison.lines()]
        lines += [f"{check.text}: {'PASS' if check.passed else 'FAIL'}" for check in self.checks]
        return [*lines, *self.notes, f"{self.benchmark}: {'PASS' if self.passed else 'FAIL'}"]

    def finish(self, as_json: bool) -> int:
        """Print it; returns the exit code: 0 when everything passed, otherwise 1."""
        print(json.dumps(self.document(), indent=1, allow_nan=False) if as_json else "\n".join(self.lines()))
        return 0 if self.passed else 1
