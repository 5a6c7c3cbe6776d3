"""The search for the largest batch, against devices whose truth is known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import one_host, request_for
from hypothesis import given
from hypothesis import strategies as st
from standin import a_gpu
from standin.documents import document
from standin.workloads import workload

from bench import machine
from bench.core.errors import RequestError
from bench.experiments import batch_search
from bench.experiments.batch_search import fullest_mib, peaks_mib
from bench.experiments.lab import Start
from bench.experiments.plan.batch_search import MOST, Try, expected_batch, expected_s, next_batch
from bench.machine import nvml
from bench.runs.experiments import BatchSearch
from bench.runs.launches import RankRecord
from bench.runs.writer import RunWriter
from bench.seams import discover, switching


def test_a_try_makes_one_batch() -> None:
    """Four of 1,024 random images each take five seconds, and memory is that of one."""
    found = switching.load(*discover.resolve("ddp"))
    job = batch_search.planned_try(request_for((found,)), found, 1024, 3, one_host(2))
    work = job.workload
    assert (job.launch, work.global_batch, work.pool_batches) == (3, 1024, 1)


def test_a_search_without_end_is_ended() -> None:
    tries: dict[int, bool] = {}
    while (batch := next_batch(tries, 1)) is not None:
        tries[batch] = True
    assert max(tries) == MOST


@given(
    largest=st.integers(0, 5000),
    unit=st.integers(1, 8),
    first=st.none() | st.integers(1, 600),
    wrong=st.none() | st.floats(0.3, 3.0, allow_nan=False),
)
def test_the_largest_batch_is_found(largest: int, unit: int, first: int | None, wrong: float | None) -> None:
    """In few tries, also where more or less is expected than is true."""
    tries: dict[int, bool] = {}
    while (batch := next_batch(tries, unit, first, wrong * largest if wrong and len(tries) > 1 else None)) is not None:
        assert batch not in tries and batch % unit == 0 and batch > 0
        tries[batch] = batch <= largest
    assert max((batch for batch, trains in tries.items() if trains), default=0) == largest // unit * unit
    assert len(tries) <= (90 if first or wrong else 2 * max(1, largest // unit).bit_length() + 2), "it creeps"


def test_one_try_or_a_falling_line_predicts_nothing() -> None:
    assert expected_batch([trained(128, 9000.0)], 80000.0) is None
    assert expected_batch([trained(128, 9000.0), trained(256, 8000.0)], 80000.0) is None
    oom = Try(global_batch=512, why_not="oom", peak_mib=300.0)
    assert expected_batch([trained(1, 100.0), trained(2, 200.0), oom], 1000.0) == pytest.approx(9.5)


def trained(batch: int, peak_mib: float) -> Try:
    return Try(global_batch=batch, why_not=None, peak_mib=peak_mib, throughput_per_s=10.0 * batch)


def test_the_fullest_device_counts_all_its_processes() -> None:
    values = (1, 1, "a", 5.0), (1, 2, "a", 6.0), (2, 1, "a", 9.0), (1, 3, "b", 10.0), (3, 1, "a", None)
    rows = [dict(zip(("t_ns", "pid", "device", "used_mib"), row, strict=True)) for row in values]
    assert fullest_mib(rows) == {"a": 11.0, "b": 10.0}
    assert fullest_mib([]) == {}


def test_torchs_reserve_counts_all_ranks_on_a_device() -> None:
    ranks = [rank({"max_reserved_mib.a": size, "max_allocated_mib.a": 99.0}) for size in (5.0, 6.0)]
    found = peaks_mib([*ranks, rank({"max_reserved_mib.b": 10.0}), rank(None)], "max_reserved_mib")
    assert found == {"a": 11.0, "b": 10.0}
    assert peaks_mib([rank({"max_rss_mib": 7.0})], "max_reserved_mib") == {}


def rank(allocator: dict[str, float] | None) -> RankRecord:
    return RankRecord(rank=0, pid=1, allocator=allocator)


@pytest.mark.parametrize(
    ("used_mib", "reserved", "steady", "peak_mib", "why_not"),
    [
        (990.0, 960.0, 800.0, 830.0, None),
        (None, 960.0, 800.0, 800.0, None),
        (990.0, 960.0, 950.0, 980.0, "leaves less than 5 % free: 980 MiB of 1,000"),
        (None, 960.0, None, 960.0, "leaves less than 5 % free: 960 MiB of 1,000"),
        (700.0, 900.0, None, 900.0, None),
        (960.0, 900.0, None, 960.0, "leaves less than 5 % free: 960 MiB of 1,000"),
        (None, None, None, None, "it trains, but neither the driver nor torch reports how much memory it leaves free"),
    ],
)
def test_outcomes(used_mib: Any, reserved: Any, steady: Any, peak_mib: float | None, why_not: str | None) -> None:
    """What torch keeps reserved since cuDNN's search (``steady``: what measured steps had in use) counts as free."""
    peaks = {"max_reserved_mib.a": reserved, "steady_allocated_mib.a": steady}
    ranks = [rank({name: mib for name, mib in peaks.items() if mib is not None} or None)]
    record = SimpleNamespace(status="ok", reason=None, ranks=ranks)
    memory = [{"device": "a", "t_ns": 1, "used_mib": used_mib}]
    steps = [{"warmup": False, "step": 1, "step_ms": 1.0}]
    job = SimpleNamespace(workload=workload(global_batch=8))
    done: Any = SimpleNamespace(job=job, record=record, tables={"memory": memory, "steps": steps})
    one = batch_search._judged(done, 1000.0)
    assert (one.peak_mib, one.why_not) == (peak_mib, why_not)


