"""The verdicts of the gate on nights whose truth is known, because they were made up.

    python benchmarks/gate_simulation.py

A gate that cries wolf is switched off, and one that sleeps is none. How often it does either cannot be asked of a real
history, where nobody knows which nights were slower; so histories of 400 nights are drawn, ten scenarios of five
launches, and every night goes through what `bench gate` does with a real one: judged against the nights accepted before
it, and accepted or not. Beside each night stand two that are like it but for one scenario, whose steps take 3 % or 5 %
longer: they are judged and then forgotten, so that every night is the first one of its slowdown.

A night has a level of its own (0.6 %), and a launch (0.5 %). Whether scenarios share the night's level is not known
beforehand and differs by machine: a hot summer day slows all of them, a page that lies badly slows one. Both are drawn.
Peak memory is the same every night in one half of the scenarios, and scatters by 0.2 % in the other.

The first ten nights, which are judged by intervals, are told apart: there a slowdown must be larger to be proven.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import paired
from numpy.typing import NDArray

from bench.history import gate
from bench.history.gate import Base, Judged, Measured, Rule

SEED = 20261121
NIGHTS, SCENARIOS, LAUNCHES = 400, 10, 5
BETWEEN_NIGHTS, BETWEEN_LAUNCHES = 0.006, 0.005
"""Standard deviations of logarithms."""

MEMORY_SCATTER = 0.002
PLANTED = (0.03, 0.05)
PLANTED_EARLY = (0.05, 0.10)
FALSE_AT_MOST = 0.02
CAUGHT_AT_LEAST = {0.03: 0.85, 0.05: 0.99}

Array = NDArray[np.float64]


@dataclass(kw_only=True)
class Counts:
    """Nights of one kind: how many, how many raised a false alarm, and of those with something planted what was said.

    ``caught``: the planted scenario is called regressed; ``alone``: and nothing else is.
    """

    nights: int = 0
    false: int = 0
    caught: dict[float, int]
    alone: dict[float, int]

    @classmethod
    def none(cls, planted: tuple[float, ...]) -> "Counts":
        return cls(caught=dict.fromkeys(planted, 0), alone=dict.fromkeys(planted, 0))

    def rates(self) -> dict[str, Any]:
        return {
            "nights": self.nights,
            "false_alarms": self.false / self.nights,
            "caught": {f"{size:.0%}": count / self.nights for size, count in self.caught.items()},
            "caught_and_nothing_else": {f"{size:.0%}": count / self.nights for size, count in self.alone.items()},
        }


def main() -> int:
    options = arguments().parse_args()
    started = time.monotonic()
    kinds = {"a level of its own": False, "one level for all": True}
    found = {name: simulate(shared, options.histories, options.seed) for name, shared in kinds.items()}
    wall_s = time.monotonic() - started
    print("\n".join(table(found)), file=sys.stderr if options.json else sys.stdout)
    return paired.finish(
        "gate_simulation",
        [],
        [check for name, (late, _) in found.items() for check in checks(name, late)],
        notes=[
            f"{options.histories} histories of {NIGHTS} nights a kind, {SCENARIOS} scenarios of {LAUNCHES} launches",
            f"{wall_s:.0f} s",
        ],
        as_json=options.json,
        rates={
            name: {"with_ten_nights": late.rates(), "before": early.rates()} for name, (late, early) in found.items()
        },
        seed=options.seed,
        wall_s=wall_s,
    )


def arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="one JSON document on standard output")
    made.add_argument(
        "--histories", type=int, default=10, metavar="N", help="of 400 nights, of each kind (default: 10)"
    )
    made.add_argument("--seed", type=int, default=SEED, help=f"of the simulated nights (default: {SEED})")
    return made


def simulate(shared: bool, histories: int, seed: int) -> tuple[Counts, Counts]:
    """What the gate says from the eleventh night on, and of the nights before it."""
    random = np.random.default_rng([seed, shared])
    late, early = Counts.none(PLANTED), Counts.none(PLANTED_EARLY)
    rule = Rule()
    for _ in range(histories):
        base: Base = {}
        for number, (times, memory) in enumerate(drawn(random, shared)):
            night = measured(number, times, memory)
            rows = gate.judge(night, base, rule)
            if number:  # the first one has nothing to be held against
                counts, planted = (late, PLANTED) if number >= rule.nights else (early, PLANTED_EARLY)
                victim = int(random.integers(SCENARIOS))
                counts.nights += 1
                counts.false += bool(regressed(rows))
                for size in planted:
                    slower = times.copy()
                    slower[victim] *= 1.0 + size
                    said = regressed(gate.judge(measured(number, slower, memory), base, rule))
                    counts.caught[size] += (name_of(victim), gate.STEP_TIME) in said
                    counts.alone[size] += said == {(name_of(victim), gate.STEP_TIME)}
            base = gate.after(night, rows, base, rule, by_person=False)
    return late, early


def drawn(random: np.random.Generator, shared: bool) -> Iterator[tuple[Array, Array]]:
    """The nights of a history: step times (ms) and peaks of memory (MiB), scenarios x launches."""
    levels = 100.0 * np.exp(0.3 * random.standard_normal(SCENARIOS))
    scatter = np.where(np.arange(SCENARIOS) % 2, MEMORY_SCATTER, 0.0)
    for _ in range(NIGHTS):
        night = BETWEEN_NIGHTS * random.standard_normal(1 if shared else SCENARIOS)
        launch = BETWEEN_LAUNCHES * random.standard_normal((SCENARIOS, LAUNCHES))
        times = levels[:, None] * np.exp(np.broadcast_to(night, SCENARIOS)[:, None] + launch)
        peaks = 2000.0 * np.exp(scatter * random.standard_normal(SCENARIOS))
        yield times, np.repeat(peaks[:, None], LAUNCHES, axis=1)


def measured(number: int, times: Array, memory: Array) -> dict[str, Measured]:
    """A night as the gate reads it from a digest."""
    launches = [
        [{"step_ms": step, "peak_total_mib": peak} for step, peak in zip(*figures, strict=True)]
        for figures in zip(times.tolist(), memory.tolist(), strict=True)
    ]
    scenarios = [
        {
            "scenario": name_of(scenario),
            "what_ran": "simulated",
            "world_size": 1,
            "status": "ok",
            "reason": None,
            "validity": "valid",
            "parity": "same",
            "launches": mine,
        }
        for scenario, mine in enumerate(launches)
    ]
    return gate.measured(f"night {number}", {"scenarios": scenarios})


def name_of(scenario: int) -> str:
    return f"scenario {scenario}"


def regressed(rows: list[Judged]) -> set[tuple[str, str]]:
    return {(row.scenario, row.metric) for row in rows if row.verdict == gate.REGRESSED}


def table(found: dict[str, tuple[Counts, Counts]]) -> list[str]:
    """The rates for people."""
    lines = []
    for name, (late, early) in found.items():
        lines.append(f"Scenarios have {name} in a night:")
        for when, counts in (("with ten nights before", late), ("before ten nights", early)):
            share = counts.false / counts.nights
            lines.append(f"  {when}: {counts.nights} nights")
            lines.append(
                f"    {'false alarm in any scenario or metric':<42}{100 * share:6.2f} % {error(share, counts)}"
            )
            for size, caught in counts.caught.items():
                share, alone = caught / counts.nights, counts.alone[size] / counts.nights
                what = f"+{size:.0%} in one scenario caught that night"
                lines.append(
                    f"    {what:<42}{100 * share:6.2f} % {error(share, counts)}; nothing else named {alone:.1%}"
                )
    return lines


def error(share: float, counts: Counts) -> str:
    return f"± {196 * math.sqrt(share * (1 - share) / counts.nights):.2f}"


def checks(name: str, late: Counts) -> list[paired.Check]:
    return [
        paired.Check(f"{name}: false alarms in at most {FALSE_AT_MOST:.0%}", late.false <= FALSE_AT_MOST * late.nights),
        *(
            paired.Check(
                f"{name}: +{size:.0%} caught in at least {least:.0%}", late.caught[size] >= least * late.nights
            )
            for size, least in CAUGHT_AT_LEAST.items()
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
