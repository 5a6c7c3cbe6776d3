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
Flags = NDArray[np.bool_]
Figures = NDArray[np.float64]
UNUSUAL = -1  # the kind of what has no usable figure, or too few launches


def replay(
    nights: Nights, rule: Rule, accepted: Iterable[str] = (), only: Sequence[str] | None = None
) -> tuple[Base, list[Stop]]:
    """The base that these named nights of one series leave behind, in the order of time, and what the gate stops.

    ``accepted``: the names of those that a person accepted.
    """
    series, persons = _Series(nights, only), {*accepted}
    by_person = [place for place, (name, _) in enumerate(nights) if name in persons]
    base: Base = {}
    stops: list[Stop] = []
    held: set[str] = set()  # the scenarios that were stopped on the night before
    place = 0
    while place < len(nights):
        until = min([place + MOST, *(at for at in by_person if at >= place)])
        alike, found = series.alike(place, until, base, held, rule)
        if alike:
            last = [gate.measured(*night, only) for night in nights[place : place + alike][-rule.nights :]]
            for name in base.keys() - held:
                begun, ended = base[name][: rule.nights], [*base[name][rule.nights :], *(one[name] for one in last)]
                base = {**base, name: (*begun, *ended[-rule.nights :])}
        else:
            tonight = gate.measured(*nights[place], only)
            rows = gate.judge(tonight, base, rule)
            base = gate.after(tonight, rows, base, rule, by_person=place in by_person)
            found = [(place, row.scenario, row.metric) for row in rows if row.verdict == gate.REGRESSED]
            held = {scenario for _, scenario, _ in found}
        stops += found
        place += alike or 1
    return base, stops


class _Series:
    """The figures of all nights as arrays by night and scenario, and of what kind they are."""

    def __init__(self, nights: Nights, only: Sequence[str] | None) -> None:
        asked = [
            [row for row in digest["scenarios"] if only is None or row["scenario"] in only] for _, digest in nights
        ]
        names = dict.fromkeys(row["scenario"] for rows in asked for row in rows)
        self._column = {name: column for column, name in enumerate(names)}
        self._place = {name: place for place, (name, _) in enumerate(nights)}
        self._scenarios = np.array([len(rows) for rows in asked])
        self._kind = np.full((len(asked), len(names)), UNUSUAL)
        self._means = {metric: np.full(self._kind.shape, math.nan) for metric in METRICS}
        kinds: dict[tuple[object, ...], int] = {}
        for night, row in ((night, row) for night, rows in enumerate(asked) for row in rows):
            if unusable(row) is not None:
                continue
            place, counts, kind = (night, self._column[row["scenario"]]), [], [row["what_ran"], row["world_size"]]
            for metric, key in METRICS.items():
                known = [one[key] for one in row["launches"] if one[key] is not None]
                kind += [len(known), source_of(row, key) if known else None]
                if known:
                    counts.append(len(known))
                    self._means[metric][place] = sum(map(math.log, known)) / len(known)
            if min(counts, default=0) >= LAUNCHES_WANTED:
                self._kind[place] = kinds.setdefault((*kind, row["parity"]), len(kinds))

    def alike(self, start: int, end: int, base: Base, held: set[str], rule: Rule) -> tuple[int, list[Stop]]:
        """On how many nights from ``start`` on the ``held`` scenarios are stopped and all others pass; and the stops.

        0 nights also where that cannot be told.
        """
        if not all(_is_usual(nights, rule) for nights in base.values()) or not base or held - base.keys():
            return 0, []
        columns = [self._column[name] for name in base]
        before = np.array([[self._place[one.night] for one in nights] for nights in base.values()]).T
        kinds = self._kind[before, columns]
        if (kinds == UNUSUAL).any() or (kinds != kinds[0]).any():
            return 0, []
        told = (self._kind[start:end, columns] == kinds[0]).all(axis=1) & (self._scenarios[start:end] == len(base))
        stopped = np.zeros((len(told), len(base), len(METRICS)), dtype=bool)
        is_held = np.array([name in held for name in base])
        for number, metric in enumerate(METRICS):
            known = np.flatnonzero([metric in nights[-1].figures for nights in base.values()])
            count = _leading(told)
            if count and len(known):
                means = self._means[metric][:, [columns[place] for place in known]]
                begun = means[before[-rule.nights :, known], np.arange(len(known))]
                begins = [gate.levels_of(nights, metric)[-1][: -rule.nights] for nights in base.values()]
                firsts = [[one.figures[metric].mean for one in begins[place]] for place in known]
                passes, fails = _verdicts(metric, begun, means[start : start + count], firsts, is_held[known], rule)
                stopped[:count, known, number] = fails
                told = (passes | fails).all(axis=1)
        told = (stopped[: _leading(told)].any(axis=2) == is_held).all(axis=1)
        found = np.argwhere(stopped[: _leading(told)]).tolist()
        names, metrics = list(base), list(METRICS)
        return _leading(told), [(start + night, names[place], metrics[number]) for night, place, number in found]


