"""Is tonight worse than the nights before it? Pure: digests in, a row for each scenario and metric out.

A night is compared with the last ten *accepted* nights of its series. Times and peaks of memory have *regressed* where
the geometric mean over tonight's launches lies beyond the prediction bound of those nights
and by more than a threshold (1 %). Before there are ten, they have where the lower
confidence bound of the ratio of launches is beyond a wider threshold (3 %). Numerics may not be worse than the worst of
those nights.

Ten nights that move on hide what creeps. So the last :data:`RECENT` nights, tonight among them, are also compared with
the first ten of their level: at a tenth of the error, since a creep need not be caught on its first night.

A level begins with the series, with a night that a person accepted, and with two nights in a row that are both
better by more than chance takes the mean of two: what is gained and lost again has regressed. How far nights scatter is
still known from those before it. One *better* night alone is no base. Two nights in a row that are both worse by as
much have regressed: the bound of one night is wide while a level is young.

Silence is worth what the bound is worth. Where a change of :data:`SEEN` could have gone unseen, what did not regress is
``too noisy``, with how many launches a night would do; the night joins the base, since it is within the threshold.

The bound of one more night is t · s · √(1 + 1/n) above the mean of its level (Hahn and Meeker 1991, section 4.2), with
variances of times moderated over the scenarios (:mod:`bench.analyse.scatter`): ten nights tell them badly.

The level (99 %) is that of a metric over all its scenarios (Bonferroni). Divided among the metrics too, the gate would
catch a slowdown of 3 % on its first night in 82 of 100 nights, where 85 are wanted (``benchmarks/chance.py``).

A night is accepted, scenario by scenario, when it passes against those accepted before it, or when a person says so.
Nothing of that is stored: :func:`replay` decides it again from the first night on. A scenario that a person accepted
although it was worse (or better) starts anew: its base is that one night, and grows again. So does a value that was
measured in another way (memory as ``rss``, ``nvml_pid``, ...): only nights with the same source are its base.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import special

from bench.analyse.comparable import OTHERWISE, Digest, Entry, other_source, source_of, unusable
from bench.analyse.comparison import LAUNCHES_WANTED, MOST_LAUNCHES
from bench.analyse.history.nights import LeftOut
from bench.analyse.history.rule import FEWEST_NIGHTS, METRICS, STEP_TIME, Rule
from bench.analyse.intervals import ratio_of, t_quantile, welch
from bench.analyse.scatter import moderated
from bench.core import errors
from bench.core.records import PARITIES

PARITY = "loss_parity"

POOLED = (STEP_TIME,)
"""Metrics that scatter alike in all scenarios. Memory does not: often by nothing, then by a block of the allocator."""

OK, BETTER, REGRESSED = "ok", "better", "regressed"
NEW, TOO_FEW, UNCERTAIN, TOO_NOISY = "new", "too few launches", "uncertain", "too noisy"
MISSING, NOT_COMPARABLE, NOT_RUN = "missing", "not comparable", "not run"

ACCEPTED, INCONCLUSIVE = "accepted", "inconclusive"

UNDECIDED = (NEW, TOO_FEW, UNCERTAIN, TOO_NOISY)
ABSENT = (MISSING, NOT_COMPARABLE)
PASSES = (OK, BETTER, NEW, TOO_NOISY)  # verdicts of a scenario that joins its base

EXIT_CODES = {
    OK: errors.OK,
    ACCEPTED: errors.OK,
    REGRESSED: errors.REGRESSED,
    INCONCLUSIVE: errors.INCONCLUSIVE,
    MISSING: errors.NOT_COMPARABLE,
}

NOT_THERE, NO_VALUE, NO_VERDICT = "not in this run", "no value in this run", "no verdict on numerics in this run"
NO_BASE_VALUE, NO_BASE_VERDICT = "the base has no such value", "the base has no verdict on numerics"
NO_BASE = "the base has no values of this scenario"

RECENT = 5
CREEP_ERROR = 0.1  # of the error of a night

SEEN = 0.10  # a change that a gate must be able to see, or twice its threshold where that is more


# Nothing changes the values of the next classes and of _Pair. They are not frozen, since to make a frozen one takes
# several times as long, and to replay 2,000 nights takes a hundred thousand.


@dataclass(slots=True, kw_only=True)
class Value:
    """A metric of a scenario in one night: mean and variance of the logarithms over ``launches``.

    ``source``: how it was measured, None where there is one way, or it is unknown.
    """

    mean: float
    variance: float
    launches: tuple[float, ...]
    source: str | None


@dataclass(slots=True, kw_only=True)
class Measured:
    """A scenario in one night. ``why``: why its values are not usable, None if they are.
    ``better``: the metrics that were better that night; ``rose``: those that were with the night before it."""

    night: str
    what_ran: str
    world_size: int | None
    why: str | None
    status: str
    values: Mapping[str, Value]
    parity: str | None
    better: frozenset[str] = frozenset()
    rose: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Judged:
    """A metric of a scenario tonight.

    ``tonight``, ``base``: ms or MiB, of numerics the verdicts. ``bound``: the ``ratio`` (tonight over base) beyond
    which the verdict is ``regressed``. ``nights``: the runs of the base. ``status``: of the launches of a scenario
    without usable values: ``ok`` where these are invalid. ``rose``: whether a new level begins with the night before.
    What is unknown is None.

    ``verdict``: ``ok``; ``better`` (by as much as would be ``regressed``); ``regressed``; ``new`` (no base, or none
    measured in this way), ``too few launches``, ``uncertain`` (over the threshold, possibly noise) or ``too noisy``
    (within it, beside a bound beyond which it could not look, with the ``wanted`` launches a night); ``missing`` (no
    value, and there should be one) or ``not comparable``; ``not run`` (it cannot run here, and never did).
    """

    scenario: str
    metric: str
    verdict: str
    tonight: float | str | None = None
    base: float | str | None = None
    ratio: float | None = None
    bound: float | None = None
    launches: int = 0
    wanted: int | None = None
    nights: tuple[str, ...] = ()
    why: str | None = None
    status: str | None = None
    rose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``rows``: a verdict for each scenario and metric. ``against``: what they are compared with, in words;
    ``folder``: of the history, None for a single run. ``obstacles``: why nothing there is of the same work.
    ``accepted``: why a person accepted this run. ``left_out``: what is in the folder and was not looked at, and why.
    ``called``: what a command calls the run, None where its id is enough; ``verb``: which resumes it, None where
    none does. ``kept``: whether it lies in ``folder``."""

    run: str
    rows: tuple[Judged, ...]
    rule: Rule
    against: str
    folder: str | None
    obstacles: tuple[str, ...] = ()
    accepted: str | None = None
    warnings: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    called: str | None = None
    verb: str | None = "run"
    kept: bool = True

    @property
    def verdict(self) -> str:
        """``accepted`` by a person, else the gravest: ``regressed``, ``missing`` (or not comparable),
        ``inconclusive``, ``ok``."""
        if self.accepted is not None:
            return ACCEPTED
        verdicts = {row.verdict for row in self.rows}
        if REGRESSED in verdicts:
            return REGRESSED
        if verdicts & set(ABSENT) or not verdicts - {NOT_RUN}:
            return MISSING
        return INCONCLUSIVE if verdicts & set(UNDECIDED) else OK

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def no_base(self) -> list[str]:
        """The scenarios of which this run joins no base, as :func:`after` decides it."""
        if self.accepted is not None:
            unusable = [row for row in self.rows if row.verdict == TOO_FEW or (row.verdict == MISSING and row.status)]
            return list(dict.fromkeys(row.scenario for row in unusable))
        return [name for name, verdicts in _verdicts_of(self.rows).items() if not verdicts <= {*PASSES, NOT_RUN}]

    @property
    def base(self) -> list[str]:
        """The runs of all bases, by name."""
        return sorted({night for row in self.rows for night in row.nights})


