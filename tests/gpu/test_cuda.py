"""What only a GPU can show. Skipped without CUDA: ``python -m pytest -m gpu`` on a machine that has one.

``BENCH_TEST_GPUS=0,2`` chooses GPUs as ``bench run --gpus`` does (default: all); ``BENCH_APEX=PATH`` names a checkout
of apex 25.05, for the tests of the real one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import Executed, executor, request_for

from bench import discover, machine, pipeline, store
from bench.analyse.communication import communication, data_parallel
from bench.analyse.parity import NOT_FINITE, SAME, WITHIN_HALF
from bench.console import Console
from bench.launch.local import WorkerHost
from bench.nvml import Nvml
from bench.plan import launches
from bench.records import job_to_json
from bench.store import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

WHOLE = {"image_size": 64, "global_batch": 32, "device": "cuda", "warmup": 3, "iters": 10}
DDP_LOGS = 12
"""Warm-up steps until torch DDP's logger, which waits for its events in the first ten, is over."""

FREE_AGAIN_S = 10.0
CONTEXT_MIB = 200.0
"""By how much the level of a GPU may differ for other reasons than a launch."""


@pytest.fixture(scope="module")
def gpus() -> tuple[str, ...]:
    return machine.choose_gpus(os.environ.get("BENCH_TEST_GPUS"), machine.choose_device("cuda")[1])


@pytest.fixture(scope="module")
def cuda_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    log = tmp_path_factory.mktemp("host") / "host.log"
    with WorkerHost(python=None, fresh=False, apex_path=None, log=str(log), device="cuda") as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def launch(cuda_host: WorkerHost, gpus: tuple[str, ...], tmp_path: Path) -> Callable[..., Executed]:
    """As ``execute`` of the other tests, on the GPUs; whatever becomes of it."""
    run = executor(cuda_host, tmp_path)

    def on(scenario: str, **changes: Any) -> Executed:
        devices = changes.get("devices", gpus)
        return run(scenario, **(WHOLE | {"devices": devices, "replicas": len(devices)} | changes))

    return on


@pytest.fixture
def on_gpu(launch: Callable[..., Executed]) -> Callable[..., Executed]:
    """The same, for launches that must end well."""

    def run(scenario: str, **changes: Any) -> Executed:
        done = launch(scenario, **changes)
        assert done.outcome.status == "ok", f"{done.outcome.reason}\n{done.log()[-3000:]}"
        return done

    return run


def test_steps_by_events_add_up_to_the_wall(on_gpu: Callable[..., Executed]) -> None:
    """``timings.wall_ms`` is host time from before the first mark to after a synchronisation."""
    measured = on_gpu("single", global_batch=128, image_size=224).results[0]["measured"]
    assert sum(measured["step_ms"]) == pytest.approx(measured["wall_ms"], rel=0.005)


# No synchronisation, and what ran

