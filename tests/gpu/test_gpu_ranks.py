"""Ranks on GPUs: two on one by gloo, chosen subsets, and real apex.

``BENCH_APEX=PATH`` names a checkout of apex 25.05, for the tests of the real one. Needs no GPU to itself.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ON_GPU, Executed, executor, one_host, planned
from standin import ranks
from standin.workloads import workload

from bench import machine
from bench.machine import nvml
from bench.seams.site import Options
from bench.sites.local import WorkerHost

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

GLOO = """
import json, os, socket, sys, time
from datetime import timedelta
os.environ.update(json.loads(sys.argv[2]))
import torch.distributed as dist
from bench.core.channel import Channel
from bench.core.codec import decode
from bench.core.job import Job
from bench.worker import rank
rank.join = lambda *about: dist.init_process_group("gloo", timeout=timedelta(seconds=60))
ours, theirs = map(Channel, socket.socketpair())
rank.execute(decode(Job, json.loads(sys.argv[1])), int(os.environ["RANK"]), theirs, time.perf_counter_ns())
print(ours.wait_for("done")["result"])
"""


def test_two_gloo_ranks_share_one_gpu(gpus: tuple[str, ...], tmp_path: Path) -> None:
    """Functional only: bench gives every rank a GPU of its own, and times of ranks that share one are no results.

    It is for the code of a rank to run with more than one of them on a machine with one GPU, where NCCL refuses: both
    have ``LOCAL_RANK`` 0 and join by gloo, which takes CUDA tensors through the host.
    """
    session = nvml.Nvml()
    mode = session.details(gpus[0])["compute_mode"]
    session.close()
    if mode == nvml.EXCLUSIVE:
        pytest.skip("the GPU lets in one process at a time: its compute mode is exclusive process")
    options = ON_GPU | {"devices": gpus[:1] * 2, "replicas": 2, "impl": "native", "iters": 3}
    job = json.dumps(asdict(replace(planned("ddp_o2", *one_host(2, gpus[0]), **options).job, logs=str(tmp_path))))
    seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpus[0], "GLOO_SOCKET_IFNAME": "lo"}
    script = tmp_path / "rank.py"
    script.write_text(GLOO)
    ranks.run(script, 2, job, json.dumps(seen | {"LOCAL_RANK": "0"}))
    logs = (script.with_suffix(f".{rank}.log").read_text() for rank in range(2))
    results = [json.loads(log.splitlines()[-1]) for log in logs]
    for result in results:
        ran = result["effective"]
        told = (ran["backend"], ran["world_size"], ran["device"]["type"], ran["precision"])
        assert told == ("gloo", 2, "cuda", "O2")
    assert len({result["final_sha256"] for result in results}) == 1
    assert results[0]["measured"]["loss"] != results[1]["measured"]["loss"], "they saw the same images"


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
    options = ON_GPU | {"devices": gpus, "replicas": len(gpus), "impl": "apex", "apex_path": path}
    log = str(tmp_path / "host.log")
    with WorkerHost(Options(device="cuda", hosts=machine.here(()), log=log, apex_path=path)) as with_apex:
        with_apex.wait_until_ready()
        with_apex.prepare(workload(device="cuda"))
        run = executor(with_apex, tmp_path)
        for scenario in ("apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3"):
            done = run(scenario, **options)
            assert done.outcome.status == "ok", f"{scenario}: {done.outcome.reason}\n{done.log()[-3000:]}"
            ran = done.results[0]["effective"]
            assert ran["parallel_impl"] == "apex"
            assert ran["precision_impl"] == ("apex" if "_o" in scenario else "torch")
            assert ran["apex_kernels"] == (find_spec("amp_C") is not None)
