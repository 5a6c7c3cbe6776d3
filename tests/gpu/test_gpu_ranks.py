"""Ranks on GPUs: two on one by gloo, chosen subsets, and real apex.

``BENCH_APEX=PATH`` names a checkout of apex 25.05, for the tests of the real one. Needs no GPU to itself.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ON_GPU, Executed, executor, one_host, planned
from standin.hosts import free_port
from standin.workloads import workload

from bench import machine
from bench.core.channel import Channel
from bench.machine import nvml
from bench.seams.site import Options
from bench.sites.local import WorkerHost

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

GLOO = """
import json, os, socket, sys, time
from datetime import timedelta
import torch.distributed as dist
from bench.core.channel import Channel
from bench.core.codec import decode
from bench.core.job import Job
from bench.worker import rank
rank.join = lambda *about: dist.init_process_group("gloo", timeout=timedelta(seconds=60))
job = decode(Job, json.loads(sys.argv[1]))
channel = Channel(socket.socket(fileno=int(sys.argv[2])))
rank.execute(job, int(os.environ["RANK"]), channel, time.perf_counter_ns())
"""


def test_two_gloo_ranks_share_one_gpu(gpus: tuple[str, ...], tmp_path: Path, repository: Path) -> None:
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
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpus[0], "GLOO_SOCKET_IFNAME": "lo"}
    path = os.pathsep.join(filter(None, (str(repository), os.environ.get("PYTHONPATH"))))
    pairs = [socket.socketpair() for _ in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO, job, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            cwd=repository,
            env={**os.environ, **common, **seen, "RANK": str(number), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, (_, theirs) in enumerate(pairs)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)[-3000:]
    results = [json.loads(Channel(ours).wait_for("done")["result"]) for ours, _ in pairs]
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