def unlike(rows: Iterable[Judged], why: str) -> list[Judged]:
    """Rows of a run for which nothing there is of the same work."""
    return [replace(row, verdict=NOT_COMPARABLE, why=why) if row.verdict == NEW else row for row in rows]


Base = Mapping[str, tuple[Measured, ...]]
"""The accepted nights of each scenario, in the order of time: the first and the last of its level, or those before it
while it is young. Never an empty tuple."""


def measured(night: str, digest: Digest, only: Sequence[str] | None = None) -> dict[str, Measured]:
    """The scenarios of a run, or ``only`` some of them, with the values that the gate goes by."""
    return {
        scenario["scenario"]: Measured(
            night=night,
            what_ran=scenario["what_ran"],
            world_size=scenario["world_size"],
            why=unusable(scenario),
            status=scenario["status"],
            values={name: one for name, key in METRICS.items() if (one := _value(scenario, key))},
            parity=scenario["parity"],
        )
        for scenario in digest["scenarios"]
        if only is None or scenario["scenario"] in only
    }


def _value(scenario: Entry, key: str) -> Value | None:
    if not (launches := [value for value in scenario["launches"][key] if value is not None]):
        return None
    logs = list(map(math.log, launches))
    mean = sum(logs) / len(logs)
    variance = sum([(log - mean) ** 2 for log in logs]) / max(1, len(logs) - 1)
    return Value(mean=mean, variance=variance, launches=tuple(launches), source=source_of(scenario, key))


