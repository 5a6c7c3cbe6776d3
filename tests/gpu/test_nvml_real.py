"""What NVML says against ``nvidia-smi`` and against torch, on a real driver: ``python -m pytest -m gpu``."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import measures_a_gpu
from standin import ROOT
from standin.frames import iterations
from standin.processes import piped, wait_for

from bench import machine
from bench.analyse import devices
from bench.core.children import nested
from bench.core.records import DEVICE_COLUMNS, MEMORY_COLUMNS, PROBE_MIB, Gpu
from bench.machine import nvml
from bench.machine.sample import Sampler
from bench.machine.sample.attribution import match_probe
from bench.runs.spool import read_spool, spool_path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"), measures_a_gpu]

SECONDS = 10.0
"""How long energy and power are compared: for ten of the seconds that a driver averages power over."""

PROGRAM = """
import os, sys, time, torch
torch.cuda.set_device(0)
kept = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
print("up", torch.cuda.max_memory_reserved() / 2**20, flush=True)
for line in sys.stdin:
    if line.startswith("probe"):
        probe = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
    end = time.monotonic() + float(line.split()[1])
    while time.monotonic() < end:
        a = (a @ a).clamp(-1, 1)
        torch.cuda.synchronize()
    print("done", flush=True)
"""


class Rank:
    def __init__(self, uuid: str) -> None:
        command = [sys.executable, "-c", PROGRAM, "2048"]
        seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuid}
        self.process = piped(command, ROOT, env=os.environ | seen, stdin=subprocess.PIPE, stderr=None)
        self.pid = self.process.pid
        self.reserved_mib = float(self._line().split()[1])

    def tell(self, order: str, *, wait: bool = True) -> None:
        assert self.process.stdin is not None
        print(order, file=self.process.stdin, flush=True)
        if wait:
            self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return line


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    here = nvml.list_gpus()[0]
    uuid = machine.choose_gpus(os.environ.get("BENCH_TEST_GPUS"), here)[0]
    return next(one for one in here if one.uuid == uuid)


@pytest.fixture(scope="module")
def rank(gpu: Gpu) -> Iterator[Rank]:
    """For all tests that do not mind what it did before; the first, which must be alone, comes before it."""
    one = Rank(gpu.uuid)
    yield one
    one.process.kill()
    one.process.communicate()


def smi(uuid: str, query: str, fields: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi here to compare with")
    told = subprocess.run(
        ["nvidia-smi", f"--query-{query}={fields}", "--format=csv,noheader,nounits", "-i", uuid],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]


def test_in_a_container_the_level_tells_a_rank(gpu: Gpu, tmp_path: Path) -> None:
    sampler = Sampler(device="cuda", gpus=(gpu.uuid,), spool=str(tmp_path), host="here", nested=True)
    sampler.begin(0)
    sampler.watch(0, "single", 0, 2**22 + 1, (gpu.uuid,))  # a PID that is nobody's: as if the list did not name it
    time.sleep(1.0)
    rank = Rank(gpu.uuid)
    time.sleep(1.5)
    memory, _ = sampler.finish(0)
    sampler.stop()
    rank.process.kill()
    rank.process.communicate()
    assert memory[-1]["source"] == "nvml_device_delta", memory[-1]["reason"]
    assert rank.reserved_mib < memory[-1]["used_mib"] < rank.reserved_mib + 2000


def test_memory_agrees_with_nvidia_smi(gpu: Gpu, rank: Rank, tmp_path: Path) -> None:
    sampler = Sampler(device="cuda", gpus=(gpu.uuid,), spool=str(tmp_path), host="here")
    try:
        sampler.watch(0, "single", 0, rank.pid, (gpu.uuid,))
        wait_for(lambda: read_spool(spool_path(str(tmp_path), 0))["device"], 30.0)
        time.sleep(1.0)
        memory, _ = sampler.finish(0)
    finally:
        sampler.stop()
    by_smi = {row[0]: row[1] for row in smi(gpu.uuid, "compute-apps", "pid,used_memory")}
    if str(rank.pid) not in by_smi:
        assert nested(), "on the host itself the driver lists our PID"
        pytest.skip("a container: nvidia-smi does not show our PID, so there is nothing to compare with")
    told = by_smi[str(rank.pid)]
    if not told.isdigit() or told == "0":
        pytest.skip(f"nvidia-smi says {told} of our PID, so there is nothing to compare with")
    assert {row["source"] for row in memory} == {"nvml_pid"}
    assert memory[-1]["used_mib"] == pytest.approx(float(told), abs=2)
    assert 100 < memory[-1]["used_mib"] - rank.reserved_mib < 2000  # the context and the libraries


def test_the_pid_that_rises_by_the_probe_is_found(gpu: Gpu, rank: Rank) -> None:
    session = nvml.Nvml()
    before, reason = session.processes(gpu.uuid)
    if not before or None in dict(before).values():
        pytest.skip(f"the driver lists no process here, or not what it holds: {reason}")
    rank.tell("probe 0")
    after, _ = session.processes(gpu.uuid)
    session.close()
    listed = match_probe(dict(before), dict(after), set())
    assert listed is not None, (PROBE_MIB, before, after)
    assert listed == rank.pid or nested()


def test_energy_of_the_counter_agrees_with_power(gpu: Gpu, rank: Rank, tmp_path: Path) -> None:
    rank.tell("work 20", wait=False)
    time.sleep(3)
    by_smi: list[float] = []
    sampler = Sampler(device="cuda", gpus=(gpu.uuid,), spool=str(tmp_path), host="here")
    sampler.watch(0, "single", 0, rank.pid, (gpu.uuid,))
    start_ns = time.perf_counter_ns()
    while time.perf_counter_ns() < start_ns + SECONDS * 1e9:
        by_smi.append(float(smi(gpu.uuid, "gpu", "power.draw")[0][0]))
        time.sleep(1.0)  # each is a process that asks the same driver
    memory, device = sampler.finish(0)
    cost = sampler.cost
    sampler.stop()
    assert list(memory[0]) == list(MEMORY_COLUMNS)
    steps = pd.DataFrame([{"launch": 0, "warmup": False, "start_ns": start_ns, "step_ms": SECONDS * 1e3, "step": 0}])
    (row,) = devices.per_device(
        pd.DataFrame(device, columns=list(DEVICE_COLUMNS)), devices.windows(iterations(steps))
    ).to_dict("records")
    counted = any(sample["energy_mj"] is not None for sample in device)
    assert row["energy_source"] == ("counter" if counted else "estimated"), row["energy_reason"]
    assert row["mean_power_w"] == pytest.approx(sum(by_smi) / len(by_smi), rel=0.1)
    assert cost is not None
    assert (cost["memory"]["total_ms"] + cost["device"]["total_ms"]) / (SECONDS * 1e3) < 0.015, cost
