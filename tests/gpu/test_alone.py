"""What must have the GPU for itself, because it looks at the GPU or at the clock: ``python -m pytest -m gpu``.

``BENCH_TEST_GPUS=0,2`` chooses GPUs as ``bench run --gpus`` does (default: all).
"""

import time
from collections.abc import Callable
from contextlib import closing

import pandas as pd
import pytest
import torch
from conftest import Executed, measures_a_gpu
from standin.planted import ALONE, hooked
from standin.processes import wait_for

from bench.machine.nvml import Nvml

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

FREE_AGAIN_S = 10.0
CONTEXT_MIB = 200.0
"""By how much the level of a GPU may differ for other reasons than a launch."""


@measures_a_gpu
def test_steps_by_events_add_up_to_the_wall(on_gpu: Callable[..., Executed]) -> None:
    measured = on_gpu("single", global_batch=128, image_size=224).results[0]["measured"]
    assert sum(measured["step_ms"]) == pytest.approx(measured["wall_ms"], rel=0.005)


@measures_a_gpu
def test_work_that_is_only_queued_is_in_the_step(on_gpu: Callable[..., Executed]) -> None:
    """The forward pass returns at once and keeps the GPU busy for tens of milliseconds: a clock that is read without
    waiting for it would miss them."""
    busy = hooked("forward", "__import__('torch').cuda._sleep(60_000_000)", ALONE, build="parts.session()")
    measured = on_gpu(busy).results[0]["measured"]
    assert pd.Series(measured["forward_ms"]).median() > 20, "60 million cycles at no more than 3 GHz"
    assert sum(measured["step_ms"]) == pytest.approx(measured["wall_ms"], rel=0.01)


GREEDY = """
    import torch

    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device=parts.device))
"""
KILLED = """
    import os, signal, time
    import torch

    session.calls = getattr(session, "calls", 0) + 1
    if session.calls == 6 and parts.rank == parts.world_size - 1:
        torch.cuda.synchronize()
        with open(os.path.join(parts.job.logs, "killed"), "w") as file:
            file.write(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def free_again(uuids: tuple[str, ...], before_mib: dict[str, float]) -> bool:
    with closing(Nvml()) as nvml:

        def free(uuid: str) -> bool:
            return (nvml.occupied_mib(uuid)[0] or 0.0) <= before_mib[uuid] + CONTEXT_MIB

        return bool(wait_for(lambda: all(map(free, uuids)), FREE_AGAIN_S))


def occupied(uuids: tuple[str, ...]) -> dict[str, float]:
    with closing(Nvml()) as nvml:
        levels = {uuid: nvml.occupied_mib(uuid)[0] for uuid in uuids}
    if None in levels.values():
        pytest.skip("the driver does not tell how much memory is occupied")
    return {uuid: float(level or 0.0) for uuid, level in levels.items()}


@measures_a_gpu
def test_oom_frees_the_memory_soon(launch: Callable[..., Executed], gpus: tuple[str, ...]) -> None:
    before = occupied(gpus[:1])
    done = launch(hooked("forward", GREEDY, ALONE, build="parts.session()"), devices=gpus[:1])
    assert done.outcome.status == "oom", done.outcome
    assert "out of memory" in (done.outcome.reason or "").lower()
    assert free_again(gpus[:1], before)


def test_a_killed_rank_under_nccl(launch: Callable[..., Executed], gpus: tuple[str, ...]) -> None:
    before = occupied(gpus)
    done = launch(hooked("forward", KILLED))
    over = time.monotonic()
    assert (done.outcome.status, done.outcome.first_failed_rank) == ("killed", len(gpus) - 1), done.outcome
    assert over - float((done.folder / "killed").read_text()) <= 5.0
    assert free_again(gpus, before)
