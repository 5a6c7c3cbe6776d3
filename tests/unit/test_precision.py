"""Launches until the answer is precise enough: when they are added, when they end, and what is said of it."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats
from standin.documents import document, with_records

from bench.core.codec import encode
from bench.experiments import measure
from bench.experiments.plan.interval_target import FEWEST_LAUNCHES, MOST_LAUNCHES, IntervalTarget
from bench.verbs.run import _next_steps


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def precision(target: float = 0.05, budget_s: float = 100.0) -> tuple[IntervalTarget, Clock]:
    clock = Clock()
    return IntervalTarget(target, budget_s, started=clock(), clock=clock), clock


def add(to: IntervalTarget, clock: Clock, scenario: str, *medians_ms: float | None, wall_s: float = 1.0) -> None:
    for median_ms in medians_ms:
        clock.now += wall_s
        to.add(scenario, median_ms, wall_s)


def half_width(*medians_ms: float) -> float:
    logs = [math.log(value) for value in medians_ms]
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    return math.exp(float(stats.t.ppf(0.975, len(logs) - 1)) * deviation / math.sqrt(len(logs))) - 1


def test_fewer_than_three_launches_are_never_precise() -> None:
    wanted, clock = precision(target=0.5)
    for _ in range(FEWEST_LAUNCHES):
        assert wanted.next_round(["ddp"]) == ["ddp"]
        assert encode(wanted.outcome(["ddp"]))["scenarios"]["ddp"]["reached"] is False
        add(wanted, clock, "ddp", 100.0)
    assert wanted.next_round(["ddp"]) == []


def test_a_run_is_resumed_for_launches_that_its_budget_did_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for them again. Those beyond them are within the budget, as before."""
    monkeypatch.setattr(measure, "job_of", lambda request, found, launch, repeat, hosts: (found.name, repeat))
    monkeypatch.setattr(measure, "replace", lambda job, **changes: job)
    found, ignore = SimpleNamespace(name="ddp"), lambda names: None
    lab: Any = SimpleNamespace(
        request=SimpleNamespace(launches=4, parity=False),
        scenarios=(found,),
        runnable=[found],
        site=SimpleNamespace(hosts=()),
        next_launch=lambda: 1,
        progress=SimpleNamespace(expect=ignore, drop=ignore),
    )
    spent, clock = precision(budget_s=3.0)
    add(spent, clock, "ddp", 100.0, 120.0, wall_s=2.0)
    record = spent.outcome(["ddp"])
    for before, repeats in (((), [0]), ((record,), [0, 1, 2, 3])):
        lab.writer = SimpleNamespace(document=with_records(document(), *before))
        assert list(measure._rounds(lab, spent, lambda names: True)) == [("ddp", repeat) for repeat in repeats]


def test_what_comes_later_is_in_the_budget() -> None:
    """Of 10 s, 4 are spent by launches of 1 s, and 3 more launches come after them: of diagnosis and of numerics."""
    wanted, clock = precision(budget_s=10.0)
    wanted.later = 3
    add(wanted, clock, "ddp", 100.0, 100.0)
    add(wanted, clock, "single", 100.0, 100.0)
    assert wanted.affords(["ddp", "single"])
    clock.now += 1.5
    assert wanted.affords(["ddp"]) and not wanted.affords(["ddp", "single"])


def test_no_launch_would_end_after_the_budget() -> None:
    """One more is expected to take what those before took in the mean."""
    wanted, clock = precision(target=0.001, budget_s=10.0)
    for median_ms, wall_s in ((100.0, 1.0), (110.0, 4.0), (90.0, 2.5)):
        add(wanted, clock, "ddp", median_ms, wall_s=wall_s)
    assert wanted.spent_s == 7.5
    assert wanted.affords(["ddp"]), "7.5 s and another 2.5 s are the budget itself"
    assert not wanted.refused
    clock.now += 0.1
    assert not wanted.affords(["ddp"])
    assert wanted.affords(["of unknown length"]), "nothing is known against it, and time is left"
    assert encode(wanted.outcome(["ddp"]))["stopped_by"] == "budget"


def test_there_is_a_most_that_a_scenario_may_have() -> None:
    wanted, clock = precision(target=0.0001, budget_s=1e9)
    add(wanted, clock, "ddp", *[100.0 + launch % 7 for launch in range(MOST_LAUNCHES - 1)])
    assert wanted.next_round(["ddp"]) == ["ddp"]
    add(wanted, clock, "ddp", 100.0)
    assert wanted.next_round(["ddp"]) == []
    assert encode(wanted.outcome(["ddp"]))["stopped_by"] == "launches"


def test_what_stands_in_the_record() -> None:
    wanted, clock = precision(target=0.05, budget_s=60.0)
    add(wanted, clock, "single", 10.0, 10.1, 9.9, wall_s=2.0)
    add(wanted, clock, "ddp", 10.0, 10.3, 9.8, wall_s=3.0)
    assert wanted.affords(["ddp"])
    assert wanted.next_round(["single", "ddp"]) == ["single", "ddp"], "all go on until all are known"
    assert encode(wanted.outcome(["single", "ddp"])) == {
        "target": 0.05,
        "budget_s": 60.0,
        "spent_s": 15.0,
        "stopped_by": "launches",
        "scenarios": {
            "single": {"launches": 3, "half_width": pytest.approx(half_width(10.0, 10.1, 9.9)), "reached": True},
            "ddp": {"launches": 3, "half_width": pytest.approx(half_width(10.0, 10.3, 9.8)), "reached": False},
        },
    }
    clock.now += 60.0
    assert not wanted.affords(["ddp"])
    assert encode(wanted.outcome(["single", "ddp"]))["stopped_by"] == "budget"
    assert encode(wanted.outcome(["single"]))["stopped_by"] == "precision", "where all are precise"
    add(wanted, clock, "dp", 10.0, None)
    assert wanted.next_round(["single", "dp"]) == [], "what failed gets no more"
    failed = encode(wanted.outcome(["dp"]))["scenarios"]["dp"]
    assert failed == {"launches": 1, "half_width": None, "reached": False}


@pytest.mark.parametrize(("launches", "more", "advice"), [(1, 9, "5"), (5, 9, "14"), (5, 700, None), (5, None, None)])
def test_nobody_is_told_to_add_hundreds_of_launches(launches: int, more: int | None, advice: str | None) -> None:
    _, _, *lines = _next_steps("results/a", 0, launches, more, believed=True).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ([advice] if advice else [])
