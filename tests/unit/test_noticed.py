"""What a record says of the sampling of its launch: throttling, who else was there, and the last resort for memory."""

from typing import Any

import pandas as pd
import pytest
from standin import documents, frames

from bench.analyse.memory import boundaries, peaks, stacks
from bench.core.records import MEMORY_COLUMNS
from bench.machine import throttle
from bench.machine.sample.noticed import allocator_rows, checks
from bench.runs.launches import RankRecord

MS = 1_000_000
STEPS = [
    {"warmup": True, "start_ns": 0, "step_ms": 100.0},
    {"warmup": False, "start_ns": 100 * MS, "step_ms": 100.0},
    {"warmup": False, "start_ns": 200 * MS, "step_ms": 100.0},
]


def device(t_ms: int, bits: int | None, uuid: str = "GPU-a", mig: bool | None = False) -> dict[str, Any]:
    return {"t_ns": t_ms * MS, "device": uuid, "throttle_reasons": bits, "mig": mig}


def test_what_the_bits_mean() -> None:
    assert {throttle.verdict(bits) for bits in (0x0, 0x3)} == {"ok"} and throttle.verdict(0x4) == "warning"
    assert {throttle.verdict(bits) for bits in (0x8, 0x20, 0x44, 0x84)} == {"invalid"}
    assert throttle.names(0x204) == ["power cap", "0x200"], "an unknown bit"


THERMAL = [device(100 + 10 * number, 0x40 if number == 7 else 0x1) for number in range(20)]
CAPPED, UNKNOWN = device(150, 0x4), device(150, None, "GPU-b")


@pytest.mark.parametrize(
    ("rows", "verdict", "devices"),
    [
        pytest.param(THERMAL, "invalid", {"GPU-a": ["idle", "thermal slowdown (hardware)"]}, id="one sample of twenty"),
        pytest.param([device(50, 0x40), device(150, 0x0), device(301, 0x40)], "ok", {"GPU-a": []}, id="other steps"),
        pytest.param([CAPPED, UNKNOWN], "warning", {"GPU-a": ["power cap"], "GPU-b": None}, id="the worst device"),
        pytest.param([UNKNOWN], "unknown", {"GPU-b": None}, id="nothing known"),
    ],
)
def test_a_launch_is_judged_by_its_measured_steps(rows: list[Any], verdict: str, devices: dict[str, Any]) -> None:
    assert throttle.check(rows, STEPS) == {"verdict": verdict, "devices": devices}
    for unknown, steps in ([], STEPS), (rows, STEPS[:1]), ([device(150, None, mig=None)], STEPS):
        assert throttle.check(unknown, steps) is None, "without samples or measured steps nothing is said"


def test_without_a_sampler_other_work_is_unknown() -> None:
    assert checks(None, [], STEPS) == {"foreign": None, "scrambled_lists": None, "throttle": None}
    assert checks({"foreign": [], "scrambled_lists": 3}, [], STEPS)["scrambled_lists"] == 3


RANKS = (
    RankRecord(rank=0, pid=11, allocator={"max_allocated_mib.GPU-a": 700.0, "max_reserved_mib.GPU-a": 900.0}),
    RankRecord(rank=1, pid=12, allocator={"max_allocated_mib.GPU-b": 600.0, "max_reserved_mib.GPU-b": 800.0}),
)


def sample(rank: int, used_mib: float | None, t_ns: int = 5, source: str = "nvml_pid") -> dict[str, Any]:
    gpu = "GPU-a" if rank == 0 else "GPU-b"
    about = {"t_ns": t_ns, "pid": RANKS[rank].pid, "rank": rank, "used_mib": used_mib}
    return documents.sample(device=gpu, source=source, **about)


def last_resort(memory: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return allocator_rows(memory, RANKS, launch=0, scenario="ddp", host="h")


def test_torchs_peak_stands_in_for_an_unknown_rank() -> None:
    memory = [sample(0, 1400.0), sample(1, None, source="unavailable")]
    (row,) = torchs = last_resort(memory)
    assert list(row) == list(MEMORY_COLUMNS)
    assert (row["rank"], row["device"], row["used_mib"], row["source"]) == (1, "GPU-b", 800.0, "torch_allocator")
    assert last_resort([sample(0, 1400.0), sample(1, 1300.0)]) == []
    assert allocator_rows([], [RankRecord(rank=0, pid=1)], launch=0, scenario="s", host="h") == []
    (peak,) = peaks(frames.memory(memory + torchs)).to_dict("records")
    assert (peak["peak_pid_mib"], peak["source"]) == (1400.0, "nvml_pid+torch_allocator+unavailable")
    assert pd.isna(peak["peak_total_mib"]), "a sum never has torch's peak in it"


def test_a_stack_has_each_process_at_each_time() -> None:
    dp = [sample(0, 1400.0, 1) | {"pid": 5}, sample(0, 900.0, 1) | {"pid": 5, "device": "GPU-b"}]
    ddp = [sample(0, 1000.0, 7), sample(1, 1001.0, 7) | {"device": "GPU-a"}, sample(0, None, 8, "unavailable")]
    ddp.append(sample(0, 800.0, 8, "torch_allocator") | {"pid": 99})
    memory = frames.memory(dp + [row | {"launch": 1} for row in ddp])
    stacked = stacks(memory)
    columns = {key: [*stack.columns] for key, stack in stacked.items()}
    assert columns == {(0, "GPU-a"): [(0, 5)], (0, "GPU-b"): [(0, 5)], (1, "GPU-a"): [(0, 11), (1, 12)]}
    assert stacked[0, "GPU-a"].loc[1].tolist() == [1400.0] and stacked[0, "GPU-b"].loc[1].tolist() == [900.0]
    assert stacked[1, "GPU-a"].loc[7].tolist() == [1000.0, 1001.0]
    assert [pd.isna(value) for value in stacked[1, "GPU-a"].loc[8]] == [True, False]
    bounds = boundaries(memory)
    assert bounds[["launch", "start_ns", "end_ns"]].to_numpy().tolist() == [[0, 1, 1], [1, 7, 8]]