def replay(
    nights: Iterable[tuple[str, Digest]], rule: Rule, accepted: Iterable[str] = (), only: Sequence[str] | None = None
) -> Iterator[tuple[list[Judged], Base]]:
    """The rows of each of these named nights of one series, in the order of time, and the base that it leaves behind.

    ``accepted``: the names of those that a person accepted.
    """
    persons = frozenset(accepted)
    base: Base = {}
    for name, digest in nights:
        tonight = measured(name, digest, only)
        rows = judge(tonight, base, rule)
        base = after(tonight, rows, base, rule, by_person=name in persons)
        yield rows, base


def after(tonight: Mapping[str, Measured], rows: Sequence[Judged], base: Base, rule: Rule, *, by_person: bool) -> Base:
    verdicts = _verdicts_of(rows)
    grown = dict(base)
    gains = [row for row in rows if row.rose or row.verdict == BETTER]  # mostly none
    for name, one in tonight.items():
        if one.why is not None:
            continue
        if by_person and not verdicts[name] <= {OK, NEW, TOO_NOISY}:
            if TOO_FEW not in verdicts[name]:  # they could be no base
                grown[name] = (one,)
        elif verdicts[name] <= set(PASSES):
            better = frozenset([row.metric for row in gains if row.scenario == name and row.verdict == BETTER])
            rose = frozenset([row.metric for row in gains if row.scenario == name and row.rose])
            one = replace(one, better=better, rose=rose) if better or rose else one
            grown[name] = _kept((*base.get(name, ()), one), rule.nights)
    if by_person:
        return {name: nights for name, nights in grown.items() if name in tonight}
    return grown


def _kept(nights: tuple[Measured, ...], wanted: int) -> tuple[Measured, ...]:
    """Those of the last level once it has enough by itself: the first and the last of them, and not those between."""
    *before, level = _levels(nights, STEP_TIME)
    if before and len(level) >= wanted:
        first = nights.index(level[0])
        # once no other level is left, the marks of where this one began only take time
        plain = [replace(one, better=one.better - {STEP_TIME}, rose=one.rose - {STEP_TIME}) for one in level[:2]]
        nights = (*plain, *nights[first + 2 :])
    return nights if len(nights) <= 2 * wanted else (*nights[:wanted], *nights[-wanted:])


def _levels(nights: Sequence[Measured], metric: str) -> list[list[Measured]]:
    """The nights of each level of a metric. One better night alone is in none."""
    if not any(one.better or one.rose for one in nights):  # as mostly
        return [list(nights)]
    levels: list[list[Measured]] = [[]]
    for before, one in zip((None, *nights), nights, strict=False):
        if before is not None and metric in one.rose:
            levels[-1] = [night for night in levels[-1] if night is not before]
            levels.append([before, one])
        elif metric not in one.better:
            levels[-1].append(one)
    return [level for level in levels if level] or [list(nights)]


def _verdicts_of(rows: Iterable[Judged]) -> dict[str, set[str]]:
    verdicts: dict[str, set[str]] = {}
    for row in rows:
        verdicts.setdefault(row.scenario, set()).add(row.verdict)
    return verdicts


def judge(tonight: Mapping[str, Measured], base: Base, rule: Rule) -> list[Judged]:
    """A row for each scenario and metric of tonight or of the base, scenario by scenario in the order of tonight."""
    place = {name: number for number, name in enumerate(dict.fromkeys([*tonight, *base]))}
    absent = {name: _not_judged(name, tonight.get(name), base.get(name, ())) for name in place}
    comparable = [name for name, rows in absent.items() if not rows]
    rows = [row for of_one in absent.values() for row in of_one]
    rows += [row for metric in METRICS for row in _judged(metric, comparable, tonight, base, rule)]
    rows += [row for name in comparable for row in _numerics(name, tonight[name], base.get(name, ()))]
    return sorted(rows, key=lambda row: place[row.scenario])


