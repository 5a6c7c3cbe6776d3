"""Energy, power and throttling of a launch against values that can be worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from standin.frames import iterations, step_rows
from standin.gpu_runs import DDP2, DP, GPUS
from standin.runs import write_run

from bench.analyse import devices
from bench.analyse.analysed import CONDENSE, Analysed
from bench.core.records import DEVICE_COLUMNS
from bench.machine.nvml import FIRST, SOON
from bench.runs import tables
from bench.runs.reader import read

START_NS = 5_000_000_000


def steps(seconds: float, *, count: int = 100, ranks: int = 1, launch: int = 0) -> pd.DataFrame:
    step_ms = 1000.0 * seconds / count
    rows = step_rows(launch, "ddp", *[[1000.0, *[step_ms] * count]] * ranks, warmup=1)
    for row in rows:
        row["start_ns"] = START_NS + round((row["step"] - 1) * step_ms * 1e6) if row["step"] else START_NS - 10**9
    return pd.DataFrame(rows)


def samples(seconds: float, every_s: float = 0.1, device: str = "GPU-a", launch: int = 0, **of: Any) -> pd.DataFrame:
    """Samples from before the window to after it. A value is a number, or a function of the seconds since its start."""
    rows = []
    for number in range(round((seconds + 2) / every_s) + 1):
        at_s = number * every_s - 1.0
        row = dict.fromkeys(DEVICE_COLUMNS) | {"launch": launch, "scenario": "ddp", "device": device, "mig": False}
        row["t_ns"] = START_NS + round(at_s * 1e9)
        rows.append(row | {key: value(at_s) if callable(value) else value for key, value in of.items()})
    frame = pd.DataFrame(rows, columns=list(DEVICE_COLUMNS))
    numbers = [name for name, kind in DEVICE_COLUMNS.items() if kind == "float64"]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def one(device: pd.DataFrame, of: pd.DataFrame) -> dict[str, Any]:
    (row,) = devices.per_device(device, devices.windows(iterations(of))).to_dict("records")
    return row


def counting(watts: float) -> Any:
    return lambda at_s: 7_000_000.0 + watts * 1000.0 * at_s


@pytest.mark.parametrize(
    ("seconds", "sampled", "source", "known"),
    [
        (12.0, {"energy_mj": counting(300.0), "power_w": 250.0}, "counter", 3600.0),
        (9.9, {"energy_mj": counting(300.0), "power_w": 250.0}, "estimated", 2475.0),
        (20.0, {"every_s": 0.5, "power_w": lambda at_s: 100.0 + 10.0 * at_s}, "estimated", 4000.0),
        (12.0, {"energy_mj": 7e6, "power_w": 250.0}, None, "stood still"),
        (12.0, {"energy_mj": lambda at_s: 7e6 - at_s, "power_w": 250.0}, None, "fell"),
        (12.0, {"energy_mj": lambda at_s: counting(300.0)(at_s) - 5e6 * (at_s > 6), "power_w": 250.0}, None, "fell"),
        (12.0, {"power_w": 250.0, "mig": True}, None, "MIG"),
        (12.0, {"power_w": 0.0}, None, "no power is drawn"),
        (12.0, {"power_w": lambda at_s: None if 3 < at_s < 6 else 250.0}, None, "unknown over 3."),
        (12.0, {"power_w": lambda at_s: None if at_s > 6 else 250.0}, None, "power is known over 6.0 s of 12.0 s"),
        (
            12.0,
            {"energy_mj": lambda at_s: None if at_s > 6 else 7e6 + at_s},
            None,
            "energy is known over 6.0 s of 12.0 s",
        ),
        (12.0, {"reason": "GPU is lost"}, None, "the driver gives neither energy nor power: GPU is lost"),
    ],
)
def test_energy(seconds: float, sampled: dict[str, Any], source: str | None, known: float | str) -> None:
    """``known``: the energy (J), by the counter over ten seconds and more, else by trapezoids; or why there is none."""
    row = one(samples(seconds, **sampled), steps(seconds))
    mean_w = None if "power_w" not in sampled else 0.0 if sampled["power_w"] == 0.0 else 250.0
    if isinstance(known, str):
        assert pd.isna(row["energy_j"]) and known in row["energy_reason"]
    else:
        assert row["energy_j"] == pytest.approx(known) and row["energy_reason"] is None
        mean_w = known / seconds
    assert row["energy_source"] == source and row["window_s"] == pytest.approx(seconds)
    assert row["mean_power_w"] == pytest.approx(float("nan") if mean_w is None else mean_w, nan_ok=True)
    assert row["verdict"] == "unknown", "no bits were sampled"


def test_a_window_between_two_samples_has_energy() -> None:
    """As on four GPUs, where the sampler may look only every few seconds, but does so at both ends of the window."""
    edges = samples(6.0, every_s=0.1, energy_mj=counting(300.0), power_w=250.0, throttle_reasons=0)
    at_s = (edges["t_ns"] - START_NS) / 1e9
    row = one(edges[at_s.between(-0.21, -0.19) | at_s.between(6.09, 6.11)], steps(6.0))
    assert (row["energy_source"], row["verdict"]) == ("counter", "ok")
    assert row["energy_j"] == pytest.approx(1800.0)


def per_launch(device: pd.DataFrame, of: pd.DataFrame, units: int) -> pd.DataFrame:
    measured = iterations(of)
    return devices.per_launch(device, measured, units, devices.per_device(device, devices.windows(measured)))


def test_a_launch_is_the_sum_of_its_devices() -> None:
    first = samples(12.0, energy_mj=counting(300.0), power_w=310.0, temperature_c=60.0, throttle_reasons=0)
    second = {"energy_mj": counting(200.0), "power_w": 220.0, "temperature_c": 70.0, "throttle_reasons": 4}
    both = pd.concat([first, samples(12.0, device="GPU-b", **second)])
    (row,) = per_launch(both, steps(12.0, count=50, ranks=2), units=128).to_dict("records")
    assert (row["devices"], row["energy_j"]) == (2, pytest.approx(6000.0))
    assert row["energy_per_1000_j"] == pytest.approx(6000.0 / (50 * 128) * 1000)
    assert (row["mean_power_w"], row["peak_power_w"]) == (pytest.approx(500.0), pytest.approx(530.0))
    assert (row["max_temperature_c"], row["throttle"], row["verdict"]) == (70.0, "power cap", "warning")


def test_launches_are_kept_apart() -> None:
    two = pd.concat([steps(12.0), steps(12.0, launch=1), steps(12.0, launch=2)])
    rows = pd.concat([samples(12.0, power_w=300.0), samples(12.0, launch=2, power_w=100.0)])
    table = per_launch(rows, two, units=8)
    assert table["launch"].tolist() == [0, 2]
    assert table["energy_j"].tolist() == pytest.approx([3600.0, 1200.0])
    assert devices.per_device(rows[:0], devices.windows(iterations(two))).columns.tolist() == devices.COLUMNS
    assert per_launch(rows[:0], two, 8).empty and per_launch(rows, two[:0], 8).empty


def test_one_thermal_sample_in_twenty_is_invalid() -> None:
    hot = samples(2.0, power_w=300.0, throttle_reasons=lambda at_s: 0x40 if abs(at_s - 1.0) < 0.01 else 0)
    row = one(hot, steps(2.0))
    assert (row["throttle_reasons"], row["verdict"]) == (0x40, "invalid")
    assert row["throttle"] == "thermal slowdown (hardware)"
    before = samples(2.0, power_w=300.0, throttle_reasons=lambda at_s: 0x40 if at_s < 0 else 0)
    assert one(before, steps(2.0))["verdict"] == "ok"


def test_clocks_are_medians_and_traffic_is_a_rise() -> None:
    counters = {"pcie_tx_kib": lambda at_s: 50.0 * 1024 * (at_s + 1), "pcie_rx_kib": lambda at_s: 1000.0 - at_s}
    clock = {"sm_clock_mhz": lambda at_s: 1000.0 if at_s < 1 else 1800.0}
    row = one(samples(10.0, nvlink_tx_kib=7.0, **clock, **counters), steps(10.0))
    assert (row["sm_clock_mhz"], row["min_sm_clock_mhz"]) == (1800.0, 1000.0)
    assert (row["pcie_tx_mib_s"], row["nvlink_tx_mib_s"]) == (pytest.approx(50.0), 0.0)
    assert pd.isna(row["pcie_rx_mib_s"])  # it fell: a counter of 32 bits that wrapped, or a reset
    assert pd.isna(row["nvlink_rx_mib_s"])


def test_power_over_time_leaves_out_the_unknown() -> None:
    table = devices.power_timeline(samples(1.0, power_w=lambda at_s: None if at_s < 0 else 10.0))
    assert table["power_w"].tolist() == [10.0] * 21 and table["t_ns"].is_monotonic_increasing


def test_nvlink_rates_of_gpm_stand_beside_the_counters() -> None:
    """Summed over the devices of a launch, as what the counters rose by; where there are none, why."""
    known = {"sm_percent": 40.0, "nvlink_tx_mib_s": 300.0, "nvlink_tx_kib": lambda at_s: 2048.0 * (at_s + 1)}
    why = "nvlink_rx_mib_s: Not Supported"
    two = pd.concat([samples(10.0, device=name, activity_reason=why, **known) for name in ("GPU-a", "GPU-b")])
    two.loc[two.groupby("device")["t_ns"].idxmin(), "activity_reason"] = FIRST
    of = iterations(steps(10.0))
    (row,) = devices.per_scenario(two, of, None, devices.per_device(two, devices.windows(of))).to_dict("records")
    assert (row["gpm_nvlink_tx_mib_s"], row["nvlink_tx_mib_s"]) == pytest.approx((600.0, 4.0))
    assert pd.isna(row["gpm_nvlink_rx_mib_s"]) and row["activity_reason"] == why
    assert pd.isna(one(samples(10.0, **known), steps(10.0))["activity_reason"])
    often = samples(10.0, **known)
    soon = often.index % 3 > 0
    often.loc[soon, ["sm_percent", "activity_reason"]] = None, SOON
    often.loc[~soon & (often["t_ns"] > often["t_ns"].median()), "sm_percent"] = 80.0
    row = one(often, steps(10.0))
    assert row["sm_percent"] == pytest.approx(60.0, abs=1.0) and pd.isna(row["activity_reason"])


def test_activity_is_weighed_by_time_in_the_window() -> None:
    samples = pd.DataFrame({"t_ns": [0, 10, 40, 50], "sm_percent": [99.0, 20.0, 60.0, None]})
    assert devices._over_time(samples, "sm_percent") == pytest.approx((10 * 20 + 30 * 60) / 40)
    assert devices._over_time(samples[:1], "sm_percent") is None


def test_tables_in_pieces_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown, nothing = replace(DDP2), {"throttle_reasons": None, "mig": None}
    monkeypatch.setattr(unknown, "device_rows", lambda launch: [row | nothing for row in DDP2.device_rows(launch)])
    path = str(write_run(tmp_path, [DP, unknown, DDP2], gpus=GPUS))
    whole = Analysed.of(read(path))
    monkeypatch.setattr(tables, "CHUNK_ROWS", 1)
    pieces = Analysed.of(read(path, condense=CONDENSE))
    pd.testing.assert_frame_equal(
        pieces.iterations.frame, whole.iterations.frame, check_dtype=False, check_categorical=False
    )
    ours, theirs = (run.devices.astype("object").where(run.devices.notna(), None) for run in (pieces, whole))
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert [*pieces.power["power_w"]] == [*whole.power["power_w"]] and pieces.throttled.equals(whole.throttled)
