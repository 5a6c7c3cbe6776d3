"""The verdicts of bench on runs whose truth is known, because they were made up.

    python benchmarks/statistics_simulation.py

What `bench` says about two ways to train is worth what it says where there is nothing to find (A/A) and where there is
something (5 % planted). Neither can be asked of a GPU, where the truth is what is looked for; so the steps are drawn,
and everything after that is what a real run goes through: rows of steps.parquet, per_launch, compare, estimate.

A launch has a level of its own (1 % apart from others), its steps resemble their neighbours (AR(1)), two ranks take
turns in being the slower one, a step in a hundred takes twice as long, and the warm-up steps take three times as long.
Beside the verdicts of bench stand those of two habits on the same runs: to pool the steps of all launches in a t test,
and to resample the launches (percentile bootstrap), which is right for many of them and not for five.

Scenarios of one run share the drift of the machine. For them launches alone are drawn, of runs of R rounds over S
scenarios in the order in which bench runs them, and compared as `bench compare RUN` does: without drift; with one of
4 % over the run, straight or a random walk; with rounds that are 2 % apart; where one scenario scatters three times as
much, a launch is missing, or one takes 10 % longer. Beside that stands Welch's t, which knows nothing of rounds.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import paired
import pandas as pd
from numpy.typing import NDArray
from scipy import signal, stats

from bench.analyse.comparison import FASTER, SLOWER, compare
from bench.analyse.intervals import estimate
from bench.analyse.rounds import Drifting, Fit
from bench.analyse.steps import headline, per_iteration, per_launch
from bench.runs.frames import RankSteps

SEED = 20261121
LAUNCHES = 5
BETWEEN_LAUNCHES = 0.01
BETWEEN_STEPS = 0.02
NEIGHBOURS = 0.8
"""Noise of a launch's level and of a step, standard deviations of logarithms; correlation of a step with the next."""

RANKS, WARMUP, MEASURED = 2, 5, 100
STEP_MS = 100.0
PLANTED = 0.05
RESAMPLES = 1000

FALSE_AT_MOST = 0.07
FOUND_AT_LEAST = 0.95
COVERED = (0.93, 0.97)

Array = NDArray[Any]

RUNS = ((2, 3), (2, 5), (2, 10), (3, 5), (10, 3), (10, 5), (10, 10))
"""Scenarios and rounds."""
OF_A_LAUNCH = 0.0125
DRIFT, APART, OUTLYING, NOISIER = 0.04, 0.02, 0.10, 3.0
"""Of a run, of its rounds (standard deviation) and of one launch; how much more one scenario scatters."""
SMALL = 0.02
PLAIN, STRAIGHT, WALK, BLOCKS = "no drift", "straight drift", "random walk", "rounds apart"
UNEQUAL, LACKING, OUTLIER = "unequal scatter", "a launch missing", "an outlier"
CASES = (PLAIN, STRAIGHT, WALK, BLOCKS, UNEQUAL, LACKING, OUTLIER)
FALSE_WITHIN = 0.06
"""5 % and what the simulation itself may be wrong by."""
LOST_AT_MOST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How often, of all pairs of scenarios of runs of one kind. ``found``: a scenario that takes 2 % longer.

    ``false`` is one less how often the interval holds the truth. ``welch_*``: what Welch's t says of them.
    """

    scenarios: int
    rounds: int
    name: str
    false: float
    found: float
    welch_false: float
    welch_found: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often, of all comparisons; and how often an interval held what it is said to hold."""

    comparisons: int
    false: float
    found: float
    covered_time: float
    covered_ratio: float
    pooled_false: float
    bootstrap_false: float


def main() -> int:
    options = arguments().parse_args()
    started = time.monotonic()
    rates = simulate(options.comparisons, np.random.default_rng(options.seed))
    cases = list(of_one_run(2 * options.comparisons, np.random.default_rng([options.seed, 1])))
    wall_s = time.monotonic() - started
    lines = [*table(rates), "", *table_of_cases(cases)]
    print("\n".join(lines), file=sys.stderr if options.json else sys.stdout)
    return paired.finish(
        "statistics_simulation",
        [],
        [*checks(rates), *checks_of_cases(cases)],
        notes=[f"{rates.comparisons} comparisons of {LAUNCHES} launches against {LAUNCHES}, {wall_s:.0f} s"],
        as_json=options.json,
        rates={name: getattr(rates, name) for name in Rates.__slots__},
        of_one_run=[asdict(case) for case in cases],
        seed=options.seed,
        wall_s=wall_s,
    )


def arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="one JSON document on standard output")
    made.add_argument("--comparisons", type=int, default=1000, metavar="N", help="of either kind (default: 1000)")
    made.add_argument("--seed", type=int, default=SEED, help=f"of the simulated runs (default: {SEED})")
    return made