STRICT = """
    from bench.scenario import Scenario

    SCENARIO = Scenario(summary="raises on synchronisation", strategy="custom", precision="{level}", {kind})

    def setup(job):
        import torch
        from torch.cuda import _gpu_trace
        from bench.worker import loop, parallel
        from bench.worker.session import session_for

        session = session_for(job, wrap=parallel.{wrap})
        chain, forward, windows = loop._chain, session.forward, []

        def strict(*arguments):
            windows.append(1)
            if len(windows) < 3:  # the first step, and the rest of the warm-up
                return chain(*arguments)
            waited = []
            torch._C._activate_gpu_trace()  # set_sync_debug_mode sees streams and copies: no events, no whole devices
            for what in ("event", "stream", "device"):
                watch = getattr(_gpu_trace, f"register_callback_for_{{what}}_synchronization")
                watch(lambda *about, what=what: waited.append(what))
            torch.cuda.set_sync_debug_mode("error")
            try:
                chain(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert not waited, f"synchronizing: {{waited}}"
            print("strict", arguments[2], flush=True)

        def look(images, labels):
            loss = forward(images, labels)
            if len(windows) == 3:
                {looks}
            return loss

        loop._chain, session.forward = strict, look
        return session
"""
ALONE = {"single": "single", "dp": "data_parallel"}
WRAPS = ALONE | {"ddp": "distributed_data_parallel", "apex_ddp": "apex_distributed_data_parallel"}
WATCHED = ("single", "dp", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp", "apex_ddp_o2")


def strict(scenario: str, *, looks: str = "pass") -> str:
    """The source of ``scenario`` (its native form) with every synchronisation in the measured window an error.

    ``looks``: what is planted in its forward passes.
    """
    strategy, _, level = scenario.partition("_o")
    kind = "one_process=True" if strategy in ALONE else 'needs=("distributed",)'
    return STRICT.format(level=f"O{level or 0}", kind=kind, wrap=WRAPS[strategy], looks=looks)


@pytest.fixture(scope="module")
def watched(
    cuda_host: WorkerHost, gpus: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Executed]:
    """One launch of a scenario with synchronisation forbidden in its measured window; the same one each time."""
    run, done = executor(cuda_host, tmp_path_factory.mktemp("watched")), {}

    def once(scenario: str) -> Executed:
        if scenario not in done:
            devices = gpus[:1] if scenario in ALONE else gpus
            options = WHOLE | {"devices": devices, "replicas": len(devices), "impl": "native", "warmup": DDP_LOGS}
            done[scenario] = run(strict(scenario), **options)
        found = done[scenario]
        assert found.outcome.status == "ok", f"{found.outcome.reason}\n{found.log()[-3000:]}"
        return found

    return once


@pytest.mark.parametrize("scenario", WATCHED)
def test_nothing_synchronises_in_the_measured_window(watched: Callable[[str], Executed], scenario: str) -> None:
    assert f"strict {WHOLE['iters']}" in watched(scenario).log(), "the measured window was not the one that was watched"


@pytest.mark.parametrize("looks", ["loss.item()", "torch.cuda.synchronize()"])
def test_a_synchronisation_in_the_measured_window_would_be_seen(launch: Callable[..., Executed], looks: str) -> None:
    done = launch(strict("ddp_o1", looks=looks), impl="native", warmup=DDP_LOGS)
    assert done.outcome.status == "error" and "synchronizing" in (done.outcome.reason or ""), done.outcome


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_levels_run_in_fp16(watched: Callable[[str], Executed], gpus: tuple[str, ...], level: str) -> None:
    """By the table of apex's documented properties, read off the live objects after the steps."""
    ran = watched(f"ddp_{level.lower()}").results[0]["effective"]
    half, full = {"float16"}, {"float32"}
    weights, norms, updated = {
        "O1": (full, full, full),
        "O2": (half | full, full, full),
        "O3": (half, half, half),
    }[level]
    assert ran["precision"] == level and ran["precision_impl"] == "native"
    assert ran["compute_dtypes"] == ["float16"]
    assert (set(ran["parameter_dtypes"]), set(ran["batch_norm_dtypes"])) == (weights, norms)
    assert set(ran["optimizer_dtypes"]) == updated and ran["optimizer_fused"]
    assert set(ran["gradient_dtypes"]) == weights
    if level == "O3":
        assert ran["scaler"] is None
    else:
        assert ran["scaler"]["class"].endswith("GradScaler") and ran["scaler"]["dynamic"]
        assert ran["scaler"]["scale"] > 1.0
    assert ran["wrapper"] == "torch.nn.parallel.distributed.DistributedDataParallel"
    assert (ran["backend"], ran["world_size"]) == ("nccl", len(gpus))


def test_nccl_at_a_world_size_of_one(on_gpu: Callable[..., Executed], gpus: tuple[str, ...]) -> None:
    done = on_gpu("ddp", devices=gpus[:1])
    ran = done.results[0]["effective"]
    assert (ran["backend"], ran["world_size"], ran["device"]["uuid"]) == ("nccl", 1, gpus[0])
    assert ran["versions"]["nccl"] is not None and ran["tf32"] is not None
    assert all(torch.isfinite(torch.tensor(done.results[0]["measured"]["loss"])))


GLOO = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from bench.records import job_from_json
from bench.worker import rank
import json, os

def join(job, me, device):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))

