"""One run against another, or scenarios of one run against each other: scenario by scenario, metric by metric.

    python -m bench compare BASE NEW
    python -m bench compare RUN --scenario ddp,ddp_o1 --against dp

Times, throughput and energy are compared on the logarithms of one value per launch, with the drift of each run taken
out (:mod:`bench.analyse.rounds`). Peaks of memory are compared by :func:`of_memory`, and numerics by their verdicts.
Each metric is a question of its own: its p-values are adjusted over the scenarios (:mod:`bench.analyse.multiplicity`).
Throughput, which is the step time upside down, has the p-values of that.

An interval is over the launches *within* two runs. What changes from one run to the next (heat, a reboot, neighbours)
shows only in a history (``bench gate --history``). Scenarios of one run are interleaved and share it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bench.analyse.comparable import Digest, Entry, differences, other_source, scenario_obstacle, source_of, unusable
from bench.analyse.comparison import ALIKE, FASTER, SLOWER, TOO_FEW, Comparison, compared, each_side, judged, verdict_of
from bench.analyse.intervals import CONFIDENCE, geometric_mean, positive, ratio_of, t_quantile
from bench.analyse.rounds import Rounds
from bench.core.records import PARITIES
from bench.runs.digests import LOOKED_AT

NOT_COMPARABLE = "not comparable"
LESS, MORE = "less", "more"
BETTER, WORSE, NEITHER = "better", "worse", "none"

BETWEEN_RUNS = (
    "what changes from one run to the next (heat, a reboot, neighbours) is not covered: where that is 1 %, a "
    "quarter of all pairs of equal runs differ, and more launches make that worse; measure both as scenarios of one "
    "run, or gate over a history"
)

LEAST_MEMORY = 0.005  # a process that does the same again differs by this part
PAGE_MIB = 2.0  # in which a GPU maps memory
LEAST_LOSS = 1e-3  # by which final losses of the same work scatter at least: another order of summation makes it


@dataclass(frozen=True, slots=True)
class Metric:
    """``columns``: of a launch in a digest, of which the first known on both sides counts. ``words``: what a ratio
    below 1 is called, and one above 1."""

    name: str
    title: str
    unit: str
    columns: tuple[str, ...]
    words: tuple[str, str]
    low_is_good: bool = True


STEP_TIME = Metric("step_time", "step time", "ms", ("step_ms",), (FASTER, SLOWER))
THROUGHPUT = Metric("throughput", "throughput", "per s", ("throughput_per_s",), (SLOWER, FASTER), low_is_good=False)
MEMORY = Metric("peak_memory", "peak memory", "MiB", ("peak_total_mib", "peak_pid_mib"), (LESS, MORE))
ENERGY = Metric("energy", "energy", "J per 1,000", ("energy_per_1000_j",), (LESS, MORE))
METRICS = (STEP_TIME, THROUGHPUT, MEMORY, ENERGY)
LOSS = Metric("final_loss", "final loss", "", ("final_loss",), ("lower", "higher"))
WAIT = Metric("wait", "wait for data", "ms", ("wait_ms",), (LESS, MORE))
START_UP = Metric("start_up", "start-up", "ms", ("startup_ms",), (FASTER, SLOWER))
WALL = Metric("wall_time", "whole command", "ms", ("wall_ms",), (FASTER, SLOWER))
OF_COMMANDS = (LOSS, WAIT, START_UP, WALL)  # what is known of commands that bench was attached to, besides
PARITY = Metric("loss_parity", "numerics", "", (), (BETTER, WORSE))
TITLES = {metric.name: metric.title for metric in (*METRICS, *OF_COMMANDS, PARITY)}
UNITS = {metric.name: metric.unit for metric in (*METRICS, *OF_COMMANDS, PARITY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Comparison):
    """A metric of a scenario, compared.

    ``against``: the base scenario (the same one in another run). ``what_ran``: on the new side, else in the base of the
    same name. ``column``: in the digest. ``base``, ``new``: geometric means over launches, of numerics the
    verdicts. ``verdict``: ``faster`` or ``slower``, ``less`` or ``more`` of memory and energy, ``better`` or ``worse``
    of numerics; ``no difference found``, ``too few launches``; or ``not comparable`` with the ``reason``. ``change``:
    ``better``, ``worse`` or ``none`` of any metric. ``verdict_low``, ``verdict_high``: the interval that the verdict
    goes by, at the level that the adjusted p-value stands for: there is a verdict where it lies beyond ``least``, the
    ratio up to which a difference counts as none.
    """

    scenario: str
    against: str
    what_ran: str | None
    metric: str
    column: str | None = None
    base: float | str | None = None
    new: float | str | None = None
    verdict_low: float | None = None
    verdict_high: float | None = None
    least: float = 1.0
    verdict: str = NOT_COMPARABLE
    change: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two runs that were compared, or one with itself. ``warnings``: what else differs between them."""

    base: Digest
    new: Digest
    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        return self.base is self.new

    @property
    def comparable(self) -> bool:
        return any(row.verdict != NOT_COMPARABLE for row in self.rows)


