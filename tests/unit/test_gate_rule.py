"""The rule of the gate on values whose right verdict is known."""

import math
from collections.abc import Sequence
from typing import Any

import chance
import numpy as np
import pytest
from scipy import special, stats
from standin import gated
from standin.gated import NAMES, night

from bench.analyse.history import gate
from bench.analyse.history.gate import PARITY, Base, Judged
from bench.analyse.history.rule import MEMORY, STEP_TIME, Rule
from bench.analyse.scatter import moderated

RULE = Rule()


def replayed(digests: Sequence[dict[str, Any]], accepted: Sequence[int] = (), rule: Rule = RULE) -> Base:
    nights = [(str(day), one) for day, one in enumerate(digests)]
    return [({}, {}), *gate.replay(nights, rule, [str(day) for day in accepted])][-1][1]


TEN = [night(day) for day in range(10)]
BASE = replayed(TEN)


def judged(digest: dict[str, Any], base: Base = BASE, rule: Rule = RULE) -> dict[tuple[str, str], Judged]:
    rows = gate.judge(gate.measured("tonight", digest), base, rule)
    found = {(row.scenario, row.metric): row for row in rows}
    assert len(found) == len(rows), "one row for each"
    return found


def verdict(rows: dict[tuple[str, str], Judged]) -> tuple[str, int]:
    outcome = gate.Outcome(run="tonight", rows=tuple(rows.values()), rule=RULE, against="", folder="")
    return outcome.verdict, outcome.exit_code


def pooled(variances: Any) -> tuple[Any, Any]:
    return moderated(np.array(variances), np.full(len(variances), 9.0))


def test_a_prior_that_is_known_is_found_again() -> None:
    # Smyth 2004, section 3: sample variances of 9 degrees from true ones of s0² d0 / chi²(d0) are s0² F(9, d0)
    random = np.random.default_rng(2)
    true = 4e-5 * 8.0 / random.chisquare(8.0, 4000)
    variances = true * random.chisquare(9.0, 4000) / 9.0
    shrunk, degrees = pooled(variances)
    usual = degrees > 9.0
    assert usual.mean() > 0.8 and degrees[usual] == pytest.approx(np.full(usual.sum(), 9.0 + 8.0), rel=0.1)
    expected = (8.0 * 4e-5 + 9.0 * variances) / 17.0
    assert shrunk[usual] == pytest.approx(expected[usual], rel=0.1)
    errors = [np.mean((np.log(one) - np.log(true)) ** 2) for one in (shrunk, variances)]
    assert errors[0] < 0.8 * errors[1], "shrunk variances are nearer to the true ones"


def test_unlike_scatters_are_hardly_pooled() -> None:
    variances = [1e-8, 1e-6, 1e-4, 1e-2]
    shrunk, degrees = pooled(variances)
    assert shrunk == pytest.approx(variances, rel=0.6) and np.all(degrees < 10.0)
    for variances in ([0.0] * 5, [0.0, 0.0, 0.0, 1e-4, 1e-4]):
        shrunk, degrees = pooled(variances)
        assert shrunk.tolist() == variances and degrees.tolist() == [9.0] * 5
    assert np.all(pooled([0.0, 1e-4, 1e-4, 2e-4, 1e-4])[0] > 0.0), "one of nothing among others"


def test_the_level_is_that_of_all_scenarios_together() -> None:
    row = judged(night(10))["ddp", STEP_TIME]
    nights = np.array([[one.values[STEP_TIME].mean for one in BASE[name]] for name in NAMES])
    variances, degrees = pooled(np.var(nights, axis=1, ddof=1))
    t = special.stdtrit(degrees[0], 1.0 - 0.01 / len(NAMES))
    assert row.bound == pytest.approx(math.exp(t * math.sqrt(1.1 * variances[0])))
    assert row.base == pytest.approx(math.exp(nights[0].mean())) and row.nights == tuple(map(str, range(10)))