def simulate(comparisons: int, random: np.random.Generator) -> Rates:
    """Draw runs of two scenarios, A/A and with the planted difference, and count what is said about them."""
    base = steps_of(comparisons, random, 1.0)
    same = steps_of(comparisons, random, 1.0)
    slower = steps_of(comparisons, random, 1.0 + PLANTED)
    a, b, c = (medians(steps) for steps in (base, same, slower))
    alike = [compare(x, y) for x, y in zip(a, b, strict=True)]
    planted = [compare(x, y) for x, y in zip(a, c, strict=True)]
    truth = float(np.exp(np.log(np.concatenate([a, b])).mean()))  # of very many launches
    times = [estimate(x) for x in np.concatenate([a, b])]
    return Rates(
        comparisons=comparisons,
        false=share(one.verdict in (FASTER, SLOWER) for one in alike),
        found=share(one.verdict == SLOWER for one in planted),
        covered_time=share(holds(one.low, truth, one.high) for one in times),
        covered_ratio=share(
            [
                *(holds(one.low, 1.0, one.high) for one in alike),
                *(holds(one.low, 1.0 + PLANTED, one.high) for one in planted),
            ]
        ),
        pooled_false=share(pooled(base, same) < 0.05),
        bootstrap_false=share(resampled(a, b, random)),
    )


def steps_of(comparisons: int, random: np.random.Generator, factor: float) -> pd.DataFrame:
    """Rows of steps.parquet (what figures are made of) of all launches of one scenario in all comparisons."""
    launches, steps = comparisons * LAUNCHES, WARMUP + MEASURED
    level = BETWEEN_LAUNCHES * random.standard_normal((launches, 1, 1))
    times = STEP_MS * factor * np.exp(level + autocorrelated(random, (launches, RANKS, steps)))
    times[:, :, :WARMUP] *= 3.0
    times[random.random(times.shape) < 0.01] *= 2.0
    launch, rank, step = (index.ravel() for index in np.indices(times.shape))
    return pd.DataFrame(
        {
            "launch": launch,
            "scenario": "ddp",
            "repeat": launch % LAUNCHES,
            "rank": rank,
            "step": step,
            "warmup": step < WARMUP,
            "data_ms": 0.0,
            "step_ms": times.ravel(),
        }
    )