rank._join = join
job = job_from_json(json.loads(sys.argv[1]))
rank.execute(job, rank.Identity.from_environment(os.environ), None, time.perf_counter_ns())
"""


def test_two_gloo_ranks_share_one_gpu(gpus: tuple[str, ...], tmp_path: Path, repository: Path) -> None:
    """Functional only: bench gives every rank a GPU of its own, and times of ranks that share one are no figures.

    It is for the code of a rank to run with more than one of them on a machine with one GPU, where NCCL refuses: both
    have ``LOCAL_RANK`` 0 and join by gloo, which takes CUDA tensors through the host.
    """
    two_gloo_ranks("ddp_o2", "cuda", gpus[:1], tmp_path, repository)


def two_gloo_ranks(scenario: str, device: str, devices: tuple[str, ...], folder: Path, repository: Path) -> None:
    """Both ranks train, end with the same weights, and ran what the scenario says."""
    import socket

    found = discover.load(*discover.resolve(scenario))
    options = WHOLE | {"device": device, "devices": devices, "replicas": 2, "impl": "native", "iters": 3}
    (planned,) = launches(request_for((found,), **options), (found,), cores=2)
    job = json.dumps(job_to_json(replace(planned.job, scratch=str(folder), logs=str(folder))))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO, job],
            cwd=repository,
            env={**os.environ, **common, **seen, "RANK": str(number), "PYTHONPATH": str(repository)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)[-3000:]
    results = [json.loads((folder / f"rank{number}.json").read_text()) for number in range(2)]
    for result in results:
        ran = result["effective"]
        assert (ran["backend"], ran["world_size"], ran["device"]["type"]) == ("gloo", 2, device)
        assert ran["precision"] == f"O{scenario.rpartition('_o')[2]}"
    assert len({result["final_sha256"] for result in results}) == 1
    assert results[0]["measured"]["loss"] != results[1]["measured"]["loss"], "they saw the same images"


# Devices


def test_data_parallel_on_one_gpu(watched: Callable[[str], Executed], gpus: tuple[str, ...]) -> None:
    ran = watched("dp").results[0]["effective"]
    assert ran["wrapper"] == "torch.nn.parallel.data_parallel.DataParallel"
    assert (ran["replicas"], ran["backend"], ran["device"]["uuid"]) == (1, None, gpus[0])


def test_a_chosen_subset_of_the_gpus(on_gpu: Callable[..., Executed], gpus: tuple[str, ...]) -> None:
    if len(gpus) < 3:
        pytest.skip(f"needs three GPUs, of which the first and the third are chosen; there are {len(gpus)}")
    chosen = (gpus[0], gpus[2])
    done = on_gpu("ddp", devices=chosen)
    assert tuple(result["effective"]["device"]["uuid"] for result in done.results) == chosen
    assert on_gpu("dp", devices=chosen).results[0]["effective"]["replicas"] == 2


def test_real_apex(gpus: tuple[str, ...], tmp_path: Path) -> None:
    path = os.environ.get("BENCH_APEX")
    if not path:
        pytest.skip("BENCH_APEX=PATH names no checkout of apex 25.05")
    options = WHOLE | {"devices": gpus, "replicas": len(gpus), "impl": "apex", "apex_path": path}
    with WorkerHost(
        python=None, fresh=False, apex_path=path, log=str(tmp_path / "host.log"), device="cuda"
    ) as with_apex:
        with_apex.wait_until_ready()
        run = executor(with_apex, tmp_path)
        for scenario in ("apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3"):
            done = run(scenario, **options)
            assert done.outcome.status == "ok", f"{scenario}: {done.outcome.reason}\n{done.log()[-3000:]}"
            ran = done.results[0]["effective"]
            assert ran["parallel_impl"] == "apex"
            assert ran["precision_impl"] == ("apex" if "_o" in scenario else "torch")
            assert ran["apex_kernels"] == (find_spec("amp_C") is not None)


# Faults

GREEDY = """
    from bench.scenario import Scenario

    SCENARIO = Scenario(summary="takes all memory", strategy="custom", one_process=True)

    def setup(job):
        import torch
        from bench.worker.session import session_for

        session, held = session_for(job, wrap=lambda model, job: model), []

        def greedy(images, labels):
            while True:
                held.append(torch.empty(1 << 30, dtype=torch.uint8, device=job.device))

        session.forward = greedy
        return session
