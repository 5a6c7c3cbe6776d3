"""``bench doctor``: on no GPU, on GPUs of a stand-in driver, and where torch is broken; every finding has a remedy."""

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import separately
from standin import MIB, ROOT, TWO_GPUS, A, B, Driver, program

from bench.machine.doctor.concerns import LEVELS, concerns
from bench.machine.doctor.gpus import numa_node
from bench.machine.doctor.page import page

FAKE_TORCH = """
from types import SimpleNamespace as Module
Tensor = nn = None
__version__, version = "2.9.9", Module(cuda="12.6")
get_num_threads, there = lambda: 2, lambda: True
distributed = Module(is_available=there, is_nccl_available=there, is_gloo_available=there)
backends = Module(cudnn=Module(version=lambda: 90100))
cuda = Module(get_arch_list=lambda: ["sm_80", "sm_90"], nccl=Module(version=lambda: (2, 30, 7)))
ops = Module(load_library=print, mkldnn=Module(_is_mkldnn_bf16_supported=lambda: False))
"""


@pytest.fixture
def quick(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "torch.py").write_text(FAKE_TORCH)
    return {"PYTHONPATH": str(tmp_path / "quick")}


def report(*arguments: str, **environment: str) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (environment.pop("PYTHONPATH", None), str(ROOT))))
    told: dict[str, Any] = separately("doctor", "--json", *arguments, **environment, PYTHONPATH=path).well()
    for finding in told["findings"]:
        assert finding["level"] in LEVELS
        texts = [finding[part] for part in ("about", "finding", "consequence", "remedy")]
        assert all(text and "\n" not in text for text in texts)
    return told


def about(told: dict[str, Any], subject: str) -> list[str]:
    return [finding["finding"] for finding in told["findings"] if finding["about"] == subject]


# Without a GPU


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_without_a_gpu_it_says_what_that_means(quick: dict[str, str]) -> None:
    """And that another pynvml is in the place of the one that asks a driver."""
    shadow = Path(quick["PYTHONPATH"]) / "pynvml"
    shadow.mkdir()
    (shadow / "__init__.py").write_text("def nvmlInit(): ...\n")
    told = report(**quick, LD_LIBRARY_PATH="")
    assert "the deprecated project 'pynvml' shadows nvidia-ml-py" in about(told, "pynvml")[0]
    assert told["findings"][0]["level"] == "problem"
    assert told["gpus"] == [] and len(about(told, "GPUs")) == 1
    assert NO_BF16 in about(told, "torch") and told["torch"]["torch"] == "2.9.9"
    assert told["host"]["cores_usable"] >= 1
    shown = page(told)
    assert "torch    2.9.9" in shown and len(shown.splitlines()) < 66
    assert all(module in shown for module in ("apex.amp", "apex.parallel", "apex.optimizers", "amp_C"))


# Broken torch


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise ImportError('libcudart.so.12: cannot open\\nshared object file')", "cudart.so.12: cannot open shared"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit('no')", "exit code 1: no"),
    ],
)
def test_a_broken_torch_is_a_finding(tmp_path: Path, source: str, told: str) -> None:
    (tmp_path / "torch.py").write_text(source)
    found = report(PYTHONPATH=str(tmp_path))
    (problem,) = [finding for finding in found["findings"] if finding["about"] == "torch"]
    assert problem["level"] == "problem" and told in problem["finding"] and "--python" in problem["remedy"]
    assert found["host"]["cpu"] and "✗ torch" in page(found)


def test_a_program_that_is_no_interpreter_is_a_finding(tmp_path: Path) -> None:
    found = report("--python", str(program(tmp_path / "program", "#!/bin/sh\necho '[]'\n")))
    assert "does not answer as a Python would" in about(found, "torch")[0]


# GPUs


