"""How often bench is wrong by chance: its verdicts on launches and nights whose truth is known, because they are drawn.

    python benchmarks/chance.py

What bench says about two ways to train is worth what it says where there is nothing to find (A/A) and where something
was planted. Neither can be asked of a GPU, where the truth is what is looked for. So launches are drawn (normal on
logarithms, 1 % unless a row says otherwise), and what is done with them is the code that a real run goes through:
:mod:`bench.analyse.rounds`, :mod:`bench.analyse.comparison`, :mod:`bench.experiments.plan.interval_target`,
:mod:`bench.analyse.history.gate`. Each row has its goal; the exit code is 1 where one is missed.

"within error" is a value that misses its goal by no more than its own 95 % error. "A/A" is the share of runs in which
any comparison finds a difference that is not there.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import paired
import pandas as pd
from numpy.typing import NDArray
from scipy import signal, special, stats

from bench.analyse.comparison import ALIKE, SHOWN, SLOWER, Comparison, compared, judged, more_launches
from bench.analyse.history import gate
from bench.analyse.history.gate import Base, Judged, Measured
from bench.analyse.history.rule import STEP_TIME, Rule
from bench.analyse.intervals import Ratio, estimate, ratio_from, ratio_of
from bench.analyse.rounds import Drifting, Level
from bench.analyse.steps import per_iteration, per_launch
from bench.experiments.plan.interval_target import FIRST_STAGE, IntervalTarget
from bench.runs.frames import RankSteps

SEED = 20261124
RUNS = 2000
WIDTH = 92  # of a row
OF_A_LAUNCH = 0.01
DRIFT = 0.04

Array = NDArray[np.float64]
Random = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``value``: a share, of ``of`` drawn; within ``low`` and ``high`` it passes."""

    what: str
    value: float
    of: int
    low: float = 0.0
    high: float = 1.0

    @property
    def error(self) -> float:
        """Half of the 95 % interval of the value."""
        return 1.96 * math.sqrt(self.value * (1.0 - self.value) / self.of)

    @property
    def passed(self) -> bool:
        return self.low - self.error <= self.value <= self.high + self.error

    @property
    def verdict(self) -> str:
        if (self.low, self.high) == (0.0, 1.0):
            return ""
        return "PASS" if self.low <= self.value <= self.high else "within error" if self.passed else "FAIL"

    @property
    def goal(self) -> str:
        if self.low > 0.0 and self.high < 1.0:
            return f"{self.low:.0%} to {self.high:.0%}"
        if (self.low, self.high) == (0.0, 1.0):
            return "for contrast"
        return f"at most {100 * self.high:.3g} %" if self.high < 1.0 else f"at least {self.low:.0%}"

    def line(self) -> str:
        value = f"{100 * self.value:5.1f} % ±{100 * self.error:3.1f}"
        return f"{self.what:<{WIDTH}}  {self.goal:<14}  {value}  {self.verdict}".rstrip()


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"drawn for a row (default: {RUNS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of what is drawn (default: {SEED})")
    options = parser.parse_args()
    started = time.monotonic()
    rows: list[Row] = []
    for number, part in enumerate(PARTS):
        for row in part(options.runs, np.random.default_rng([options.seed, number])):
            print(row.line(), file=sys.stderr if options.json else sys.stdout, flush=True)
            rows.append(row)
    wall_s = time.monotonic() - started
    checks = [paired.Check(f"{row.what}: {row.goal}", row.passed) for row in rows]
    notes = [f"seed {options.seed}, {options.runs} runs a row, {wall_s:.0f} s"]
    more = {"rows": [asdict(row) for row in rows], "seed": options.seed, "wall_s": wall_s}
    return paired.Answer("chance", [], checks, notes, more).finish(options.json)