def test_memory_without_scatter_has_only_the_threshold() -> None:
    bound = judged(night(10))["ddp", STEP_TIME].bound
    for peak, expected in ((2019.0, "ok"), (2021.0, "regressed"), (1979.0, "better"), (1981.0, "ok")):
        rows = judged(night(10, memory=peak))
        assert (rows["ddp", MEMORY].verdict, rows["ddp", MEMORY].bound) == (expected, pytest.approx(1.01))
        assert rows["ddp", STEP_TIME].bound == bound and rows["dp", MEMORY].verdict == "ok"
    assert verdict(judged(night(10, memory=2021.0))) == ("regressed", 10)


HALF = "within half precision"


@pytest.mark.parametrize(
    ("before", "tonight", "expected"),
    [
        *(("same", "same", "ok"), ("same", HALF, "regressed"), ("same", None, "missing"), (HALF, "same", "ok")),
        *((HALF, "diverged", "regressed"), ("diverged", "diverged", "ok"), ("diverged", "not finite", "regressed")),
        *((None, "diverged", "new"), (None, None, None)),
    ],
)
def test_numerics_may_not_get_worse(before: str | None, tonight: str | None, expected: str | None) -> None:
    rows = judged(night(10, parity=tonight), replayed([night(day, parity=before) for day in range(10)]))
    row = rows.get(("ddp", PARITY))
    assert (row and (row.verdict, row.tonight, row.base)) == (expected and (expected, tonight, before))
    assert expected or (verdict(rows) == ("ok", 0) and ("dp", PARITY) in rows), "never known is no row"


def test_fewer_launches_than_usual_have_a_wider_bound() -> None:
    usual = judged(night(10))["ddp", STEP_TIME]
    rows = [
        gated.scenario(name, gated.times(1.0, gated.STEADY[:3])) if name == "ddp" else gated.usual(name, 10, place)
        for place, name in enumerate(NAMES)
    ]
    fewer = judged(gated.digest(10, rows))["ddp", STEP_TIME]
    assert usual.bound is not None and fewer.bound is not None
    within = float(np.var(np.log(gated.STEADY), ddof=1))
    t = special.stdtrit(27.0, 1.0 - 0.01 / 3)  # no scatter but chance lies between these scenarios
    widened = (math.log(usual.bound) / t) ** 2 + within * (1 / 3 - 1 / 5)
    assert math.log(fewer.bound) == pytest.approx(t * math.sqrt(widened), rel=0.02)
    assert fewer.launches == 3


@pytest.mark.parametrize("count", [1, 4, 9])
def test_before_ten_nights_there_is_another_bound(count: int) -> None:
    base = replayed([night(day) for day in range(count)])
    assert verdict(judged(night(count), base)) == ("ok", 0)
    slower = judged(night(count, 1.07), base)
    assert verdict(slower) == ("regressed", 10) and slower["ddp", STEP_TIME].nights == tuple(map(str, range(count)))
    assert judged(night(count, 1 / 1.07), base)["ddp", STEP_TIME].verdict == "better"
    rough = (100.0, 118.0, 96.0, 110.0, 104.0)
    digest = gated.digest(count, [gated.scenario("ddp", rough)])
    row = judged(digest, {"ddp": base["ddp"]})["ddp", STEP_TIME]
    assert row.verdict == "uncertain" and "possibly noise" in str(row.why)
    assert row.ratio is not None and row.bound is not None and 1.03 < row.ratio < row.bound


@pytest.mark.parametrize("launches", [1, 2])
def test_too_few_launches_are_inconclusive_and_no_base(launches: int) -> None:
    few = [gated.digest(day, [gated.scenario("ddp", gated.STEADY[:launches])]) for day in range(12)]
    assert replayed(few) == {}
    for base in ({}, {"ddp": BASE["ddp"]}):
        rows = judged(few[0], base)
        assert rows["ddp", STEP_TIME].verdict == "too few launches" and verdict(rows) == ("inconclusive", 11)
    assert replayed([*TEN, few[0]], accepted=[10])["ddp"] == BASE["ddp"], "a person cannot make a base of it either"


