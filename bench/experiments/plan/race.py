"""The fastest of many candidates by few launches: all start, and those that are beaten drop out round by round.

A race (Maron and Moore 1994; with repeated measures Birattari et al. 2002). A round is one launch of each candidate
that is still in, cut into stretches that each begin with the best so far as a control. After a round the logarithm of
a launch's step time is taken for the level of its candidate, plus a straight drift over the launches in their order,
plus noise that is alike for all, since one or two launches of each say nothing more (least squares). A candidate
drops out when the interval of the difference says that it is slower than the best, or no more than :data:`NEAR` faster;
on a single launch, which may be an accident, only if it is beyond :data:`OUTLYING` besides.

What a race measures serves to choose and for nothing else. The best of many noisy values is too good, so the winner is
reported from fresh launches. ``benchmarks/tune_simulation.py`` shows how often a race is right.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SURE = 0.95  # of the two-sided interval of a difference: wide, because the best so far is partly lucky
OUTLYING = 0.1  # a launch may be this much slower by accident
NEAR = 0.01  # a candidate that cannot be faster than the best by more than this need not be told apart from it
STRETCHES = 5  # parts of a round of many candidates, each with a control in front
MOST_LAUNCHES = 5  # of a candidate that is no control: those that are still in then are as good as equal
FEWEST_FREEDOM = 3  # degrees of freedom of the noise, before anything drops out


@dataclass(slots=True)
class Race:
    """Which launch comes next, and who is still in.

    ``entered``: the candidates, in the order of their first launches. ``out``: those that cannot be used, and why;
    ``beaten``: those that are not faster, likewise. ``launched``: of each good launch the candidate, and the logarithm
    of its step time, in order. ``rounds``: those that ended.
    """

    entered: list[str]
    out: dict[str, str] = field(default_factory=dict)
    beaten: dict[str, str] = field(default_factory=dict)
    launched: list[tuple[str, float]] = field(default_factory=list)
    rounds: int = 0

    @property
    def still_in(self) -> list[str]:
        return [name for name in self.entered if name not in self.out and name not in self.beaten]

    @property
    def over(self) -> bool:
        """Whether another round would tell nothing: one is left, or none of them may have another launch."""
        left = self.still_in
        return (len(left) < 2 and self.rounds > 0) or all(self.launches(name) >= MOST_LAUNCHES for name in left)

    def launches(self, name: str) -> int:
        return sum(of == name for of, _ in self.launched)

    def enter(self, names: Sequence[str]) -> None:
        """More candidates, from the next round on."""
        self.entered += [name for name in names if name not in self.entered]

    def add(self, name: str, step_ms: float | None, why_not: str | None = None) -> None:
        """A launch that has ended. ``step_ms``: None if it failed. ``why_not``: why its candidate cannot be used."""
        if step_ms is not None:
            self.launched.append((name, math.log(step_ms)))
        if why_not is not None:
            self.out[name] = why_not

    def round(self) -> Iterator[str]:
        """The candidates of one round in turn, with controls; each launch is added before the next is asked for.

        Every other round goes backwards. :meth:`end_round` comes next.
        """
        names = [name for name in self.still_in if self.launches(name) < MOST_LAUNCHES]
        names = names[::-1] if self.rounds % 2 else names
        length = max(3, math.ceil(len(names) / STRETCHES))
        for start in range(0, len(names), length):
            stretch = names[start : start + length]
            control = self.best()
            if control is not None and control not in stretch:
                yield control
            yield from (name for name in stretch if name not in self.out)

    def levels(self) -> dict[str, float]:
        """The logarithm of the step time of every candidate with a launch, as it would be half-way through."""
        return _Fit(self.launched).levels if self.launched else {}

    def ranking(self) -> list[str]:
        """Those that are still in and have a launch, the fastest first."""
        levels = self.levels()
        return sorted((name for name in self.still_in if name in levels), key=levels.__getitem__)

    def best(self) -> str | None:
        return next(iter(self.ranking()), None)

    def end_round(self) -> None:
        """Those that are beaten drop out."""
        self.rounds += 1
        best = self.best()
        if best is None or (fit := _Fit(self.launched)).freedom < FEWEST_FREEDOM:
            return
        for name in self.still_in:
            if name == best or name not in fit.levels:
                continue
            slower, half_width = fit.gap(best, name)
            if self._clearly(slower, half_width, name):
                self.beaten[name] = f"{100 * math.expm1(slower):,.1f} % slower than {best}"
            elif self.launches(name) > 1 and half_width - slower < math.log1p(NEAR):
                at_most = 100 * math.expm1(max(0.0, half_width - slower))
                self.beaten[name] = f"at most {at_most:.1f} % faster than {best}"

    def clearly_slower(self, name: str, best: str) -> bool:
        """Whether the launches say that it is slower than ``best``."""
        fit = _Fit(self.launched)
        return fit.freedom >= FEWEST_FREEDOM and self._clearly(*fit.gap(best, name), name)

    def _clearly(self, slower: float, half_width: float, name: str) -> bool:
        return slower > max(half_width, math.log1p(OUTLYING) if self.launches(name) == 1 else 0.0)


class _Fit:
    """Least squares of levels and a drift on logarithms of step times. A drift once there are launches to spare."""

    def __init__(self, launched: Sequence[tuple[str, float]]) -> None:
        import numpy as np  # here and below: this is not for `bench list`, which answers at once

        from bench.analyse.rounds import Fit

        self.names = list(dict.fromkeys(name for name, _ in launched))
        logs = np.array([log for _, log in launched])
        scenario = np.array([self.names.index(name) for name, _ in launched])
        spare = len(launched) - len(self.names) > FEWEST_FREEDOM  # else drift cannot be told from noise
        self._fit = Fit.of(logs, scenario, np.arange(float(len(launched)))[:, None][:, : int(spare)])
        self.freedom = round(self._fit.total)
        self.levels = dict(zip(self.names, (self._fit.weights @ logs).tolist(), strict=True))

    def gap(self, best: str, name: str) -> tuple[float, float]:
        """How much slower than the best it is, as a logarithm, and the half-width of that (Student's t)."""
        from bench.analyse.intervals import t_quantile

        weights = self._fit.weights[self.names.index(name)] - self._fit.weights[self.names.index(best)]
        error = math.sqrt(float(weights @ weights * self._fit.squares) / self.freedom)  # the noise is alike for all
        return self.levels[name] - self.levels[best], t_quantile(SURE, self.freedom) * error
