"""Shifts are found on the night on which they were planted, and seldom where there is none."""

import math

import numpy as np
import pytest
from scipy import signal

from bench.analyse.history.shifts import AT_LEAST, MIN_NIGHTS, levels, seeds

NOISE = 0.006
"""Of a night: the standard deviation of its logarithm."""

Nights = np.ndarray[tuple[int], np.dtype[np.float64]]


def nights(random: np.random.Generator, count: int, *, noise: float = NOISE, like_the_last: float = 0.0) -> Nights:
    """Values around 100 without a shift; each resembles the one before by this correlation."""
    shocks = random.standard_normal(count + 50) * math.sqrt(1.0 - like_the_last**2)
    drawn: Nights = 100.0 * np.exp(noise * signal.lfilter([1.0], [1.0, -like_the_last], shocks)[50:])
    return drawn


def planted(random: np.random.Generator, count: int, at: int, by: float = 1.03) -> Nights:
    series = nights(random, count)
    series[at:] *= by
    return series


@pytest.mark.parametrize(
    ("count", "noise", "like_the_last", "at_most"),
    [
        *((10, NOISE, 0.0, 0.01), (40, NOISE, 0.0, 0.02), (400, NOISE, 0.0, 0.02), (2000, NOISE, 0.0, 0.02)),
        *((400, 0.015, 0.0, 0.02), (400, NOISE, 0.5, 0.05)),
    ],
)
def test_where_nothing_changed_a_shift_is_rare(count: int, noise: float, like_the_last: float, at_most: float) -> None:
    """Of 200 series of each kind. Of 2,000 of each (500 of the longest), 0 to 0.5 % had one."""
    random = np.random.default_rng(20261121)
    tries = 200
    series = (nights(random, count, noise=noise, like_the_last=like_the_last) for _ in range(tries))
    wrong = sum(bool(levels(one).shifts) for one in series)
    assert wrong <= at_most * tries


@pytest.mark.parametrize(
    ("count", "at", "at_least"),
    [(40, 20, 0.93), (100, 50, 0.97), (400, 200, 0.97), (400, 395, 0.95), (2000, 700, 0.97)],
)
def test_three_percent_are_found_on_their_night(count: int, at: int, at_least: float) -> None:
    """On the night or one beside it, with nothing else found; of 150 series of each kind (50 of 2,000 nights)."""
    random = np.random.default_rng(20261121)
    tries = 150 if count < 1000 else 50
    found = [levels(planted(random, count, at)).shifts for _ in range(tries)]
    right = [mine[0] for mine in found if len(mine) == 1 and abs(mine[0].after - at) <= 1]
    assert len(right) >= at_least * tries
    held = np.mean([shift.low <= 1.03 <= shift.high for shift in right])
    assert 0.88 <= held <= 0.99, "the interval of the ratio is one of 95 %; measured on 1,000 series: 96 %"


def test_every_one_of_many_shifts_is_found() -> None:
    series = nights(np.random.default_rng(1), 2000)
    truth = list(range(100, 2000, 100))
    for step, at in enumerate(truth):
        series[at:] *= 1.04 if step % 3 else 1 / 1.03
    found = levels(series)
    assert [shift.after for shift in found.shifts] == pytest.approx(truth, abs=2)
    assert len(found.levels) == len(truth) + 1
    assert found.noise == pytest.approx(NOISE, rel=0.1), "shifts are no noise"


@pytest.mark.parametrize("lasting", [1, 2])
def test_three_bad_nights_are_a_shift_and_two_are_not(lasting: int) -> None:
    series = nights(np.random.default_rng(2), 60)
    series[30 : 30 + lasting] *= 1.3
    series[59] *= 1.1  # the last one: a slow night, or the first of many; nobody can tell yet
    found = levels(series)
    assert found.shifts == ()
    assert set(found.outliers) >= {*range(30, 30 + lasting), 59}
    assert found.levels[0].value == pytest.approx(100.0, rel=0.005), "outliers do not move a level"
    (shift,) = levels(planted(np.random.default_rng(3), 200, 200 - MIN_NIGHTS, by=1.05)).shifts
    assert (shift.before, shift.after) == (196, 197) and shift.low < 1.05 < shift.high


def test_a_shift_too_small_to_matter_is_none() -> None:
    exact = [100.0] * 20 + [100.0 * (1 + AT_LEAST / 2)] * 20
    assert levels(exact).shifts == ()
    (shift,) = levels([100.0] * 20 + [102.0] * 20).shifts
    assert (shift.before, shift.after, shift.ratio) == (19, 20, pytest.approx(1.02))


def test_unknown_nights_keep_their_places() -> None:
    series: list[float | None] = [*planted(np.random.default_rng(5), 80, 40, by=0.95)]
    series[5] = series[38] = series[39] = None
    series[60] = math.nan
    (shift,) = levels(series).shifts
    assert (shift.before, shift.after, shift.high < 1.0) == (37, 40, True)
    assert levels(series).levels[-1].last == 79


@pytest.mark.parametrize("series", [[], [None, None], [5.0], [5.0, 6.0], [5.0, 6.0, 7.0], [0.0, -1.0, math.inf]])
def test_few_nights_have_no_shift(series: list[float | None]) -> None:
    found = levels(series)
    known = [value for value in series if value is not None and 0 < value < math.inf]
    assert found.shifts == ()
    assert len(found.levels) == bool(known)


@pytest.mark.parametrize("count", [20, 200, 2000, 50_000])
def test_the_work_is_of_order_n_log_n(count: int) -> None:
    """All splits of all intervals that are looked at, counted: a clock would tell of the machine."""
    looked_at = sum(len(starts) * length for length, starts in seeds(count))
    assert looked_at <= 4 * count * math.log2(count)
    for length, starts in seeds(count):
        assert starts[0] == 0
        assert starts[-1] + length == count, "intervals of every length reach from the first night to the last"
