"""``--checkpoint``: what is saved comes back, its cost is known, and a disk without room costs nothing else."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Bench, needs_fsdp2
from standin.documents import document, launch, with_records
from standin.schemas import document_in
from standin.sessions import load_of, parts_of
from standin.workloads import tiny
from test_workload import MLP

from bench.core.errors import BenchError
from bench.core.job import Checkpoint
from bench.experiments import checkpoint as experiment
from bench.experiments.checkpoint import CheckpointLook, CheckpointRecord, Checkpoints, checkpoints, sentences
from bench.worker import checkpoint
from bench.worker.precision import ApexAmp, precision_of

WEIGHTS_MIB = 4 * (32 * 32 + 32 + 32 * 10 + 10) / 2**20


def run(run_here: Bench, *options: str, status: int = 0) -> dict[str, Any]:
    Path("mlp.py").write_text(MLP.replace("lr=0.01", "lr=0.01, momentum=0.9"))
    small = ("--workload", "mlp.py", "--device", "cpu", "--warmup", "1", "--iters", "1", "--no-parity")
    done = run_here("run", *small, "--setting", "width=32", *options)
    assert done.code == status, done.err
    found = document_in(Path("results"))
    assert found["complete"] and not any(Path("results").glob("*/.scratch"))
    return found


@needs_fsdp2
@pytest.mark.parametrize("how", ["torch", "dcp_async"])
def test_what_is_saved_comes_back(run_here: Bench, how: str) -> None:
    names = ["fsdp2", "zero1", "ddp_o2"] if how == "torch" else ["fsdp2", "zero1"]
    found = run(run_here, "--scenario", ",".join(names), "--checkpoint", f"every=3,how={how}")
    saved = {one["scenario"]: one for one in found["experiments"]["checkpoint"]["launches"]}
    assert saved.keys() == {*names}
    for one in saved.values():
        assert (one["reason"], one["every"], one["steps"], one["how"]) == (None, 3, 3, how)
        assert [len(rank[kind]) for rank in one["saves"] for kind in ("saving_ms", "plain_ms", "save_ms")] == [2] * 6
        assert 2 * WEIGHTS_MIB < one["size_mib"] < 2 * WEIGHTS_MIB + 0.1


def test_a_disk_without_room(run_here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment.shutil, "disk_usage", lambda path: SimpleNamespace(free=50 * 2**20))
    found = run(run_here, "--scenario", "ddp", "--checkpoint", "every=5", status=1)
    assert [one["status"] for one in found["launches"]] == ["ok"]
    (one,) = found["experiments"]["checkpoint"]["launches"]
    assert one["status"] == "error" and "50 MiB are free on the disk of the run; free space there, or" in one["reason"]


def saved(folder: Path, ticks: list[int]) -> dict[str, Any]:
    parts = parts_of(task=tiny())
    parts = replace(parts, job=replace(parts.job, checkpoint=Checkpoint(every=3, folder=str(folder))))
    plan: Any = SimpleNamespace(parts=parts, warmed_up=lambda report: (load_of(parts), parts.session(), None, {}))
    return checkpoint.perform(plan, lambda phase, of: ticks.append)["checkpoint"]


def test_steps_are_counted(tmp_path: Path) -> None:
    ticks: list[int] = []
    found = saved(tmp_path / "new", ticks)
    assert ticks == list(range(1, 15)) and ticks[-1] == checkpoint.steps_of(Checkpoint(every=3))
    assert found["size_mib"] == (tmp_path / "new" / "checkpoint.pt").stat().st_size / 2**20


def test_other_weights_than_were_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.Torch, "load", lambda keeper: None)
    with pytest.raises(BenchError, match="loaded from the checkpoint are not those that were saved"):
        saved(tmp_path, [])


def test_the_loss_scale_of_apex_comes_back(tmp_path: Path) -> None:
    """``apex.amp`` saves it (25.05, ``frontend.py``); its ``LossScaler`` has no state_dict."""
    scale, loaded = {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 3}}, list[Any]()
    parts = parts_of(task=tiny())
    session, amp = parts.session(), ApexAmp(precision_of("O1", torch.float16), parts.device, parts.build_optimizer)
    amp.apex = SimpleNamespace(state_dict=lambda: scale, load_state_dict=loaded.append)
    session.amp, session.scaler = amp, SimpleNamespace(loss_scale=lambda: 1024.0)
    keeper = checkpoint.Torch(session, Checkpoint(every=3, folder=str(tmp_path)))
    keeper.save()
    keeper.load()
    assert loaded == [scale]


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch says no more than "iostream error", so the disk is asked."""
    (tmp_path / "checkpoint.pt").symlink_to("/dev/full")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(BenchError, match="is full: a checkpoint does not fit; free space there, or give another disk"):
        saved(tmp_path, [])