def _is_usual(nights: Sequence[Measured], rule: Rule) -> bool:
    """Whether a base has all that it keeps, on one level, and none of the last nights began another."""
    wanted = rule.nights
    if wanted < RECENT or len(nights) < 2 * wanted or any(one.better or one.rose for one in nights[-wanted:]):
        return False
    levels = gate.levels_of(nights, gate.STEP_TIME)
    return len(levels) == 1 and levels[0][0] is nights[0]


def _leading(told: Flags) -> int:
    return len(told) if told.all() else int(told.argmin())


def _verdicts(
    metric: str, begun: Figures, tonight: Figures, firsts: Sequence[Sequence[float]], held: Flags, rule: Rule
) -> tuple[Flags, Flags]:
    """Whether the gate is sure to find a figure ``ok``, and whether to find it ``regressed``: by night and scenario, as
    ``tonight``, the means.

    ``begun``: the last nights of the base, and ``firsts`` the first of its level, by scenario. All nights before one
    are in its base, or of a scenario that is ``held`` none.
    """
    wanted = rule.nights
    before = sliding_window_view(np.concatenate([begun, tonight[:-1]]), wanted, axis=0)  # night, scenario, night before
    before = np.where(held[:, None], begun.T, before)
    variances, degrees = before.var(axis=-1, ddof=1), np.array([[wanted - 1.0]])
    sure = np.ones(tonight.shape, dtype=bool)
    if metric in POOLED:
        sure &= (variances > LEAST_VARIANCE).all(axis=1, keepdims=True)
        variances, degrees = moderated(variances, np.full(len(firsts), wanted - 1.0))
    error, threshold = (1.0 - rule.level) / len(firsts), rule.thresholds[metric]
    least = math.log1p(threshold)
    usual, creeping = special.stdtrit(degrees, [[[1.0 - error]], [[1.0 - CREEP_ERROR * error]]])
    bound, of_two, of_creep = (
        np.maximum(least, quantile * np.sqrt(variances * (part + 1.0 / wanted)))
        for quantile, part in ((usual, 1.0), (usual, 1.0 / 2), (creeping, 1.0 / RECENT))
    )
    difference = tonight - before.mean(axis=-1)
    last, others = before[:, :, -1], before[:, :, :-1].mean(axis=-1)
    loss_of_two = np.minimum(last, tonight) - others
    gain_of_two = others - np.maximum(last, tonight)
    creep = np.zeros(tonight.shape)
    recent = (before[:, :, wanted - RECENT + 1 :].sum(axis=-1) + tonight) / RECENT
    for column, first in enumerate(firsts):
        if len(first) >= RECENT - 1:
            others = before[:, column, : wanted - len(first)].sum(axis=-1)
            creep[:, column] = recent[:, column] - (sum(first) + others) / wanted
    within = [np.abs(difference) < bound - MARGIN, loss_of_two < of_two - MARGIN, creep < of_creep - MARGIN]
    seen = bound < math.log1p(max(SEEN, 2.0 * threshold)) - MARGIN
    passes = sure & within[0] & within[1] & within[2] & (gain_of_two < of_two - MARGIN) & seen
    slow = (loss_of_two > of_two + MARGIN) | (creep > of_creep + MARGIN)
    fails = sure & ((difference > bound + MARGIN) | ((difference > MARGIN - bound) & slow))
    return passes, fails
