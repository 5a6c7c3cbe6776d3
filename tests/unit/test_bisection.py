"""The search of ``bench bisect``, on values that are made up."""

import math
import random

import pytest
from standin.documents import document, with_records

from bench.experiments.plan.bisection import Bisection
from bench.runs.experiments import Bisected, Level
from bench.words.bisected import in_words


def searched(bisection: Bisection, slower_from: int, step: float, noise: float, blocks: int, drift: float = 0.0) -> int:
    """Do this many blocks, of candidates called by their number. Returns how many launches there were."""
    draw, done = random.Random(1), 0
    for _ in range(blocks):
        values = {}
        for name in bisection.next_block():
            level = math.log1p(step) * (int(name) >= slower_from) + drift * done
            values[name] = math.exp(level + draw.gauss(0.0, noise))
            done += 1
        if values:
            bisection.add(values)
    return done


@pytest.mark.parametrize("slower_from", [1, 5, 8, 15])
@pytest.mark.parametrize(("step", "noise"), [(0.1, 0.01), (-0.2, 0.02), (1.0, 0.0), (1e-4, 0.0)])
def test_the_first_bad_one_is_found(slower_from: int, step: float, noise: float) -> None:
    bisection = Bisection([str(number) for number in range(16)])
    searched(bisection, slower_from, step, noise, 60, drift=0.001 if noise else 0.0)
    assert bisection.over and (bisection.low, bisection.high) == (slower_from - 1, slower_from)
    assert bisection.next_block() == []
    ratio, low, high = bisection.levels()["15"]
    assert low <= 1.0 + step <= high or ratio == pytest.approx(1.0 + step, rel=1e-6)


@pytest.mark.parametrize(("noise", "alike"), [(0.02, False), (0.005, True), (0.0, True)])
def test_equal_ends_end_the_search(noise: float, alike: bool) -> None:
    bisection = Bisection([str(number) for number in range(16)])
    launches = searched(bisection, 99, 0.0, noise, 100)
    assert not bisection.ends_differ and (bisection.low, bisection.high) == (0, 15)
    assert (bisection.ends_alike, launches < 100) == (alike, alike) and not bisection.over


def test_one_slow_launch_decides_nothing() -> None:
    bisection = Bisection(["a", "b", "c"])
    for number in range(3):
        bisection.add({"a": 1.0 + 0.003 * number, "b": 1.05, "c": 1.1})
    assert bisection.ends_differ
    bisection.add({"a": 1.0, "b": 50.0, "c": 1.1})
    assert (bisection.low, bisection.high) == (0, 2)


def test_a_skipped_one_is_stepped_over() -> None:
    bisection = Bisection([str(number) for number in range(8)])
    assert bisection.candidate == "4"
    bisection.skipped["4"] = "it does not run"
    searched(bisection, 4, 0.2, 0.005, 60)
    assert bisection.over and (bisection.low, bisection.high) == (3, 5)
    begun = Bisection([str(number) for number in range(8)])
    begun.add({"0": 1.0, "4": 1.1, "7": 1.2})
    begun.skipped["6"] = "it does not run"
    assert begun.candidate == "4", "which has a launch, though 3 is in the middle now"


def test_blocks_alternate_between_two_candidates() -> None:
    bisection = Bisection(["a", "b"])
    assert bisection.next_block() == ["a", "b"]
    bisection.add({"a": 1.0, "b": 1.2})
    assert bisection.next_block() == ["b", "a"]
    for _ in range(4):
        bisection.add({"a": 1.0, "b": 1.2})
    assert bisection.over and bisection.next_block() == []


def test_a_search_of_few_blocks_in_words() -> None:
    of = {"of": "git", "candidates": {"a": "", "b": "", "c": ""}, "metric": "step time", "error": 0.05}
    bracket = {"low": "a", "high": "c", "launches": 2}
    (said,) = in_words(with_records(document(), Bisected(**of, **bracket)))
    assert said == "c is not told apart from a within the budget: 2 launches."
    levels = {"c": Level(ratio=1.2, low=1.1, high=1.3)}
    (said,) = in_words(with_records(document(), Bisected(**of, **bracket, ends_differ=True, levels=levels)))
    assert "1 between them is not told apart" in said and "takes 1.2 (1.1 to 1.3) times as long in c as in a" in said
    (said,) = in_words(with_records(document(), Bisected(**of | {"metric": "{odd}"}, **bracket, levels=levels)))
    assert "{odd}: 1.2 (1.1 to 1.3) in c of that in a" in said