def autocorrelated(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """AR(1) along the last axis, stationary from its first value on, of standard deviation BETWEEN_STEPS."""
    shocks = random.standard_normal(shape)
    shocks[..., 1:] *= np.sqrt(1.0 - NEIGHBOURS**2)
    noise: Array = BETWEEN_STEPS * signal.lfilter([1.0], [1.0, -NEIGHBOURS], shocks, axis=-1)
    return noise


def medians(steps: pd.DataFrame) -> Array:
    """The figure of each launch, one row for each comparison."""
    found: Array = per_launch(per_iteration(RankSteps(steps))).frame["median_ms"].to_numpy().reshape(-1, LAUNCHES)
    return found


def pooled(base: pd.DataFrame, new: pd.DataFrame) -> Array:
    """p of each comparison if every measured step were a replicate."""
    one, other = (
        np.log(headline(per_iteration(RankSteps(steps[~steps["warmup"]])))["step_ms"].to_numpy()).reshape(
            -1, LAUNCHES * MEASURED
        )
        for steps in (base, new)
    )
    p: Array = stats.ttest_ind(one, other, axis=1, equal_var=False).pvalue
    return p


def resampled(base: Array, new: Array, random: np.random.Generator) -> NDArray[np.bool_]:
    """Whether 1 is outside the percentile bootstrap's 95 % interval of the ratio, for each comparison."""
    outside = []
    for one, other in zip(np.log(base), np.log(new), strict=True):
        draws = random.integers(LAUNCHES, size=(2, RESAMPLES, LAUNCHES))
        ratios = other[draws[0]].mean(axis=1) - one[draws[1]].mean(axis=1)
        low, high = np.quantile(ratios, [0.025, 0.975])
        outside.append(not low <= 0.0 <= high)
    return np.array(outside)


def of_one_run(runs: int, random: np.random.Generator) -> Iterator[Case]:
    """Each case of each size of run."""
    for scenarios, rounds in RUNS:
        for name in CASES:
            pairs = scenarios * (scenarios - 1) // 2
            yield one_case(name, scenarios, rounds, runs * 5 // min(5, pairs), random)


def one_case(name: str, scenarios: int, rounds: int, runs: int, random: np.random.Generator) -> Case:
    in_order = [range(scenarios)[:: -1 if number % 2 else 1] for number in range(rounds)]
    scenario = np.array([place for one in in_order for place in one])
    number, order = np.repeat(np.arange(rounds), scenarios), np.arange(rounds * scenarios)
    noise = OF_A_LAUNCH * random.standard_normal((runs, len(order)))
    if name == UNEQUAL:
        noise[:, scenario == 0] *= NOISIER
    if name == OUTLIER:
        noise[np.arange(runs), random.integers(len(order), size=runs)] += OUTLYING
    logs = noise + drift_of(name, runs, number, order, random)
    if name == LACKING:
        kept = order > 0
        logs, scenario, number, order = logs[:, kept], scenario[kept], number[kept], order[kept]
    ours, welch = Drifting.of(logs, scenario, number, order), Fit.of(logs, scenario, np.empty((len(order), 0)))
    pairs = list(combinations(range(scenarios), 2))
    of_ours, of_welch = ([said_of(*fit.change(*pair)) for pair in pairs] for fit in (ours, welch))
    false, found = np.mean(of_ours, axis=0)
    welch_false, welch_found = np.mean(of_welch, axis=0)
    return Case(
        scenarios=scenarios,
        rounds=rounds,
        name=name,
        false=float(false),
        found=float(found),
        welch_false=float(welch_false),
        welch_found=float(welch_found),
    )


def drift_of(name: str, runs: int, number: Array, order: Array, random: np.random.Generator) -> Array:
    shape = (runs, len(order))
    if name in (STRAIGHT, LACKING):
        return np.broadcast_to(DRIFT * order / len(order), shape)
    if name == WALK:
        return np.asarray(np.cumsum(random.standard_normal(shape), axis=1) * DRIFT / np.sqrt(len(order)))
    if name == BLOCKS:
        return np.asarray(APART * random.standard_normal((runs, number.max() + 1))[:, number])
    return np.zeros(shape)


def said_of(change: Array, error: Array, freedom: Array) -> tuple[float, float]:
    """How often a difference is found if nothing differs, and if :data:`SMALL` is added."""
    reach = stats.t.ppf(0.975, freedom) * error
    return float(np.mean(np.abs(change) > reach)), float(np.mean(change + np.log1p(SMALL) > reach))


def table_of_cases(cases: list[Case]) -> list[str]:
    lines = [f"{'scenarios of one run':<30}  A/A different  +{SMALL:.0%} found   Welch: different   found"]
    for case in cases:
        what = f"{case.scenarios} x {case.rounds}, {case.name}"
        lines.append(
            f"{what:<30}  {100 * case.false:11.1f} %  {100 * case.found:7.1f} %  "
            f"{100 * case.welch_false:14.1f} %  {100 * case.welch_found:4.1f} %"
        )
    return lines


def checks_of_cases(cases: list[Case]) -> list[paired.Check]:
    plain = {(case.scenarios, case.rounds): case for case in cases if case.name == PLAIN}
    many = max(case.scenarios for case in cases)
    drifting = [case for case in cases if case.name == STRAIGHT or (case.name == BLOCKS and case.scenarios == many)]
    low, _ = COVERED
    return [
        paired.Check(
            f"scenarios of one run: no difference is called one in at most {FALSE_WITHIN:.1%}, unequal scatter apart",
            all(case.false <= FALSE_WITHIN for case in cases if case.name != UNEQUAL),
        ),
        paired.Check(
            f"their interval holds the truth in at least {low:.0%}", all(case.false <= 1.0 - low for case in cases)
        ),
        paired.Check(
            f"without drift +{SMALL:.0%} is found as often as by Welch's t, to {LOST_AT_MOST:.0%}",
            all(case.found >= case.welch_found - LOST_AT_MOST for case in plain.values()),
        ),
        paired.Check(
            f"with straight drift as often as without, to {LOST_AT_MOST:.0%}; of {many} with rounds apart too",
            all(case.found >= plain[case.scenarios, case.rounds].found - LOST_AT_MOST for case in drifting),
        ),
    ]


def holds(low: float | None, truth: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= truth <= high


def share(events: Iterable[bool]) -> float:
    """The part of them that is true."""
    return float(np.mean(list(events)))


def table(rates: Rates) -> list[str]:
    """The rates for people, with what two common habits do on the same runs."""
    low, high = COVERED
    rows = [
        ("A/A called different", rates.false, f"at most {FALSE_AT_MOST:.0%}"),
        (f"{PLANTED:.0%} slower, found", rates.found, f"at least {FOUND_AT_LEAST:.0%}"),
        ("95 % interval of a time holds it", rates.covered_time, f"{low:.0%} to {high:.0%}"),
        ("95 % interval of a ratio holds it", rates.covered_ratio, f"{low:.0%} to {high:.0%}"),
        ("A/A called different, steps pooled", rates.pooled_false, "for contrast"),
        ("A/A called different, percentile bootstrap", rates.bootstrap_false, "for contrast"),
    ]
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:<{width}}  {100 * rate:5.1f} %  {bound}" for name, rate, bound in rows]


def checks(rates: Rates) -> list[paired.Check]:
    low, high = COVERED
    return [
        paired.Check(f"no difference is called one in at most {FALSE_AT_MOST:.0%}", rates.false <= FALSE_AT_MOST),
        paired.Check(f"{PLANTED:.0%} are found in at least {FOUND_AT_LEAST:.0%}", rates.found >= FOUND_AT_LEAST),
        paired.Check(f"the interval of a time holds it in {low:.0%} to {high:.0%}", low <= rates.covered_time <= high),
        paired.Check(
            f"the interval of a ratio holds it in {low:.0%} to {high:.0%}", low <= rates.covered_ratio <= high
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
