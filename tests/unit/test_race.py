"""Races whose truth is known: the best is found in few launches, and nothing drops out by one accident."""

import math
import random

from bench.experiments.plan.race import MOST_LAUNCHES, Race
from bench.experiments.plan.tuning import finalists, leanest, next_switches, winner


def raced(truth: dict[str, float | None], noise: float = 0.002, seed: int = 1) -> Race:
    """``truth``: step time by candidate, None for one that fails."""
    race, draw = Race(list(truth)), random.Random(seed)
    while not race.over:
        for name in race.round():
            ms = truth[name]
            if ms is None:
                race.add(name, None, "out of memory")
            else:
                race.add(name, ms * math.exp(draw.gauss(0.0, noise)))
        race.end_round()
    return race


def test_the_fastest_wins_and_the_others_say_why_not() -> None:
    race = raced({"a": 100.0, "b": 97.0, "c": 150.0, "d": None, "e": 103.0})
    assert race.ranking()[0] == "b"
    assert race.out == {"d": "out of memory"}
    assert race.beaten["c"].endswith("slower than b") and 50 < float(race.beaten["c"].split()[0]) < 60


def test_what_is_clearly_slower_gets_few_launches() -> None:
    race = raced({"fast": 100.0} | {f"slow{number}": 150.0 + number for number in range(20)})
    assert race.ranking() == ["fast"]
    assert all(race.launches(f"slow{number}") <= 2 for number in range(20))
    assert race.launches("fast") > race.rounds, "it is the control of the stretches that it is not in"


def test_a_single_slow_launch_drops_nobody() -> None:
    race = Race([str(number) for number in range(20)])
    for name in race.round():
        race.add(name, 109.0 if name == "7" else 100.0 + 0.01 * len(race.launched))
    race.end_round()
    assert race.launches("7") == 1 and "7" not in race.beaten


def test_every_other_round_goes_backwards() -> None:
    race, rounds = Race(["a", "b", "c"]), list[list[str]]()
    for _ in range(2):
        rounds.append([])
        for name in race.round():
            race.add(name, 100.0 + 0.01 * len(race.launched))
            rounds[-1].append(name)
        race.end_round()
    assert rounds == [["a", "b", "c"], ["c", "b", "a"]]


def test_equals_are_given_up_after_five_launches() -> None:
    race = raced({"a": 100.0, "b": 100.0}, noise=0.05)
    assert race.over and max(race.launches(name) for name in "ab") == MOST_LAUNCHES


def test_a_drift_chooses_nobody() -> None:
    truth = {"a": 104.0, "b": 102.0, "c": 101.0, "d": 100.0}
    race, done = Race(list(truth)), 0
    while not race.over:
        for name in race.round():
            done += 1
            race.add(name, truth[name] * (1 + 0.02 * done))
        race.end_round()
    assert race.ranking()[0] == "d"


def test_switches_come_one_by_one_and_then_together() -> None:
    race = raced({"a": 100.0, "b": 130.0, "c": 200.0})
    assert race.over
    allow = ("x", "y", "z", "w")
    assert next_switches(race, {}, ()) == []
    assert next_switches(race, {}, allow) == [("a", ("x",)), ("a", ("y",)), ("a", ("z",)), ("a", ("w",))]
    tried = {("a", (switch,)): f"a+{switch}" for switch in "xyz"} | {("a", ("w",)): None}
    times = {"a+x": 97.0, "a+y": 95.0, "a+z": 110.0}
    race.enter(list(times))
    assert not race.over
    for name in race.round():
        race.add(name, times.get(name, 100.0))
    assert next_switches(race, tried, allow) == [("a", ("y", "x"))]
    assert next_switches(race, tried | {("a", ("y", "x")): "a+x+y"}, allow) == []


def test_the_best_in_fp32_tries_levels_before_switches() -> None:
    race = raced({"a_o1": 90.0, "a": 100.0, "b": 110.0, "c": 200.0})
    plain, allow = ("a", "b", "c"), ("o1", "o2", "x")
    products = [("a", ("o1",)), ("a", ("o2",)), ("b", ("o1",)), ("b", ("o2",))]
    assert next_switches(race, {}, allow, plain) == products
    tried = dict.fromkeys(products, "a_o1")
    assert next_switches(race, tried, allow, plain) == [("a_o1", ("x",))]
    assert next_switches(race, tried | {("a_o1", ("x",)): None}, allow, plain) == []
    assert next_switches(race, {}, ("x",), plain) == [("a_o1", ("x",))], "without levels"


def test_who_the_finalists_are() -> None:
    race = raced({"ddp": 150.0, "fast": 100.0, "lean": 103.0, "leaner": 120.0})
    peaks = {"ddp": 900.0, "fast": 1000.0, "lean": 600.0, "leaner": 300.0}
    assert finalists(race, peaks, "ddp") == ("fast", "lean", "ddp")
    assert leanest("fast", race, peaks) == "lean"
    assert leanest("fast", race, {"fast": 1000.0, "lean": 999.0}) == "fast"
    assert finalists(Race(["a"]), {}, "a") == ()


def test_unjudged_numerics_win_if_clearly_faster() -> None:
    race = raced({"dp": 99.5, "single": 100.0, "slow": 150.0})
    assert race.best() == "dp" and "single" in race.beaten
    peaks = {"dp": 500.0, "single": 1000.0}
    assert finalists(race, peaks, None, {"dp"})[:2] == ("single", "dp")
    assert leanest("single", race, peaks, {"dp"}) == "single"
    assert finalists(raced({"dp": 90.0, "single": 100.0}), {}, None, {"dp"})[0] == "dp"
    assert winner(raced({"dp": 90.0}), {"dp"}) == "dp"