def runs(base: Digest, new: Digest, names: Sequence[str] | None = None) -> Compared:
    """Every scenario of either run, or those of ``names``, against the one of the same name: a row per metric."""
    base, new = _with_commands(base), _with_commands(new)
    ours, theirs = ({one["scenario"]: one for one in run["scenarios"]} for run in (base, new))
    attached = any(run.get("attached") for run in (base, new))
    both = [(name, name) for name in (names if names is not None else dict.fromkeys([*ours, *theirs]))]
    if attached and names is None and len(ours) == len(theirs) == 1:
        both = [(*ours, *theirs)]  # script against script, whatever they are called
    pairs = []
    for against, name in both:
        sides = ours.get(against), theirs.get(name)
        obstacle = scenario_obstacle(*sides, attached=attached)
        pairs.append(_Pair(name, against, *sides, obstacle, ("the base run", "the new run")))
    warnings = (*differences(base, new), *_unclear(pairs, base, new), *_unplanned(pairs, base, new))
    return Compared(base=base, new=new, rows=_compared(pairs, base, new), warnings=warnings)


def scenarios(run: Digest, names: Sequence[str], against: str) -> Compared:
    """Scenarios of one run against another one of it: a row per metric."""
    run = _with_commands(run)
    entries = {one["scenario"]: one for one in run["scenarios"]}
    pairs = []
    for name in names:
        why = {one: unusable(entries.get(one)) for one in (against, name)}
        obstacle = "; ".join(f"{one}: {text}" for one, text in why.items() if text) or None
        pairs.append(_Pair(name, against, entries.get(against), entries.get(name), obstacle, (against, name)))
    return Compared(base=run, new=run, rows=_compared(pairs, run, run), warnings=tuple(_other_ran(pairs, run, run)))


def _with_commands(run: Digest) -> Digest:
    """The run with what is known of each launch of a command among the values of the launches."""
    attached = {one["launch"]: one for one in (run.get("attached") or {}).get("launches", ())}
    scenarios = []
    for one in run["scenarios"] if attached else ():
        commands = [attached.get(launch, {}) for launch in one["launches"]["launch"]]
        columns = {name: [of.get(name) for of in commands] for metric in OF_COMMANDS for name in metric.columns}
        scenarios.append({**one, "launches": columns | one["launches"]})
    return {**run, "scenarios": scenarios} if attached else run


def of_memory(base: Sequence[float], new: Sequence[float], processes: int) -> Comparison:
    """Compare peaks of memory (MiB, one per launch) of launches with this many processes.

    Launches that do the same often have the very same peak, so a peak scatters at least as rounding to
    :data:`PAGE_MIB` a process makes it (a uniform error: its width over the root of 12). The test is whether the
    difference exceeds both that page a process and :data:`LEAST_MEMORY`.
    """
    rounding_mib = PAGE_MIB * max(1, processes) / math.sqrt(12.0)
    below, above = (geometric_mean(positive(side)) for side in (base, new))
    scatter, least = (rounding_mib / below, rounding_mib / above), least_of_memory(below, above, processes)
    return compared(ratio_of(base, new, scatter=scatter, least=least), len(base), len(new))


def least_of_memory(base: float, new: float, processes: int) -> float:
    """The ratio up to which two peaks (MiB) of this many processes count as equal."""
    return 1.0 + max(LEAST_MEMORY, PAGE_MIB * max(1, processes) / min(base, new))


