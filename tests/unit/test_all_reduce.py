"""All-reduces: the fit finds what a planted link is capable of, and a launch measures real ones. No fit holds over a
change of algorithm: NCCL's rings within four GPUs, NVSwitches that reduce above."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Bench
from standin.documents import document, launch, with_records

from bench.analyse import scaling as curves
from bench.analyse.algorithms import Algorithms
from bench.analyse.all_reduce import Sample, bus_share, fitted, samples, sentences
from bench.analyse.predicted import predictions
from bench.report.all_reduce import bandwidth_table
from bench.report.scaling import prediction_table
from bench.runs.experiments import (
    NO_NCCL,
    AllReduces,
    BandwidthRecord,
    Exchange,
    ExchangesRecord,
    Look,
    PointDiagnostic,
    Profile,
    Scaling,
    Transport,
)
from bench.words.scaling import about_predictions
from bench.worker import bandwidth as worker

SIZES = [1024 * 4**power for power in range(9)]


def planted(ranks: int, alpha_ms: float, beta_ms: float, noise: float = 0.0) -> list[Sample]:
    found = []
    for place, size in enumerate(SIZES):
        exact = 2 * (ranks - 1) * alpha_ms + bus_share(ranks) * size * beta_ms
        time_ms = exact * (1 + noise * (-1) ** place)
        found.append(Sample(ranks=ranks, bytes=size, time_ms=time_ms, low_ms=time_ms, high_ms=time_ms))
    return found


def record(ranks: int, *sizes: AllReduces, **about: Any) -> BandwidthRecord:
    return BandwidthRecord.of(launch(processes=ranks), sizes=sizes, **{"transport": None, "left_out": None} | about)


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
    sizes = [AllReduces(bytes=one.bytes, times_ms=(one.time_ms,) * 3) for one in planted(2, 0.05, 1e-6)]
    reduced = [record(2, *sizes, transport=about, left_out="larger ones: slow")]
    fit, transport, left_out = sentences(reduced)
    assert fit.startswith("Fit: 50.0 µs a step of a ring and 1.00 GB/s; it misses")
    assert "gloo over eth0, nominally 10,000 Mbit/s (1.25 GB/s)" in transport and left_out == "Larger ones: slow."
    largest = samples(reduced)[-1]
    assert (largest.ranks, largest.bytes, largest.nominal_gb_s) == (2, SIZES[-1], 1.25)
    assert largest.of_nominal == pytest.approx(0.8, rel=0.01)
    (table, *_) = bandwidth_table([largest]).texts()[1:]
    assert table[-1] == "80 %"
    (small, *_) = bandwidth_table([replace(largest, bytes=1024, time_ms=2.658)]).texts()[1:]
    assert small[-2] == "0.000385", "and not 0.000, as if nothing went over the link"


def test_all_reduces_at_once_have_rows_of_their_own() -> None:
    sizes = [AllReduces(bytes=1 << 20, at_once=n, times_ms=(time_ms,)) for n, time_ms in ((1, 10.0), (2, 11.5))]
    reduced = [record(2, *sizes)]
    assert [row[2] for row in bandwidth_table(samples(reduced)).texts()[1:]] == ["1", "2"]
    assert sentences(reduced) == [] and fitted(samples(reduced)) is None


def test_a_size_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 µs for 1000 bytes: 64 MiB take 67 ms, three of 16 MiB 50 ms, and two of them 34 ms."""
    monkeypatch.setattr(worker, "all_reduce_ms", lambda tensors, calls, device: tensors[0].nbytes / 1e6)
    monkeypatch.setattr(worker, "slowest", lambda time_ms, device: time_ms)
    monkeypatch.setattr(worker, "MOST_MS", 40.0)
    monkeypatch.setattr(worker, "transport", lambda environment: None)
    turns: list[int] = []
    plan: Any = SimpleNamespace(parts=SimpleNamespace(device=torch.device("cpu")))
    found = worker.perform(plan, lambda phase, of: turns.append)["bandwidth"]
    done = [(one["at_once"], one["bytes"]) for one in found["sizes"]]
    assert done == [turn for turn in worker.PLAN if turn not in ((3, 16 << 20), (1, 64 << 20))]
    assert found["left_out"].startswith("some all-reduces were left out: 3 at once of 16,384 KiB would take")
    assert len(turns) == len(done)


