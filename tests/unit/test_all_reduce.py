"""All-reduces: the fit finds what a planted link is capable of, and a launch measures real ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Bench
from standin.documents import launch

from bench.analyse.all_reduce import Sample, bus_share, fitted, samples, sentences
from bench.report.all_reduce import bandwidth_table
from bench.runs.experiments import AllReduces, BandwidthRecord, Transport
from bench.worker import bandwidth as worker
from bench.worker import transport as over

SIZES = [1024 * 4**power for power in range(9)]


def planted(ranks: int, alpha_ms: float, beta_ms: float, noise: float = 0.0) -> list[Sample]:
    found = []
    for place, size in enumerate(SIZES):
        exact = 2 * (ranks - 1) * alpha_ms + bus_share(ranks) * size * beta_ms
        time_ms = exact * (1 + noise * (-1) ** place)
        found.append(Sample(ranks=ranks, bytes=size, time_ms=time_ms, low_ms=time_ms, high_ms=time_ms))
    return found


def test_the_fit_finds_latency_and_bandwidth() -> None:
    link = fitted([*planted(2, 0.05, 1e-6), *planted(4, 0.05, 1e-6)])
    assert link is not None and link.ranks == (2, 4)
    assert (link.alpha_ms, link.beta_ms) == pytest.approx((0.05, 1e-6), rel=1e-6)
    assert link.gb_s == pytest.approx(1.0) and link.worst < 1e-6
    assert link.all_reduce_ms(1e6, 8) == pytest.approx(14 * 0.05 + 1.75 * 1.0)
    assert link.broadcast_ms(1e6, 8) == pytest.approx(3 * 1.05)
    assert Sample(ranks=4, bytes=10**9, time_ms=1000.0, low_ms=1, high_ms=1).bus_gb_s == pytest.approx(1.5)


def test_one_wild_size_changes_the_fit_little() -> None:
    link = fitted(planted(2, 0.05, 1e-6, noise=0.1))
    assert link is not None and link.typical == pytest.approx(0.1, rel=0.3)
    wild = planted(2, 0.05, 1e-6, noise=0.01)
    wild[4] = Sample(ranks=2, bytes=wild[4].bytes, time_ms=5 * wild[4].time_ms, low_ms=1, high_ms=9)
    robust = fitted(wild)
    assert robust is not None and robust.alpha_ms == pytest.approx(0.05, rel=0.1)
    assert robust.beta_ms == pytest.approx(1e-6, rel=0.1) and robust.worst > 0.7


def test_no_latency_is_fitted_below_zero() -> None:
    link = fitted([Sample(ranks=2, bytes=one, time_ms=(one * 1e-6) ** 1.2, low_ms=0, high_ms=0) for one in SIZES])
    assert link is not None and link.alpha_ms >= 0 and link.beta_ms >= 0
    assert fitted(planted(2, 0.05, 1e-6)[:2]) is None


def test_what_is_said_of_a_launch() -> None:
    about = Transport(backend="gloo", library=None, interface="eth0", nominal_mbit=10_000.0, reason=None)
    sizes = tuple(AllReduces(bytes=one.bytes, times_ms=(one.time_ms,) * 3) for one in planted(2, 0.05, 1e-6))
    record = BandwidthRecord.of(launch(processes=2), transport=about, sizes=sizes, left_out="larger ones: slow")
    fit, transport, left_out = sentences([record])
    assert fit.startswith("Fit: 50.0 µs a step of a ring and 1.00 GB/s; it misses")
    assert "gloo over eth0, nominally 10,000 Mbit/s (1.25 GB/s)" in transport and left_out == "Larger ones: slow."
    largest = samples([record])[-1]
    assert (largest.ranks, largest.bytes, largest.nominal_gb_s) == (2, SIZES[-1], 1.25)
    assert largest.of_nominal == pytest.approx(0.8, rel=0.01)
    (table, *_) = bandwidth_table([largest]).texts()[1:]
    assert table[-1] == "80 %"
    (small, *_) = bandwidth_table([replace(largest, bytes=1024, time_ms=2.658)]).texts()[1:]
    assert small[-2] == "0.000385", "and not 0.000, as if nothing went over the link"


def test_all_reduces_at_once_have_rows_of_their_own() -> None:
    sizes = tuple(AllReduces(bytes=1 << 20, at_once=n, times_ms=(time_ms,)) for n, time_ms in ((1, 10.0), (2, 11.5)))
    record = BandwidthRecord.of(launch(processes=2), transport=None, sizes=sizes, left_out=None)
    assert [row[2] for row in bandwidth_table(samples([record])).texts()[1:]] == ["1", "2"]
    assert sentences([record]) == [] and fitted(samples([record])) is None


def test_a_size_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 µs for 1000 bytes: 64 MiB take 67 ms, three of 16 MiB 50 ms, and two of them 34 ms."""
    monkeypatch.setattr(worker, "all_reduce_ms", lambda tensors, calls, device: tensors[0].nbytes / 1e6)
    monkeypatch.setattr(worker, "slowest", lambda time_ms, device: time_ms)
    monkeypatch.setattr(worker, "MOST_MS", 40.0)
    monkeypatch.setattr(worker, "transport", lambda environment: None)
    turns: list[int] = []
    found = worker.run(torch.device("cpu"), turns.append)["bandwidth"]
    done = list(zip(found["at_once"], found["bytes"], strict=True))
    assert done == [turn for turn in worker.PLAN if turn not in ((3, 16 << 20), (1, 64 << 20))]
    assert found["left_out"].startswith("some all-reduces were left out: 3 at once of 16,384 KiB would take")
    assert len(turns) == len(done)


