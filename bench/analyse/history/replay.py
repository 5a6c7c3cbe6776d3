"""The nights of a series from the first one on: which of them the gate stops, and the base that they leave behind.

Mostly nothing changes: each scenario passes, or is stopped as on the night before. Such nights are told many at a time,
by the gate's formulas on arrays: 2,000 nights take 0.3 s instead of 1.2. The rule of
:mod:`bench.analyse.history.gate` judges all others, also wherever rounding could matter, so that its verdicts are the
same with and without that.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import special

from bench.analyse.comparable import Digest, source_of, unusable
from bench.analyse.comparison import LAUNCHES_WANTED
from bench.analyse.history import gate
from bench.analyse.history.gate import CREEP_ERROR, METRICS, POOLED, RECENT, SEEN, Base, Measured, Rule
from bench.analyse.scatter import moderated

MOST = 64  # nights that are looked at together: those after one that is judged by itself are looked at again
MARGIN = 1e-9  # of a logarithm
LEAST_VARIANCE = 1e-20  # of figures that do not repeat exactly, which rounding may give any variance below

Nights = Sequence[tuple[str, Digest]]
Stop = tuple[int, str, str]
"""A figure that has regressed: the place of the night, the scenario and the metric."""
Kind = tuple[object, ...]
"""What ran, its world size, its verdict on numerics, and of each figure the source and the number of launches."""
Flags = NDArray[np.bool_]


def replay(
    nights: Nights, rule: Rule, accepted: Iterable[str] = (), only: Sequence[str] | None = None
) -> tuple[Base, list[Stop]]:
    """The base that these named nights of one series leave behind, in the order of time, and what the gate stops.

    ``accepted``: the names of those that a person accepted.
    """
    persons = frozenset(accepted)
    series = _Series(nights, only)
    base: Base = {}
    stops: list[Stop] = []
    held: set[str] = set()  # the scenarios that were stopped on the night before
    place = 0
    while place < len(nights):
        until = next(
            (at for at in range(place, min(place + MOST, len(nights))) if nights[at][0] in persons), place + MOST
        )
        alike, regressed = series.alike(place, until, base, held, rule)
        if alike:
            stops += regressed
            last = [
                gate.measured(*night, only) for night in nights[max(place, place + alike - rule.nights) : place + alike]
            ]
            base = {
                name: kept if name in held else _grown(kept, [one[name] for one in last], rule)
                for name, kept in base.items()
            }
            place += alike
            continue
        name, digest = nights[place]
        tonight = gate.measured(name, digest, only)
        rows = gate.judge(tonight, base, rule)
        base = gate.after(tonight, rows, base, rule, by_person=name in persons)
        found = [(place, row.scenario, row.metric) for row in rows if row.verdict == gate.REGRESSED]
        stops += found
        held = {scenario for _, scenario, _ in found}
        place += 1
    return base, stops


def stops(nights: Nights, rule: Rule | None, accepted: Iterable[str], only: Sequence[str] | None) -> list[Stop]:
    """What the gate stops on the way; without a rule nothing."""
    return replay(nights, rule, accepted, only)[1] if rule else []


def _grown(kept: Sequence[Measured], new: Sequence[Measured], rule: Rule) -> tuple[Measured, ...]:
    return (*kept[: rule.nights], *(*kept[rule.nights :], *new)[-rule.nights :])


class _Series:
    """The figures of all nights as arrays by night and scenario, and of what kind they are."""

    def __init__(self, nights: Nights, only: Sequence[str] | None) -> None:
        asked = [
            [row for row in digest["scenarios"] if only is None or row["scenario"] in only] for _, digest in nights
        ]
        self._column: dict[str, int] = {}
        for row in (row for rows in asked for row in rows):
            self._column.setdefault(row["scenario"], len(self._column))
        self._kinds: dict[Kind, int] = {}
        self._present = np.array([len(rows) for rows in asked])
        self._kind = np.full((len(asked), len(self._column)), -1)  # -1: none that is usable
        self._means = {metric: np.full(self._kind.shape, math.nan) for metric in METRICS}
        for night, row in ((night, row) for night, rows in enumerate(asked) for row in rows):
            if unusable(row) is None:
                place = night, self._column[row["scenario"]]
                sources = []
                for metric, key in METRICS.items():
                    known = [one[key] for one in row["launches"] if one[key] is not None]
                    if known:
                        sources.append((source_of(row, key), len(known)))
                        self._means[metric][place] = sum(map(math.log, known)) / len(known)
                kind = (row["what_ran"], row["world_size"], row["parity"], *sources)
                self._kind[place] = self._kinds.setdefault(kind, len(self._kinds))

    def alike(self, start: int, end: int, base: Base, held: set[str], rule: Rule) -> tuple[int, list[Stop]]:
        """On how many nights from ``start`` on the ``held`` scenarios are stopped and all others pass; and the stops.

        0 nights also where that cannot be told.
        """
        kinds = {name: self._usual(nights, rule.nights) for name, nights in base.items()}
        if not base or rule.nights < RECENT or None in kinds.values() or held - kinds.keys():
            return 0, []
        columns = [self._column[name] for name in base]
        as_before = self._kind[start:end, columns] == np.array(list(kinds.values()))
        told = as_before.all(axis=1) & (self._present[start:end] == len(base))
        stopped = np.zeros((len(told), len(base), len(METRICS)), dtype=bool)
        for number, metric in enumerate(METRICS):
            here = [place for place, nights in enumerate(base.values()) if metric in nights[-1].figures]
            count = _leading(told)
            if count and here:
                names = [list(base)[place] for place in here]
                tonight = self._means[metric][start : start + count, [self._column[name] for name in names]]
                passes, fails = _verdicts(
                    metric, tonight, [base[name] for name in names], [name in held for name in names], rule
                )
                stopped[:count, here, number] = fails
                told = (passes | fails).all(axis=1)
        count = _leading(told)
        as_held = stopped[:count].any(axis=2) == [name in held for name in base]
        count = _leading(as_held.all(axis=1))
        found = np.argwhere(stopped[:count]).tolist()
        return count, [(start + night, list(base)[place], list(METRICS)[number]) for night, place, number in found]

    def _usual(self, nights: Sequence[Measured], wanted: int) -> int | None:
        """The kind of the nights of a base that has all that it keeps, on one level, and nothing new; else None."""
        if len(nights) < 2 * wanted or any(one.better or one.rose for one in nights[-wanted:]):
            return None
        levels = gate.levels_of(nights, gate.STEP_TIME)
        kinds = {
            (one.what_ran, one.world_size, one.parity, *((of.source, len(of.launches)) for of in one.figures.values()))
            for one in nights
        }
        enough = all(len(one.launches) >= LAUNCHES_WANTED for one in nights[-1].figures.values())
        if len(levels) > 1 or levels[0][0] is not nights[0] or len(kinds) > 1 or not enough:
            return None
        return self._kinds.get(kinds.pop())


def _leading(told: Flags) -> int:
    return len(told) if told.all() else int(told.argmin())


def _verdicts(
    metric: str, tonight: NDArray[np.float64], bases: Sequence[Sequence[Measured]], held: Sequence[bool], rule: Rule
) -> tuple[Flags, Flags]:
    """Whether the gate is sure to find a figure ``ok``, and whether to find it ``regressed``: by night and scenario, as
    ``tonight``, the means.

    The base of a scenario begins with ``bases``, and has all nights before this one, or if it is ``held``, none.
    """
    wanted = rule.nights
    begun = np.array([[one.figures[metric].mean for one in nights[-wanted:]] for nights in bases]).T
    before = sliding_window_view(np.concatenate([begun, tonight[:-1]]), wanted, axis=0)  # night, scenario, night before
    before = np.where(np.array(held)[:, None], begun.T, before)
    variances, degrees = before.var(axis=-1, ddof=1), np.full(tonight.shape, wanted - 1.0)
    sure = np.ones(tonight.shape, dtype=bool)
    if metric in POOLED:
        sure &= (variances > LEAST_VARIANCE).all(axis=1, keepdims=True)
        variances, degrees = moderated(variances, degrees[0])
    error, threshold = (1.0 - rule.level) / len(bases), rule.thresholds[metric]
    least = math.log1p(threshold)
    bound, of_creep, of_two = (
        np.maximum(least, special.stdtrit(degrees, 1.0 - chance) * np.sqrt(variances * (part + 1.0 / wanted)))
        for chance, part in ((error, 1.0), (CREEP_ERROR * error, 1.0 / RECENT), (error, 1.0 / 2))
    )
    difference = tonight - before.mean(axis=-1)
    last, others = before[:, :, -1], before[:, :, :-1].mean(axis=-1)
    loss_of_two = np.minimum(last, tonight) - others
    gain_of_two = others - np.maximum(last, tonight)
    creep = np.zeros(tonight.shape)
    for column, nights in enumerate(bases):
        begins = [one.figures[metric].mean for one in gate.levels_of(nights, metric)[-1][:-wanted]]
        if len(begins) >= RECENT - 1:
            window = before[:, column]
            recent = (window[:, wanted - RECENT + 1 :].sum(axis=-1) + tonight[:, column]) / RECENT
            creep[:, column] = recent - (sum(begins) + window[:, : wanted - len(begins)].sum(axis=-1)) / wanted
    within = [np.abs(difference) < bound - MARGIN, loss_of_two < of_two - MARGIN, creep < of_creep - MARGIN]
    seen = bound < math.log1p(max(SEEN, 2.0 * threshold)) - MARGIN
    passes = sure & within[0] & within[1] & within[2] & (gain_of_two < of_two - MARGIN) & seen
    slow = (loss_of_two > of_two + MARGIN) | (creep > of_creep + MARGIN)
    fails = sure & ((difference > bound + MARGIN) | ((difference > MARGIN - bound) & slow))
    return passes, fails
