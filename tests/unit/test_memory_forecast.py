"""Memory predicted without running, against what the live objects of the same step hold."""

from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from standin.sessions import load_of, parts_of
from standin.workloads import narrow
from torch import nn

from bench.core.codec import decode
from bench.runs.experiments import MemoryForecast
from bench.worker import memory_forecast, memory_parts
from bench.worker.memory_forecast import Around, predict
from bench.worker.session import Parts, Session

torch.set_num_threads(1)
HELD = ("parameters", "masters", "optimizer", "buffers", "batch", "gradients")
AROUND = Around()


def parts_for(precision: str = "O0") -> Parts:
    return parts_of(precision=precision, global_batch=4, task=narrow())


def forecast(parts: Parts, around: Around = AROUND) -> dict[str, Any]:
    return asdict(decode(MemoryForecast, predict(parts, around, load_of(parts))))


def live(parts: Parts) -> tuple[Session, dict[str, Any]]:
    session, load = parts.session(), load_of(parts)
    session.backward(session.forward(load()))
    session.optimize()
    look = memory_parts.Look(session, batch := load())
    look.backward(look.forward(batch))
    return session, look.parts()


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return forecast(parts_for())


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_it_is_what_live_objects_hold(level: str) -> None:
    parts = parts_for(level)
    session, held = live(parts)
    assert Around.of(session) == AROUND
    found = forecast(parts)
    assert found["reason"] is None and torch.__version__ in found["method"]
    assert {name: found[f"{name}_mib"] for name in HELD} == {name: held[f"{name}_mib"] for name in HELD}
    assert held["parameters_mib"] > 0 and held["optimizer_mib"] > 0
    assert found["activations_mib"] == pytest.approx(held["activations_mib"], rel=0.05)
    assert found["peak_mib"] > found["parameters_mib"] + found["masters_mib"] + found["optimizer_mib"]


def test_buckets_are_a_copy_of_the_gradients_or_hold_them(plain: dict[str, Any]) -> None:
    copied = forecast(parts_for(), Around(ranks=2, buckets=True))
    assert copied["buckets_mib"] == copied["gradients_mib"] == plain["gradients_mib"] > 0
    assert copied["peak_mib"] == pytest.approx(plain["peak_mib"] + plain["gradients_mib"])
    within = forecast(parts_for(), Around(ranks=2, buckets=True, views=True))
    assert (within["buckets_mib"], within["gradients_mib"]) == (plain["gradients_mib"], 0.0)
    assert within["optimizer_mib"] == plain["optimizer_mib"]
    assert plain["peak_mib"] <= within["peak_mib"] < copied["peak_mib"]


def test_shards_are_a_share_and_say_so(plain: dict[str, Any]) -> None:
    zero = forecast(parts_for(), Around(ranks=4, dealt=("optimizer",)))
    assert zero["optimizer_mib"] == plain["optimizer_mib"] / 4 and zero["parameters_mib"] == plain["parameters_mib"]
    assert zero["peak_mib"] == pytest.approx(plain["peak_mib"] - 0.75 * plain["optimizer_mib"])
    assert zero["method"].endswith("optimizer divided by 4 ranks")
    all_of_it = Around(ranks=4, dealt=("parameters", "gradients", "optimizer"), unknown=memory_forecast.GATHERED)
    sharded = forecast(parts_for(), all_of_it)
    assert sharded["parameters_mib"] == plain["parameters_mib"] / 4
    assert (sharded["peak_mib"], sharded["reason"]) == (None, memory_forecast.GATHERED)


@pytest.mark.parametrize(
    ("strategy", "options", "around"),
    [
        ("ddp", {}, Around(buckets=True)),
        ("zero1", {}, Around(buckets=True, dealt=("optimizer",))),
        ("ddp_accumulate", {}, Around(buckets=True, micro_batches=2)),
        ("ddp_hooks", {"hook": "fp16"}, Around(buckets=True, unknown=memory_forecast.HOOK)),
        ("fsdp2", {}, Around(dealt=("parameters", "gradients", "optimizer"), unknown=memory_forecast.GATHERED)),
    ],
)
def test_what_a_strategy_adds_is_read_off_its_objects(strategy: str, options: dict[str, Any], around: Around) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parts = parts_for()
        session = parts.build(strategy, **options)
        session.backward(session.forward(load_of(parts)()))
        session.optimize()
        assert Around.of(session) == around
    finally:
        dist.destroy_process_group()


def test_micro_batches_keep_less(plain: dict[str, Any]) -> None:
    found = forecast(parts_for(), Around(micro_batches=2))
    assert found["reason"] is None and found["gradients_mib"] == plain["gradients_mib"]
    assert 0 < found["activations_mib"] < 0.75 * plain["activations_mib"]


def test_what_fake_tensors_cannot_do_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_for()
    usual = Session.forward
    monkeypatch.setattr(Session, "forward", lambda *of: usual(*of) * float(usual(*of).item()))
    found = forecast(parts)
    assert "a step of fake tensors raised" in found.pop("reason")
    assert set(found.values()) == {None}


def test_a_torch_without_the_tracker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_forecast, "TRACKER", "torch.distributed._tools.no_such_module")
    around = Around.of(parts_for().session())
    assert around.refused == f"torch {torch.__version__} has no MemTracker"
    assert forecast(parts_for(), around)["parameters_mib"] is None


def test_a_wrapper_that_nobody_knows_has_no_peak() -> None:
    class Kept(nn.Sequential):
        pass

    session = parts_for().session(wrap=lambda model: Kept(model))
    assert "another process" in str(Around.of(session, rpc=True).refused)
    assert Around.of(session).unknown == "what Kept keeps is known only from a run"
