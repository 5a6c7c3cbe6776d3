"""One launch of each scenario on GPUs: no synchronisation in its measured window, and what ran, by the live objects.

Needs no GPU to itself.
"""

from collections.abc import Callable

import pytest
import torch
from conftest import ON_GPU, Executed, executor
from standin.planted import ALONE as ONE_RANK
from standin.planted import planted

from bench.sites.local import WorkerHost

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

DDP_LOGS = 12
"""Warm-up steps until torch DDP's logger, which waits for its events in the first ten, is over."""


STRICT = """
        import torch
        from torch.cuda import _gpu_trace
        from bench.worker import loop

        session = parts.build("{strategy}")
        chain, forward, windows = loop._chain, session.forward, []

        def strict(*arguments):
            windows.append(1)
            if len(windows) == 1:  # the warm-up
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

        def look(batch):
            loss = forward(batch)
            if len(windows) == 2:
                {looks}
            return loss

        loop._chain, session.forward = strict, look
        return session
"""
ALONE = ("single", "dp")
WATCHED = ("single", "dp", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp", "apex_ddp_o2")


def strict(scenario: str, *, looks: str = "pass") -> str:
    """The source of ``scenario`` (its native form) with every synchronisation in the measured window an error.

    ``looks``: what is planted in its forward passes.
    """
    strategy, _, level = scenario.partition("_o")
    kind = ONE_RANK if strategy in ALONE else "ranks=rank_per_device"
    return planted(STRICT.format(strategy=strategy, looks=looks), kind, scenario=f'precision="O{level or 0}"')


@pytest.fixture(scope="module")
def watched(
    cuda_host: WorkerHost, gpus: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Executed]:
    run, done = executor(cuda_host, tmp_path_factory.mktemp("watched")), {}

    def once(scenario: str) -> Executed:
        if scenario not in done:
            devices = gpus[:1] if scenario in ALONE else gpus
            options = ON_GPU | {"devices": devices, "replicas": len(devices), "impl": "native", "warmup": DDP_LOGS}
            done[scenario] = run(strict(scenario), **options)
        found = done[scenario]
        assert found.outcome.status == "ok", f"{found.outcome.reason}\n{found.log()[-3000:]}"
        return found

    return once


@pytest.mark.parametrize("scenario", WATCHED)
def test_nothing_synchronises_in_the_measured_window(watched: Callable[[str], Executed], scenario: str) -> None:
    assert f"strict {ON_GPU['iters']}" in watched(scenario).log(), "the watched window was not the measured one"


@pytest.mark.parametrize("looks", ["loss.item()", "torch.cuda.synchronize()"])
def test_a_synchronisation_in_the_window_would_be_seen(launch: Callable[..., Executed], looks: str) -> None:
    done = launch(strict("ddp_o1", looks=looks), impl="native", warmup=DDP_LOGS)
    assert done.outcome.status == "error" and "synchronizing" in (done.outcome.reason or ""), done.outcome


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_levels_run_in_fp16(watched: Callable[[str], Executed], gpus: tuple[str, ...], level: str) -> None:
    """By the table of apex's documented properties, read off the live objects after the steps."""
    ran = watched(f"ddp_{level.lower()}").results[0]["effective"]
    half, full = {"float16"}, {"float32"}
    weights, others = {"O1": (full, full), "O2": (half | full, full), "O3": (half, half)}[level]
    assert ran["precision"] == level and ran["precision_impl"] == "native"
    assert ran["compute_dtypes"] == ["float16"] and ran["optimizer_fused"]
    assert set(ran["parameter_dtypes"]) == set(ran["gradient_dtypes"]) == weights
    assert set(ran["batch_norm_dtypes"]) == set(ran["optimizer_dtypes"]) == others
    if level == "O3":
        assert ran["scaler"] is None
    else:
        assert ran["scaler"]["class"].endswith("GradScaler") and ran["scaler"]["dynamic"]
        assert ran["scaler"]["scale"] > 1.0
    assert ran["wrapper"] == "torch.nn.parallel.distributed.DistributedDataParallel"
    assert (ran["backend"], ran["world_size"]) == ("nccl", len(gpus))
    assert ran["backend_class"].startswith("ProcessGroupNCCL")


def test_nccl_alone(watched: Callable[[str], Executed], on_gpu: Callable[..., Executed], gpus: tuple[str, ...]) -> None:
    done = watched("ddp") if len(gpus) == 1 else on_gpu("ddp", devices=gpus[:1])
    ran = done.results[0]["effective"]
    assert (ran["backend"], ran["world_size"], ran["device"]["uuid"]) == ("nccl", 1, gpus[0])
    assert ran["versions"]["nccl"] is not None and ran["tf32"] is not None
    assert all(torch.isfinite(torch.tensor(done.results[0]["measured"]["loss"])))


def test_data_parallel_on_one_gpu(watched: Callable[[str], Executed], gpus: tuple[str, ...]) -> None:
    ran = watched("dp").results[0]["effective"]
    assert ran["wrapper"] == "torch.nn.parallel.data_parallel.DataParallel"
    assert (ran["replicas"], ran["backend"], ran["device"]["uuid"]) == (1, None, gpus[0])
