"""Whole runs of bench as processes: to start one, to see who belongs to it, and to see that nobody is left of it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.core.errors import RequestError
from bench.machine import lock

SMALL = ["--device", "cpu", "--model", "shufflenet_v2_x0_5", "--image-size", "32", "--warmup", "1"]
FASHION = ["--device", "cpu", "--workload", "fashion_mlp", "--warmup", "1"]
"""An MLP: a launch takes a third of the time."""

GONE_S = 5.0


def piped(asked: Sequence[str], here: Path, **options: Any) -> "subprocess.Popen[str]":
    """A process whose output is read."""
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(asked, cwd=here, text=True, **(pipes | options))


def command(out: Path, *more: str, small: Sequence[str] = SMALL) -> list[str]:
    return [sys.executable, "-m", "bench", "run", *small, "--out", str(out), *more]


def start(
    repository: Path, out: Path, *more: str, small: Sequence[str] = SMALL, **options: Any
) -> "subprocess.Popen[str]":
    return piped(command(out, *more, small=small), repository, start_new_session=True, **options)


def descendants(pid: int) -> list[int]:
    return [one.pid for one in psutil.Process(pid).children(recursive=True)]


def family(pid: int) -> dict[int, str]:
    """The processes of a run, ``pid``, and what each was started as: ``host``, ``rank`` or ``sampler``."""
    found: dict[int, str] = {}
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            found[child.pid] = "sampler" if "bench.machine.sample.process" in " ".join(child.cmdline()) else "host"
            for one in child.children():
                with suppress(FileNotFoundError, ProcessLookupError):
                    if "-rank" in os.readlink(f"/proc/{one.pid}/fd/1"):  # its log; torch starts others at its import
                        found[one.pid] = "rank"
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], Any], limit_s: float = 120.0) -> Any:
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not come to it"
        time.sleep(0.02)
    return found


def nobody_left(pids: list[int]) -> bool:
    return bool(wait_for(lambda: not any(map(alive, pids)), GONE_S))


def not_locked(*gpus: str) -> bool:
    """Whether these, or the CPU, can be taken at once."""
    try:
        with lock.acquire(gpus, wait=False, say=print):
            return True
    except RequestError:
        return False


def ranks_of(running: "subprocess.Popen[str]", ranks: int) -> list[int]:
    def found() -> Any:
        mine = [pid for pid, role in family(running.pid).items() if role == "rank"]
        return mine if len(mine) == ranks else []

    return wait_for(found)