def test_a_blind_gate_does_not_pass() -> None:
    """Launches that are half as far apart as they are long: the bound is far out, and silence says nothing."""
    rough = (100.0, 160.0, 70.0)
    nights = [gated.digest(day, [gated.scenario("ddp", rough)]) for day in range(2)]
    base = replayed(nights[:1])
    rows = judged(nights[1], base)
    row = rows["ddp", STEP_TIME]
    assert row.bound is not None and row.bound > 3.0
    assert row.verdict == "too noisy" and verdict(rows) == ("inconclusive", 11)
    assert rows["ddp", MEMORY].verdict == "ok", "which does not scatter"
    assert row.wanted is not None and row.wanted > 100
    assert row.why == f"a change of 10 % could not have been seen; about {row.wanted} launches a night would do"
    assert len(replayed(nights)["ddp"]) == 2, "the night is within the threshold, and the base grows"
    slower = judged(gated.digest(1, [gated.scenario("ddp", [1.2 * one for one in rough])]), base)["ddp", STEP_TIME]
    assert slower.verdict == "uncertain" and slower.wanted is not None
    wanted = judged(*pair_of_nights(5))["ddp", STEP_TIME].wanted
    would_do = judged(*pair_of_nights(wanted or 0))["ddp", STEP_TIME]
    assert would_do.verdict == "ok" and would_do.bound == pytest.approx(1.10, abs=0.01)
    coarse = judged(*pair_of_nights(5), Rule(before=0.5))["ddp", STEP_TIME]
    assert coarse.verdict == "ok" and coarse.bound is not None and coarse.bound > 1.5, "nothing smaller is looked for"


@pytest.mark.parametrize(("launch_noise", "enough"), [(0.2, True), (0.0, False)])
def test_nights_that_differ_are_too_noisy(launch_noise: float, enough: bool) -> None:
    means = 0.06 * np.array([-1.5, 1.2, -0.6, 0.9, 0.3, -0.3, 1.5, -1.2, -0.9, 0.6])
    within = launch_noise * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    nights = [nights_of(mean + within, day) for day, mean in enumerate([*means, 0.0])]
    row = judged(nights[10], {"ddp": tuple(gate.measured(str(day), one)["ddp"] for day, one in enumerate(nights[:10]))})
    found = row["ddp", STEP_TIME]
    assert found.verdict == "too noisy" and (found.wanted is not None) == enough
    assert ("more launches a night would not do" in str(found.why)) != enough


def pair_of_nights(launches: int) -> tuple[dict[str, Any], Base]:
    """Tonight and a base, whose launches scatter by 8 %, however many they are."""
    logs = stats.norm.ppf((np.arange(launches) + 0.5) / launches)
    logs *= 0.08 / np.std(logs, ddof=1)
    return nights_of(logs, 1), replayed([nights_of(logs, 0)])


def nights_of(logs: Any, day: int) -> dict[str, Any]:
    return gated.digest(day, [gated.scenario("ddp", [100.0 * math.exp(one) for one in logs])])


def without(name: str) -> dict[str, Any]:
    return gated.digest(10, [row for row in night(10)["scenarios"] if row["scenario"] != name])