def test_two_gpus_in_pci_order_with_their_problems(driver: Driver, quick: dict[str, str]) -> None:
    driver.write(
        *TWO_GPUS,
        *(f"value {A} capability 70", f"value {B} capability 90", f"value {B} ecc 1", f"value {B} persistence 1"),
        *(f"value {A} power_limit 200000", f"value {A} default_power_limit 300000", f"value {A} temperature 61"),
        *(f"value {A} used {2048 * MIB}", f"process {A} 4242 {2000 * MIB}", "name trainer 4242 0"),
        *(f"value {A} compute_mode 3", f"value {B} compute_mode 2"),
        *(f"graphics {B} 900 {90 * MIB}", "name Xorg 900 0"),
        *(f"value {A} pcie_width 8", f"value {A} max_pcie_width 16", f"value {A} throttle 64"),
        *("value * topology 50", "value * p2p_read 1", "value * p2p_nvlink 1", f"value {B} max_sm_clock 1980"),
    )
    told = report(**quick, **driver.environment())
    assert [(gpu["index"], gpu["uuid"]) for gpu in told["gpus"]] == [(0, B), (1, A)]
    assert told["driver"] == {"version": "999.01", "nvml": "13.999.01", "cuda": "13.2"}
    (link,) = told["topology"]
    assert link == {"between": [0, 1], "level": "the link between CPU sockets", "p2p": False, "nvlink": False}
    assert about(told, "GPU 1") == [
        "torch has no code for its sm_70 (only sm_80, sm_90)",
        "persistence mode is off",
        "its power limit is 200 W where 300 W is usual",
        "it has 8 of 16 PCIe lanes",
        "it slows down now: thermal slowdown (hardware)",
        "others are using it: PID 4242 (trainer), 2,048 MiB occupied",
        "its compute mode is exclusive process",
    ]
    assert about(told, "GPU 0") == ["its compute mode is prohibited", "something draws on it: PID 900 (Xorg)"]
    assert about(told, "topology") == ["no peer access between GPUs 0-1"]
    assert NO_BF16 not in about(told, "torch"), "which is of no matter to GPUs"
    assert about(told, "GPUs") == ["they are of 2 models: Stand-in A, Stand-in B"]
    text = page(told)
    assert f"GPU 0    Stand-in B, {B}" in text
    assert "process 4242 (trainer): 2,000 MiB" in text and "graphics process 900 (Xorg): 90 MiB" in text
    assert "GPU 0-1  no peer access, by the link between CPU sockets" in text
    assert "ECC on" in text and "compute mode exclusive process" in text


def test_many_gpus_that_are_alike_take_few_lines(driver: Driver, quick: dict[str, str]) -> None:
    uuids = [f"GPU-{number:036d}" for number in range(8)]
    driver.write(
        *(f"device {uuid} 0 {number} 0 Stand-in {MIB}" for number, uuid in enumerate(uuids)),
        *("value * compute_mode 3", "value * capability 90", f"value {uuids[0]} topology 50"),
    )
    text = page(report(**quick, **driver.environment()))
    assert "GPU 0-1, 0-2, 0-3, 0-4, 0-5, 0-6, 0-7  peer access over NVLink, by the link between CPU sockets\n" in text
    assert "GPU 1-2, 1-3, 1-4, 1-5, 1-6, 1-7, 2-3, 2-4 and 13 more  peer access over NVLink, by the same" in text
    assert text.count("persistence mode is off") == text.count("its compute mode is") == 1
    assert "each of GPUs 0, 1, 2, 3, 4, 5, 6, 7: its" in text and "nvidia-smi -i 0,1,2,3,4,5,6,7 -c DEFAULT" in text
    driver.write(*(f"device {uuid} 0 {number} 0 Stand-in {MIB}" for number, uuid in enumerate(uuids)))
    assert "GPUs     each two: peer access over NVLink, by" in page(report(**quick, **driver.environment()))


