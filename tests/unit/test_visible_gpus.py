"""Which GPUs a process takes for its own, and in which environment it measures nothing."""

import argparse
from dataclasses import replace

import pytest
from conftest import request_for
from standin import a_gpu, refusal

from bench import machine
from bench.core.errors import RequestError
from bench.core.records import Gpu
from bench.experiments import lab, obstacles
from bench.machine import nvml, wheel
from bench.seams import switching
from bench.verbs.sets import scenarios_of, with_untuned

FOUR = [a_gpu(index, f"GPU-{letter * 8}-0000-0000-0000-000000000000") for index, letter in enumerate("abcd")]


OF_TWO_KINDS = [*FOUR[:3], replace(FOUR[3], name="another")]


@pytest.mark.parametrize(
    ("gpus", "variable", "order", "left"),
    [
        *((FOUR, None, None, [0, 1, 2, 3]), (FOUR, "2", None, [2]), (FOUR, "3, 1", None, [1, 3])),
        *((FOUR, f"GPU-{'b' * 8},GPU-{'d' * 4}", None, [1, 3]), (FOUR, "1,7,2", None, [1])),
        *((FOUR, "0,GPU-,2", None, [0]), *((FOUR, hidden, None, []) for hidden in ("", "-1", "NoDevFiles"))),
        *((OF_TWO_KINDS, "1", "PCI_BUS_ID", [1]), (OF_TWO_KINDS, f"GPU-{'b' * 8}", None, [1])),
        *((OF_TWO_KINDS, "3,2,1,0", None, [0, 1, 2, 3]), (OF_TWO_KINDS, "1", None, None)),
        *((OF_TWO_KINDS, "0,2", "FASTEST_FIRST", None), (OF_TWO_KINDS, f"GPU-{'b' * 8},3", None, None)),
    ],
)
def test_gpus_of_others_are_not_taken(
    gpus: list[Gpu], variable: str | None, order: str | None, left: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUDA reads the variable: up to the first entry that names no GPU, or more than one. It counts the fastest
    first, unless it is told to count in PCI order: among kinds of GPUs no index is guessed."""
    monkeypatch.setattr(nvml, "list_gpus", lambda: (gpus, None))
    for name, value in ((machine.VISIBLE, variable), (machine.ORDER, order)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    if left is None:
        error = refusal(lambda: machine.choose_device("auto"))
        assert error.option == machine.VISIBLE
        assert "UUID" in error.remedy and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in error.remedy
        return
    device, seen, _ = machine.choose_device("auto")
    assert (device, [gpu.index for gpu in seen]) == ("cuda" if left else "cpu", left)
    assert machine.choose_gpus(None, seen) == tuple(gpus[index].uuid for index in left)
    if not left:
        with pytest.raises(RequestError, match=f"{machine.VISIBLE}={variable} hides every GPU"):
            machine.choose_device("cuda")


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("variable", "driver", "says"),
    [
        ("MIG-1", True, "bench measures whole GPUs, not MIG slices"),
        ("9", True, "the driver does not list it"),
        *((variable, False, "there is no NVIDIA driver") for variable in ("0", f"GPU-{'a' * 8}", "MIG-1")),
    ],
)
def test_a_named_gpu_is_never_the_cpu(
    variable: str, driver: bool, says: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where there is no driver, as in a container that was started without its GPUs, in a job that has one."""
    if driver:
        monkeypatch.setattr(nvml, "list_gpus", lambda: (FOUR, None))
    monkeypatch.setattr(nvml, "driver_present", lambda: driver)
    monkeypatch.setenv(machine.VISIBLE, variable)
    with pytest.raises(RequestError, match=f"it names '{variable}', and {says}"):
        machine.choose_device(device)
    monkeypatch.setenv(machine.VISIBLE, "")
    if not driver and device == "auto":
        assert machine.choose_device("auto") == ("cpu", [], None)


def test_a_gpu_runs_its_major_version_and_older_ptx() -> None:
    for capability, built, fits in (
        *(("8.9", ["sm_80", "sm_90"], True), ("12.1", ["sm_90", "compute_90"], True), ("12.0", ["sm_120a"], True)),
        *(("8.0", ["sm_86"], False), ("7.0", ["sm_75", "sm_90", "sm_120", "compute_120"], False)),
    ):
        found = list(wheel.problems("13.0", built, None, [{"index": 0, "compute_capability": capability}]))
        assert [about for about, *_ in found] == ([] if fits else ["GPU 0"])


def test_ten_scenarios_and_untuned_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dp lacks on several GPUs, cuDNN's search, is measured by itself."""
    monkeypatch.setattr(nvml, "list_gpus", lambda: (FOUR, None))
    monkeypatch.delenv(machine.VISIBLE, raising=False)
    ten = scenarios_of(None)
    for gpus, more in (("0", []), ("0,1", ["ddp_untuned"]), (None, ["ddp_untuned"])):
        options = argparse.Namespace(device="auto", gpus=gpus, switches=None)
        assert [one.name for one in with_untuned(ten, options)[10:]] == more


BROKEN = "NVML does not start: Driver/library version mismatch; fix the driver until nvidia-smi works"
LOST = "the GPU that nvidia-smi numbers 1 is left out: GPU is lost; reset or replace it"


@pytest.mark.parametrize("why", [BROKEN, f"{BROKEN}, or use --device cpu", LOST])
def test_the_cpu_never_stands_in_for_a_broken_driver(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "list_gpus", lambda: ([], why))
    monkeypatch.setattr(nvml, "driver_present", lambda: True)
    error = refusal(lambda: machine.choose_device("auto"))
    problem, remedy = why.removesuffix(", or use --device cpu").split("; ")
    assert error.problem == f"there is an NVIDIA driver, but no GPU can be used: {problem}"
    assert error.remedy == f"{remedy}, or use --device cpu"
    assert machine.choose_device("cpu") == ("cpu", [], None)
    monkeypatch.setattr(nvml, "driver_present", lambda: False)
    assert machine.choose_device("auto") == ("cpu", [], None)


def test_a_left_out_gpu_is_recorded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(nvml, "list_gpus", lambda: (FOUR[:1], LOST))
    request = request_for((switching.scenario("single"),), device="cuda", devices=(FOUR[0].uuid,), force=True)
    with lab._alone(request, lab.Start(out="")) as (_, here):
        assert here.gpus_reason == LOST
    assert f"warning: {LOST}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scenario", "device", "has", "why"),
    [
        ("single", "cuda", {"cuda_built": None}, "this torch was built without CUDA; install"),
        ("dp", "cuda", {}, None),
        ("single", "cpu", {"cuda_built": None}, None),
        ("fsdp2", "cpu", {"torch": "2.7.1+cpu"}, "on the CPU it needs torch 2.8, and this is 2.7.1+cpu; install"),
        ("fsdp2", "cpu", {}, None),
        ("fsdp2", "cuda", {"torch": "2.7.1"}, None),
    ],
)
def test_a_torch_that_does_not_fit_is_refused_first(
    scenario: str, device: str, has: dict[str, str | None], why: str | None
) -> None:
    found = switching.scenario(scenario)
    request = request_for((found,), device=device, devices=(FOUR[0].uuid,), replicas=1)
    host = {"torch": "2.11.0", "cuda_built": "13.0", "nccl": True, "gloo": True} | has
    told = obstacles.obstacle(found, request, host | {"apex": {"problems": {}}})
    assert (told or "").startswith(why or "") and (told is None) == (why is None)


@pytest.mark.parametrize(
    ("name", "device", "off", "on"),
    [
        ("CUDA_LAUNCH_BLOCKING", "cuda", ("0", ""), ("1", "yes")),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "cuda", ("0",), ("1",)),
        ("TORCH_DISTRIBUTED_DEBUG", "cpu", ("OFF", "INFO", ""), ("DETAIL", "detail")),
    ],
)
def test_a_variable_for_debugging_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, device: str, off: tuple[str, ...], on: tuple[str, ...]
) -> None:
    for value in off:
        monkeypatch.setenv(name, value)
        machine.refuse_debugging(device)
    for value in on:
        monkeypatch.setenv(name, value)
        assert machine.recorded_environment()[name] == value
        with pytest.raises(RequestError, match=f"unset {name}"):
            machine.refuse_debugging(device)
    if device == "cuda":
        machine.refuse_debugging("cpu")