"""
KILLED = """
    from bench.scenario import Scenario

    SCENARIO = Scenario(summary="one rank is killed", strategy="custom", needs=("distributed",))

    def setup(job):
        import os, signal, time
        import torch
        from bench.worker import parallel
        from bench.worker.session import session_for

        session, calls = session_for(job, wrap=parallel.distributed_data_parallel), []
        forward = session.forward

        def last(images, labels):
            calls.append(1)
            if len(calls) == 6 and job.rank == job.world_size - 1:
                torch.cuda.synchronize()
                with open(os.path.join(job.job.scratch, "killed"), "w") as file:
                    file.write(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(images, labels)

        session.forward = last
        return session
"""


def seconds_until_free(uuids: tuple[str, ...], before_mib: dict[str, float]) -> float:
    """Until the GPUs hold as much as before; at most twice of what is allowed is waited for."""
    nvml, started = Nvml(), time.monotonic()
    try:
        while (waited := time.monotonic() - started) < 2 * FREE_AGAIN_S:
            if all((nvml.occupied_mib(uuid)[0] or 0.0) <= before_mib[uuid] + CONTEXT_MIB for uuid in uuids):
                break
            time.sleep(0.1)
        return waited
    finally:
        nvml.close()


def occupied(uuids: tuple[str, ...]) -> dict[str, float]:
    nvml = Nvml()
    try:
        levels = {uuid: nvml.occupied_mib(uuid)[0] for uuid in uuids}
    finally:
        nvml.close()
    if None in levels.values():
        pytest.skip("the driver does not tell how much memory is occupied")
    return {uuid: float(level or 0.0) for uuid, level in levels.items()}


def test_out_of_memory_is_oom_and_the_memory_is_free_soon(
    launch: Callable[..., Executed], gpus: tuple[str, ...]
) -> None:
    before = occupied(gpus[:1])
    done = launch(GREEDY, devices=gpus[:1])
    assert done.outcome.status == "oom", done.outcome
    assert "out of memory" in (done.outcome.reason or "").lower()
    assert seconds_until_free(gpus[:1], before) <= FREE_AGAIN_S


def test_a_killed_rank_under_nccl(launch: Callable[..., Executed], gpus: tuple[str, ...]) -> None:
    before = occupied(gpus)
    done = launch(KILLED)
    over = time.monotonic()
    assert (done.outcome.status, done.outcome.first_failed_rank) == ("killed", len(gpus) - 1), done.outcome
    assert over - float((done.folder / "killed").read_text()) <= 5.0
    assert seconds_until_free(gpus, before) <= FREE_AGAIN_S


def test_two_runs_on_one_gpu_refuse_each_other(tmp_path: Path, gpus: tuple[str, ...], repository: Path) -> None:
    """By their locks, which come before the look at who is on the GPU: ``--force`` is no way around them."""
    run = [sys.executable, "-m", "bench", "run", "--device", "cuda", "--gpus", gpus[0], "--scenario", "single"]
    run += ["--model", "resnet18", "--image-size", "64", "--global-batch", "32", "--iters", "20000", "--no-parity"]
    first = subprocess.Popen(
        [*run, "--force", "--out", str(tmp_path / "first")],
        cwd=repository,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stderr is not None
        said = ""
        while "measured steps" not in said:
            line = first.stderr.readline()
            assert line, said
            said += line
        second = [*run, "--force", "--out", str(tmp_path / "second")]
        refused = subprocess.run(second, cwd=repository, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2, refused.stderr
        assert "--gpus: " in refused.stderr and f"PID {first.pid}" in refused.stderr
        assert not (tmp_path / "second").exists()
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
        assert first.returncode == 130
    finally:
        first.kill()
        first.communicate()


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


def whole_run(
    host: WorkerHost, folder: Path, scenarios: tuple[str, ...], devices: tuple[str, ...], **changes: Any
) -> Run:
    found = tuple(discover.load(*discover.resolve(name)) for name in scenarios)
    small = {"image_size": 64, "global_batch": 16, "warmup": 3, "iters": 12, "impl": "native"}
    request = request_for(found, device="cuda", devices=devices, replicas=len(devices), **(small | changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_host", lambda *about: nullcontext(host))  # importing torch takes longer than a launch
        patch.setattr(host, "wait_until_ready", lambda: host.description)  # it says so once
        finished = pipeline.run(request, found, out=str(folder), console=Console(quiet=True))
    assert finished.failed == 0, finished.document["launches"]
    return store.read(finished.path)


@pytest.fixture(scope="module")
def all_ten(cuda_host: WorkerHost, tmp_path_factory: pytest.TempPathFactory, gpus: tuple[str, ...]) -> Run:
    return whole_run(cuda_host, tmp_path_factory.mktemp("ten"), discover.DEFAULT, gpus)


@pytest.mark.parametrize("scenario", discover.DEFAULT)
def test_every_scenario_trains_the_model_of_the_reference(all_ten: Run, scenario: str) -> None:
    """fp32 (with TF32, as torch has it), O1 and O2 within the bounds; O3, which has neither master weights nor a loss
    scale, may be found to diverge, but not to be unknown. Where the first loss scale was too high, the run says that it
    cannot tell.
    """
    (found,) = [row for row in all_ten.document["parity"] if row["scenario"] == scenario]
    too_high = found["verdict"] is None and "the loss scaler skipped" in found["reason"]
    if scenario.endswith("_o3"):
        assert found["verdict"] not in (None, NOT_FINITE), found
    else:
        assert found["verdict"] in (SAME, WITHIN_HALF) or too_high, found


@pytest.fixture(scope="module")
def one_gpu(cuda_host: WorkerHost, tmp_path_factory: pytest.TempPathFactory, gpus: tuple[str, ...]) -> Run:
    """At a world size of one, with profiles kept."""
    folder = tmp_path_factory.mktemp("one")
    return whole_run(cuda_host, folder, ("single", "ddp", "ddp_o1"), gpus[:1], diagnose=True, trace=True, parity=False)


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


def test_the_parts_of_dataparallel_on_two_gpus(cuda_host: WorkerHost, tmp_path: Path, gpus: tuple[str, ...]) -> None:
    if len(gpus) < 2:
        pytest.skip("needs two GPUs: on one, DataParallel makes no replicas")
    run = whole_run(cuda_host, tmp_path, ("dp",), gpus[:2], diagnose=True)
    (row,) = data_parallel(run.diagnostics).to_dict("records")
    assert all(row[f"{part}_ms"] > 0 for part in ("scatter", "replicate", "parallel_apply", "gather"))
    assert row["parallel_apply_ms"] > row["gather_ms"], "computing takes longer than handing a few numbers over"


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_gradients_are_unscaled_when_they_are_looked_at(on_gpu: Callable[..., Executed], level: str) -> None:
    """After the step, which is when a launch's sketch is taken: fp32's but for rounding, and not 1,024 times."""
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
            forward, optimize, compared = session.forward, session.optimize, []
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
        """,
        impl="native",
    )
