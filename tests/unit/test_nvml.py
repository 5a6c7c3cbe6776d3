"""The real pynvml against a stand-in driver: order, units, fallbacks, and what stays unknown."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from standin import DEVICE_A, KEYS, MIB, NOT_AVAILABLE, TWO_GPUS, A, B, Driver, compile_driver, python

from bench.core.records import ACTIVITY_COLUMNS, DEVICE_COLUMNS, LINK_COLUMNS, METRIC_COLUMNS
from bench.machine import nvml
from bench.machine.nvml import FIRST, MIG_ENERGY, NO_GPM, NO_VALUE, SCRAMBLED, SOON, ZERO, unknown_activity


@pytest.fixture
def old_driver(tmp_path: Path) -> Driver:
    (tmp_path / "old").mkdir()
    return Driver(compile_driver(tmp_path / "old", old=True), tmp_path / "driver.txt")


def asked(driver: Driver, expression: str) -> Any:
    before = "import json\nfrom bench.machine.nvml import Nvml\nnvml = Nvml()\n"
    code = f"{before}print(json.dumps({expression}))\nnvml.close()"
    return json.loads(driver.python(code))


LIST = """
import json, dataclasses
from bench.machine.nvml import list_gpus
gpus, reason = list_gpus()
print(json.dumps([[dataclasses.asdict(gpu) for gpu in gpus], reason]))
"""


def test_gpus_are_in_pci_order(driver: Driver) -> None:
    far = "GPU-cccccccc-0000-0000-0000-000000000000"
    about_b = (f"value {B} capability 90", f"value {B} power_limit 350000")
    driver.write(f"device {far} 1 0 0 Stand-in_C {MIB}", *TWO_GPUS, *about_b)
    gpus, reason = json.loads(driver.python(LIST))
    assert reason is None
    assert [(gpu["index"], gpu["uuid"]) for gpu in gpus] == [(0, B), (1, A), (2, far)]
    known = {"index": 0, "uuid": B, "name": "Stand-in B", "pci_bus_id": "00000000:01:00.0", "driver": "999.01"}
    assert gpus[0] == known | {"memory_total_mib": 40960.0, "compute_capability": "9.0", "power_limit_w": 350.0}


def test_a_lost_gpu_is_left_out_by_name(driver: Driver) -> None:
    driver.write(*TWO_GPUS, f"error {A} handle 15", f"error {B} used 3", f"error {B} capability 3")
    gpus, reason = json.loads(driver.python(LIST))
    assert [(gpu["index"], gpu["uuid"]) for gpu in gpus] == [(0, B)]
    assert (gpus[0]["memory_total_mib"], gpus[0]["compute_capability"]) == (None, None)
    assert "0 is left out" in reason and "GPU is lost" in reason
    driver.write(*TWO_GPUS, f"error {A} handle 4")  # no permission: it was given to another job
    gpus, reason = json.loads(driver.python(LIST))
    assert [(gpu["index"], gpu["uuid"]) for gpu in gpus] == [(0, B)] and reason is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (("error * init 9",), "Driver Not Loaded"),
        (("error * init 18",), "version mismatch"),
        ((), "lists no GPU"),
        ((DEVICE_A, "error * handle 4"), "may use none of the GPUs here"),
        ((DEVICE_A, "error * count 999"), "Unknown Error"),
    ],
)
def test_no_gpus_is_one_line_with_a_remedy(driver: Driver, script: tuple[str, ...], told: str) -> None:
    driver.write(*script)
    gpus, reason = json.loads(driver.python(LIST))
    assert gpus == []
    assert told in reason and ";" in reason and "\n" not in reason


def test_without_a_driver_pynvml_is_not_even_imported() -> None:
    code = "import sys, bench.machine.nvml as n\nn._SIGNS_OF_A_DRIVER = ()\n"
    code += "print(n.driver_present(), *n.list_gpus(), 'pynvml' in sys.modules)"
    told = python(code, {"LD_LIBRARY_PATH": "/nonexistent:"})
    assert told.startswith("False [] there is no NVIDIA driver on this host;")
    assert told.endswith("False\n")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"nowhere": ""}, "pip install 'nvidia-ml-py>="),
        # As in its releases up to 11: a star import, which leaves the names with an underscore behind.
        (
            {"pynvml/__init__.py": "from .nvml import *\n", "pynvml/nvml.py": "def _nvmlGetFunctionPointer(): ...\n"},
            "[] the deprecated project 'pynvml' shadows nvidia-ml-py (FOLDER/pynvml/__init__.py); pip uninstall pynvml",
        ),
        (
            {"pynvml.py": "class NVMLError(Exception): ...\ndef _nvmlGetFunctionPointer(name): ...\n"},
            f"[] this nvidia-ml-py is too old (FOLDER/pynvml.py); pip install {nvml.REQUIREMENT}",
        ),
    ],
    ids=["missing", "shadowed", "old"],
)
def test_what_is_not_the_module_is_named(driver: Driver, tmp_path: Path, files: dict[str, str], told: str) -> None:
    driver.write(*TWO_GPUS)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    missing = "import sys\nsys.modules['pynvml'] = None\n" if "nowhere" in files else ""
    said = driver.python(f"{missing}from bench.machine.nvml import list_gpus\nprint(*list_gpus())", path=(tmp_path,))
    assert told.replace("FOLDER", str(tmp_path)) in said


def test_the_driver_is_asked_through_the_right_module(repository: Path) -> None:
    assert f'"{nvml.REQUIREMENT.strip(chr(39))}"' in (repository / "pyproject.toml").read_text()


PROCESSES = (
    f"process {A} 11 {512 * MIB}",
    f"process {A} 12 {2048 * MIB + MIB // 2}",
    f"process {B} 11 {256 * MIB}",
    f"process {B} 13 {NOT_AVAILABLE}",
)
ON_A, ON_B = [[[11, 512.0], [12, 2048.5]], None], [[[11, 256.0], [13, None]], NO_VALUE]
MIG = "MIG is on, and the driver gives no value for a process on the whole GPU"
TWICE_ON_A = (f"process {A} 11 {512 * MIB}", f"process {A} 11 {256 * MIB}")


NOBODY = [[], None]
LISTS: dict[str, tuple[Sequence[str], Any, Any]] = {
    "all": (PROCESSES, ON_A, ON_B),
    "an error on one": ((*PROCESSES, f"error {A} processes 4"), [[], "Insufficient Permissions"], ON_B),
    "0 bytes": ((f"process {A} 11 0", f"process {A} 12 {MIB}"), [[[11, None], [12, 1.0]], ZERO], NOBODY),
    "MIG": ((f"value {A} mig 1", f"process {A} 11 {NOT_AVAILABLE}"), [[[11, None]], MIG], NOBODY),
    "not there": ((f"error {A} handle 6",), [[], "Not Found"], NOBODY),
    "a list that grew": ((*PROCESSES, "insufficient 3"), ON_A, ON_B),
    "a list that always grows": ((*PROCESSES, "insufficient 4"), [[], "Insufficient Size, 4 times"], None),
    "twice alike": ([f"process {A} 11 {512 * MIB}"] * 2, [[[11, 512.0]], None], NOBODY),
    "twice": (TWICE_ON_A, [[], SCRAMBLED], NOBODY),
    "in two MIG instances": ((*TWICE_ON_A, f"value {A} mig 1"), [[[11, 512.0], [11, 256.0]], None], NOBODY),
    "PID -1": ((f"process {A} {2**32 - 1} {MIB}", *PROCESSES[2:]), [[], SCRAMBLED], ON_B),
    "PID 0 among others": ((f"process {A} 11 {MIB}", f"process {A} 0 {MIB}"), [[], SCRAMBLED], NOBODY),
}


@pytest.mark.parametrize("case", LISTS)
def test_processes_of_each_gpu_in_mib(driver: Driver, case: str) -> None:
    """Lists with impossible PIDs, or one twice, are dropped and counted."""
    script, on_a, on_b = LISTS[case]
    driver.write(*TWO_GPUS, *script)
    count = int(on_a[1] == SCRAMBLED)
    asked_for = f"[nvml.processes({A!r}), {f'nvml.processes({B!r})' if on_b else None}, nvml.scrambled]"
    assert asked(driver, asked_for) == [on_a, on_b, count]


def test_an_old_driver_is_asked_by_older_symbols(old_driver: Driver, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    old_driver.write(*TWO_GPUS, *PROCESSES, f"value {A} throttle 4", f"log {log}")
    expression = f"[nvml.processes({A!r}), nvml.processes({B!r}), nvml.device_sample({A!r})]"
    on_a, on_b, sample = asked(old_driver, expression)
    assert (on_a, on_b, sample["throttle_reasons"], sample["reason"]) == (ON_A, ON_B, 4, None)
    calls = log.read_text().split()
    assert "nvmlDeviceGetComputeRunningProcesses_v2" in calls
    assert "nvmlDeviceGetCurrentClocksThrottleReasons" in calls


NUMBERS = (87, 312500, 123456789012345, 1410, 1593, 61, 72, 3 << 30)
VALUES = [f"value {A} {key} {number}" for key, number in zip(KEYS, NUMBERS, strict=True)]
READ = dict(zip(METRIC_COLUMNS, (87.0, 312.5, 123456789012345.0, 1410.0, 1593.0, 61.0, 72, 3072.0), strict=True))
SAMPLE = {**READ, "reason": None, **dict.fromkeys(LINK_COLUMNS, 0.0), "mig": False, **unknown_activity(NO_GPM)}


def nothing(reason: str) -> dict[str, Any]:
    return dict.fromkeys((*METRIC_COLUMNS, *LINK_COLUMNS, "mig")) | {"reason": reason} | unknown_activity(reason)


def failing(first: int) -> tuple[list[str], dict[str, Any]]:
    half = dict(list(zip(KEYS, METRIC_COLUMNS, strict=True))[first::2])
    reason = "; ".join(f"{metric}: Not Supported" for metric in half.values())
    return [f"error {A} {key} 3" for key in half], dict.fromkeys(half.values()) | {"reason": reason}


COUNTED = [f"value {A} pcie_tx {5 << 20}", f"value {A} pcie_rx {7 << 30}", f"value {A} nvlink_tx {1 << 40}"]
COUNTERS = dict(zip(LINK_COLUMNS, (5 << 10, 7 << 20, 1 << 40, None), strict=True))


NO_ENERGY = {"power_w": None, "energy_mj": None, "reason": f"power_w: {NO_VALUE}; energy_mj: {NO_VALUE}"}
SAMPLES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "well": ([], {}),
    "some fail": failing(0),
    "others fail": failing(1),
    "not available": ([f"value {A} energy {NOT_AVAILABLE}", f"value {A} power {2**32 - 1}"], NO_ENERGY),
    "links": ([*COUNTED, f"error {A} nvlink_rx 3"], {**COUNTERS, "reason": "nvlink_rx_kib: Not Supported"}),
    "MIG": ([f"value {A} mig 1"], {"energy_mj": None, "mig": True, "reason": f"energy_mj: {MIG_ENERGY}"}),
    "lost": ([f"error {A} {key} 15" for key in KEYS], nothing("GPU is lost")),
    "not there": ([f"error {A} handle 6"], nothing("Not Found")),
}


@pytest.mark.parametrize("case", SAMPLES)
def test_device_samples_have_the_units_of_their_names(driver: Driver, case: str) -> None:
    script, otherwise = SAMPLES[case]
    driver.write(*TWO_GPUS, *script, *VALUES)
    sample = asked(driver, f"nvml.device_sample({A!r})")
    assert sample == SAMPLE | otherwise
    assert isinstance(sample["throttle_reasons"], int | None)
    assert {*sample, "launch", "scenario", "host", "t_ns", "device"} == set(DEVICE_COLUMNS)
    assert (*METRIC_COLUMNS, "reason", *LINK_COLUMNS, "mig", *ACTIVITY_COLUMNS, "activity_reason") == tuple(sample)


@pytest.mark.parametrize(
    ("script", "link"),
    [
        ((f"value {B} max_pcie_generation 3",), ["PCIe gen 3 ×16", 126_032.0]),
        ((f"error {B} max_pcie_generation 3",), ["PCIe", None]),
        (("value * p2p_nvlink 0",), ["NVLink, 12 links a GPU", 12 * 8 * 25_781.0]),
        (("value * p2p_nvlink 0", f"error {A} nvlink_speed 3"), ["NVLink, 12 links a GPU", None]),
    ],
)
def test_links_of_gpus_and_their_nominal_speed(driver: Driver, script: tuple[str, ...], link: list[Any]) -> None:
    usual = ("p2p_nvlink 1", "max_pcie_generation 4", "pcie_width 16", "nvlink_speed 25781")
    links = (f"value {A} nvlinks 18", f"value {B} nvlinks 12")
    driver.write(*TWO_GPUS, *script, *links, *(f"value * {one}" for one in usual))
    assert asked(driver, f"nvml.link([{A!r}, {B!r}])") == link


GPM = [f"value {A} gpm 1", *(f"value {A} gpm_{metric} {10 + metric}" for metric in (2, 5, 10, 61, 60))]
SAMPLED = f"nvml.device_sample({A!r})"


def after(taken_ns: int) -> str:
    """A sample, when the one before is of that time."""
    return f"nvml._gpm.update({{uuid: (one, {taken_ns}) for uuid, (one, _) in nvml._gpm.items()}}) or {SAMPLED}"


TWICE = f"[{SAMPLED}, {after(0)}]"


def test_activity_is_that_between_two_samples(driver: Driver) -> None:
    driver.write(*TWO_GPUS, f"value {A} gpm_2 101", *GPM, f"error {A} gpm_60 3")
    first, too_soon, second = asked(driver, f"[{SAMPLED}, {after(2**62)}, {after(0)}]")
    for sample, why in ((first, FIRST), (too_soon, SOON)):
        assert {name: sample[name] for name in unknown_activity("")} == unknown_activity(why)
    assert [second[name] for name in ACTIVITY_COLUMNS] == [None, 15.0, 20.0, 71.0, None]
    impossible = "sm_percent: the driver says 101, which cannot be"
    assert second["activity_reason"] == f"{impossible}; nvlink_rx_mib_s: Not Supported"


def test_drivers_without_gpm_say_why(driver: Driver, old_driver: Driver) -> None:
    driver.write(*TWO_GPUS, *GPM)
    good = driver.script.read_text()
    driver.write(*TWO_GPUS, *GPM, f"value {A} gpm_version 2")
    mended = f"open({str(driver.script)!r}, 'w').write({good!r})"
    _, failed, _, again = asked(driver, f"[{SAMPLED}, {after(0)}, {mended}, {after(0)}]")
    assert failed["activity_reason"] == "NVML Error with code 25"  # of an argument's version
    assert again["sm_percent"] == 12.0, "an error is of one sample"
    old_driver.write(*TWO_GPUS, *GPM)
    assert asked(old_driver, TWICE)[1]["activity_reason"] == "Function Not Found"


def test_the_reserve_of_the_driver_is_no_process(driver: Driver) -> None:
    driver.write(*TWO_GPUS, f"value {A} used {700 * MIB}", f"value {A} reserved {600 * MIB}")
    assert asked(driver, f"[nvml.occupied_mib({A!r}), nvml.used_mib({A!r})]") == [[100.0, None], [700.0, None]]


def test_names_of_processes_from_driver_or_kernel(driver: Driver) -> None:
    driver.write(*TWO_GPUS, "name trainer 4711 0", f"name jos\udce9 {2**31 - 2} 0")
    pids = (4711, 1, 2**31 - 1, 2**31 - 2)
    names = asked(driver, f"[nvml.process_name(pid) for pid in {pids}]")
    assert names[0] == "trainer"
    assert names[1] == Path("/proc/1/comm").read_text().strip()
    assert names[2:] == [None, None]


def test_one_initialisation_and_one_lookup_per_device(driver: Driver, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    driver.write(*TWO_GPUS, *PROCESSES, f"log {log}")
    asked(driver, f"[(nvml.device_sample(uuid), nvml.processes(uuid)) for uuid in {[A, B] * 5!r}]")
    calls = Counter(log.read_text().split())
    assert (calls["nvmlDeviceGetPowerUsage"], calls["nvmlDeviceGetHandleByUUID"]) == (10, 2)
    assert (calls["nvmlInitWithFlags"], calls["nvmlShutdown"]) == (1, 1)


def test_a_gpu_without_a_readable_name_is_there(driver: Driver) -> None:
    driver.write(f"device {A} 0 65 0 Stand-in_\udce9 {MIB}")
    (gpu,), reason = json.loads(driver.python(LIST))
    assert (gpu["uuid"], reason) == (A, None)
    assert gpu["name"].startswith("name unknown ('utf-8' codec can't decode byte 0xe9")
