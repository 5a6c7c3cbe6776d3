"""`bench bisect` on searches whose answer is known, because they were made up.

    python benchmarks/bisect_simulation.py

64 commits, of which one makes it slower, or none. Launches scatter by 1, 3 or 5 %, the step is 2, 5 or 20 %: without
drift, with a straight one of 10 % over 300 launches, and with a random walk beside that. Asked: at most 5 % of the
searches of each kind name another commit than the one, or say that the ends are alike. The others find it, or end
undecided when they had as many launches as they may have. Where there is none, that the ends are alike is found.
"""

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np

from bench.experiments.plan.bisection import Bisection

SEED = 20261124
COMMITS, SEARCHES, BUDGET = 64, 500, 300
NOISES, STEPS, DRIFTS = (0.01, 0.03, 0.05), (0.0, 0.02, 0.05, 0.20), ("none", "straight", "wandering")
DRIFT, WALK = 0.10, 0.002
RIGHT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of the searches of one kind. ``launches``: of those that found it, on average."""

    noise: float
    step: float
    drift: str
    found: float
    undecided: float
    wrong: float
    launches: float


def search(noise: float, step: float, drift: str, random: np.random.Generator, budget: int) -> tuple[str, int]:
    """How one search ends, and after how many launches."""
    first_bad = int(random.integers(1, COMMITS))
    names = [str(number) for number in range(COMMITS)]
    bisection, done, walked = Bisection(names), 0, 0.0
    while (block := bisection.next_block()) and done + len(block) <= budget:
        values = {}
        for name in block:
            walked += WALK * random.standard_normal() if drift == "wandering" else 0.0
            straight = DRIFT * done / BUDGET if drift != "none" else 0.0
            slower = math.log1p(step) * (int(name) >= first_bad)
            values[name] = math.exp(slower + straight + walked + noise * random.standard_normal())
            done += 1
        bisection.add(values)
    if not bisection.over and not bisection.ends_alike:
        return "undecided", done
    right = bisection.change > 0.0 and bisection.high == first_bad if bisection.over else step == 0.0
    return "found" if right and bisection.over == (step > 0.0) else "wrong", done


def rates_of(noise: float, step: float, drift: str, searches: int, seed: int) -> Rates:
    random = np.random.default_rng(seed)
    ends = [search(noise, step, drift, random, BUDGET) for _ in range(searches)]
    how = [end for end, _ in ends]
    taken = [launches for end, launches in ends if end == "found"]
    shares = {name: how.count(name) / searches for name in ("found", "undecided", "wrong")}
    return Rates(noise=noise, step=step, drift=drift, launches=float(np.mean(taken)) if taken else math.nan, **shares)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--searches", type=int, default=SEARCHES)
    searches = parser.parse_args().searches
    print(f"{searches} searches of each kind over {COMMITS} commits, {BUDGET} launches at most")
    print("noise   step  drift      found  undecided  wrong  launches")
    failed = False
    for number, (step, noise, drift) in enumerate((s, n, d) for s in STEPS for n in NOISES for d in DRIFTS):
        one = rates_of(noise, step, drift, searches, SEED + number)
        failed |= one.wrong > 1.0 - RIGHT
        print(
            f"{one.noise:5.0%}  {one.step:5.0%}  {one.drift:9}  {one.found:5.1%}     {one.undecided:6.1%}  "
            f"{one.wrong:5.1%}  {one.launches:8.0f}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
