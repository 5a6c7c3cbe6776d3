"""GPUs that others are using: refused before a run, by PID, name and memory, unless it is forced."""

import json
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from conftest import request_for, separately
from standin import MIB, NOT_AVAILABLE, TWO_GPUS, A, B, Driver
from standin.runs import write_run

from bench.seams import discover, switching

OTHER, NAMELESS = 2**22 + 1, 2**22 + 2  # beyond the largest PID of any kernel: no process of this machine has them


def answers(driver: Driver, *asked: tuple[tuple[str, ...], bool]) -> list[str]:
    """Of each of these, chosen GPUs with or without force: why they are refused, or else what is said of them."""
    told: list[str] = json.loads(
        driver.python(
            "import json\nfrom bench.machine import foreign, nvml\nfrom bench.core.errors import RequestError\n"
            f"told, foreign.PATIENCE_S = [], 0.1\nfor chosen, force in {asked!r}:\n"
            "    try: told += foreign.refuse(nvml.list_gpus()[0], chosen, force=force) or ['']\n"
            "    except RequestError as error: told.append(str(error))\nprint(json.dumps(told))"
        )
    )
    return told


def test_a_process_is_refused_with_pid_and_memory(driver: Driver) -> None:
    driver.write(
        *TWO_GPUS,
        f"process {A} {OTHER} {2048 * MIB}",
        f"process {A} {NAMELESS} {NOT_AVAILABLE}",
        f"name trainer {OTHER} 0",
        f"value {A} used {2500 * MIB}",
        f"value {A} utilisation 97",
    )
    said, of_the_other, by_force = answers(driver, ((A, B), False), ((B,), False), ((A, B), True))
    both = f"PID {OTHER} (trainer, 2,048 MiB), PID {NAMELESS} (name unknown, memory unknown)"
    about = f"{both}, 2,500 MiB occupied, 97 % busy; "
    assert f"--gpus: in use by others: GPU 1 (Stand-in A): {about}" in said and said.endswith("--force")
    assert of_the_other == by_force == ""


SCREEN = (f"graphics {A} 900 {700 * MIB}", "name Xorg 900 0")
NAMED = "PID 900 (Xorg, 700 MiB)"
USED, LOAD = f"value {A} used {900 * MIB}", f"value {A} utilisation 20"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((f"value {A} used {600 * MIB}", f"value {A} reserved {590 * MIB}", f"value {A} utilisation 5"), ""),
        ((f"value {B} used {501 * MIB}",), "--gpus: in use *501 MiB occupied*"),
        ((f"value {B} utilisation 6",), "--gpus: in use *6 % busy*"),
        ((*SCREEN, USED, LOAD), f"GPU 1 (Stand-in A): {NAMED}, 900 MiB occupied, 20 % busy"),
        ((*SCREEN, USED, LOAD, f"process {A} 900 {700 * MIB}"), f"GPU 1 (Stand-in A): {NAMED}, *"),
        (
            (*SCREEN, USED, LOAD, f"process {A} {NAMELESS} {100 * MIB}"),
            f"--gpus: *{NAMELESS} (name unknown, 100 MiB), {NAMED}*",
        ),
        ((*SCREEN, LOAD, f"value {A} used {1300 * MIB}"), "--gpus: in use *1,300 MiB occupied*"),
    ],
)
def test_hidden_processes_show_and_a_screen_may_stay(lines: tuple[str, ...], told: str, driver: Driver) -> None:
    driver.write(*TWO_GPUS, *lines)
    (said,) = answers(driver, ((A, B), False))
    assert fnmatchcase(said, told), said


def test_a_process_that_is_ending_is_waited_for(driver: Driver) -> None:
    """The lock of a run is free before the driver has taken its last rank off the list."""
    driver.write(*TWO_GPUS, f"process {B} {OTHER} {2048 * MIB}")
    script = "\n".join(TWO_GPUS) + "\n"
    told = driver.python(
        "import threading, pathlib\nfrom bench.machine import foreign, nvml\n"
        f"free = lambda: pathlib.Path({str(driver.script)!r}).write_text({script!r})\n"
        "threading.Timer(0.7, free).start()\n"
        f"print(foreign.refuse(nvml.list_gpus()[0], {(B,)!r}, force=False))"
    )
    assert told == "[]\n"


def test_a_gpu_is_checked_under_its_lock(driver: Driver, tmp_path: Path) -> None:
    driver.write(*TWO_GPUS, f"process {B} {OTHER} {2048 * MIB}")
    found = switching.load(*discover.resolve("ddp"))
    request = request_for((found,), device="cuda", devices=(B,), replicas=1)
    started = write_run(tmp_path / "results", [], complete=False, about={"request": asdict(request)})
    before = (started / "run.json").read_bytes()
    for options in (("--resume", "latest"), ("--scenario", "ddp", "--gpus", "0", "--wait")):
        done = separately("run", *options, here=tmp_path, **driver.environment())
        done.refused(f"bench: error: --gpus: in use by others: GPU 0 (Stand-in B): PID {OTHER}")
    assert [path.name for path in (tmp_path / "results").iterdir()] == [started.name]
    assert (started / "run.json").read_bytes() == before
