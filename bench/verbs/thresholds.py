"""The options of ``gate`` and ``history`` for the thresholds of the gate."""

import argparse
from typing import TYPE_CHECKING

from bench.verbs.options import percentage, whole_number

if TYPE_CHECKING:
    from bench.analyse.history.gate import Rule

FEWEST_NIGHTS = 3


def nights(text: str) -> int:
    value = whole_number(text)
    if value < FEWEST_NIGHTS:
        raise argparse.ArgumentTypeError(f"{text!r} is fewer than the {FEWEST_NIGHTS} nights that a bound needs")
    return value


def level(text: str) -> float:
    value = percentage(text)
    if value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is the level of a bound, and below 50%; 99% is usual")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    base = "accepted nights that make a base (default: 10)"
    parser.add_argument("--nights", type=nights, default=10, metavar="N", help=base)
    bound = "of the prediction bound, over all scenarios of a metric (default: 99%%)"
    parser.add_argument("--level", type=level, default=0.99, metavar="PERCENT", help=bound)
    slower = "a step time that is slower by less has not regressed (default: 1%%)"
    parser.add_argument("--threshold", type=percentage, default=0.01, metavar="PERCENT", help=slower)
    memory = "the same of peak memory (default: 1%%)"
    parser.add_argument("--memory-threshold", type=percentage, default=0.01, metavar="PERCENT", help=memory)
    early = "of both while the base has fewer nights, and with --baseline (default: 3%%)"
    parser.add_argument("--early-threshold", type=percentage, default=0.03, metavar="PERCENT", help=early)


def rule_from(options: argparse.Namespace) -> "Rule":
    from bench.analyse.history.gate import MEMORY, STEP_TIME, Rule

    return Rule(
        nights=options.nights,
        level=options.level,
        thresholds={STEP_TIME: options.threshold, MEMORY: options.memory_threshold},
        before=options.early_threshold,
    )
