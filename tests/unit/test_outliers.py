"""A slow device is named, and of devices that are alike one is named in 5 of 100 scans at most."""

import numpy as np
import pytest

from bench.analyse.outliers import critical, scanned


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
def test_false_alarms(devices: int, launches: int) -> None:
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
