"""A step as a timeline: each case is worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from standin.documents import launch, with_records
from standin.runs import DDP, analysed, write_run

from bench.analyse.all_reduce import Link
from bench.analyse.predicted import largest_error, predictions
from bench.analyse.scaling import scaled
from bench.analyse.timeline import Costed, exposed_ms, sharing
from bench.experiments.plan.scaling import without_exchanges
from bench.runs.experiments import AllReduces, BandwidthRecord, Exchange, ExchangesRecord, PointRecord, Scaling
from bench.words.scaling import answer

ENDS = {"data": 1.0, "forward": 11.0, "backward": 31.0, "optimizer": 33.0}


def in_backward(*ready_and_cost: tuple[float, float]) -> list[Costed]:
    return [Costed(phase="backward", ready_ms=ready, costs_ms=(cost,)) for ready, cost in ready_and_cost]


IN_FORWARD = Costed(phase="forward", ready_ms=2.0, costs_ms=(4.0,))
IN_OPTIMIZER = Costed(phase="optimizer", ready_ms=32.0, costs_ms=(5.0,))


@pytest.mark.parametrize(
    ("exchanges", "waits_ms"),
    [
        pytest.param([], 0.0, id="nothing to exchange"),
        pytest.param(in_backward((15.0, 10.0)), 0.0, id="overlapped as a whole"),
        pytest.param(in_backward((31.0, 10.0)), 10.0, id="one bucket at the end: nothing overlaps"),
        pytest.param(in_backward((21.0, 15.0)), 5.0, id="overlapped in part"),
        pytest.param(in_backward((12.0, 15.0), (20.0, 6.0)), 2.0, id="the second waits for the first: 27 to 33"),
        pytest.param(in_backward((12.0, 3.0), (20.0, 6.0)), 0.0, id="the link is free in between"),
        pytest.param([IN_FORWARD], 4.0, id="waited for at once"),
        pytest.param([IN_FORWARD, *in_backward((25.0, 10.0))], 8.0, id="handed over later: 29 to 39, backward to 35"),
        pytest.param([*in_backward((31.0, 10.0)), IN_OPTIMIZER], 15.0, id="exchanged by the optimizer too"),
    ],
)
def test_what_a_step_waits_for(exchanges: list[Costed], waits_ms: float) -> None:
    assert exposed_ms(ENDS, exchanges) == pytest.approx(waits_ms)


@pytest.mark.parametrize(
    ("handed", "costs_ms", "ends_ms"),
    [
        pytest.param((12.0, 20.0, 40.0), (15.0,), (27.0, 42.0, 57.0), id="in turn"),
        pytest.param((12.0, 12.0), (6.0, 6.0), (24.0, 24.0), id="no loss: 12 ms for both, side by side"),
        pytest.param((12.0, 12.0), (6.0, 9.0), (30.0, 30.0), id="lost: 18 ms for both"),
        pytest.param((12.0, 12.0), (6.0, 3.0), (18.0, 18.0), id="hidden: both in the time of one"),
        pytest.param((12.0, 15.0), (6.0, 9.0), (24.0, 27.0), id="half alone, half of 18 shared; 9 to go, 3"),
        pytest.param((12.0, 12.0, 12.0), (6.0, 6.0), (24.0, 24.0, 30.0), id="the third waits"),
        pytest.param((12.0, 12.0, 12.0), (6.0, 9.0, 8.0), (36.0,) * 3, id="three share: 24 ms"),
        pytest.param((12.0, 30.0), (6.0, 9.0), (18.0, 36.0), id="not at the same time"),
    ],
)
def test_exchanges_at_once_share_the_link(
    handed: tuple[float, ...], costs_ms: tuple[float, ...], ends_ms: tuple[float, ...]
) -> None:
    assert sharing(handed, [costs_ms] * len(handed)) == pytest.approx(ends_ms)
    assert sharing((12.0, 12.0), [(2.0, 4.0), (10.0, 20.0)]) == pytest.approx((20.0, 28.0)), "a small and a large one"


def without_exchanging(ranks: int, slower: float = 1.0, buckets: int = 1) -> ExchangesRecord:
    ready = Exchange(kind="all_reduce", phase="backward", bytes=10**6, ready_ms=31.0 * slower)
    ends = {name: slower * end for name, end in ENDS.items()}
    about = {"global_batch": ranks, "ends_ms": ends, "exchanges": (ready,) * buckets, "why_not": None}
    return ExchangesRecord.of(launch(processes=ranks), **about)


def all_reduces(ranks: int, alpha_ms: float, beta_ms: float, lost: float | None = None) -> BandwidthRecord:
    """``lost``: how many times as long each of two at once takes; None without such."""
    sizes = [1024 * 4**power for power in range(9)]
    link = Link(alpha_ms=alpha_ms, beta_ms=beta_ms, ranks=(ranks,), typical=0.0, worst=0.0)
    times = tuple(
        AllReduces(bytes=size, at_once=number, times_ms=(factor * link.all_reduce_ms(size, ranks),))
        for number, factor in ((1, 1.0), (2, lost))
        if factor is not None
        for size in sizes
    )
    return BandwidthRecord.of(launch(processes=ranks), transport=None, sizes=times, left_out=None)


def scaling(**more: object) -> Scaling:
    known: dict[str, object] = {
        "bandwidth": (all_reduces(2, 0.1, 1e-6), all_reduces(4, 0.1, 1e-6)),
        "exchanges": (without_exchanging(1), without_exchanging(2, 1.1), without_exchanging(4, 1.2)),
    }
    about = {"counts": (1, 2, 4), "modes": ("weak",), "batch_per_rank": 1}
    return Scaling(**(about | known | more))  # type: ignore[arg-type]


def test_a_prediction_adds_computation_and_link() -> None:
    """10^6 bytes at 10^-6 ms each: 2 (N - 1) / N ms, and 2 (N - 1) steps of 0.1 ms; as slow as four side by side."""
    (found,) = predictions(scaling(), "weak", {1: 33.0, 4: 44.0}, [8])
    assert found.step_ms == pytest.approx(1.2 * 33.0 + 1.75 + 14 * 0.1)
    assert found.efficiency == pytest.approx(33.0 / found.step_ms)
    assert (found.beyond, found.measured_ms, found.error) == (2.0, None, None)
    (faster,) = predictions(scaling(), "weak", {4: 44.0}, [4], what_if_mbit=1000.0)  # 125,000 bytes a ms
    assert faster.step_ms == pytest.approx(1.2 * 33.0 + 1.5 * 8.0 + 6 * 0.1), "its latency stays"
    assert faster.error is None


def test_exchanges_at_once_take_what_was_measured() -> None:
    """Two buckets of 10^6 bytes at the end, over two ranks: 1.2 ms each alone, 1.15 times as long side by side."""
    silent = [without_exchanging(ranks, buckets=2) for ranks in (1, 2)]
    for lost, factor in ((None, 1.0), (1.15, 1.15)):
        known = scaling(exchanges=silent, bandwidth=(all_reduces(2, 0.1, 1e-6, lost),))
        (found,) = predictions(known, "weak", {}, [2])
        assert found.step_ms == pytest.approx(33.0 + 2 * factor * 1.2, rel=1e-6)
    (faster,) = predictions(known, "weak", {}, [2], what_if_mbit=80_000.0)
    assert faster.step_ms == pytest.approx(33.0 + 2 * 1.15 * 0.3, rel=1e-6), "0.1 µs per kB, and the same share is lost"


def test_a_measured_number_is_predicted_from_others() -> None:
    wrong = scaling(bandwidth=(all_reduces(2, 0.1, 1e-6), all_reduces(4, 0.5, 9e-6)))
    (found,) = predictions(wrong, "weak", {4: 50.0}, [4])
    assert found.left_out and found.step_ms == pytest.approx(1.2 * 33.0 + 1.5 + 6 * 0.1)
    assert found.error == pytest.approx(found.step_ms / 50.0 - 1)
    assert largest_error([found]) == pytest.approx(abs(found.error or 0.0))
    (alone,) = predictions(scaling(bandwidth=(all_reduces(2, 0.1, 1e-6),)), "weak", {2: 40.0}, [2])
    assert not alone.left_out, "there are no others"


def test_what_cannot_be_predicted() -> None:
    few: dict[str, object] = {"exchanges": (without_exchanging(2),)}  # without one rank by itself
    for lacking in ({"exchanges": ()}, {"bandwidth": ()}, few):
        assert predictions(scaling(**lacking), "weak", {}, [8]) == []


def test_strong_scaling_computes_its_share() -> None:
    """Four examples in all: one on each of four devices; half of one on eight is no batch."""
    more = [replace(without_exchanging(1, 4.0), global_batch=4), replace(without_exchanging(2, 2.0), global_batch=4)]
    known = scaling(modes=("weak", "strong"), exchanges=(*scaling().exchanges, *more))
    two, four = predictions(known, "strong", {1: 132.0, 4: 44.0}, [2, 4, 8])
    assert two.step_ms == pytest.approx(2.0 * 33.0 + 1.0 + 2 * 0.1) and two.mode == "strong"
    assert four.step_ms == pytest.approx(1.2 * 33.0 + 1.5 + 6 * 0.1)
    assert four.efficiency == pytest.approx(4.0 * 33.0 / 4 / four.step_ms)
    assert without_exchanges(known) == ((1, 1), (1, 4), (2, 1), (2, 2), (4, 1))


def test_efficiency_is_unknown_where_one_device_failed(tmp_path: Path) -> None:
    """As in strong scaling, where it has the whole batch."""
    run = analysed(write_run(tmp_path, [DDP] * 3))
    alone = launch(launch=50, processes=1, replicas=1, status="oom", reason="out of memory")
    known = Scaling(counts=(1, 2), modes=("strong",), batch_per_rank=4)
    scaling = replace(known, launches=(PointRecord.of(alone, global_batch=8),))
    run = replace(run, document=with_records(run.document, scaling))
    assert answer(run) == ["Strong scaling of ddp: unknown (on 1 device: oom: out of memory)."]
    assert [one.efficiency.value for one in scaled(run)] == [None, None]