@dataclass(frozen=True, slots=True)
class _Pair:
    """A scenario and its base, why they do not compare, and what the two sides are called."""

    scenario: str
    against: str
    base: Entry | None
    new: Entry | None
    obstacle: str | None
    sides: tuple[str, str]

    def row(self, metric: str, **values: Any) -> Row:
        sides = (self.new, self.base) if self.scenario == self.against else (self.new,)
        ran = next((side["what_ran"] for side in sides if side and side["what_ran"]), None)
        return Row(scenario=self.scenario, against=self.against, what_ran=ran, metric=metric, **values)

    def unknown(self, what: str, *values: object) -> str | None:
        """Which sides lack a value; None if both have it."""
        lacking = [name for name, value in zip(self.sides, values, strict=True) if not value]
        return f"{what} in {'both' if len(lacking) == 2 else lacking[0]}" if lacking else None


def _unclear(pairs: Sequence[_Pair], *runs: Digest) -> Iterator[str]:
    good = [pair for pair in pairs if pair.obstacle is None]
    sides = {"base": [pair.base or {} for pair in good], "new": [pair.new or {} for pair in good]}
    if silent := dict.fromkeys(one["scenario"] for side in sides.values() for one in side if not one["what_ran"]):
        yield f"not known to be the same, since a run does not say what ran: {', '.join(silent)}"
    for (name, side), run in zip(sides.items(), runs, strict=True):
        codes: dict[str, list[str]] = {one["scenario"]: [] for one in side if one["validity"] == "warning"}
        for finding in run["findings"]:
            if finding["code"] not in codes.get(finding["scenario"], [finding["code"]]):
                codes[finding["scenario"]].append(finding["code"])
        if doubted := "; ".join(f"{scenario} ({', '.join(its_codes)})" for scenario, its_codes in codes.items()):
            more = "" if run["imported"] else ", see 'bench report'"
            yield f"the {name} run has warnings{more}: {doubted}"


def _unplanned(pairs: Sequence[_Pair], base: Digest, new: Digest) -> Iterator[str]:
    """Where runs that bench did not plan come from, and what scripts train differently."""
    for run in (base, new):
        if origin := run.get("imported"):
            yield f"{run['run']} was imported from {origin['file']}; its step times: {origin['times']}"
        if origin := run.get("attached"):
            for one in origin["commands"].values():
                file = one["script"]
                script = f"; {file['file']}, SHA-256 {file['sha256'][:12]}" if file else ""
                command = " ".join(one["command"])
                yield f"{run['run']} was attached to: {command}{script}; its model and data are unknown"
    yield from _other_ran(pairs, base, new)


def _other_ran(pairs: Sequence[_Pair], base: Digest, new: Digest) -> Iterator[str]:
    for pair in pairs if base.get("attached") or new.get("attached") else ():
        ran = [(side or {}).get("what_ran") for side in (pair.base, pair.new)]
        if all(ran) and ran[0] != ran[1]:
            yield f"something else ran: {ran[0]} against {ran[1]}"


def _compared(pairs: Sequence[_Pair], *runs: Digest) -> tuple[Row, ...]:
    """Row by row the metrics of each pair."""
    tests = sum(pair.obstacle is None for pair in pairs)
    columns, of_times = list[list[Row]](), dict[str, float | None]()
    for metric in (*METRICS, *(OF_COMMANDS if all(run.get("attached") for run in runs) else ())):
        rows = [_row(pair, metric, runs, tests) for pair in pairs]
        adjusted = {row.scenario: row.p_adjusted for row in judged([row for row in rows if row.reason is None])}
        if metric is STEP_TIME:
            of_times = adjusted
        elif metric is THROUGHPUT:  # the step time upside down
            adjusted = {name: of_times.get(name) for name in adjusted}
        columns.append([_judged(row, metric, adjusted[row.scenario]) if row.reason is None else row for row in rows])
    columns.append([_parity(pair) for pair in pairs])
    return tuple(row for of_pair in zip(*columns, strict=True) for row in of_pair)