@pytest.mark.parametrize(
    ("changes", "metrics", "why"),
    [
        ({"status": "oom", "reason": "boom"}, (STEP_TIME, MEMORY, PARITY), "boom"),
        ({"status": "unsupported", "reason": "boom"}, (STEP_TIME, MEMORY, PARITY), "boom"),
        ({"validity": "invalid", "invalid": ["phases"]}, (STEP_TIME, MEMORY, PARITY), "invalid (phases)"),
        ({"memory": None}, (MEMORY,), "no value in this run"),
        (None, (STEP_TIME, MEMORY, PARITY), "not in this run"),
    ],
)
def test_what_is_missing_never_passes(changes: dict[str, Any] | None, metrics: tuple[str, ...], why: str) -> None:
    tonight = without("ddp") if changes is None else night(10, **changes)
    for base in (BASE, replayed(TEN[:2])):
        rows = judged(tonight, base)
        assert verdict(rows) == ("missing", 12)
        assert {key for key, row in rows.items() if row.verdict == "missing"} == {("ddp", metric) for metric in metrics}
        assert all(why in str(rows["ddp", metric].why) for metric in metrics)
    never = replayed([night(day, memory=None) for day in range(10)])
    assert ("ddp", MEMORY) not in judged(night(10, memory=None), never), "where it never was known"


def test_a_scenario_that_always_failed_is_missing() -> None:
    for status, expected in (("error", ("missing", 12)), ("unsupported", ("ok", 0))):
        nights = [night(day, status=status, reason="why", parity=None, **gated.NOTHING) for day in range(11)]
        rows = judged(nights[10], replayed(nights[:10]))
        assert verdict(rows) == expected
        assert rows["dp", STEP_TIME].verdict == "ok", "whose base grew all the same"
    only = gated.digest(0, [gated.scenario("ddp", [], status="unsupported")])
    assert verdict(judged(only, {})) == ("missing", 12), "where nothing ran nothing passes"


@pytest.mark.parametrize("changes", [{"what_ran": "native flat-bucket · fp32"}, {"world_size": 4}])
def test_other_wrappers_compare_once_accepted(changes: dict[str, Any]) -> None:
    other = night(10, 0.5, **changes)
    rows = judged(other)
    assert rows["ddp", STEP_TIME].verdict == "not comparable" and verdict(rows) == ("missing", 12)
    assert rows["ddp", STEP_TIME].ratio is None
    assert verdict(judged(night(11, 0.5, **changes), replayed([*TEN, other]))) == ("missing", 12)
    accepted = replayed([*TEN, other], accepted=[10])
    assert [one.night for one in accepted["ddp"]] == ["10"] and len(accepted["dp"]) == 11
    assert verdict(judged(night(11, 0.5, **changes), accepted)) == ("ok", 0)


def test_memory_is_compared_within_one_source() -> None:
    other: dict[str, Any] = {"memory": 2600.0, "memory_source": "nvml_device_delta"}
    rows = judged(night(10, **other))
    row = rows["ddp", MEMORY]
    assert (row.verdict, row.tonight, row.base, row.ratio, row.nights) == ("new", pytest.approx(2600.0), None, None, ())
    assert row.why == "measured in another way: nvml_device_delta; the base is of nvml_pid"
    assert verdict(rows) == ("inconclusive", 11), "no regression, and no pass"
    assert {row.verdict for key, row in rows.items() if key != ("ddp", MEMORY)} == {"ok"}
    base = replayed([*TEN, night(10, **other)])
    rows = judged(night(11, **other), base)
    assert verdict(rows) == ("ok", 0) and rows["ddp", MEMORY].nights == ("10",)
    assert len(rows["ddp", STEP_TIME].nights) == 10, "times are measured as ever"
    assert judged(night(11, **other | {"memory": 2800.0}), base)["ddp", MEMORY].verdict == "regressed"
    row = judged(night(11, memory=2600.0), base)["ddp", MEMORY]
    assert row.verdict == "regressed" and len(row.nights) == 10, "and the nights before are there still"


@pytest.mark.parametrize("source", [None, "nvml_pid+unavailable", "nvml_pid+torch_allocator"])
def test_a_source_that_makes_no_other_figure(source: str | None) -> None:
    for before, tonight in (("nvml_pid", source), (source, "nvml_pid")):
        base = replayed([night(day, memory_source=before) for day in range(10)])
        rows = judged(night(10, memory=2600.0, memory_source=tonight), base)
        assert rows["ddp", MEMORY].verdict == "regressed"