def test_the_cost_of_a_step() -> None:
    look = CheckpointLook(saving_ms=(26.0, 28.0), plain_ms=(20.0, 20.0), save_ms=(5.0, 7.0), load_ms=40, next_step_ms=4)
    slower = replace(look, saving_ms=(30.0, 28.0), load_ms=60.0)
    how = {"every": 2, "steps": 2, "how": "torch", "size_mib": 3.0}
    one = CheckpointRecord.of(launch(scenario="ddp"), saves=(look, slower), **how)
    two = replace(one, saves=(replace(look, saving_ms=(28.0, 28.0)),))
    failed = replace(one, scenario="single", status="error", reason="no room")
    found = with_records(document(), Checkpoints(launches=(one, two, failed)))
    (row,) = checkpoints(found)
    assert row["cost_ms"] == pytest.approx(((30 + 28 - 40) / 4 + (28 + 28 - 40) / 4) / 2)
    assert row["cost_low_ms"] < row["cost_ms"] < row["cost_high_ms"]
    assert (row["launches"], row["save_ms"], row["load_s"], row["resume_s"]) == (2, 6.0, 0.05, 0.054)
    assert row["cost_percent"] == pytest.approx(42.5)
    said, why = sentences(found)
    assert "ddp every 2 steps (torch) costs 4.25 ms" in said and why == "single has no checkpoint: no room."
    slow = replace(one, saves=(replace(look, load_ms=123_000.0),))
    assert "goes on 120 s after" in sentences(with_records(document(), Checkpoints(launches=(slow,))))[0]


@pytest.mark.parametrize(("saving_ms", "repeats"), [((10.0, 25.0), 1), ((12.0,), 1), ((10.0,), 3)])
def test_a_cost_that_is_not_shown(saving_ms: tuple[float, ...], repeats: int) -> None:
    """Cycles with a save that took no longer than those without: no negative cost, and none from noise."""
    plain = (20.0,) * len(saving_ms)
    look = CheckpointLook(saving_ms=saving_ms, plain_ms=plain, save_ms=plain, load_ms=40, next_step_ms=4)
    one = CheckpointRecord.of(launch(scenario="ddp"), saves=(look,), every=2, steps=2, how="torch", size_mib=3.0)
    found = with_records(document(), Checkpoints(launches=(one,) * repeats))
    (said,) = sentences(found)
    assert "costs nothing that is distinguishable from 0" in said and " (nan" not in said
    table = experiment.checkpoint_table(found)
    assert table is not None
    shown = dict(zip(*table.texts()[:2], strict=True))
    assert (shown["ms"].split(" (")[0], shown["%"]) == ("not above 0", "–")


@pytest.mark.parametrize(
    "given", ["every=0", "every", "how=dcp", "every=1,every=2", "every=5,how=tar", "every=1e3", ""]
)
def test_bad_words(run_here: Bench, tmp_path: Path, given: str) -> None:
    run_here("run", "--checkpoint", given, "--out", "out").refused("give every=N, such as every=100")
    assert not (tmp_path / "out").exists()