def _not_judged(name: str, tonight: Measured | None, nights: Sequence[Measured]) -> list[Judged]:
    """The rows of a scenario that cannot be compared with its base as a whole; none where it can, or has no base."""
    if tonight is None or tonight.why is not None:
        names = tuple([one.night for one in nights])
        why, status = (tonight.why, tonight.status) if tonight else (NOT_THERE, None)
        verdict = NOT_RUN if status == "unsupported" and not nights else MISSING
        metrics = _shown(nights[-1]) if nights else [STEP_TIME]
        row = Judged(scenario=name, metric=STEP_TIME, verdict=verdict, nights=names, why=why, status=status)
        return [replace(row, metric=metric) for metric in metrics]
    if not nights:
        return []
    ran, sizes = (tonight.what_ran, nights[-1].what_ran), (tonight.world_size, nights[-1].world_size)
    if all(ran) and ran[0] != ran[1]:
        why = f"something else ran: {ran[0]}; the base is of {ran[1]}"
    elif None not in sizes and sizes[0] != sizes[1]:
        why = f"another world size: {sizes[0]}; the base is of {sizes[1]}"
    else:
        return []
    names = tuple([one.night for one in nights])
    row = Judged(scenario=name, metric=STEP_TIME, verdict=NOT_COMPARABLE, nights=names, why=why)
    return [replace(row, metric=metric, tonight=value) for metric, value in _shown(tonight).items()]


def _shown(one: Measured) -> dict[str, float | str]:
    """The known values of a night, by metric."""
    values: dict[str, float | str] = {name: math.exp(value.mean) for name, value in one.values.items()}
    return values if one.parity is None else {**values, PARITY: one.parity}


@dataclass(slots=True, kw_only=True)
class _Pair:
    """A value of tonight, and those of the nights of its base that have one, with their names.

    ``before``: the last of its level, with their ``means``, and ``first`` the means of the first of them, where there
    are enough others for that to mean anything. ``others``: the means without that of the night before this one, which
    is ``last``, in the level or not. ``scatter``: the means of each level that tell how far nights scatter.
    """

    scenario: str
    tonight: Value
    before: Sequence[Value]
    nights: tuple[str, ...]
    means: Sequence[float]
    first: Sequence[float]
    others: Sequence[float]
    last: float
    scatter: Sequence[Sequence[float]]

    @property
    def degrees(self) -> int:
        return sum([len(level) - 1 for level in self.scatter])

    @property
    def variance(self) -> float:
        """Of nights about their level."""
        levels = [(level, _mean(level)) for level in self.scatter]
        return sum([(one - mean) ** 2 for level, mean in levels for one in level]) / self.degrees


def _judged(metric: str, names: Sequence[str], tonight: Mapping[str, Measured], base: Base, rule: Rule) -> list[Judged]:
    rows: list[Judged] = []
    pairs: list[_Pair] = []
    wanted = max(rule.nights, FEWEST_NIGHTS)
    for name in names:
        with_value = [one for one in base.get(name, ()) if metric in one.values]
        if (value := tonight[name].values.get(metric)) is None:
            if with_value:
                nights = tuple([one.night for one in with_value])
                rows.append(Judged(scenario=name, metric=metric, verdict=MISSING, nights=nights, why=NO_VALUE))
            continue
        sources = {one.values[metric].source for one in with_value}
        strange = {source for source in sources if other_source(source, value.source) is not None}
        alike = [one for one in with_value if one.values[metric].source not in strange] if strange else with_value
        pair = _pair(name, metric, value, alike, wanted)
        if (count := len(value.launches)) < LAUNCHES_WANTED:
            rows.append(_row(metric, TOO_FEW, pair, why=f"{count} and a verdict needs {LAUNCHES_WANTED}"))
        elif not alike:
            why = NO_BASE_VALUE if name in base else NO_BASE
            before = ", ".join(sorted(map(str, sources)))
            why = f"{OTHERWISE}: {value.source}; the base is of {before}" if with_value else why
            rows.append(_row(metric, NEW, pair, why=why))
        else:
            pairs.append(pair)
    error = (1.0 - rule.level) / max(1, len(pairs))
    enough: list[_Pair] = []
    young: list[_Pair] = []
    for pair in pairs:
        known = sum(map(len, pair.scatter)) >= wanted and len(pair.before) > 1
        (enough if known else young).append(pair)
    rows += _predicted(metric, enough, error, rule.thresholds[metric])
    return rows + [_by_interval(metric, pair, error, rule.before) for pair in young]