def test_mig_and_a_lost_gpu_are_no_obstacle(driver: Driver, quick: dict[str, str]) -> None:
    silent = [
        *("pci_generation", "ecc", "persistence", "compute_mode", "numa", "power_limit", "used", "capability"),
        *("p2p_read", "topology", "nvml_version"),
    ]
    driver.write(*TWO_GPUS, f"value {B} mig 1", f"error {A} handle 15", *(f"error * {key} 3" for key in silent))
    told = report(**quick, **driver.environment())
    assert "MIG is on" in about(told, "GPU 0") and "left out: GPU is lost" in about(told, "GPUs")[0]
    assert told["gpus"][0]["ecc"] is None and "ECC unknown" in page(told)
    assert told["driver"] == {"version": "999.01", "nvml": None, "cuda": "13.2"}


# Facts to findings


HOST: dict[str, Any] = {"host": "h", "os": "Linux", "cpu": "C", "numa_nodes": 1, "own_pid_namespace": False}
HOST |= dict.fromkeys(("cores_usable", "cores_online", "cores_of_affinity"), 8)
HOST |= {"memory_gib": 64, "memory_available_gib": 60, "load_1min": 0.0, "shm_mib": 4096}
HOST |= dict.fromkeys(("governor", "container", "cpu_quota", "memory_limit_gib"))
TORCH: dict[str, Any] = {"python": "3.11", "torch": "2.9", "torchvision": "0.24", "gloo": True}
TORCH |= dict.fromkeys(("problem", "torch_problem", "torchvision_problem", "cuda"))
TORCH |= {"apex": {"problems": {"apex.amp": None, "apex.parallel": None}, "extras": {"amp_C": True}}}


FACTS: dict[str, Any] = {"host": HOST, "torch": TORCH, "gpus": [], "gpus_reason": None, "topology": []}
FACTS |= {"driver": dict.fromkeys(("version", "nvml", "cuda")), "pynvml": {"path": "x", "problem": None}}


def facts(**changes: dict[str, Any]) -> dict[str, Any]:
    return FACTS | {part: FACTS[part] | values for part, values in changes.items()}


NO_BF16 = "this CPU has no instructions for bf16"
HALF_AN_APEX = {"apex.amp": None, "apex.parallel": "apex.parallel fails; mend it"}


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"host": {"governor": "powersave"}}, "the frequency governor is powersave"),
        ({"host": {"load_1min": 4.5}}, "other work is running (load 4.5 on 8 cores)"),
        ({"host": {"cpu_quota": 2.5, "cores_usable": 2, "load_1min": 6.5}}, "2.5 cores' worth of time on 8 cores"),
        ({"host": {"shm_mib": 64}}, "/dev/shm has 64 MiB"),
        ({"torch": {"bf16_instructions": False}}, NO_BF16),
        ({"torch": {"apex": {"problems": HALF_AN_APEX, "extras": {}}}}, "apex.parallel: apex.parallel fails"),
        ({"torch": {"apex": {"problems": {}, "extras": {"amp_C": False, "syncbn": True}}}}, "is there without amp_C"),
    ],
)
def test_what_is_wrong_is_found(about: dict[str, Any], said: str) -> None:
    (finding,) = concerns(facts(**about))
    assert said in finding.finding
    assert finding.remedy == "mend it" or "mend it" not in str(about)


def test_a_host_with_nothing_wrong_has_no_finding() -> None:
    for instructions in (True, None):
        assert concerns(facts(torch={"bf16_instructions": instructions})) == []
    text = page({**facts(host={"memory_limit_gib": 2.5}), "findings": []})
    assert "Nothing here would spoil a measurement." in text
    assert "60 of 64 GiB free, 2.5 GiB by the control group" in text


def test_the_numa_node_of_a_gpu_is_its_pci_devices(tmp_path: Path) -> None:
    device = tmp_path / "0000:c1:00.0"
    device.mkdir()
    (device / "numa_node").write_text("1\n")
    assert numa_node("00000000:C1:00.0", str(tmp_path)) == 1
    (device / "numa_node").write_text("-1\n")
    assert numa_node("00000000:C1:00.0", str(tmp_path)) is None
    assert numa_node("00000000:C2:00.0", str(tmp_path)) is None