class Device:
    """A try takes ten seconds."""

    def __init__(self, patch: pytest.MonkeyPatch, out: Path, budget_s: Any = None, breaks_at: int = 1 << 20) -> None:
        self.now_s, self.tried = 0.0, list[int]()
        patch.setattr(batch_search.time, "monotonic", lambda: self.now_s)

        def attempt(found: Any, batch: int, capacity_mib: float, run: Any) -> tuple[Any, Try]:
            self.now_s += 10.0
            self.tried.append(batch)
            if batch >= breaks_at:
                return SimpleNamespace(status="error", reason="broke"), Try(global_batch=batch, why_not="broke")
            peak = 1500.0 + 120.0 * batch
            why = None if peak < 0.95 * capacity_mib else "full"
            one = Try(global_batch=batch, why_not=why, peak_mib=peak, throughput_per_s=1.0)
            return SimpleNamespace(status="ok", reason=None), one

        patch.setattr(batch_search, "_try_batch", attempt)
        found = [SimpleNamespace(name=name, strategy=SimpleNamespace(replicas=lambda parts: 1)) for name in ("a", "b")]
        self.run: Any = SimpleNamespace(
            request=SimpleNamespace(device="cuda", global_batch=128, replicas=1, budget_s=budget_s, devices=("GPU-0",)),
            writer=RunWriter(str(out), document(machine={"gpus": [{"uuid": "GPU-0", "memory_total_mib": 81920.0}]})),
            runnable=found,
            began_s=0.0,
        )

    def search(self) -> dict[str, Any]:
        batch_search.search_each(self.run)
        return dict(self.run.writer.document.of(BatchSearch).scenarios)


def test_how_a_search_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = Device(monkeypatch, tmp_path)
    found = device.search()
    assert device.tried[:3] == [128, 256, 636]
    assert [(one.largest, one.too_large, one.stopped_by) for one in found.values()] == [(636, 637, None)] * 2
    on_cpu = Device(monkeypatch, tmp_path)
    on_cpu.run.request.device = "cpu"
    one = on_cpu.search()["a"]
    assert (one.largest, one.too_large, max(on_cpu.tried)) == (636, 637, 636) and one.why_not.startswith("not tried: ")
    found = Device(monkeypatch, tmp_path, breaks_at=200).search()
    assert (found["a"].largest, found["a"].failed, found["a"].stopped_by) == (128, True, "failure")
    one = Try(global_batch=128, why_not="nobody tells", throughput_per_s=1.0)
    monkeypatch.setattr(batch_search, "_try_batch", lambda *arguments: (SimpleNamespace(status="ok", reason=None), one))
    found = device.search()
    assert (found["a"].largest, found["a"].why_not, found["a"].stopped_by) == (None, "nobody tells", "failure")


def test_memory_that_nobody_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As of GPUs whose memory is the host's."""
    monkeypatch.setattr(nvml, "list_gpus", lambda: ([replace(a_gpu(0, "GPU-a"), memory_total_mib=None)], None))
    monkeypatch.delenv(machine.VISIBLE, raising=False)
    found = (switching.scenario("single"),)
    request = request_for(found, device="cuda", devices=("GPU-a",), replicas=1)
    with pytest.raises(RequestError, match="--find-batch: the driver does not report how much memory there is; choose"):
        batch_search.find_batches(request, found, Start(out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_a_budget_is_shared_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = Device(monkeypatch, tmp_path, 50.0)
    first, second = device.search().values()
    assert (first.tries, second.tries) == (2, 3), "25 s and then the 30 s that are left"
    assert first.stopped_by == second.stopped_by == "budget" and device.now_s == 50.0
    assert (first.largest, first.too_large) == (256, None)
    assert [one.tries for one in Device(monkeypatch, tmp_path, 1.0).search().values()] == [1, 1], "at least"


def test_how_long_a_try_is_expected_to_take() -> None:
    assert expected_s([], 8) == 0.0
    assert expected_s([(128, 9.0)], 256) == 9.0
    assert expected_s([(128, 9.0), (256, 11.0)], 512) == pytest.approx(15.0)
    assert expected_s([(128, 9.0), (256, 8.0)], 512) == 8.0
    assert expected_s([(256, 11.0), (512, 20.0)], 384) == 20.0