def _pair(name: str, metric: str, tonight: Value, nights: Sequence[Measured], wanted: int) -> _Pair:
    levels = _levels(nights, metric) if nights else [[]]
    level = levels[-1]
    last_of_level = level[-wanted:]
    values = [one.values[metric] for one in last_of_level]
    means = [value.mean for value in values]
    scatter = [means]
    if len(levels) > 1:
        last = {one.night for one in [one for of in levels for one in of][-wanted:]}
        kept = [[one.values[metric].mean for one in of if one.night in last] for of in levels]
        scatter = [of for of in kept if of]
    return _Pair(
        scenario=name,
        tonight=tonight,
        before=values,
        nights=tuple([one.night for one in last_of_level]),
        means=means,
        first=[one.values[metric].mean for one in level[:wanted]] if len(level) >= wanted + RECENT - 1 else [],
        others=means[:-1] if level and level[-1] is nights[-1] else means,
        last=nights[-1].values[metric].mean if nights else math.nan,
        scatter=scatter if nights else [],
    )


def _predicted(metric: str, pairs: Sequence[_Pair], error: float, threshold: float) -> list[Judged]:
    if not pairs:
        return []
    variances = np.array([pair.variance for pair in pairs])
    degrees = np.array([float(pair.degrees) for pair in pairs])
    if metric in POOLED:
        variances, degrees = moderated(variances, degrees)
    counts = np.array([len(pair.before) for pair in pairs])
    extra = np.array([_of_fewer_launches(pair) for pair in pairs])
    usual, creeping = special.stdtrit(degrees, [[1.0 - error], [1.0 - CREEP_ERROR * error]])
    reach = usual * np.sqrt(variances * (1.0 + 1.0 / counts) + extra)
    crept = creeping * np.sqrt(variances * (1.0 / RECENT + 1.0 / counts))
    two = usual * np.sqrt(variances * (1.0 / 2 + 1.0 / counts))
    rows, least = [], math.log1p(threshold)
    for pair, margin, of_creep, of_two in zip(pairs, reach.tolist(), crept.tolist(), two.tolist(), strict=True):
        difference = pair.tonight.mean - _mean(pair.means)
        bound = max(margin, least)
        verdict, why, wanted = OK, None, None
        creep = 0.0  # how far the last nights are above the first of their level
        if pair.first:
            creep = _mean([*pair.means[1 - RECENT :], pair.tonight.mean]) - _mean(pair.first)
        both, others = (pair.last, pair.tonight.mean), _mean(pair.others)
        gain_of_two, loss_of_two = others - max(both), min(both) - others  # both below the others, or above
        seen_of_two = max(of_two, least)
        rose = gain_of_two > seen_of_two and len(pair.others) >= FEWEST_NIGHTS
        if abs(difference) > bound:
            verdict = REGRESSED if difference > bound else BETTER
        elif loss_of_two > seen_of_two:
            verdict = REGRESSED
            why = f"two nights in a row are {100 * math.expm1(loss_of_two):.1f} % and more above this level"
        elif creep > max(of_creep, least):
            verdict = REGRESSED
            why = f"crept: the last {RECENT} nights are {100 * math.expm1(creep):.1f} % above the first of this level"
        elif _blind(bound, threshold):
            verdict, why, wanted = _unseen(difference, threshold, partial(_predicted_bound, pair, margin))
        rows.append(_row(metric, verdict, pair, difference, bound, why=why, wanted=wanted, rose=rose))
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _predicted_bound(pair: _Pair, margin: float, launches: int) -> float:
    """``margin`` with this many launches a night. How far nights differ by themselves stays."""
    usual = sum([len(one.launches) for one in pair.before]) / len(pair.before)
    within = sum([one.variance for one in pair.before]) / len(pair.before)
    between = pair.variance
    explained = min(1.0, within / usual / between) if between > 0.0 else 1.0
    return margin * math.sqrt(1.0 - explained + explained * usual / launches)


def _blind(bound: float, threshold: float) -> bool:
    return bound > math.log1p(max(SEEN, 2.0 * threshold))