def test_the_interface_is_what_gloo_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, speed in {"eth0": "25000\n", "eth1": "10000\n", "lo": "-1\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    monkeypatch.setattr(worker, "nominal_mbit", partial(worker.nominal_mbit, root=str(tmp_path)))
    monkeypatch.setattr(worker.dist, "get_backend", lambda: "gloo")
    named = [worker.transport({"GLOO_SOCKET_IFNAME": name}) for name in ("eth0", "eth0,eth1", "lo", "eth9")]
    assert [one["interface"] for one in named] == ["eth0", "eth0,eth1", "lo", "eth9"]
    assert [one["nominal_mbit"] for one in named] == [25000.0, 10000.0, None, None]
    assert [one["reason"] for one in named] == [
        None,
        None,
        *(f"{name} has no nominal speed" for name in ("lo", "eth9")),
    ]
    unknown = worker.transport({})
    assert unknown["interface"] is None and "GLOO_SOCKET_IFNAME is not set" in str(unknown["reason"])


def test_doctor_measures_all_reduces_for_real(run_here: Bench) -> None:
    found = run_here("doctor", "--bandwidth", "--json").well()["bandwidth"]
    assert found["failed"] == [] and found["transport"]["backend"] == "gloo"
    assert found["transport"]["interface"] == "lo" and "no nominal speed" in found["transport"]["reason"]
    times = {one["bytes"]: one["time_ms"] for one in found["all_reduces"]}
    assert min(times) == 1024 and times[max(times)] > times[1024] > 0
    assert found["fit"]["ranks"] == [2] and found["fit"]["beta_ms"] > 0
    assert {one["of_nominal"] for one in found["all_reduces"]} == {None}, "a loopback has no nominal speed"
    assert {one["at_once"] for one in found["all_reduces"]} == {1, 2, 3} and len(found["fit"]["at_once"]) == 2


BUS_GB_S = {2: 362.0, 4: 363.0, 5: 414.0, 6: 436.0, 7: 460.0, 8: 473.0}
"""Of large all-reduces on eight H200 with NVSwitches, as published for NCCL 2.27; that of two GPUs is assumed."""

LARGE, STEP_MS, RING_MS = 25 << 20, 30.0, 0.004
LOG = {"AllReduce RING/LL": (4, 1 << 20), "AllReduce NVLS/SIMPLE": (4 << 20, 64 << 20), "Broadcast RING/LL": (4, 9)}
RINGS = {"AllReduce RING/LL": (4, 64 << 20)}
NVLINK = Transport(
    backend="nccl", library="NCCL 2.27.3", interface="NVLink, 18 links a GPU", nominal_mbit=None, reason=None
)


def time_ms(ranks: int, size: int) -> float:
    """A ring up to 1 MiB; above it, what the published bandwidth makes of it."""
    bus = BUS_GB_S[ranks] if size > 1 << 20 or ranks <= 4 else BUS_GB_S[4]
    nvls = size > 1 << 20 and ranks > 4
    return (0.02 if nvls else 2 * (ranks - 1) * RING_MS) + bus_share(ranks) * size / bus / 1e6


def run(counts: tuple[int, ...], log: bool = True, **more: Any) -> Any:
    """A run of ``bench scale`` on an HGX host whose model exchanges one bucket of 25 MiB a step."""
    bucket = Exchange(kind="all_reduce", phase="backward", bytes=LARGE, ready_ms=20.0)
    ends = {"data": 0.1, "forward": 10.0, "backward": 25.0, "optimizer": STEP_MS}
    profile = Profile(steps=3, step_ms=1.0, categories={}, trace=None)
    computing, reduced, seen = [], [], []
    for n in counts:
        one = launch(processes=n, replicas=n)
        computing.append(ExchangesRecord.of(one, global_batch=n, ends_ms=ends, exchanges=(bucket,), why_not=None))
        if n > 1:
            sizes = [AllReduces(bytes=size, times_ms=(time_ms(n, size),)) for size in SIZES]
            reduced.append(record(n, *sizes, transport=NVLINK))
            look = Look(reasons={}, profile=profile, nccl=replace(NO_NCCL, algorithms=LOG if n > 4 else RINGS))
            seen.append(PointDiagnostic.of(one, global_batch=n, looks=(look,)))
    records = {"bandwidth": tuple(reduced), "exchanges": tuple(computing), "diagnostics": tuple(seen) if log else ()}
    scaling = Scaling(counts=counts, modes=("weak",), batch_per_rank=1, **records | more)
    gpus = [{"index": n, "uuid": f"GPU-{n}", "name": "NVIDIA H200"} for n in range(8)]
    return SimpleNamespace(document=with_records(document(machine={"gpus": gpus}), scaling))


def of(run: Any) -> tuple[Scaling, Algorithms]:
    return run.document.begun(Scaling), Algorithms.of(run.document)


def test_each_algorithm_has_its_own_fit() -> None:
    scaling, algorithms = of(run((1, 2, 4, 5, 6, 7, 8)))
    link = fitted(samples(scaling.bandwidth, algorithms))
    assert link is not None and link.worst < 0.1
    assert {(one.algorithm, one.ranks) for one in link.pieces} == {("NVLS", (5, 6, 7, 8)), ("RING", (2, 4, 5, 6, 7, 8))}
    for ranks in BUS_GB_S:
        part = link.of(algorithms.at(ranks, 64 << 20), 64 << 20)
        assert part is not None
        assert part.all_reduce_ms(64 << 20, ranks) == pytest.approx(time_ms(ranks, 64 << 20), rel=0.05)
    table = bandwidth_table(samples(scaling.bandwidth, algorithms))
    assert table is not None and table.texts()[-1][-1] == "NVLS/SIMPLE"
    assert len(sentences(scaling.bandwidth, algorithms)) == len(link.pieces) + 1


def test_without_a_log_there_is_one_fit() -> None:
    scaling, algorithms = of(run((1, 2, 4, 5, 6, 7, 8), log=False))
    link = fitted(samples(scaling.bandwidth, algorithms))
    assert link is not None and link.algorithm == "" and link.worst > 0.2
    assert (algorithms.at(3, LARGE), algorithms.at(9, LARGE)) == ("", "network")


def test_nothing_is_predicted_over_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one ring, 8 GPUs of 1, 2 and 4 would have 363 GB/s where they have 473."""
    monkeypatch.setattr(curves, "scaled", lambda run: [])
    four = run((1, 2, 4), predict=(3, 8, 16))
    (_, asked) = curves.foreseen(four)
    assert [(one.count, one.step_ms is None) for one in asked] == [(3, False), (8, True), (16, True)]
    table = prediction_table([], asked)
    assert table is not None and "efficiency: beside one device as predicted" in table.notes[0]
    assert table is not None and [row[2] for row in table.texts()[1:]][1:] == ["algorithm not measured"] * 2
    said = "\n".join(about_predictions(four))
    assert "Nothing is predicted for 8 devices: over NVLink NCCL may take another algorithm with more GPUs" in said
    assert "Nothing is predicted for 16 devices: a host has 8 GPUs, and between hosts" in said
    (_, (three, eight, more)) = curves.foreseen(four, what_if_mbit=400_000.0)
    assert None not in (three.step_ms, eight.step_ms, more.step_ms), "on a link that the user names"


def test_above_the_change_others_predict() -> None:
    scaling, algorithms = of(run((1, 5, 6, 7, 8)))
    (eight,) = predictions(scaling, "weak", {1: STEP_MS, 8: STEP_MS}, [8], None, algorithms)
    waits_ms = 20.0 + time_ms(8, LARGE) - 25.0
    assert eight.left_out and eight.exposed_ms == pytest.approx(max(0.0, waits_ms), abs=0.01)
    alone, algorithms = of(run((1, 2, 4, 8)))
    (checked,) = predictions(alone, "weak", {1: STEP_MS, 8: STEP_MS}, [8], None, algorithms)
    assert not checked.left_out and checked.step_ms is not None, "no other number takes its algorithm"


def test_a_number_between_is_as_its_neighbours() -> None:
    read = {2: {"TREE/LL": (4, 1 << 26)}, 4: {"RING/LL": (4, 1 << 26)}, 8: {"RING/SIMPLE": (1 << 20, 1 << 26)}}
    algorithms = Algorithms(read=read, nvlink=True, per_host=8)
    assert [algorithms.at(ranks, LARGE) for ranks in (2, 3, 4, 8)] == ["TREE/LL", None, "RING/LL", "RING/SIMPLE"]
    assert (algorithms.at(7, LARGE), algorithms.at(16, LARGE)) == ("RING/LL", "network")
    assert replace(algorithms, per_host=16).at(9, LARGE) is None, "more over NVLink than were measured"
    assert replace(algorithms, per_host=16, nvlink=False).at(9, LARGE) == "RING/SIMPLE"
    assert algorithms.at(8, 100) == "RING/SIMPLE", "the nearest"
    assert Algorithms().at(1000, LARGE) == "", "gloo has one ring"


def test_a_break_in_the_times_is_a_break_in_the_fit() -> None:
    """From 4 MiB on a tenth of the bandwidth, as where a protocol or a cache ends."""
    link = fitted([*planted(2, 0.01, 1e-7)[:6], *planted(2, 0.01, 1e-6)[6:]])
    assert link is not None and [one.sizes for one in link.pieces] == [(1 << 10, 1 << 20), (1 << 22, 1 << 26)]
    assert link.worst < 0.01
    smooth = fitted(planted(2, 0.01, 1e-7, noise=0.125))
    assert smooth is not None and smooth.pieces == (), "noise is no break"
