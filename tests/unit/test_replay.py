"""Many nights told together: the same base and the same stops as night by night."""

import random
from typing import Any

import pytest
from standin import gated

from bench.analyse.history import gate, replay
from bench.analyse.history.gate import Rule
from bench.core.records import PARITIES

SCENARIOS = ("ddp", "dp", "ddp_o1", "ddp_o2", "single")


def history(seed: int, nights: int = 400) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Nights in which much happens now and then, and some of them accepted by a person."""
    noise = random.Random(seed)
    level, memory = dict.fromkeys(SCENARIOS, 1.0), dict.fromkeys(SCENARIOS, 2000.0)
    made, accepted, what_ran, parity, count, source = [], [], "fp32", PARITIES[0], 5, "nvml_pid"
    for day in range(nights):
        event = noise.choice(["", "level", "creep", "memory", "ran", "parity", "count", "source", "accepted"])
        event, name = event if noise.random() < 0.02 else "", noise.choice(SCENARIOS)
        level[name] *= noise.choice([0.95, 1.04]) if event == "level" else 1.0
        memory[name] += noise.choice([-64.0, 64.0]) if event == "memory" else 0.0
        what_ran = noise.choice(["fp32", "bf16"]) if event == "ran" else what_ran
        parity = noise.choice(PARITIES[:2]) if event == "parity" else parity
        count = noise.choice([4, 5, 7]) if event == "count" else count
        source = noise.choice(["rss", "nvml_pid"]) if event == "source" else source
        accepted += [str(day)] if event == "accepted" or (event and noise.random() < 0.7) else []
        level["dp"] *= 1.0004 if seed % 2 else 1.0
        rows = []
        for one in SCENARIOS:
            middle = 100.0 * level[one] * noise.lognormvariate(0.0, 0.006)
            times = [middle * noise.lognormvariate(0.0, 0.004) for _ in range(count)]
            peaks = [memory[one] + (noise.random() if one == "single" else 0.0)] * count if one != "ddp_o1" else None
            changes = {"what_ran": what_ran, "parity": parity, "memory_source": source}
            if noise.random() < 0.002:
                times, changes = [], {"status": "oom", "reason": "out of memory"}
            if noise.random() > 0.001:
                rows.append(gated.scenario(one, times, memory=peaks if times else [], **changes))
        made.append((str(day), gated.digest(day, rows)))
    return made, accepted


@pytest.mark.parametrize("rule", [Rule(), Rule(nights=5, level=0.9, thresholds=dict.fromkeys(gate.METRICS, 0.002))])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nights_told_together_are_as_one_by_one(seed: int, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    nights, accepted = history(seed)
    by_themselves = []
    judge = gate.judge
    monkeypatch.setattr(gate, "judge", lambda *what: by_themselves.append(what) or judge(*what))
    together = replay.replay(nights, rule, accepted)
    assert len(by_themselves) < len(nights)
    monkeypatch.setattr(replay, "MOST", 0)
    assert replay.replay(nights, rule, accepted) == together
    assert together[1], "the gate stops something"


def test_of_some_scenarios_and_of_figures_that_repeat_exactly() -> None:
    rows = [[gated.scenario(name, [100.0] * 5) for name in SCENARIOS] for _ in range(60)]
    nights = [(str(day), gated.digest(day, of_day)) for day, of_day in enumerate(rows)]
    base, stops = replay.replay(nights, Rule(), only=["dp"])
    assert list(base) == ["dp"] and stops == []
    assert [one.night for one in base["dp"]] == [*map(str, range(10)), *map(str, range(50, 60))]


@pytest.mark.parametrize(
    "changes",
    [
        {"parity": PARITIES[1]},
        {"what_ran": "bf16"},
        {"world_size": 4},
        {"memory_source": "rss", "launches": gated.scenario("dp", [100.0] * 5, memory=4000.0)["launches"]},
        {"status": "oom", "launches": []},
        {"scenario": "another"},
        {"launches": gated.scenario("dp", [100.0] * 2)["launches"]},
    ],
)
def test_a_night_that_is_measured_otherwise_is_judged_by_itself(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = [(str(day), gated.digest(day, [gated.usual("ddp", day), gated.usual("dp", day)])) for day in range(60)]
    rows = nights[45][1]["scenarios"]
    rows += [(rows[-1] if "scenario" in changes else rows.pop()) | changes]
    together = replay.replay(nights, Rule())
    monkeypatch.setattr(replay, "MOST", 0)
    assert replay.replay(nights, Rule()) == together