def _unseen(difference: float, threshold: float, bound_of: Callable[[int], float]) -> tuple[str, str, int | None]:
    """Of a value that has not regressed, beside a bound beyond which it could not look: the verdict, why, and with how
    many launches a night the bound would do, None for more than anybody measures."""
    counts = range(LAUNCHES_WANTED, MOST_LAUNCHES + 1)
    wanted = next((count for count in counts if not _blind(bound_of(count), threshold)), None)
    enough = "more launches a night would not do" if wanted is None else f"about {wanted} launches a night would do"
    if difference > math.log1p(threshold):
        return UNCERTAIN, f"{_by_chance(threshold)}; {enough}", wanted
    return TOO_NOISY, f"a change of {100 * max(SEEN, 2.0 * threshold):.0f} % could not have been seen; {enough}", wanted


def _by_chance(threshold: float) -> str:
    return f"over {100 * threshold:.1f} %, possibly noise"


def _of_fewer_launches(pair: _Pair) -> float:
    """The variance that tonight's mean has beyond that of a night of its base, if it is over fewer launches."""
    if len(pair.tonight.launches) >= max([len(one.launches) for one in pair.before]):
        return 0.0
    usual = sum([1.0 / len(one.launches) for one in pair.before]) / len(pair.before)
    nights = (pair.tonight, *pair.before)
    return max(0.0, 1.0 / len(pair.tonight.launches) - usual) * sum([one.variance for one in nights]) / len(nights)


def _by_interval(metric: str, pair: _Pair, error: float, threshold: float) -> Judged:
    if len(launches := [value for one in pair.before for value in one.launches]) < LAUNCHES_WANTED:
        return _row(metric, TOO_FEW, pair, why=f"{len(launches)} in the base and a verdict needs {LAUNCHES_WANTED}")
    ratio = ratio_of(launches, pair.tonight.launches, confidence=1.0 - 2.0 * error)
    assert ratio.value is not None and ratio.low is not None and ratio.high is not None  # there are launches enough
    difference = math.log(ratio.value)
    bound = math.log1p(threshold) + difference - math.log(ratio.low) if ratio.low > 0.0 else math.inf
    verdict, why, wanted = OK, None, None
    if ratio.low > 1.0 + threshold:
        verdict = REGRESSED
    elif ratio.high < 1.0 / (1.0 + threshold):
        verdict = BETTER
    elif _blind(bound, threshold):
        sides = ((launches, len(pair.before)), (pair.tonight.launches, 1))
        scatters = [(float(np.var(np.log(side), ddof=1)), nights) for side, nights in sides]

        def bound_of(count: int) -> float:
            error_of, freedom = welch([(variance, count * nights) for variance, nights in scatters])
            return math.log1p(threshold) + t_quantile(1.0 - 2.0 * error, freedom) * error_of

        verdict, why, wanted = _unseen(difference, threshold, bound_of)
    elif ratio.value > 1.0 + threshold:
        verdict, why = UNCERTAIN, _by_chance(threshold)
    return _row(metric, verdict, pair, difference, bound, why=why, wanted=wanted)


def _row(
    metric: str,
    verdict: str,
    pair: _Pair,
    difference: float | None = None,
    bound: float | None = None,
    *,
    why: str | None = None,
    wanted: int | None = None,
    rose: bool = False,
) -> Judged:
    tonight = math.exp(pair.tonight.mean)
    return Judged(
        scenario=pair.scenario,
        metric=metric,
        verdict=verdict,
        tonight=tonight,
        base=None if difference is None else tonight / math.exp(difference),
        ratio=None if difference is None else math.exp(difference),
        bound=None if bound is None or bound > 700.0 else math.exp(bound),
        launches=len(pair.tonight.launches),
        nights=pair.nights,
        why=why,
        wanted=wanted,
        rose=rose,
    )


def _numerics(name: str, tonight: Measured, nights: Sequence[Measured]) -> list[Judged]:
    """Whether it trains the same model as before; no row if that was never known."""
    worst = max({one.parity for one in nights if one.parity is not None}, key=PARITIES.index, default=None)
    if tonight.parity is None and worst is None:
        return []
    verdict, why = OK, None
    if worst is None:
        verdict, why = NEW, NO_BASE_VERDICT if nights else NO_BASE
    elif tonight.parity is None:
        verdict, why = MISSING, NO_VERDICT
    elif PARITIES.index(tonight.parity) > PARITIES.index(worst):
        verdict = REGRESSED
    names = tuple([one.night for one in nights if one.parity is not None])
    return [
        Judged(scenario=name, metric=PARITY, verdict=verdict, tonight=tonight.parity, base=worst, why=why, nights=names)
    ]