def _row(pair: _Pair, metric: Metric, runs: tuple[Digest, ...], tests: int) -> Row:
    base, new = pair.base, pair.new
    if pair.obstacle is not None or base is None or new is None:
        return pair.row(metric.name, reason=pair.obstacle)
    column, ours, theirs = _values(metric, base, new)
    reason = pair.unknown("unknown", ours, theirs) or other_source(source_of(base, column), source_of(new, column))
    if reason is None and metric is LOSS and min(*ours, *theirs) <= 0.0:
        reason = "a loss of 0 or less has no ratio to another"
    mean = np.mean if metric is LOSS else lambda side: geometric_mean(positive(side))
    means = [float(mean(side)) if side else None for side in (ours, theirs)]
    counts = len(ours), len(theirs)
    known = {"base": means[0], "new": means[1], "n_base": counts[0], "n_new": counts[1]}
    row = pair.row(metric.name, reason=reason, column=column, **known)
    if reason is not None:
        return row
    looks = [run["conditions"].get(LOOKED_AT) for run in runs]  # launches that a verdict had before others were added
    before = each_side(*(look or count for look, count in zip(looks, counts, strict=True))) if any(looks) else 0.0
    if metric is LOSS:
        ratio = ratio_of(ours, theirs, scatter=(LEAST_LOSS, LEAST_LOSS))
        comparison = replace(compared(ratio, *counts), before=before, more=None)
    elif metric is MEMORY:
        processes = max(base["world_size"] or 1, new["world_size"] or 1) if column == "peak_total_mib" else 1
        comparison = replace(of_memory(ours, theirs, processes), before=before, more=None)
        row = replace(row, least=least_of_memory(means[0] or 0.0, means[1] or 0.0, processes))
    else:
        below, above = (
            Rounds(
                (one["scenario"], *launch)
                for one in run["scenarios"]
                for launch in zip(*(one["launches"][name] for name in ("repeat", "launch", column)), strict=True)
            )
            for run in runs
        )
        within = runs[0] is runs[1]
        ratio = above.ratio(pair.against, pair.scenario) if within else above.over(below, pair.against, pair.scenario)
        comparison = compared(ratio, *counts, tests, before)
    return replace(row, **asdict(comparison))


def _values(metric: Metric, base: Entry, new: Entry) -> tuple[str, list[float], list[float]]:
    """The first column that both sides know of a launch, else the first that one does, with the values of each."""

    def known(column: str) -> list[list[float]]:
        sides = [side["launches"].get(column, ()) for side in (base, new)]
        return [[float(value) for value in launches if value is not None] for launches in sides]

    in_turn = (column for enough in (all, any) for column in metric.columns if enough(known(column)))
    column = next(in_turn, metric.columns[0])
    ours, theirs = known(column)
    return column, ours, theirs


def _judged(row: Row, metric: Metric, p_adjusted: float | None) -> Row:
    """With its verdict, and the interval that leaves 1 out just where ``p_adjusted`` is below 5 %: that at
    1 - 0.05 · p ÷ p_adjusted."""
    row = replace(row, p_adjusted=p_adjusted, verdict_low=row.low, verdict_high=row.high)
    if p_adjusted and row.p is not None and row.ratio and row.error is not None and row.freedom is not None:
        half = t_quantile(1.0 - (1.0 - CONFIDENCE) * row.p / p_adjusted, row.freedom) * row.error
        low, high = (row.ratio * math.exp(end) for end in (-min(half, 700.0), min(half, 700.0)))
        row = replace(row, verdict_low=low, verdict_high=high)
    if (verdict := verdict_of(row.ratio, p_adjusted)) in (TOO_FEW, ALIKE):
        return replace(row, verdict=verdict, change=NEITHER if verdict == ALIKE else None)
    change = BETTER if (verdict == FASTER) == metric.low_is_good else WORSE
    return replace(row, verdict=metric.words[verdict == SLOWER], change=change)


def _parity(pair: _Pair) -> Row:
    if pair.obstacle is not None or pair.base is None or pair.new is None:
        return pair.row(PARITY.name, reason=pair.obstacle)
    ours, theirs = pair.base["parity"], pair.new["parity"]
    counts = {"n_base": len(pair.base["launches"]["launch"]), "n_new": len(pair.new["launches"]["launch"])}
    row = pair.row(PARITY.name, column="parity", base=ours, new=theirs, **counts)
    if silent := pair.unknown("no verdict on numerics", ours, theirs):
        return replace(row, reason=silent)
    if ours == theirs:
        return replace(row, verdict=ALIKE, change=NEITHER)
    word = WORSE if PARITIES.index(theirs) > PARITIES.index(ours) else BETTER
    return replace(row, verdict=word, change=word)
