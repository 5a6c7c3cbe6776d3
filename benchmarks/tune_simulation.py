"""`bench tune` on searches whose best candidate is known, because they were made up.

    python benchmarks/tune_simulation.py

Sixty candidates, some of which fail; the launches of one scatter by 1 %. The search itself is the one that `bench tune`
does: a race, and fresh launches of the finalists. Asked: the winner is within 1 % of the best in at least 95 % of the
searches, the interval of its speed holds the truth in 93 to 97 %, and a search takes at most a third of the launches
that five of each candidate would.

Would it help to try candidates in the order of their predicted gain? "predicted" searches do, with a prediction that is
off by 5 % (one standard deviation). They take as many launches, since a race begins with one launch of each: so `bench
tune` spends none on predictions.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import paired
from numpy.typing import NDArray

from bench.analyse.intervals import estimate
from bench.experiments.plan.race import Race
from bench.experiments.plan.tuning import FINAL_LAUNCHES, finalists

SEED = 20261123
CANDIDATES, SEARCHES, FAILING = 60, 500, 6
NOISE, NEAR, DRIFT, OUTLIER = 0.01, 0.01, 0.04, 0.10
"""Standard deviation of a launch's logarithm; what is as good as the best; a drift over a search; one slow launch."""

RIGHT, COVERED, LAUNCHES = 0.95, (0.93, 0.97), 1 / 3

Array = NDArray[np.float64]
Truth = Callable[[np.random.Generator], Array]


def spread(random: np.random.Generator) -> Array:
    """Up to twice as slow as the best, and six within 1 % of it."""
    truth = random.uniform(0.0, math.log(2.0), CANDIDATES)
    truth[:6] = random.uniform(0.0, NEAR, 6)
    return truth


def crowded(random: np.random.Generator) -> Array:
    """A third of all within 5 % of the best."""
    truth = random.uniform(0.0, math.log(2.0), CANDIDATES)
    truth[: CANDIDATES // 3] = random.uniform(0.0, 0.05, CANDIDATES // 3)
    return truth


def alone(random: np.random.Generator) -> Array:
    """One that is 3 % faster than all others, which are alike."""
    truth = np.full(CANDIDATES, 0.03)
    truth[0] = 0.0
    return truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of ``searches`` of one kind: how often right, how often the interval holds the truth, and launches of each."""

    kind: str
    right: float
    covered: float
    launches: float
    most_launches: int


ALIKE = "one ahead"
"""All others are 3 % behind, so no single launch drops one, and a search takes more launches than allowed."""

KINDS: dict[str, tuple[Truth, float, float, bool]] = {
    "spread": (spread, 0.0, 0.0, False),
    "spread, predicted": (spread, 0.0, 0.0, True),
    "spread, drift": (spread, DRIFT, 0.0, False),
    "spread, outliers": (spread, 0.0, 0.02, False),
    "crowded": (crowded, 0.0, 0.0, False),
    "crowded, predicted": (crowded, 0.0, 0.0, True),
    ALIKE: (alone, 0.0, 0.0, False),
}
"""The truth, the drift over as many launches as a search takes, how often a launch is an outlier, and whether the
candidates come in the order of their predicted gain."""
PREDICTED_OFF = 0.05


def search(
    truth: Array, drift: float, outliers: float, predicted: bool, random: np.random.Generator
) -> tuple[bool, bool, int]:
    """One search: whether the winner is near the best, whether its interval holds the truth, and the launches."""
    truth = truth - truth.min()
    place = random.permutation(CANDIDATES)  # of each name in the order of launches
    if predicted:
        place = np.argsort(truth + PREDICTED_OFF * random.standard_normal(CANDIDATES))
    failing = set(random.choice(CANDIDATES, FAILING, replace=False).tolist())
    best = min(truth[one] for one in range(CANDIDATES) if one not in failing)
    done = 0

    def launch(number: int) -> float:
        nonlocal done
        done += 1
        slow = OUTLIER * (random.random() < outliers)
        return 100.0 * math.exp(truth[number] + NOISE * random.standard_normal() + slow + drift * done / 90)

    race = Race([str(number) for number in place])
    while not race.over:
        for name in race.round():
            if int(name) in failing:
                done += 1
                race.add(name, None, "failed")
            else:
                race.add(name, launch(int(name)))
        race.end_round()
    names = finalists(race, {}, None)
    began = done
    fresh = [[launch(int(name)) for name in names] for _ in range(FINAL_LAUNCHES)]
    winner = int(names[0])
    found = estimate(of_round[0] for of_round in fresh)
    level = 100.0 * math.exp(truth[winner] + drift * (began + done) / 2 / 90 + outliers * OUTLIER)
    assert found.low is not None and found.high is not None
    return truth[winner] - best <= math.log1p(NEAR), found.low <= level <= found.high, done


def rates_of(kind: str, searches: int, random: np.random.Generator) -> Rates:
    truth, drift, outliers, predicted = KINDS[kind]
    found = [search(truth(random), drift, outliers, predicted, random) for _ in range(searches)]
    right, covered, launches = zip(*found, strict=True)
    return Rates(
        kind=kind,
        right=float(np.mean(right)),
        covered=float(np.mean(covered)),
        launches=float(np.mean(launches)),
        most_launches=max(launches),
    )


def main() -> int:
    made = paired.parser(__doc__)
    made.add_argument("--searches", type=int, default=SEARCHES, metavar="N", help="of each kind (default: 500)")
    made.add_argument("--seed", type=int, default=SEED, help=f"of the simulated searches (default: {SEED})")
    options = made.parse_args()
    started = time.monotonic()
    rates = [rates_of(kind, options.searches, np.random.default_rng([options.seed, n])) for n, kind in enumerate(KINDS)]
    where = sys.stderr if options.json else sys.stdout
    print(f"{'searches':<20}  within 1 %  interval holds it  launches  at most", file=where)
    for one in rates:
        print(
            f"{one.kind:<20}  {100 * one.right:8.1f} %  {100 * one.covered:15.1f} %  {one.launches:8.1f}  "
            f"{one.most_launches:7d}",
            file=where,
        )
    low, high = COVERED
    limit = LAUNCHES * CANDIDATES * FINAL_LAUNCHES
    checks = [
        paired.Check(f"within 1 % of the best in at least {RIGHT:.0%}", all(one.right >= RIGHT for one in rates)),
        paired.Check(
            f"the interval holds the truth in {low:.0%} to {high:.0%}",
            all(low <= one.covered <= high for one in rates if "outliers" not in one.kind),
        ),
        paired.Check(
            f"{limit:.0f} launches on average at most, {ALIKE} and predicted apart",
            all(one.launches <= limit for one in rates if one.kind != ALIKE and "predicted" not in one.kind),
        ),
    ]
    notes = [f"{options.searches} searches of each kind, {time.monotonic() - started:.0f} s"]
    more = {"rates": [asdict(one) for one in rates], "seed": options.seed}
    return paired.Answer("tune_simulation", [], checks, notes, more).finish(options.json)


if __name__ == "__main__":
    raise SystemExit(main())
