"""A history of nights whose truth is known: run folders as a nightly job leaves them, made up and written fast.

The first night is written as a run is. The others are copies of it with a commit, a time and figures of their own in
run.json and digest.json, sealed as those are; only their tables stay those of the first night, which nobody who reads a
history opens.
"""

import copy
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.analyse import digest as digests
from bench.analyse import verdicts
from bench.runs.files import DIGEST, seal_of
from bench.runs.reader import read

from .runs import Launch, write_run

TEN = ("single", "dp", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")
FIRST_NIGHT = datetime(2021, 1, 4, 1, 30, tzinfo=UTC)

Factor = Callable[[int, str], float]
"""By what the step time of a night (from 0) and a scenario is more than usual."""


def write_nights(
    out: Path,
    count: int,
    *,
    scenarios: Sequence[str] = TEN,
    launches: int = 5,
    night_noise: float = 0.006,
    launch_noise: float = 0.005,
    slower: Factor = lambda night, scenario: 1.0,
    also: Callable[[int, dict[str, Any]], None] = lambda night, digest: None,
    gpu: bool = False,
    seed: int = 0,
    repeat_commit: int = 1,
) -> list[Path]:
    """So many nights in ``out``, the oldest first; returns their folders.

    A night has a level of its own (``night_noise``), and so has each launch (standard deviations of logarithms).
    ``slower``: what is planted. ``also``: changes a digest before it is sealed. ``repeat_commit``: nights that have the
    same commit. ``gpu``: on GPUs that tell their energy, else on the CPU.
    """
    noise = random.Random(seed)
    first = _template(out / "template", scenarios, launches)
    usual = _digest(first, gpu=gpu)
    document = json.loads((first / "run.json").read_text())
    written = []
    for night in range(count):
        when = FIRST_NIGHT + timedelta(days=night)
        name = f"{when:%Y%m%dT%H%M%SZ}-{noise.getrandbits(32):08x}"
        git = {"commit": hashlib.sha1(f"{seed} {night // repeat_commit}".encode()).hexdigest(), "dirty": False}
        said = copy.deepcopy(usual) | {"run": name, "utc": f"{when:%Y-%m-%dT%H:%M:%SZ}", "git": git}
        for row in said["scenarios"]:
            level = slower(night, row["scenario"]) * _scatter(noise, night_noise)
            for launch in row["launches"]:
                factor = level * _scatter(noise, launch_noise)
                launch["step_ms"] *= factor
                launch["throughput_per_s"] /= factor
                if launch["energy_per_1000_j"] is not None:
                    launch["energy_per_1000_j"] *= level * _scatter(noise, 2 * launch_noise)
        also(night, said)
        mine = document | {"run": name, "start": document["start"] | {"utc": said["utc"]}}
        mine["machine"] = document["machine"] | {"git": said["git"]}
        written.append(_written(out / name, first, mine, said))
    shutil.rmtree(first.parent)
    return written


def _scatter(noise: random.Random, deviation: float) -> float:
    return noise.lognormvariate(0.0, deviation) if deviation else 1.0


def _template(out: Path, scenarios: Sequence[str], launches: int) -> Path:
    """A run of these, in rounds, the first a little slower than the next and so on."""
    planned = []
    for _ in range(launches):
        for place, name in enumerate(scenarios):
            usual_ms = 200.0 / (1 + place)
            ranks = 1 if name in ("single", "dp") else 2
            strategy = name if ranks == 1 else name.split("_o")[0]
            level = name.rpartition("_")[2].upper() if name[-3:-1] == "_o" else "O0"
            steps, memory = [[3 * usual_ms, *[usual_ms] * 4]] * ranks, [[100.0, 2000.0 + 100 * place]] * ranks
            known = strategy if strategy in ("single", "dp", "ddp", "apex_ddp") else "ddp"
            planned.append(Launch(name, steps, memory, strategy=known, precision=level))
    return write_run(out, planned, label="nightly")


def _digest(path: Path, *, gpu: bool) -> dict[str, Any]:
    run = read(str(path))
    made = digests.of_run(verdicts.judged(run))
    for row in made["scenarios"]:
        row |= {"validity": "valid", "invalid": [], "parity": "same"}
    if gpu:
        made |= {"device": "cuda", "hardware": ["NVIDIA H100 80GB HBM3"] * 2}
        made["conditions"] |= {"driver": "550.54.15", "cuda": "12.4", "power_limit_w": [700.0, 700.0]}
        for row in made["scenarios"]:
            for launch in row["launches"]:
                launch |= {"energy_per_1000_j": 2.5 * launch["step_ms"], "sm_clock_mhz": 1755.0}
    return made


def _written(path: Path, like: Path, document: dict[str, Any], digest: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "logs").mkdir()
    for name in document["files"]:
        os.link(like / name, path / name)
    content = _text(digest)
    (path / DIGEST).write_bytes(content)
    sealed = {"sha256": hashlib.sha256(content).hexdigest(), "rows": content.count(b"\n")}
    mine = document | {"files": dict(sorted({**document["files"], DIGEST: sealed}.items()))}
    mine.pop("seal")
    (path / "run.json").write_bytes(_text(mine | {"seal": seal_of(mine)}))
    return path


def _text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