# Runs


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Many runs of one plan: ``logs`` of shape (runs, launches), and of each launch its scenario, round and place."""

    logs: Array
    scenario: NDArray[np.int64]
    rounds: NDArray[np.int64]

    @classmethod
    def drawn(cls, random: Random, runs: int, scenarios: int, rounds: int, scatter: Any = OF_A_LAUNCH) -> "Runs":
        """In the order in which bench runs them. ``scatter``: standard deviation of a launch, or of each scenario."""
        scenario = np.array(
            [place for number in range(rounds) for place in range(scenarios)[:: -1 if number % 2 else 1]]
        )
        noise = random.standard_normal((runs, len(scenario)))
        deviations = np.broadcast_to(scatter, scenarios)[scenario]
        return cls(noise * deviations, scenario, np.repeat(np.arange(rounds), scenarios))

    def plus(self, more: Array) -> "Runs":
        return Runs(self.logs + more, self.scenario, self.rounds)

    def with_slower(self, scenario: int, by: float) -> "Runs":
        return self.plus(np.where(self.scenario == scenario, np.log1p(by), 0.0))

    @property
    def count(self) -> int:
        return int(self.scenario.max()) + 1

    def fit(self) -> Drifting:
        return Drifting.of(self.logs, self.scenario, self.rounds, np.arange(len(self.scenario)))


def ratios(level: Level) -> list[Ratio]:
    """Of each run."""
    fields = zip(level.value, level.error, level.degrees, strict=True)
    return [ratio_from(1.0, float(value), float(error), float(freedom), 0.95) for value, error, freedom in fields]


def comparison(ratio: Ratio, base: int, new: int, of_base: float = 0.0, before: float = 0.0) -> Comparison:
    return Comparison(**asdict(ratio) | {"of_base": of_base}, n_base=base, n_new=new, before=before)


def verdicts(runs: Runs, before: float = 0.0) -> list[list[str]]:
    """Of each run, of every scenario against the first one."""
    fit, base = runs.fit(), runs.fit().level(0)
    number = len(runs.scenario) // runs.count
    columns = []
    for scenario in range(1, runs.count):
        change = fit.level(scenario, 0)
        of_base = np.minimum(1.0, (base.error / change.error) ** 2)
        pairs = zip(ratios(change), of_base, strict=True)
        columns.append([comparison(ratio, number, number, float(part), before) for ratio, part in pairs])
    return [[one.verdict for one in judged(list(mine))] for mine in zip(*columns, strict=True)]


def any_found(found: list[list[str]]) -> float:
    return float(np.mean([any(one != ALIKE for one in mine) for mine in found]))


def told(found: list[list[str]], place: int = -1, verdict: str = SLOWER) -> float:
    return float(np.mean([mine[place] == verdict for mine in found]))


def shape(name: str, runs: Runs, random: Random) -> Array:
    """What the machine does meanwhile: nothing, a straight drift, a shift at any moment, or a sine of any phase."""
    moment = np.arange(runs.logs.shape[1]) / (runs.logs.shape[1] - 1)
    begun = random.random((len(runs.logs), 1))
    shapes: dict[str, Array] = {
        "no drift": np.zeros(runs.logs.shape),
        "straight drift": np.broadcast_to(DRIFT * moment, runs.logs.shape),
        "a level shift": DRIFT * (moment > begun),
        "a sine": DRIFT / 2.0 * np.sin(2.0 * np.pi * (moment + begun)),
    }
    return shapes[name]


SHAPES = ("no drift", "straight drift", "a level shift", "a sine")


def three_launches(many: int, random: Random) -> Iterator[Row]:
    for scenarios in (2, 10):
        for rounds in (3, 5):
            for name in SHAPES:
                runs = Runs.drawn(random, many, scenarios, rounds)
                fit = runs.plus(shape(name, runs, random)).fit()
                pairs = [fit.level(new, 0) for new in range(1, scenarios)]
                false = np.mean([np.abs(one.value) > reach(one) for one in pairs])
                what = f"{scenarios} scenarios, {rounds} launches, {name}: interval of a pair without the truth"
                yield Row(what=what, value=float(false), of=many, high=0.06)


def reach(level: Level) -> Array:
    return np.asarray(special.stdtrit(level.degrees, 0.975) * level.error)


def power(many: int, random: Random) -> Iterator[Row]:
    for rounds, least in ((5, 0.45), (10, 0.95)):
        runs = Runs.drawn(random, many, 10, rounds)
        found = verdicts(runs.with_slower(9, 0.02))
        what = f"10 scenarios, {rounds} launches"
        yield Row(what=f"{what}: A/A, against a base", value=any_found(verdicts(runs)), of=many, high=0.05)
        yield Row(what=f"{what}: +2 % in one, against a base, found", value=told(found), of=many, low=least)
        yield Row(what=f"{what}: A/A, against the fastest", value=fastest(runs)[0], of=many, high=0.05)
        slower = fastest(runs.with_slower(9, 0.02))[1]
        yield Row(what=f"{what}: +2 % in one, against the fastest, found", value=slower, of=many, low=least)
    for name, scatter in (("the base three times as noisy", [3, *[1] * 9]), ("five three times as noisy", [1, 3] * 5)):
        runs = Runs.drawn(random, many, 10, 5, OF_A_LAUNCH * np.array(scatter))
        yield Row(what=f"10 scenarios, 5 launches, {name}: A/A", value=any_found(verdicts(runs)), of=many, high=0.06)


def fastest(runs: Runs) -> tuple[float, float]:
    """How often any scenario is called slower than the fastest, and how often the last one is."""
    fit, number = runs.fit(), len(runs.scenario) // runs.count
    levels = np.stack([fit.level(one).value for one in range(runs.count)])
    first = levels.argmin(axis=0)
    changes = {base: {new: ratios(fit.level(new, base)) for new in range(runs.count)} for base in set(first.tolist())}
    found = []
    for run, base in enumerate(first.tolist()):
        mine = [comparison(changes[base][new][run], number, number) for new in range(runs.count) if new != base]
        found.append([one.verdict for one in judged(mine, runs.count)])
    last = [first[run] != runs.count - 1 and mine[-1] == SLOWER for run, mine in enumerate(found)]
    return any_found(found), float(np.mean(last))


def two_runs(many: int, random: Random) -> Iterator[Row]:
    """Five launches of each of two scenarios in both runs, which drift by 10 %; then three launches against ten."""
    for what, drift in (("no drift", 0.0), ("10 % drift in each", 0.10)):
        sides = [Runs.drawn(random, many, 2, 5).plus(drift * np.arange(10, dtype=np.float64) / 9.0) for _ in range(2)]
        found = between(sides[0], sides[1].with_slower(0, 0.05))
        yield Row(what=f"two runs, {what}: A/A", value=any_found(between(*sides)), of=many, high=0.05)
        yield Row(what=f"two runs, {what}: +5 % in one, found", value=told(found, 0), of=many, low=0.9)
    for scenarios in (1, 10):
        for scatter in (1.0, 2.0, 3.0):
            few = Runs.drawn(random, many, scenarios, 3, OF_A_LAUNCH * scatter)
            found = between(few, Runs.drawn(random, many, scenarios, 10))
            of_each = f"{scenarios} scenario{'s' * (scenarios > 1)}"
            what = f"two runs, 3 launches that scatter {scatter:g} times as much v 10, {of_each}: A/A"
            yield Row(what=what, value=any_found(found), of=many, high=0.06)


def between(base: Runs, new: Runs) -> list[list[str]]:
    """Of each pair of runs, of every scenario against the same one."""
    fits, counts = (base.fit(), new.fit()), [len(runs.scenario) // runs.count for runs in (base, new)]
    columns = []
    for scenario in range(base.count):
        below, above = (fit.level(scenario) for fit in fits)
        columns.append([comparison(ratio, *counts) for ratio in ratios(above.minus(below))])
    return [[one.verdict for one in judged(list(mine))] for mine in zip(*columns, strict=True)]


def until_precision(many: int, random: Random) -> Iterator[Row]:
    """Launches are added until every step time is known within 2 %."""
    for scenarios in (1, 2, 10):
        for scatter in (0.01, 0.03, 0.05):
            of = many // (4 if scenarios > 2 else 1)
            covered, launches, by_count = [], [], dict[int, list[Array]]()
            for _ in range(of):
                logs = scatter * random.standard_normal((100, scenarios))
                count = added(np.exp(logs))
                times = [estimate(np.exp(mine)) for mine in logs[:count].T]
                covered += [one.low <= 1.0 <= one.high for one in times]  # type: ignore[operator]
                launches.append(count)
                by_count.setdefault(count, []).append(logs[:count])
            what = f"--until-precision 2%, {scenarios} scenario{'s' * (scenarios > 1)}, sd {scatter:.0%}"
            goal = {"low": 0.94, "high": 0.96} if scenarios > 1 else {}
            of_each = f"{np.mean(launches):.1f} launches"
            share = float(np.mean(covered))
            yield Row(what=f"{what} ({of_each}): interval holds the truth", value=share, of=len(covered), **goal)
            if scenarios > 1:
                said = [one for count, logs in by_count.items() for one in stopped(count, np.array(logs))]
                yield Row(what=f"{what}: A/A", value=any_found(said), of=of, high=0.05)


def added(times: Array) -> int:
    """How many rounds of these there are; ``times``: of shape (rounds, scenarios)."""
    names = [str(scenario) for scenario in range(times.shape[1])]
    target = IntervalTarget(0.02, 1e9, started=0.0, clock=lambda: 0.0)
    for number, of_round in enumerate(times):
        if number >= FIRST_STAGE and not target.next_round(names):
            return number
        for name, time_ms in zip(names, of_round.tolist(), strict=True):
            target.add(name, time_ms, 0.0)
    return len(times)


def stopped(count: int, logs: Array) -> list[list[str]]:
    """The verdicts of runs that stopped after so many rounds; ``logs``: of shape (runs, rounds, scenarios)."""
    plan = Runs.drawn(np.random.default_rng(0), 1, logs.shape[2], count)
    runs = Runs(logs[:, plan.rounds, plan.scenario], plan.scenario, plan.rounds)
    return verdicts(runs, before=float(count > FIRST_STAGE))


def adding(many: int, random: Random) -> Iterator[Row]:
    """Who finds no difference in five launches of two scenarios adds as many as are advised, and looks again."""
    for differ in (0.0, SHOWN):
        many_logs = Runs.drawn(random, many, 2, 400).with_slower(1, differ)
        first = cut(many_logs, 5)
        ratios_of = ratios(first.fit().level(1, 0))
        found = [mine[0] != ALIKE for mine in verdicts(first)]
        more = [0 if one else more_launches(ratio, 5) or 0 for one, ratio in zip(found, ratios_of, strict=True)]
        for count in sorted(set(more) - {0}):
            which = np.flatnonzero(np.array(more) == count)
            some = Runs(many_logs.logs[which], many_logs.scenario, many_logs.rounds)
            for run, mine in zip(which, verdicts(cut(some, min(400, 5 + count)), before=5.0), strict=True):
                found[run] = mine[0] != ALIKE
        share, typical = float(np.mean(found)), int(np.median([count for count in more if count]))
        what = f"2 scenarios, 5 launches and those advised (median {typical} more)"
        if differ:
            yield Row(what=f"{what}: +{SHOWN:.0%} found", value=share, of=many, low=0.8)
        else:
            yield Row(what=f"{what}: A/A", value=share, of=many, high=0.05)


def cut(runs: Runs, rounds: int) -> Runs:
    kept = runs.rounds < rounds
    return Runs(runs.logs[:, kept], runs.scenario[kept], runs.rounds[kept])


def machine_effect(many: int, random: Random) -> Iterator[Row]:
    """What changes from one run to the next is in no interval of two runs."""
    for effect in (0.006, 0.01):
        base, new = (Runs.drawn(random, many, 1, 5) for _ in range(2))
        new = new.plus(np.sqrt(2.0) * effect * random.standard_normal((many, 1)))
        what = f"two runs of one scenario, {effect:.1%} apart from run to run: A/A"
        yield Row(what=what, value=any_found(between(base, new)), of=many)


# Steps

STEPS, NEIGHBOURS, BETWEEN_STEPS, PLANTED = 100, 0.8, 0.02, 0.05


def from_steps(many: int, random: Random) -> Iterator[Row]:
    """Five launches a side, from rows of steps.parquet: two ranks, steps that resemble their neighbours, slow steps."""
    of = many // 4
    base, same, slower = (steps_of(of, random, factor) for factor in (1.0, 1.0, 1.0 + PLANTED))
    a, b, c = (medians(steps) for steps in (base, same, slower))
    alike, planted = (
        [judged([compared(ratio_of(x, y), len(x), len(y))])[0] for x, y in zip(a, other, strict=True)]
        for other in (b, c)
    )
    false = float(np.mean([one.verdict != ALIKE for one in alike]))
    yield Row(what="launches of steps: A/A", value=false, of=of, high=0.07)
    found = float(np.mean([one.verdict == SLOWER for one in planted]))
    yield Row(what="launches of steps: +5 % found", value=found, of=of, low=0.95)
    pooled = float(np.mean(of_pooled_steps(base, same) < 0.05))
    yield Row(what="the same, if every step were a replicate: A/A", value=pooled, of=of)


def steps_of(comparisons: int, random: Random, factor: float) -> pd.DataFrame:
    """Rows of steps.parquet (what values are made of) of five launches of one scenario in each comparison."""
    shocks = random.standard_normal((comparisons * 5, 2, STEPS))
    shocks[..., 1:] *= np.sqrt(1.0 - NEIGHBOURS**2)
    noise = BETWEEN_STEPS * signal.lfilter([1.0], [1.0, -NEIGHBOURS], shocks, axis=-1)
    times = 100.0 * factor * np.exp(OF_A_LAUNCH * random.standard_normal((comparisons * 5, 1, 1)) + noise)
    times[random.random(times.shape) < 0.01] *= 2.0
    launch, rank, step = (index.ravel() for index in np.indices(times.shape))
    steps = {"launch": launch, "scenario": "ddp", "repeat": launch % 5, "rank": rank, "step": step, "warmup": False}
    return pd.DataFrame({**steps, "data_ms": 0.0, "step_ms": times.ravel()})


def medians(steps: pd.DataFrame) -> Array:
    """The value of each launch, one row for each comparison."""
    found: Array = per_launch(per_iteration(RankSteps(steps))).frame["median_ms"].to_numpy().reshape(-1, 5)
    return found


def of_pooled_steps(base: pd.DataFrame, new: pd.DataFrame) -> Array:
    """p of each comparison if every step were a replicate."""
    one, other = (
        np.log(per_iteration(RankSteps(steps)).frame["step_ms"].to_numpy()).reshape(-1, 5 * STEPS)
        for steps in (base, new)
    )
    p: Array = stats.ttest_ind(one, other, axis=1, equal_var=False).pvalue
    return p


# Nights

NIGHTS, SCENARIOS, LAUNCHES = 200, 10, 5
BETWEEN_NIGHTS, BETWEEN_LAUNCHES, MACHINE_EFFECT = 0.006, 0.005, 0.01
MEMORY_SCATTER = 0.002
VICTIM = 0


def nights(many: int, random: Random) -> Iterator[Row]:
    """Ten scenarios of five launches. A night has a level of its own, which scenarios share or not."""
    histories = max(1, many // NIGHTS)
    for what, shared in (("each scenario has a level a night", False), ("all share the level of a night", True)):
        false = caught3 = caught5 = of = 0
        for _ in range(histories):
            base: Base = {}
            for number, (times, memory) in enumerate(drawn_nights(random, shared, BETWEEN_NIGHTS, NIGHTS)):
                tonight = measured(number, times, memory)
                rows = gate.judge(tonight, base, Rule())
                if number >= Rule().nights:
                    of += 1
                    false += bool(regressed(rows))
                    caught3 += caught(number, times, memory, base, 0.03)
                    caught5 += caught(number, times, memory, base, 0.05)
                base = gate.after(tonight, rows, base, Rule(), by_person=False)
        yield Row(what=f"gate, {what}: false nights", value=false / of, of=of, high=0.015)
        yield Row(what=f"gate, {what}: +3 % in one, caught that night", value=caught3 / of, of=of, low=0.85)
        yield Row(what=f"gate, {what}: +5 % in one, caught that night", value=caught5 / of, of=of, low=0.99)
    of = many // 10
    for name, machine, least in (("0.6 %", BETWEEN_NIGHTS, 0.9), ("1 %", MACHINE_EFFECT, 0.0)):
        creep = float(np.mean([any(planted(random, machine, lambda day: 0.002 * day, 20)) for _ in range(of)]))
        yield Row(
            what=f"gate, nights {name} apart: creep of 0.2 % for 20 nights, caught", value=creep, of=of, low=least
        )
        for size in (0.03, 0.05):
            lost = [lost_again(random, machine, size) for _ in range(of)]
            what = f"gate, nights {name} apart: {size:.0%} gained for 2 to 9 nights and lost"
            for when, within in (("caught that night", 1), ("caught within three nights", 3)):
                share = float(np.mean([any(one[:within]) for one in lost]))
                yield Row(what=f"{what}, {when}", value=share, of=of, low=least if within == 3 else 0.0)
    of = many // 4
    found = [planted(random, MACHINE_EFFECT, lambda day: 0.03, 1)[0] for _ in range(of)]
    yield Row(what="gate, nights 1 % apart: +3 % in one, caught that night", value=float(np.mean(found)), of=of)


def lost_again(random: Random, machine: float, size: float) -> list[bool]:
    """Of the three nights after an improvement of two to nine nights, whether each is caught."""
    kept = int(random.integers(2, 10))
    return planted(random, machine, lambda day: -size if day <= kept else 0.0, kept + 3)[kept:]


def planted(random: Random, machine: float, change: Callable[[int], float], count: int) -> list[bool]:
    """After twelve usual nights, whether each night is caught; ``change``: of one scenario on the first, second ..."""
    base: Base = {}
    said = []
    for number, (times, memory) in enumerate(drawn_nights(random, False, machine, 12 + count)):
        if number >= 12:
            times[VICTIM] *= 1.0 + change(number - 11)
        tonight = measured(number, times, memory)
        rows = gate.judge(tonight, base, Rule())
        said.append((name_of(VICTIM), STEP_TIME) in regressed(rows))
        base = gate.after(tonight, rows, base, Rule(), by_person=False)
    return said[12:]


def caught(number: int, times: Array, memory: Array, base: Base, size: float) -> bool:
    """Whether it is, in one scenario of a night that is otherwise like this; it joins no base."""
    slower = times.copy()
    slower[number % SCENARIOS] *= 1.0 + size
    rows = gate.judge(measured(number, slower, memory), base, Rule())
    return (name_of(number % SCENARIOS), STEP_TIME) in regressed(rows)


def drawn_nights(random: Random, shared: bool, machine: float, count: int) -> Iterator[tuple[Array, Array]]:
    """Step times (ms) and peaks of memory (MiB) of each night, scenarios x launches."""
    levels = 100.0 * np.exp(0.3 * random.standard_normal(SCENARIOS))
    scatter = np.where(np.arange(SCENARIOS) % 2, MEMORY_SCATTER, 0.0)
    for _ in range(count):
        night = machine * random.standard_normal(1 if shared else SCENARIOS)
        launch = BETWEEN_LAUNCHES * random.standard_normal((SCENARIOS, LAUNCHES))
        times = levels[:, None] * np.exp(np.broadcast_to(night, SCENARIOS)[:, None] + launch)
        peaks = 2000.0 * np.exp(scatter * random.standard_normal(SCENARIOS))
        yield times, np.repeat(peaks[:, None], LAUNCHES, axis=1)


def measured(number: int, times: Array, memory: Array) -> dict[str, Measured]:
    """A night as the gate reads it from a digest."""
    scenarios: list[dict[str, Any]] = [
        {
            "scenario": name_of(scenario),
            "what_ran": "simulated",
            "world_size": 1,
            "status": "ok",
            "reason": None,
            "validity": "valid",
            "invalid": [],
            "parity": "same",
            "launches": {"launch": [*range(len(steps))], "step_ms": steps, "peak_total_mib": peaks},
        }
        for scenario, (steps, peaks) in enumerate(zip(times.tolist(), memory.tolist(), strict=True))
    ]
    return gate.measured(f"night {number}", {"scenarios": scenarios})


def name_of(scenario: int) -> str:
    return f"scenario {scenario}"


def regressed(rows: list[Judged]) -> set[tuple[str, str]]:
    return {(row.scenario, row.metric) for row in rows if row.verdict == gate.REGRESSED}


PARTS: tuple[Callable[[int, Random], Iterator[Row]], ...] = (
    until_precision,
    three_launches,
    two_runs,
    power,
    adding,
    machine_effect,
    from_steps,
    nights,
)


if __name__ == "__main__":
    raise SystemExit(main())