def test_the_gravest_verdict_decides() -> None:
    rows = {row["scenario"]: row for row in night(10, 1.05)["scenarios"]}
    new = gated.scenario("new", gated.STEADY)
    assert verdict(judged(gated.digest(10, [rows["ddp"], rows["dp"], new]))) == ("regressed", 10)
    rows = {row["scenario"]: row for row in night(10)["scenarios"]}
    assert verdict(judged(gated.digest(10, [rows["ddp"], rows["dp"], new]))) == ("missing", 12)
    assert verdict(judged(gated.digest(10, [*rows.values(), new]))) == ("inconclusive", 11)


def test_accepting_a_night_restarts_what_did_not_pass() -> None:
    nights = [night(day) for day in range(14)]
    assert replayed(nights, accepted=[3, 13]) == replayed(nights)
    assert "ddp" in replayed([*TEN, without("ddp")])
    assert set(replayed([*TEN, without("ddp")], accepted=[10])) == {"dp", "ddp_o2"}
    failed = night(10, status="error", reason="by chance")
    assert replayed([*TEN, failed], accepted=[10])["ddp"] == BASE["ddp"], "it is still expected"


def days(*factors: float) -> list[dict[str, Any]]:
    return [night(day, factor) for day, factor in enumerate(factors)]


def test_what_is_gained_and_lost_again_has_regressed() -> None:
    base = replayed(days(*[1.0] * 10, 0.95, 0.95, 0.95))
    assert judged(night(13), base)["ddp", STEP_TIME].verdict == "regressed"
    row = judged(night(13, 0.95), base)["ddp", STEP_TIME]
    assert row.verdict == "ok" and row.nights == ("10", "11", "12")
    assert judged(night(13), base)["dp", STEP_TIME].nights == tuple(map(str, range(3, 13)))
    row = judged(night(11), replayed(days(*[1.0] * 10, 0.95)))["ddp", STEP_TIME]
    assert row.verdict == "ok" and "10" not in row.nights, "one better night is no base"
    assert judged(night(12), replayed(days(*[1.0] * 10, 0.95, 1.0)))["ddp", STEP_TIME].verdict == "ok"


def test_two_worse_nights_in_a_row_are_caught() -> None:
    rows = [judged(night(day))["ddp", STEP_TIME] for day in (10, 11)]
    worse = 1.0 + 0.9 * (min(row.bound or 0.0 for row in rows) - 1.0)
    first, second = (night(day, worse / (row.ratio or 1.0)) for day, row in zip((10, 11), rows, strict=True))
    assert judged(first)["ddp", STEP_TIME].verdict == "ok"
    row = judged(second, replayed([*TEN, first]))["ddp", STEP_TIME]
    assert row.verdict == "regressed" and "two nights in a row" in str(row.why)
    assert judged(night(11), replayed([*TEN, first]))["ddp", STEP_TIME].verdict == "ok", "one alone"


def test_creep_is_caught() -> None:
    series = days(*[1.0] * 10, *[1.0015**day for day in range(1, 21)])
    verdicts = []
    for day in range(10, 30):
        base = replayed(series[:day])
        verdicts.append(judged(series[day], base)["ddp", STEP_TIME])
    caught = [row for row in verdicts if row.verdict == "regressed"]
    assert any("crept: the last 5 nights are" in str(row.why) for row in caught)
    assert verdicts[4].verdict == "ok", "1 % is allowed"


def test_verdicts_about_drawn_nights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chance, "NIGHTS", 60)
    rows = {row.what: row for row in chance.nights(60, np.random.default_rng(7))}
    for what, row in rows.items():
        slack = 0.05 if "false" in what else 0.4 if "3%" in what else 0.2
        assert row.low - slack <= row.value <= row.high + slack, row
