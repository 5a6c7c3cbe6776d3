"""Two commands in turns, as `bench attach --base` runs them, against one after the other, on a machine that drifts.

    python benchmarks/alternation.py

Five launches of each, which scatter by 1 %, and the machine gets 10 % slower meanwhile, in a straight line. Both ways
are judged by bench's own code: in turns as scenarios of one run, one after the other as two runs. Asked: of equal
commands at most 5 % are told apart in turns, and 5 % more are found in at least 90 %.
"""

import argparse
import math
import sys

import numpy as np

from bench.analyse.multiplicity import ERROR
from bench.analyse.rounds import Rounds

SEED, PAIRS, LAUNCHES, NOISE, DRIFT = 20261124, 2000, 5, 0.01, 0.10


def told_apart(order: list[str], slower: float, random: np.random.Generator) -> tuple[bool, bool]:
    """Whether the launches in this order are told apart as scenarios of one run, and as two runs."""
    logs = np.linspace(0.0, math.log1p(DRIFT), len(order)) + NOISE * random.standard_normal(len(order))
    rows, repeats = [], {"base": 0, "new": 0}
    for number, (name, log) in enumerate(zip(order, logs, strict=True)):
        value = 100.0 * math.exp(log + math.log1p(slower) * (name == "new"))
        rows.append((name, repeats[name], number, value))
        repeats[name] += 1
    both = Rounds(rows)
    base, new = (Rounds([row for row in rows if row[0] == name]) for name in ("base", "new"))
    ratios = both.ratio("base", "new"), new.over(base, "base", "new")
    within, between = (ratio.p is not None and ratio.p < ERROR for ratio in ratios)
    return within, between


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    random = np.random.default_rng(SEED)
    turns = [name for round_ in range(LAUNCHES) for name in (("base", "new") if round_ % 2 == 0 else ("new", "base"))]
    after = ["base"] * LAUNCHES + ["new"] * LAUNCHES
    shares = {}
    for slower in (0.0, 0.05):
        shares["in turns", slower] = sum(told_apart(turns, slower, random)[0] for _ in range(pairs)) / pairs
        shares["one after the other", slower] = sum(told_apart(after, slower, random)[1] for _ in range(pairs)) / pairs
    for (how, slower), share in shares.items():
        print(f"{how:19}, {'equal' if not slower else f'{slower:.0%} apart'}: told apart in {share:.1%}")
    return int(shares["in turns", 0.0] > ERROR or shares["in turns", 0.05] < 0.9)


if __name__ == "__main__":
    sys.exit(main())