def test_each_size_is_reduced_once_where_the_log_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[torch.Tensor] = []
    monkeypatch.setattr(worker.dist, "all_reduce", reduced.append)
    worker.once(torch.device("cpu"))
    assert [one.nbytes for one in reduced] == SIZES


def test_the_interface_is_what_gloo_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"eth0": 25000.0, "eth1": 10000.0, "lo": None}
    monkeypatch.setattr(over, "nominal_mbit", speeds.get)
    monkeypatch.setattr(over.dist, "get_backend", lambda: "gloo")
    named = [over.transport({"GLOO_SOCKET_IFNAME": name}) for name in ("eth0", "eth0,eth1", "lo")]
    assert [one["interface"] for one in named] == ["eth0", "eth0,eth1", "lo"]
    assert [one["nominal_mbit"] for one in named] == [25000.0, 10000.0, None]
    assert [one["reason"] for one in named] == [None, None, "lo has no nominal speed"]
    unknown = over.transport({})
    assert unknown["interface"] is None and "GLOO_SOCKET_IFNAME is not set" in str(unknown["reason"])


@pytest.mark.parametrize(("content", "mbit"), [("25000\n", 25000.0), ("-1\n", None), (None, None)])
def test_nominal_speed(tmp_path: Path, content: str | None, mbit: float | None) -> None:
    (tmp_path / "eth0").mkdir()
    if content is not None:
        (tmp_path / "eth0" / "speed").write_text(content)
    assert over.nominal_mbit("eth0", str(tmp_path)) == mbit


def test_doctor_measures_all_reduces_for_real(run_here: Bench) -> None:
    found = run_here("doctor", "--bandwidth", "--json").well()["bandwidth"]
    assert found["failed"] == [] and found["transport"]["backend"] == "gloo"
    assert found["transport"]["interface"] == "lo" and "no nominal speed" in found["transport"]["reason"]
    times = {one["bytes"]: one["time_ms"] for one in found["all_reduces"]}
    assert min(times) == 1024 and times[max(times)] > times[1024] > 0
    assert found["fit"]["ranks"] == [2] and found["fit"]["beta_ms"] > 0
    assert {one["of_nominal"] for one in found["all_reduces"]} == {None}, "a loopback has no nominal speed"
    assert {one["at_once"] for one in found["all_reduces"]} == {1, 2, 3} and len(found["fit"]["at_once"]) == 2
