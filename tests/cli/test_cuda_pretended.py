"""The code that runs only where there are GPUs, torch's own too, on a stand-in for CUDA's runtime, for NCCL and for the
driver (see ``tests/standin``).

That it runs, that what it says ran is what ran, and that time is found where kernels and exchanges are told to take it.
Whether it is right on a GPU is for ``tests/gpu``, some of which runs here too so that it is not first run where a GPU
costs money.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from standin import MIB, ROOT, Driver, compiled, documented
from standin.planted import planted
from standin.processes import piped

from bench.analyse.parity import NOT_FINITE, SAME
from bench.machine import lock
from bench.worker.bandwidth import SIZES
from bench.worker.rank import BINDS_BY_ITSELF

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")

A, B, C = (f"GPU-aaaaaaaa-0000-0000-0000-00000000000{number}" for number in (1, 2, 3))


IMPORTED_ONCE = """def model(work):
    import sys

    assert "torch._dynamo" in sys.modules, "the host has imported it, and no rank has to do so by itself"
"""


@pytest.fixture(scope="module")
def environment(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("driver")
    driver = Driver(library, folder / "driver.txt")
    gpus = [f"device {uuid} 0 {number + 1} 0 Stand-in {81920 * MIB}" for number, uuid in enumerate((A, B, C))]
    links = ("value * p2p_nvlink 1", "value * max_pcie_generation 4", "value * pcie_width 16")
    driver.write(*gpus, *links, "value * capability 90", "value * power_limit 700000")
    path = os.pathsep.join([str(ROOT / "tests" / "standin" / "cuda"), str(ROOT)])
    runtime = compiled("cuda/runtime.c", folder / "libcuda.so.1")
    uuids = {"STANDIN_CUDA": ",".join((A, B, C)), "PYTHONPATH": path, "LD_PRELOAD": str(runtime)}
    return {**os.environ, **driver.environment(), **uuids, "BENCH_LOCK_DIR": str(folder)}


MLP_ON_TWO = ("--gpus", "0,2", "--workload", "mlp.py", "--global-batch", "8", "--warmup", "1")


def bench(environment: dict[str, str], here: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    (here / "mlp.py").write_text(documented("WORKLOAD ="))
    verb, *options = words
    command = [sys.executable, "-m", "bench", verb, "--device", "cuda", *options, "--out", str(here / "out")]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def waited(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A run on two GPUs, one of which another run had at first: what it said, and its first line for people."""
    driver = Path(environment["BENCH_STANDIN_NVML"])
    free = driver.read_text()
    here = tmp_path_factory.mktemp("cuda")
    (here / "mlp.py").write_text(documented("WORKLOAD =").replace("def model(work):\n", IMPORTED_ONCE))
    scenarios = "single,dp,ddp,ddp_o1,ddp_o2,apex_ddp_o3,averaging,ddp_two_devices"
    command = [sys.executable, "-m", "bench", "run", "--wait", "--json", "--device", "cuda", "--scenario", scenarios]
    command += [*MLP_ON_TWO, "--iters", "2", "--launches", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_LOCK_DIR", environment["BENCH_LOCK_DIR"])
        with lock.acquire((C,), wait=False, say=print):
            driver.write_text(free + f"process {C} {os.getpid()} {2048 * MIB}\n")
            running = piped(command, here, env=environment)
            assert running.stderr is not None
            first = running.stderr.readline()
            driver.write_text(free)
    said, shown = running.communicate(timeout=240)
    assert running.returncode == 0, first + shown[-3000:]
    return said, first


def test_scenarios_run_on_two_gpus_of_three(waited: tuple[str, str]) -> None:
    said = json.loads(waited[0])
    ran: dict[str, dict[str, Any]] = {launch["scenario"]: launch["effective"] for launch in said["launches"]}
    for name, effective in ran.items():
        assert effective["device"]["type"] == "cuda" and effective["device"]["uuid"] == A, "rank 0 has the first"
        distributed, spans = name not in ("single", "dp"), name == "ddp_two_devices"
        spanning = "nccl-legacy" if torch.__version__ >= BINDS_BY_ITSELF else "nccl"
        backend = (spanning, 1) if spans else ("nccl", 2) if distributed else (None, 1)
        assert (effective["backend"], effective["world_size"]) == backend
        assert (effective["backend_class"] or "").startswith("ProcessGroupNCCL" if distributed else "")
        assert effective["replicas"] == (1 if spans or name == "single" else 2)
        assert effective["cudnn_benchmark"] == (name != "dp" and not spans), "DataParallel would search in every step"
        half = name.partition("_o")[2][-1:]
        assert effective["compute_dtypes"] == (["float16"] if half.isdigit() else ["float32"])
        assert (effective["scaler"] is not None) == (half in ("1", "2"))
    assert ran["dp"]["wrapper"] == "torch.nn.parallel.data_parallel.DataParallel"
    verdicts = {one["scenario"]: one["verdict"] for one in said["parity"]}
    assert {verdicts[name] for name in ("single", "dp", "ddp")} == {SAME}, "TF32 is for convolutions"
    assert not {verdicts[name] for name in ("ddp_o1", "ddp_o2")} & {NOT_FINITE}, verdicts
    assert not [row for row in said["validity"] if row["code"] == "unequal"]
    for launch in said["launches"]:
        assert launch["checks"]["conservation_ok"], "steps by events add up to the wall time"
        assert all(isinstance(rank["host_lead_ms"], float) for rank in launch["ranks"])


def test_a_run_waits_for_the_gpu_of_another(waited: tuple[str, str]) -> None:
    assert f"waiting until GPU {C} is free of PID {os.getpid()} (" in waited[1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("value * cuda 11080", "CUDA: torch needs CUDA 1"),
        pytest.param("value * capability 35", "GPU 0: torch has no code for its sm_35", marks=pytest.mark.slow),
        (f"value {A} mig 1", f"GPU {A} is cut into MIG slices"),
    ],
)
def test_a_torch_that_does_not_fit(environment: dict[str, str], tmp_path: Path, line: str, problem: str) -> None:
    script = tmp_path / "driver.txt"
    script.write_text(line + "\n" + Path(environment["BENCH_STANDIN_NVML"]).read_text())
    there = environment | {"BENCH_STANDIN_NVML": str(script)}
    done = bench(there, tmp_path, "run", "--scenario", "single,ddp", "--iters", "2", code=2)
    last = done.stderr.splitlines()[-1]
    assert problem in last and ("cu118" in last or "cu126" in last or "whole GPUs" in last)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_tests_of_a_gpu_run(environment: dict[str, str], repository: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu"]
    command += ["-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers", "-o", "timeout=1200"]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_a_diagnostic_launch_reduces_each_size(environment: dict[str, str], tmp_path: Path) -> None:
    """NCCL's log then has the algorithm that it takes for each."""
    noting = f"""
        import torch.distributed as dist

        reduce = dist.all_reduce
        note = lambda tensor: print(tensor.nbytes, file=open("{tmp_path}/sizes", "a"))
        dist.all_reduce = lambda tensor, *options, **others: (note(tensor), reduce(tensor, *options, **others))[1]
        return parts.build("ddp")
    """
    (tmp_path / "noting.py").write_text(planted(noting))
    short = ("--no-parity", "--diagnose", "--scenario", "./noting.py", "--iters", "2", "--launches", "1")
    bench(environment, tmp_path, "run", *MLP_ON_TWO, *short)
    assert {*SIZES} <= {*map(int, (tmp_path / "sizes").read_text().split())}


@pytest.mark.slow
def test_shards_hold_no_whole_model(environment: dict[str, str], tmp_path: Path) -> None:
    """Neither before the first step, which the driver's peak would have, nor in one."""
    layers = "*(nn.Linear(work.width, work.width) for _ in range(24))"
    (tmp_path / "deep.py").write_text(documented("WORKLOAD =").replace("nn.ReLU()", layers))
    work = ("--workload", "deep.py", "--setting", "width=512", "--global-batch", "6", "--gpus", "0,1,2")
    short = ("--no-parity", "--warmup", "1", "--iters", "2", "--launches", "1")
    done = bench(environment, tmp_path, "run", "--json", *work, *short, "--scenario", "ddp,fsdp2,fsdp2_half")
    ddp, *sharded = (launch["ranks"][0] for launch in json.loads(done.stdout)["launches"])
    peaks = [rank["allocator"][f"max_allocated_mib.{A}"] for rank in sharded]
    assert peaks[1] < peaks[0] < ddp["memory"]["parameters_mib"], "in half and in full"


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--counts", "2"), ("--each", "--launches", "2")], ids=lambda how: how[0])
def test_scaling_over_gpus(environment: dict[str, str], tmp_path: Path, how: tuple[str, ...]) -> None:
    once = () if "--launches" in how else ("--launches", "1")
    planted = environment | {"STANDIN_KERNEL_MS": "1", "STANDIN_NCCL_GB_PER_S": "0.2"}
    done = bench(planted, tmp_path, "scale", "--json", *MLP_ON_TWO, "--iters", "3", *how, *once)
    document = json.loads(done.stdout)
    of = [[rank["device"]["uuid"] for rank in one["ranks"]] for one in document["experiments"]["scaling"]["launches"]]
    if "--each" in how:
        assert of == [[A], [C], [C], [A]]
        assert [one["name"].rpartition(" GPU ")[2] for one in document["scale"]["devices"]] == ["0", "2"]
    else:
        assert {uuid for uuids in of for uuid in uuids} == {A}, "one device is the first"
        assert document["scale"]["predictions"] and document["experiments"]["scaling"]["exchanges"][0]["exchanges"]
        reduced = document["scale"]["all_reduces"]
        assert reduced["transport"]["library"].startswith("NCCL ")
        assert reduced["transport"]["interface"] == "PCIe gen 4 ×16" and reduced["all_reduces"][0]["of_nominal"] > 0
        fit = reduced["fit"]
        assert (2 * fit["alpha_ms"], fit["bus_gb_s"]) == pytest.approx((1.0, 0.2), rel=0.1)


@pytest.mark.slow
def test_an_exchange_of_weights_is_accounted_for(environment: dict[str, str], tmp_path: Path) -> None:
    planted = environment | {"STANDIN_KERNEL_MS": "2", "STANDIN_NCCL_GB_PER_S": "0.002"}
    short = ("--iters", "4", "--launches", "1", "--scenario", "fsdp2,zero1")
    done = bench(planted, tmp_path, "limits", "--json", *MLP_ON_TWO, *short)
    parts = {(row["scenario"], row["part"]): row["ms"] for row in json.loads(done.stdout)["limits"]}
    for scenario in ("fsdp2", "zero1"):
        step = parts[scenario, "step"]
        assert parts[scenario, "communication"] > 0.2 * step and abs(parts[scenario, "unexplained"]) < 0.1 * step


@pytest.mark.slow
def test_a_step_is_accounted_for(environment: dict[str, str], tmp_path: Path) -> None:
    """20 ms of sleep in the model and in the loader. A GPU with long kernels has enough to do meanwhile."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").touch()
    planted = str(ROOT / "benchmarks" / "planted.py")
    asked = ("--workload", planted, "--data", str(data), "--workers", "0", "--scenario", "single", "--gpus", "0")

    def parts_ms(kernel_ms: float, where: str) -> dict[str, float]:
        timed, short = environment | {"STANDIN_KERNEL_MS": str(kernel_ms)}, ("--iters", "6", "--launches", "1")
        done = bench(timed, tmp_path, "limits", "--json", *asked, *short, "--setting", f"plant={where}")
        return {row["part"]: row["ms"] for row in json.loads(done.stdout)["limits"]}

    busy = parts_ms(5.0, "host")
    assert busy["host"] == 0.0 and abs(busy["unexplained"]) < 0.05 * busy["step"]
    kernels = busy["step"] / 5.0
    assert kernels == pytest.approx(round(kernels), rel=0.01) and kernels > 10
    for part, where in (("data", "loader"), ("host", "host")):
        waiting = parts_ms(0.02, where)
        assert waiting[part] > 20.0 and abs(waiting["unexplained"]) < 10.0, f"{part} counts once"
