"""A rank is killed: what its diaries say, and a rank that goes on from the checkpoint of the one before."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import one_host, request_for
from standin.documents import document, with_records
from standin.workloads import tiny

from bench.core.job import Checkpoint
from bench.experiments import restart as experiment
from bench.experiments.restart import RestartLook, RestartRecord, Restarts, restarts, sentences
from bench.seams.switching import scenario
from bench.worker import by_fp32, restart
from bench.worker import restarted as member
from bench.worker.restart import Note

KILLED_NS = 10**9
EVERY_SECOND = {"checkpoint": Checkpoint(every=2)}


class Killed(Exception):
    """A rank waits for it after the step that is meant."""


def note(turn: int, what: str, step: int, ms: float, rank: int = 0, **more: Any) -> Note:
    return Note(turn=turn, rank=rank, pid=1, what=what, step=step, ns=KILLED_NS + int(1e6 * ms), **more)


def diary(turn: int, rank: int, first: int, last: int, late_ms: float) -> list[Note]:
    """A step takes 100 ms; the second start has torch after 3 s, has met after 4 s and loaded after 6 s."""
    begin_ms = 6000.0 if turn else -100.0 * last
    found = [note(turn, what, 0, ms + late_ms, rank) for what, ms in (("up", 3000.0), ("joined", 4000.0)) if turn]
    found += [note(turn, "loaded", first, begin_ms + late_ms, rank)]
    for number, step in enumerate(range(first + 1, last + 1), start=1):
        found.append(note(turn, "step", step, begin_ms + 100 * number + late_ms, rank, loss=1.0 / step))
    return found


def test_times_run_from_the_kill_to_the_last_rank() -> None:
    notes = [*diary(0, 0, 0, 6, 0.0), *diary(0, 1, 0, 6, 0.0), *diary(1, 0, 4, 8, 0.0), *diary(1, 1, 4, 8, 20.0)]
    notes[-3] = replace(notes[-3], loss=1.001 * notes[-3].loss)  # of step 6, which was trained twice
    found = restart.found(notes, KILLED_NS, 6)
    about = {"killed_step": 6, "resumed_step": 4, "loss_error": pytest.approx(0.001)}
    times = {"up": 3020.0, "joined": 4020.0, "loaded": 6020.0, "next_step": 6120.0, "caught_up": 6320.0, "step": 100.0}
    assert found == about | {f"{name}_ms": ms for name, ms in times.items()}


@pytest.mark.parametrize(("every", "killed"), [(1, 2), (2, 3), (5, 7), (50, 75)])
def test_a_rank_is_killed_between_two_checkpoints(every: int, killed: int) -> None:
    assert (restart.killed_step(every), restart.STEPS_AFTER) == (killed, 2) and every < killed <= 2 * every


def test_the_diary_is_read_as_it_grows(tmp_path: Path) -> None:
    mine, ended = member.Diary(str(tmp_path), 0, 1), [None, None, 0]
    text = json.dumps(asdict(note(0, "step", 1, 5.0))).encode()
    mine.note("up")
    os.write(mine.fd, text[:9])
    engine: Any = SimpleNamespace(poll=lambda: ended.pop(0))
    notes = restart._until_over(engine, str(tmp_path))
    assert next(notes).what == "up"
    os.write(mine.fd, text[9:] + b"\n")
    assert [one.what for one in notes] == ["step"] and ended == []


def test_a_second_start_goes_on_from_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scenario("single")
    asked = request_for((found,), replicas=1, global_batch=2, task=tiny(), experiments=EVERY_SECOND)
    alone, job = experiment.jobs(asked, found, 1, 0, one_host(1), str(tmp_path))
    assert (len(alone.ranks), alone.purpose, alone.group) == (1, "restart", False)
    Path(alone.checkpoint.job_file if alone.checkpoint else "").write_text(json.dumps(asdict(job)))
    monkeypatch.setattr("signal.pause", Mock(side_effect=Killed))
    for turn in (0, 1):
        about = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": str(turn)}
        for name, value in about.items():
            monkeypatch.setenv(name, value)
        with suppress(Killed):
            member.main(str(tmp_path))
        if turn == 0:
            saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
            assert saved["step"] == 2
    over: Any = SimpleNamespace(poll=lambda: 0)
    notes = [*restart._until_over(over, str(tmp_path))]
    assert [one.step for one in notes if one.what == "step"] == [1, 2, 3, 3, 4, 5]
    three, again = [one.loss for one in notes if (one.what, one.step) == ("step", 3)]
    assert three == again, "weights, momentum and data are where they were"
    (last,) = tmp_path.glob("checkpoint*")
    damaged = torch.load(last, weights_only=True) | {"weights": "others"}
    assert damaged["step"] == 4
    torch.save(damaged, last)
    with pytest.raises(Exception, match="are not those that were saved"):
        member.main(str(tmp_path))


def test_half_is_computed_as_in_other_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By way of fp32 on a CPU without instructions for bf16, with cuDNN's search for algorithms."""
    monkeypatch.setattr(by_fp32, "bf16_instructions", lambda: False)
    monkeypatch.setattr(by_fp32.ByFp32, "used", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr("signal.pause", lambda: None)
    found = scenario("single")
    asked = request_for((found,), replicas=1, global_batch=2, task=tiny(), experiments=EVERY_SECOND)
    _, job = experiment.jobs(asked, found, 1, 0, one_host(1), str(tmp_path))
    job = replace(job, precision="O3", half="bf16")
    Path(Checkpoint(every=2, folder=str(tmp_path)).job_file).write_text(json.dumps(asdict(job)))
    for name, value in {"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    member.main(str(tmp_path))
    (ran,) = (one.ran for one in restart._until_over(Mock(poll=lambda: 0), str(tmp_path)) if one.what == "ran")
    assert ran is not None and ran["bf16_by_fp32"] and torch.backends.cudnn.benchmark


def test_what_cannot_be_restarted_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = document(launches=[{"scenario": "ddp_elastic"}])
    done = SimpleNamespace(record=replace(run.launches[0], status="error", reason="it broke"), results=[])
    monkeypatch.setattr(experiment, "perform", lambda job, lab, doing, keep: keep(done))
    lab = Mock(**{"writer.document": run, "writer.path": str(tmp_path)})
    found, folder = scenario("ddp_elastic"), tmp_path / "folder"
    one, inner = experiment.jobs(request_for((found,)), found, 1, 0, one_host(2), str(folder))
    experiment.kill_one(one, inner, str(folder), lab)
    _, kept = lab.writer.add_to.call_args.args
    assert (kept.status, kept.processes, kept.restart) == ("error", 2, None)
    assert kept.reason == "it broke" and not folder.exists()


def test_the_mean_over_launches() -> None:
    times = {"up": 3000.0, "joined": 3500.0, "loaded": 5000.0, "next_step": 6000.0, "caught_up": 8000.0, "step": 100.0}
    about: dict[str, Any] = {f"{name}_ms": ms for name, ms in times.items()}
    look = RestartLook(killed_step=6, resumed_step=4, loss_error=0.0, **about)
    (launch,) = document(launches=[{"scenario": "ddp_elastic"}]).launches
    one = RestartRecord.of(launch, every=4, restart=look)
    two = replace(one, restart=replace(look, next_step_ms=8000.0, loss_error=0.1))
    failed = replace(one, scenario="mine", status="unsupported", reason="there is no torchrun", restart=None)
    run = with_records(document(), Restarts(launches=(one, two, failed)))
    (row,) = restarts(run)
    assert (row["launches"], row["next_step_s"], row["up_s"], row["step_s"]) == (2, 7.0, 3.0, 2.0)
    assert row["next_step_low_s"] < 7.0 < row["next_step_high_s"] and row["loss_error"] == 0.1
    said, why = sentences(run)
    assert said.startswith("When a rank of ddp_elastic is killed, the next step is over 7.0 s (")
    assert "2 steps trained again" in said and why == "mine was not restarted: there is no torchrun."


def test_torchrun_leaves_nothing_among_the_temporary_files() -> None:
    """By itself it makes a folder for logs there, which nobody removes; all that it is given is in the launch's own."""
    words = restart._command("/scratch/restart", 2)
    places = {option: words[words.index(option) + 1] for option in ("--log-dir", "--rdzv-endpoint")}
    assert places == {"--log-dir": "/scratch/restart/logs", "--rdzv-endpoint": "/scratch/restart/engine"}
