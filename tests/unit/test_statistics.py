"""Intervals and verdicts against values computed by hand, and against runs whose truth is known because it was made."""

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import chance
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from standin.documents import document, sample
from standin.frames import iterations, launch_stats, memory, phase_medians, step_rows

from bench.analyse import comparison, published
from bench.analyse.bars import about_intervals, plus_minus
from bench.analyse.comparison import Comparison, against_fastest, compared, judged
from bench.analyse.intervals import Ratio, estimate, half_width_percent, ratio_of
from bench.analyse.memory import peaks
from bench.analyse.multiplicity import against_one, among_all, level
from bench.analyse.outliers import critical, scanned
from bench.analyse.rounds import Rounds
from bench.analyse.scatter import moderated
from bench.analyse.steps import phase_intervals, summary
from bench.report.summary import brief_summary
from bench.runs.frames import LaunchStats

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}
"""Quantiles of Student's t by degrees of freedom, from a printed table."""


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """A value that comes with a warning is no value."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def steps_of(*launches: tuple[str, list[list[float]]], **how: Any) -> pd.DataFrame:
    """Rows of steps.parquet: of each launch its scenario, and one list of step times (ms) per rank."""
    names = [name for name, _ in launches]
    return pd.DataFrame(
        [
            row
            for launch, (name, ranks) in enumerate(launches)
            for row in step_rows(launch, name, *ranks, repeat=names[:launch].count(name), **how)
        ]
    )


def launches_of(scenario: str, medians: list[float]) -> list[tuple[str, list[list[float]]]]:
    return [(scenario, [[median] * 3]) for median in medians]


def test_an_interval_is_student_t_on_the_logarithms() -> None:
    """Logarithms 0, 1 and 2: mean 1, deviation 1, so the half-width is t / sqrt(3)."""
    found = estimate([1.0, math.e, math.e**2])
    half = T_975[2] / math.sqrt(3)
    assert (found.value, found.n) == (pytest.approx(math.e), 3)
    assert (found.low, found.high) == pytest.approx((math.exp(1 - half), math.exp(1 + half)), rel=1e-3)
    assert found.half_width_percent == pytest.approx(100 * math.expm1(half), rel=1e-3)
    assert half_width_percent(104.0, 98.8, 102.0) == pytest.approx(5.0), "that of a maximum need not hold it"
    assert half_width_percent(100.0, None, 103.0) is None


def compare(base: list[float], new: list[float]) -> Comparison:
    """As bench compares two scenarios with one value per launch, apart from drift."""
    return judged([compared(ratio_of(base, new), len(base), len(new))])[0]


def test_what_cannot_be_known_is_none() -> None:
    none, one, two = estimate([]), estimate([7.0]), estimate([7.0, None, 7.0, math.nan])
    assert (none.value, none.low, none.high, none.n) == (None, None, None, 0)
    assert (one.value, one.low, one.high, one.n) == (7.0, None, None, 1)
    assert (two.value, two.low, two.high, two.n) == (7.0, 7.0, 7.0, 2)
    assert (none.half_width_percent, one.half_width_percent, two.half_width_percent) == (None, None, 0.0)
    for wrong in (0.0, -1.0, math.inf, -math.inf):
        with pytest.raises(ValueError, match="must be positive and finite"):
            estimate([1.0, wrong])
        with pytest.raises(ValueError, match="must be positive and finite"):
            compare([1.0, 2.0, 3.0], [1.0, wrong])


def test_a_comparison_is_students_t_on_the_logarithms() -> None:
    """Logarithms 0, 1, 2 and 3, 5, 7: errors 1/3 and 4/3, and 1 + 25 / 17 degrees of freedom."""
    found = compare([1.0, math.e, math.e**2], [math.e**3, math.e**5, math.e**7])
    assert (found.ratio, found.verdict) == (pytest.approx(math.e**4), "no difference found")
    assert found.p == pytest.approx(2 * stats.t.sf(4 / math.sqrt(5 / 3), 42 / 17))
    assert found.low < 1 < found.high and 0.05 < found.p < 0.10, "the interval and the verdict agree"


SIX = [99.0, 100.0, 101.0, 100.5, 99.5, 100.2]


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        (SIX, [value * 1.1 for value in SIX], "slower"),
        (SIX, [value / 1.1 for value in SIX], "faster"),
        (SIX, SIX, "no difference found"),
        (SIX[:5], SIX[1:5], "no difference found"),
        (SIX[:3], [value * 1.1 for value in SIX[:3]], "slower"),
        (SIX[:2], [value * 2 for value in SIX], "too few launches"),
        (SIX, [1.0, 1.0], "too few launches"),
        ([1.0], [9.0], "too few launches"),
        ([], SIX, "too few launches"),
    ],
)
def test_verdicts_of_unequal_and_of_tiny_samples(base: list[float], new: list[float], verdict: str) -> None:
    found = compare(base, new)
    assert found.verdict == verdict
    assert (found.n_base, found.n_new) == (len(base), len(new))
    assert (found.p is None) == (verdict == "too few launches")
    assert (found.ratio is None) == (not base or not new)
    assert (found.low is None) == (min(len(base), len(new)) < 2)


def test_launches_without_any_scatter() -> None:
    same, other = compare([4.0] * 3, [4.0] * 4), compare([4.0] * 3, [5.0] * 3)
    assert (same.ratio, same.low, same.high, same.p, same.verdict) == (1.0, 1.0, 1.0, 1.0, "no difference found")
    assert (other.ratio, other.low, other.high, other.p, other.verdict) == (1.25, 1.25, 1.25, 0.0, "slower")
    one_side = compare([4.0] * 3, [5.0, 5.1, 4.9])
    assert one_side.verdict == "slower" and one_side.p is not None and 0 < one_side.p < 0.05


def test_without_a_shared_base_it_is_stepwise_sidak() -> None:
    """The smallest of three is 1 - 0.99³, the next 1 - 0.97², which carries over what follows."""
    apart = against_one([0.03, 0.01, None, 0.04], [0.0] * 4)
    expected = [1 - 0.97**2, 1 - 0.99**3, None, 1 - 0.97**2]
    assert [one and round(one, 6) for one in apart] == [one and round(one, 6) for one in expected]
    assert against_one([], []) == [] and against_one([0.6], [0.5]) == [pytest.approx(0.6)]


def test_five_percent_in_all() -> None:
    """Printed tables for infinite degrees of freedom: of Dunnett for two and nine comparisons with one, of Tukey for
    three and ten among themselves; and the share of each look at launches that are added."""
    for many, printed in ((2, 2.21), (9, 2.69)):
        p = float(2 * stats.norm.sf(printed))
        (first, *_) = against_one([p, *[0.9] * (many - 1)], [0.5] * many)
        assert first == pytest.approx(0.05, abs=0.001)
    for many, printed in ((3, 3.314), (10, 4.474)):
        (p,) = among_all([float(2 * stats.norm.sf(printed / math.sqrt(2)))], many)
        assert p == pytest.approx(0.05, abs=0.0005)
    looks = [0, 3, 5, 6, 14, 40, 500]
    assert sum(float(level(now, before)) for before, now in pairwise(looks)) == pytest.approx(0.05), "spent in all"
    assert (float(level(5)), float(level(10, 5)), level(5, 5)) == pytest.approx((0.0375, 0.009375, 0.0))


def scattered(scenario: str, factor: float) -> list[tuple[str, list[list[float]]]]:
    """In an order of its own, or else rounds would explain it all."""
    order = np.random.default_rng(list(scenario.encode())).permutation(5)
    return launches_of(scenario, [factor * SIX[place] for place in order])


def between_scenarios(values: LaunchStats, base: str, *among: str) -> pd.DataFrame:
    rounds = Rounds.of(values)
    names = [name for name in rounds.values if name != base and name in (among or rounds.values)]
    sizes = {name: len(rounds.values.get(name, ())) for name in (base, *names)}
    found = judged([compared(rounds.ratio(base, name), sizes[base], sizes[name]) for name in names])
    return pd.DataFrame({"scenario": name, **asdict(one)} for name, one in zip(names, found, strict=True))


def test_a_base_without_launches_compares_with_nothing() -> None:
    table = between_scenarios(launch_stats(steps_of(*scattered("o2", 1.0))), "ddp")
    assert table["verdict"].tolist() == ["too few launches"] and table[["ratio", "low", "p"]].isna().all(axis=None)
    assert launch_stats(steps_of(("ddp", [[1.0, 2.0]]), warmup=2)).frame.empty
    nothing = launch_stats(steps_of(*scattered("o2", 1.0)).iloc[:0])
    assert nothing.frame.empty and {"median_ms", "outliers", "drift", "skew", "data_share"} <= set(nothing.frame)
    assert against_fastest(Rounds.of(nothing), ["ddp"]) == []


def test_the_fastest_is_adjusted_for_its_choice() -> None:
    launches = [*scattered("ddp", 1.0), *scattered("o2", 0.9), *scattered("o3", 0.8), *scattered("dp", 2.0)]
    steps = steps_of(*launches)
    rounds = Rounds.of(launch_stats(steps))
    table = pd.DataFrame(against_fastest(rounds, rounds.values))
    assert set(table["base"]) == {"o3"} and table["scenario"].tolist() == ["ddp", "o2", "dp"]
    assert (table["ratio"] > 1).all() and set(table["verdict"]) == {"slower"}
    shown = between_scenarios(launch_stats(steps), "o3")
    assert (table["p_adjusted"] > shown["p_adjusted"]).all(), "six pairs instead of three"


def in_rounds(medians: dict[str, list[float | None]]) -> Rounds:
    """Launches in the order in which a run has them; None: that launch failed."""
    count = len(next(iter(medians.values())))
    names = list(medians)
    order = [(name, number) for number in range(count) for name in (names[::-1] if number % 2 else names)]
    return Rounds((name, number, place, medians[name][number]) for place, (name, number) in enumerate(order))


A = [1.004, 0.996, 1.003, 0.994, 1.003]
B = [0.997, 1.002, 0.999, 1.004, 0.998]


def drifted(values: list[float], *, by: float, place: int) -> list[float]:
    """As the launches of one of two scenarios, on a machine that gets slower all the time."""
    at = [2 * number + (place if number % 2 == 0 else 1 - place) for number in range(len(values))]
    return [value * (1 + by) ** (one / 10) for value, one in zip(values, at, strict=True)]


def test_rounds_that_are_apart_are_compared_in_pairs() -> None:
    """The paired t test, by hand: differences 0.01, 0.02, 0.03, 0.02, 0.01 of logarithms that scatter by far more."""
    rounds, apart = [0.0, 0.7, -0.4, 0.9, 0.1], [0.01, 0.02, 0.03, 0.02, 0.01]
    above = [math.exp(one + more) for one, more in zip(rounds, apart, strict=True)]
    found = in_rounds({"a": [math.exp(one) for one in rounds], "b": list(above)}).ratio("a", "b")
    error = float(np.std(apart, ddof=1)) / math.sqrt(5)
    assert found.value == pytest.approx(math.exp(0.018)) and found.freedom == pytest.approx(4)
    assert found.error == pytest.approx(error)
    assert found.high == pytest.approx(math.exp(0.018 + T_975[4] * error), rel=1e-4)


def test_a_missing_launch_is_no_bias() -> None:
    """Without its first launch, the values of one scenario are those of the later, slower part of the run."""
    moving = {"a": drifted(A, by=0.4, place=0), "b": drifted(A[::-1], by=0.4, place=1)}
    found = in_rounds({"a": list(moving["a"]), "b": [None, *moving["b"][1:]]}).ratio("a", "b")
    plain = compare(moving["a"], moving["b"][1:])
    assert plain.ratio == pytest.approx(1.04, abs=0.01) and found.value == pytest.approx(1.0, abs=0.005)


def test_without_launches_for_it_no_drift_is_estimated() -> None:
    few = {"a": [1.0, 1.01], "b": [1.02, 1.04]}
    found, plain = in_rounds({name: list(mine) for name, mine in few.items()}).ratio("a", "b"), ratio_of(*few.values())
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high))
    alike = in_rounds({"a": [2.0] * 5, "b": [2.0] * 5, "c": [3.0] * 5})
    assert alike.ratio("a", "b").p == 1.0 and alike.ratio("a", "c") == ratio_of([2.0] * 5, [3.0] * 5)
    for lone in (alike.ratio("a", "a"), in_rounds({"a": [1.0, 1.0], "b": [2.0, None]}).ratio("a", "b")):
        assert lone.low is None and lone.value is not None
    assert alike.ratio("a", "absent").value is None


def test_how_many_more_launches_would_show_two_percent() -> None:
    """t at 0.9 and at what is left of 5 % after five launches, both with 8 degrees of freedom, as Stein has it."""
    close = Ratio(ratio=1.02, low=0.98, high=1.06, p=0.08, error=0.01, freedom=8.0)
    more = comparison.more_launches(close, 5)
    for wanted, enough in ((5 + more, True), (4 + more, False)):
        quantiles = [float(stats.t.ppf(1 - float(level(wanted, 5)) / 2, 8)), float(stats.t.ppf(0.8, 8))]
        assert (sum(quantiles) * 0.01 * math.sqrt(5 / wanted) <= math.log(1.02)) is enough
    among = comparison.more_launches(close, 5, tests=45)
    assert among is not None and among > more, "where there are more to tell apart, each takes longer"
    assert comparison.more_launches(replace(close, ratio=1.5), 5) == more, "what was found does not count"
    assert comparison.more_launches(replace(close, error=0.004), 5) == 0, "these would have shown it"
    for unknown in (Ratio(ratio=1.0), replace(close, error=9.0)):
        assert comparison.more_launches(unknown, 5) is None


def test_a_noisier_scenario_keeps_its_variance() -> None:
    alike = np.array([1.0, 1.2, 0.9, 1.1, 0.8])
    shrunk, degrees = moderated(alike, np.full(5, 4.0))
    assert shrunk == pytest.approx(np.full(5, 1.0)) and degrees == pytest.approx(np.full(5, 20.0))
    shrunk, degrees = moderated(np.array([*alike, 30.0]), np.full(6, 4.0))
    assert (shrunk[-1], degrees[-1]) == (30.0, 4.0) and (shrunk[:-1] < 3.0).all()


def test_two_runs_that_drift_are_compared_without_it() -> None:
    sides = [in_rounds({"a": drifted(A, by=by, place=0), "b": drifted(B, by=by, place=1)}) for by in (0.1, -0.1)]
    still = [in_rounds({"a": list(A), "b": list(B)}) for _ in sides]
    found, plain = (new.over(base, "a", "b") for base, new in (sides, still))
    middle = (0.9 / 1.1) ** 0.45
    assert found.low / middle == pytest.approx(plain.low, rel=2e-3) and found.error == pytest.approx(plain.error)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([[10.0, 11.0, 12.0, 13.0, 14.0, 100.0]], {"outliers": 1, "mean_ms": 160 / 6, "p99_ms": 100 - 0.05 * 86}),
        ([[10.0, 12.0, 99.0, 99.0, 22.0, 11.0]], {"measured": 6, "drift": 16.5 / 11 - 1}),
        ([[8.0, 8.0, 9.0, 9.0, 5.0, 4.0, 4.0]], {"drift": -0.5}),
        ([[10.0, 10.0, 10.0, 11.0, 11.0]], {"drift": None}),
        ([[10.0] * 3, [11.0] * 3, [14.0] * 3], {"skew": (14 - 10) / 11, "slowest_rank": 2}),
        ([[10.0, 20.0, 30.0]], {"skew": 0.0, "slowest_rank": None}),
        ([[9.0, 9.0, 9.0], [8.0, 8.0, 99.0]], {"slowest_rank": 0}),
        ([[9.0, 1.0], [1.0, 9.0]], {"slowest_rank": 0}),
        ([[10.0] * 4, [20.0] * 4], {"data_share": 0.25}),
        *(([[*map(float, range(20, 28)), last]], {"outliers": n}) for last, n in ((32.0, 0), (32.1, 1))),
    ],
)
def test_figures_of_a_launch(ranks: list[list[float]], expected: dict[str, float | None]) -> None:
    """An outlier, 1.5 interquartile ranges beyond a quartile, stays in mean and p99; drift is of the last third against
    the first; the slowest rank is the one that was it most often, and what data takes is of that one."""
    steps = steps_of(("ddp", [[999.0, *times] for times in ranks]), warmup=1, data_ms=5.0)
    (values,) = launch_stats(steps).frame.to_dict("records")
    for column, value in expected.items():
        assert pd.isna(values[column]) if value is None else values[column] == pytest.approx(value), column


def test_figures_ignore_order_and_index_of_rows() -> None:
    random = np.random.default_rng(1)
    steps = steps_of(*[("ddp", random.uniform(9, 11, (3, 12)).tolist()) for _ in range(4)], warmup=2, data_ms=1.0)
    shuffled = steps.sample(frac=1.0, random_state=1)
    shuffled.index = pd.Index([0] * len(shuffled))
    pd.testing.assert_frame_equal(launch_stats(steps).frame, launch_stats(shuffled).frame)
    pd.testing.assert_frame_equal(iterations(steps).frame, iterations(shuffled).frame)


def summarised(medians: dict[str, list[float]], peaks_mib: dict[str, list[float]] | None = None) -> pd.DataFrame:
    launches = [launch for scenario, mine in medians.items() for launch in launches_of(scenario, mine)]
    all_peaks = [peak for mine in (peaks_mib or {}).values() for peak in mine]
    used = memory(sample(launch=at, scenario=launches[at][0], used_mib=peak) for at, peak in enumerate(all_peaks))
    records = [{"launch": number, "scenario": scenario} for number, (scenario, _) in enumerate(launches)]
    run = document(request={"scenarios": list(medians)}, launches=records)
    table = summary(run, launch_stats(steps_of(*launches)), peaks(used))
    return table.assign(parity=None).set_index("scenario", drop=False)


MEDIANS = {"ddp": [4.0, 5.0, 6.0], "o2": [2.0, 2.2, 2.1]}


def test_point_interval_and_ratio_of_the_summary_agree() -> None:
    table = summarised(MEDIANS)
    for row in table.to_dict("records"):
        assert row["step_low_ms"] * row["step_high_ms"] == pytest.approx(row["step_median_ms"] ** 2)
        for speed, step in (("", "median"), ("low_", "high"), ("high_", "low")):
            assert row[f"throughput_{speed}per_s"] * row[f"step_{step}_ms"] == pytest.approx(8000.0)
        assert row["half_width_percent"] == pytest.approx(100 * (row["step_high_ms"] / row["step_median_ms"] - 1))
    o2 = table.loc["o2"]
    assert o2["relative_to_ddp"] == pytest.approx(table.loc["ddp", "step_median_ms"] / o2["step_median_ms"])
    assert o2["relative_low"] * o2["relative_high"] == pytest.approx(o2["relative_to_ddp"] ** 2)
    launches = [launch for name in ("ddp", "o2") for launch in launches_of(name, MEDIANS[name])]
    (found,) = between_scenarios(launch_stats(steps_of(*launches)), "ddp").to_dict("records")
    assert o2["relative_high"] == pytest.approx(1 / found["low"]), "the verdict's"
    assert table.loc["ddp", "relative_to_ddp"] == 1.0 and pd.isna(table.loc["ddp", "relative_low"])


def test_the_terminal_shows_each_bar_and_invents_none() -> None:
    peaks_mib = {"ddp": [1000.0, 1000.0, 1000.0], "o2": [900.0, 900.0, 900.0]}
    shown = brief_summary(summarised({"ddp": [100.0, 101.0, 102.0], "o2": [51.0, 50.0, 50.5]}, peaks_mib))
    second, first = shown.as_text().splitlines()[2:4]
    assert "ddp        79.2 ±2.5%" in first and "101.0 ±2.5%" in first
    assert re.search(r"1,000 +1,000 +–$", first), "a peak is the largest, and has no interval"
    assert re.search(r"2\.00 ±\d+(\.\d)?%", second) and "1.00 ±" not in first
    assert "±" not in brief_summary(summarised({"ddp": [100.0], "o2": [50.0]})).as_text()
    assert about_intervals(summarised({"ddp": [100.0], "o2": [50.0, 51.0, 52.0]}))[0].startswith("±:")
    for high, bar in ((101.26, "±1.3%"), (109.96, "±10%"), (145.4, "±45%"), (1003.0, "±>99%")):
        row = {"step_median_ms": 100.0, "step_low_ms": 99.0, "step_high_ms": high}
        assert plus_minus(row, "step_median_ms") == bar, "it has as many digits as it deserves"


@pytest.mark.parametrize("part", ["three_launches", "two_runs", "power", "adding"])
def test_verdicts_about_drawn_runs(part: str) -> None:
    for row in getattr(chance, part)(160, np.random.default_rng(1)):
        slack = 3.0 * math.sqrt(0.05 * 0.95 / row.of) + 0.01
        assert row.low - 3 * slack <= row.value <= row.high + slack, row


def test_a_peak_is_the_largest_of_the_known_launches() -> None:
    row = summarised({"ddp": [4.0, 4.1, 4.2]}, {"ddp": [100.0, 110.0]}).loc["ddp"]
    mean = estimate([100.0, 110.0])
    assert (row["peak_pid_mib"], row["peak_pid_low_mib"], row["peak_pid_high_mib"]) == (110.0, mean.low, mean.high)
    assert (row["peak_total_low_mib"], row["peak_total_high_mib"]) == (mean.low, mean.high)
    assert row["launches_ok"] == 3 and peaks(memory(())).empty


def test_intervals_of_the_published_form_and_of_phases() -> None:
    launches = [one for name, ms in (("ddp", 100.0), ("dp", 200.0)) for one in launches_of(name, [ms, ms * 1.01])]
    steps = steps_of(*launches)
    form = published.table(iterations(steps), ["ddp", "dp"]).set_index("scenario")
    for name in ("elapsed_s_0", "relative"):
        assert form[f"{name}_low"]["dp"] < form[name]["dp"] < form[f"{name}_high"]["dp"]
    assert form["elapsed_s_0"]["dp"] == pytest.approx(0.2 * 1.01**0.5), "geometric, as in every table"
    assert pd.isna(form["relative_low"]["ddp"]), "it is 1 by definition"
    known = phase_intervals(phase_medians(steps))
    assert {scenario for scenario, _ in known} == {"ddp", "dp"} and all(low <= high for low, high in known.values())
    alone = steps_of(*launches_of("ddp", [100.0]))
    assert not phase_intervals(phase_medians(alone))
    assert published.table(iterations(alone), ["ddp"])["elapsed_s_0_low"].isna().all()


def alarms(devices: int, launches: int, *, slow: float = 0.0, scans: int = 1500, spread: float = 0.0) -> list[bool]:
    """Whether the first device is named if it is slow, else whether any is: 1 % of noise, and a drift over rounds."""
    random, found = np.random.default_rng(7), []
    for _ in range(scans):
        logs = 0.01 * random.standard_normal((devices, launches)) + 0.05 * np.arange(launches)
        logs += spread * random.standard_normal((devices, 1))
        logs[0] += np.log1p(slow)
        scan = scanned({str(number): list(100 * np.exp(row)) for number, row in enumerate(logs)})
        found.append("0" in scan.slow if slow else bool(scan.slow))
    return found


@pytest.mark.parametrize(("devices", "launches"), [(2, 3), (3, 5), (8, 3), (16, 2)])
def test_alike_devices_are_seldom_called_slow(devices: int, launches: int) -> None:
    """5 % of 1,500 scans, and three standard deviations of that count."""
    assert np.mean(alarms(devices, launches)) <= 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5
    assert critical(8, 5)[0] < critical(64, 5)[0], "more devices need a wider bound"


@pytest.mark.parametrize("devices", [4, 16])
def test_a_slow_device_is_named(devices: int) -> None:
    assert np.mean(alarms(devices, 5, slow=0.05, scans=300)) >= 0.97


def test_what_a_scan_says() -> None:
    assert np.mean(alarms(16, 3, spread=0.02)) <= 0.07, "devices that differ a little by nature are no alarm"
    scan = scanned({"a": [100.0, 101.0, 102.0], "b": [100.2, 101.1, 102.1], "c": [110.0, 111.2, 112.1]})
    assert scan.slow == ("c",) and scan.slower["c"] == pytest.approx(0.0975, abs=0.01)
    assert scan.slower["b"] == 0.0 and scan.bound is not None and 0 < scan.bound < 0.09
    once = scanned({"a": [100.0], "b": [150.0]})
    assert once.bound is None and once.slow == (), "one launch shows no scatter"
