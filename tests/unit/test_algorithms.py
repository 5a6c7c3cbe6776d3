"""One fit does not hold over a change of algorithm: NCCL's rings within four GPUs, NVSwitches that reduce above."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
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

BUS_GB_S = {2: 362.0, 4: 363.0, 5: 414.0, 6: 436.0, 7: 460.0, 8: 473.0}
"""Of large all-reduces on eight H200 with NVSwitches, as published for NCCL 2.27; that of two GPUs is assumed."""

SIZES = [1024 * 4**power for power in range(9)]
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
    computing = tuple(
        ExchangesRecord.of(launch(processes=n), global_batch=n, ends_ms=ends, exchanges=(bucket,), why_not=None)
        for n in counts
    )
    reduced = tuple(
        BandwidthRecord.of(
            launch(processes=n),
            transport=NVLINK,
            sizes=tuple(AllReduces(bytes=size, times_ms=(time_ms(n, size),)) for size in SIZES),
            left_out=None,
        )
        for n in counts
        if n > 1
    )
    profile = Profile(steps=3, step_ms=1.0, categories={}, trace=None)
    seen = tuple(
        PointDiagnostic.of(
            launch(processes=n, replicas=n),
            global_batch=n,
            looks=(Look(reasons={}, profile=profile, nccl=replace(NO_NCCL, algorithms=LOG if n > 4 else RINGS)),),
        )
        for n in counts
        if log and n > 1
    )
    about = {"batch_per_rank": 1, "bandwidth": reduced, "exchanges": computing, "diagnostics": seen}
    scaling = Scaling(counts=counts, modes=("weak",), **about | more)
    gpus = [{"index": n, "uuid": f"GPU-{n}", "name": "NVIDIA H200"} for n in range(8)]
    return SimpleNamespace(document=with_records(document(machine={"gpus": gpus}), scaling))


def of(run: Any) -> tuple[Scaling, Algorithms]:
    scaling = run.document.of(Scaling)
    assert scaling is not None
    return scaling, Algorithms.of(run.document)


def test_each_algorithm_has_its_own_fit() -> None:
    scaling, algorithms = of(run((1, 2, 4, 5, 6, 7, 8)))
    link = fitted(samples(scaling.bandwidth, algorithms))
    assert link is not None and link.worst < 0.1
    assert {(one.algorithm, one.ranks) for one in link.pieces} == {("NVLS", (5, 6, 7, 8)), ("RING", (2, 4, 5, 6, 7, 8))}
    as_one_ring = fitted(samples(scaling.bandwidth))
    assert as_one_ring is not None and as_one_ring.worst > 0.2
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
    assert (algorithms.at(3, LARGE), algorithms.at(9, LARGE)) == ("", "network ")


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
    assert (algorithms.at(7, LARGE), algorithms.at(16, LARGE)) == ("RING/LL", "network ")
    assert replace(algorithms, per_host=16).at(9, LARGE) is None, "more over NVLink than were measured"
    assert replace(algorithms, per_host=16, nvlink=False).at(9, LARGE) == "RING/SIMPLE"
    assert algorithms.at(8, 100) == "RING/SIMPLE", "the nearest"
    assert Algorithms().at(1000, LARGE) == "", "gloo has one ring"


def test_a_break_in_the_times_is_a_break_in_the_fit() -> None:
    """From 4 MiB on a tenth of the bandwidth, as where a protocol or a cache ends."""
    slow = [(size, 0.02 + size * (1e-7 if size < 1 << 22 else 1e-6)) for size in SIZES]
    link = fitted([Sample(ranks=2, bytes=size, time_ms=one, low_ms=one, high_ms=one) for size, one in slow])
    assert link is not None and [one.sizes for one in link.pieces] == [(1 << 10, 1 << 20), (1 << 22, 1 << 26)]
    assert link.worst < 0.01
    times = [(0.02 + size * 1e-7) * (1.15, 0.9)[place % 2] for place, size in enumerate(SIZES)]
    noisy = [
        Sample(ranks=2, bytes=size, time_ms=one, low_ms=0, high_ms=9) for size, one in zip(SIZES, times, strict=True)
    ]
    smooth = fitted(noisy)
    assert smooth is not None and smooth.pieces == (), "noise is no break"
