"""What only a GPU can show. Skipped without CUDA: ``python -m pytest -m gpu`` on a machine that has one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import Executed, request_for

from bench import discover, machine, pipeline, store
from bench.analyse.communication import communication, data_parallel
from bench.analyse.parity import SAME, WITHIN_HALF
from bench.console import Console
from bench.launch.local import WorkerHost
from bench.store import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

WHOLE = {"image_size": 64, "global_batch": 32, "device": "cuda", "warmup": 3, "iters": 10}


@pytest.fixture(scope="module")
def gpus() -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in machine.choose_device("cuda")[1])


@pytest.fixture(scope="module")
def cuda_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    log = tmp_path_factory.mktemp("host") / "host.log"
    with WorkerHost(python=None, fresh=False, apex_path=None, log=str(log), device="cuda") as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def on_gpu(execute: Callable[..., Executed], cuda_host: WorkerHost, gpus: tuple[str, ...]) -> Callable[..., Executed]:
    def run(scenario: str, **changes: Any) -> Executed:
        options = WHOLE | {"devices": gpus, "replicas": len(gpus)} | changes
        done = execute(scenario, on=cuda_host, **options)
        assert done.outcome.status == "ok", done.outcome.reason + done.log()
        return done

    return run


def test_steps_by_events_add_up_to_the_wall(on_gpu: Callable[..., Executed]) -> None:
    """``timings.wall_ms`` is host time from before the first mark to after a synchronisation."""
    measured = on_gpu("single", global_batch=128, image_size=224).results[0]["measured"]
    assert sum(measured["step_ms"]) == pytest.approx(measured["wall_ms"], rel=0.005)


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_levels_run_in_fp16(on_gpu: Callable[..., Executed], level: str) -> None:
    ran = on_gpu(f"ddp_{level}", impl="native").results[0]["effective"]
    assert ran["precision"] == level.upper()
    assert ran["compute_dtypes"] == ["float16"]
    assert (ran["scaler"] is not None) == (level != "o3")
    assert ran["backend"] == "nccl"


@pytest.mark.parametrize("scenario", ["single", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp_o2"])
def test_nothing_synchronises_in_the_measured_window(on_gpu: Callable[..., Executed], scenario: str) -> None:
    strategy, _, level = scenario.partition("_o")
    wraps = {"single": "single", "ddp": "distributed_data_parallel", "apex_ddp": "apex_distributed_data_parallel"}
    on_gpu(
        f"""
        from bench.scenario import Scenario

        SCENARIO = Scenario(summary="raises on synchronisation", strategy="custom", precision="O{level or 0}",
                            needs=("distributed",))

        def setup(job):
            import torch
            from bench.worker import loop, parallel
            from bench.worker.session import session_for
            session = session_for(job, wrap=parallel.{wraps[strategy]})
            chain, windows = loop._chain, []
            def strict(*arguments):
                windows.append(1)
                torch.cuda.set_sync_debug_mode("error" if len(windows) == 2 else "default")
                chain(*arguments)
                torch.cuda.set_sync_debug_mode("default")
            loop._chain = strict
            return session
        """,
        impl="native",
    )


def test_data_parallel_has_the_gradients_of_accumulated_chunks(
    on_gpu: Callable[..., Executed], gpus: tuple[str, ...]
) -> None:
    """With TF32 off, fp32 within 1e-5 of one process that accumulates the same chunks on the first GPU."""
    if len(gpus) < 2:
        pytest.skip("needs two GPUs: on one, DataParallel makes no replicas")
    done = on_gpu(
        """
        from bench.scenario import Scenario

        SCENARIO = Scenario(summary="compares gradients", strategy="custom", one_process=True)

        def setup(job):
            import torch
            from bench.worker.parallel import data_parallel
            from bench.worker.session import session_for
            torch.backends.cudnn.allow_tf32 = False
            session = session_for(job, wrap=data_parallel)
            backward, compared = session.backward, []
            alone = job.build_model()
            forward = session.forward
            def remember(images, labels):
                compared.append((images, labels))
                return forward(images, labels)
            def compare(loss):
                backward(loss)
                if len(compared) == 1:
                    images, labels = compared[0]
                    parts = job.job.replicas
                    for x, y in zip(images.chunk(parts), labels.chunk(parts)):
                        (torch.nn.functional.cross_entropy(alone(x), y) / parts).backward()
                    mine = torch.cat([p.grad.flatten() for p in session.model.parameters()]).double()
                    other = torch.cat([p.grad.flatten() for p in alone.parameters()]).double()
                    error = float((mine - other).norm() / other.norm())
                    assert error < 1e-5, error
            session.forward, session.backward = remember, compare
            return session
        """
    )
    assert done.results[0]["effective"]["replicas"] == len(gpus)


def test_memory_through_nvml(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    """A process that takes 512 MiB shows with at least that much, under its own PID, on its GPU."""
    import os

    from bench.nvml import Nvml

    block = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda:0")
    processes, reason = Nvml().processes(gpus[0])
    used = dict(processes).get(os.getpid())
    del block
    if used is None:
        pytest.skip(f"the driver shows no PID of this namespace: {reason or processes}")
    assert used >= 512


def test_work_that_is_only_queued_is_in_the_step(on_gpu: Callable[..., Executed]) -> None:
    """The forward pass returns at once and keeps the GPU busy for tens of milliseconds: a clock that is read without
    waiting for it would miss them."""
    measured = on_gpu(
        """
        from bench.scenario import Scenario

        SCENARIO = Scenario(summary="queues idle cycles", strategy="custom", one_process=True)

        def setup(job):
            import torch
            from bench.worker.session import session_for
            session = session_for(job, wrap=lambda model, job: model)
            forward = session.forward
            def queue(images, labels):
                torch.cuda._sleep(60_000_000)
                return forward(images, labels)
            session.forward = queue
            return session
        """
    ).results[0]["measured"]
    assert pd.Series(measured["forward_ms"]).median() > 20, "60 million cycles at no more than 3 GHz"
    assert sum(measured["step_ms"]) == pytest.approx(measured["wall_ms"], rel=0.01)


# Numerics, and where the time goes, of a whole run

LEVELS = ("single", "ddp_o1", "ddp_o2", "ddp_o3")


def whole_run(folder: Path, scenarios: tuple[str, ...], devices: tuple[str, ...], **changes: Any) -> Run:
    found = tuple(discover.load(*discover.resolve(name)) for name in scenarios)
    small = {"image_size": 64, "global_batch": 16, "warmup": 3, "iters": 12, "impl": "native", "diagnose": True}
    request = request_for(found, device="cuda", devices=devices, replicas=len(devices), **(small | changes))
    finished = pipeline.run(request, found, out=str(folder), console=Console(quiet=True))
    assert finished.failed == 0, finished.document["launches"]
    return store.read(finished.path)


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory: pytest.TempPathFactory, gpus: tuple[str, ...]) -> Run:
    """At a world size of one, with profiles kept."""
    return whole_run(tmp_path_factory.mktemp("one"), ("ddp", *LEVELS), gpus[:1], trace=True)


@pytest.mark.parametrize("scenario", LEVELS)
def test_a_level_in_fp16_trains_the_same_model(one_gpu: Run, scenario: str) -> None:
    """fp32 with TF32, or fp16; where the first loss scale was too high, the run says that it cannot tell."""
    (found,) = [row for row in one_gpu.document["parity"] if row["scenario"] == scenario]
    too_high = found["verdict"] is None and "the loss scaler skipped" in found["reason"]
    assert found["verdict"] in (SAME, WITHIN_HALF) or too_high, found


def test_a_diagnostic_launch_shows_where_the_time_goes(one_gpu: Run) -> None:
    rows = one_gpu.diagnostics
    for scenario in ("ddp", "ddp_o1"):
        mine = rows[rows["scenario"] == scenario]
        assert mine[mine["look"] == "pairs"].groupby("synchronised").size().nunique() == 1
        logged = mine[mine["look"] == "logger"]
        assert (
            len(logged) and (logged["compute_ms"] > 0).all() and (logged[["comm_ms", "overlap_ms"]] >= 0).all(axis=None)
        )
    table = communication(one_gpu.document, rows).set_index("scenario")
    assert table.loc["single", "reason"] == "one process: there is nothing to synchronise"
    for launch in one_gpu.document["diagnostics"]:
        profile = launch["looks"][0]["profile"]
        assert launch["status"] == "ok"
        assert profile["categories"]["convolutions"] > 0
        assert Path(profile["trace"]).is_file()
    costs = {
        launch["scenario"]: launch["looks"][0]["profile"]["categories"] for launch in one_gpu.document["diagnostics"]
    }
    assert costs["ddp_o1"]["casts"] > costs["ddp"]["casts"] and costs["ddp_o1"]["loss scaling"] > 0


def test_the_parts_of_dataparallel_on_two_gpus(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    if len(gpus) < 2:
        pytest.skip("needs two GPUs: on one, DataParallel makes no replicas")
    run = whole_run(tmp_path, ("dp",), gpus[:2])
    (row,) = data_parallel(run.diagnostics).to_dict("records")
    assert all(row[f"{part}_ms"] > 0 for part in ("scatter", "replicate", "parallel_apply", "gather"))
    assert row["parallel_apply_ms"] > row["gather_ms"], "computing takes longer than handing a few numbers over"


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_gradients_are_unscaled_when_they_are_looked_at(on_gpu: Callable[..., Executed], level: str) -> None:
    """After the step, when a launch's sketch is taken: those of fp32, but for rounding, and not 1,024 times."""
    on_gpu(
        f"""
        from bench.scenario import Scenario

        SCENARIO = Scenario(summary="compares gradients", strategy="custom", precision="{level}", one_process=True)

        def setup(job):
            import torch
            from bench.worker.session import Session, session_for
            session = session_for(job, wrap=lambda model, job: model)
            plain = Session(job, wrap=lambda model, job: model)
            session.scaler._init_scale = 1024.0
            forward, backward, optimize, compared = session.forward, session.backward, session.optimize, []
            def both(images, labels):
                if not compared:
                    plain.backward(plain.forward(images, labels))
                return forward(images, labels)
            def compare():
                optimize()
                if not compared:
                    compared.append(1)
                    mine, other = (torch.cat([g.flatten().double() for g in s.gradients()]) for s in (session, plain))
                    error = float((mine - other).norm() / other.norm())
                    assert 0 < error < 0.9, error
            session.forward, session.optimize = both, compare
            return session
        """
    )
