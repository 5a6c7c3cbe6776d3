"""Nights that the gate reads, made up: folders of a sealed run.json and digest.json with values as they are given.

No table is written: nobody who goes by digests opens one, and a night is written in a millisecond.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

from bench.analyse.digest import VERSION
from bench.core.codec import encode
from bench.runs.digests import Launches
from bench.runs.document import WorkloadRecord
from bench.runs.files import DIGEST, seal_of

from .documents import document

LAUNCHES = tuple(get_type_hints(Launches))
FIRST = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
STEADY = (100.0, 100.4, 99.7, 100.2, 99.9)
"""Step times (ms) of five launches whose geometric mean is 100.04."""

NIGHTS = (0.001, -0.004, 0.006, -0.002, 0.003, -0.006, 0.000, 0.004, -0.003, 0.002, -0.001, 0.005)
"""By how much nights are slower than usual, as they come."""

NAMES = ("ddp", "dp", "ddp_o2")
TEN = ("single", "dp", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")


def scenario(
    name: str, times: Sequence[float], *, memory: Sequence[float | None] | float | None = 2000.0, **changes: Any
) -> dict[str, Any]:
    peaks = memory if isinstance(memory, Sequence) else [memory] * len(times)
    usual = {
        "scenario": name,
        "what_ran": f"{name} · fp32",
        "world_size": 2,
        "status": "ok",
        "validity": "valid",
        "invalid": [],
        "parity": "same",
        "loss_error": 0.0,
        "memory_source": "nvml_pid",
        **dict.fromkeys(("reason", "energy_source")),
        "launches": {
            **{name: [None] * len(times) for name in LAUNCHES},
            **{name: list(range(len(times))) for name in ("launch", "repeat")},
            "step_ms": list(times),
            "throughput_per_s": [8000.0 / step_ms for step_ms in times],
            "peak_total_mib": list(peaks),
        },
    }
    return usual | changes


NOTHING = {"launches": {name: [] for name in LAUNCHES}}
"""Of a scenario of which no launch went well."""


def times(factor: float = 1.0, launches: Sequence[float] = STEADY) -> list[float]:
    return [factor * value for value in launches]


def digest(day: int, scenarios: Sequence[Mapping[str, Any]], **changes: Any) -> dict[str, Any]:
    when = FIRST + timedelta(days=day)
    usual: dict[str, Any] = {
        "digest_version": VERSION,
        "run": f"{when:%Y%m%dT%H%M%SZ}-{day:08x}",
        "utc": f"{when:%Y-%m-%dT%H:%M:%SZ}",
        **dict.fromkeys(("label", "imported", "attached")),
        "profile": "nightly",
        "git": {"commit": f"{day:040x}", "dirty": False},
        "workload": trained("resnet101"),
        "device": "cuda",
        "hardware": ["NVIDIA H100 80GB HBM3"] * 2,
        "replicas": 2,
        "conditions": {"host": "host", "torch": "2.9.0", "driver": "550.54.15", "power_limit_w": []},
        "scenarios": [dict(one) for one in scenarios],
    }
    numbers = [number for one in scenarios for number in one["launches"]["launch"]]
    if len(set(numbers)) < len(numbers):
        for place, one in enumerate(usual["scenarios"]):  # in rounds, as a run does
            in_rounds = [at * len(scenarios) + place for at in range(len(one["launches"]["launch"]))]
            one["launches"] = one["launches"] | {"launch": in_rounds}
    return usual | changes


def trained(model: str, hash: str = "0123456789abcdef0123", **settings: Any) -> Any:
    settings |= {"model": model}
    record = WorkloadRecord(settings=settings, title=model, device="cuda", replicas=2, hash=hash)
    return encode(record)


def write(folder: Path, said: Mapping[str, Any]) -> Path:
    def text(document: Mapping[str, Any]) -> bytes:
        return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()

    path = folder / str(said["run"])
    path.mkdir(parents=True)
    content = text(said)
    (path / DIGEST).write_bytes(content)
    sealed = document(
        run=said["run"],
        request={"scenarios": [one["scenario"] for one in said["scenarios"]]},
        workload=said["workload"],
        complete=True,
        files={DIGEST: {"sha256": hashlib.sha256(content).hexdigest(), "rows": content.count(b"\n")}},
    )
    (path / "run.json").write_bytes(text(encode(replace(sealed, seal=seal_of(encode(sealed))))))
    return path


def sealed_again(run: Path, **changes: Any) -> None:
    said = json.loads((run / "run.json").read_text()) | changes
    (run / "run.json").write_text(json.dumps(said | {"seal": seal_of(said)}, indent=1) + "\n")


def nights(
    folder: Path,
    count: int = len(NIGHTS),
    names: Sequence[str] = NAMES,
    *,
    slower: Callable[[int, str], float] = lambda day, name: 1.0,
    also: Callable[[int, dict[str, Any]], None] = lambda day, said: None,
    energy: bool = False,
) -> list[Path]:
    """Nights, the oldest first, that scatter by :data:`NIGHTS`, each scenario in another order. ``slower``: by what the
    step time of a night (from 0) and a scenario is more than usual. ``also``: changes a digest before it is sealed.
    """
    written = []
    for day in range(count):
        rows = [usual(name, day, place, slower(day, name)) for place, name in enumerate(names)]
        for columns in (row["launches"] for row in rows if energy):
            columns["energy_per_1000_j"] = [2.5 * step_ms for step_ms in columns["step_ms"]]
        said = digest(day, rows)
        also(day, said)
        written.append(write(folder, said))
    return written


def night(day: int, factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Of :data:`NAMES`, where ``ddp`` takes ``factor`` times as long, and has these ``changes``."""
    of_ddp = {"factor": factor} | changes
    return digest(day, [usual(name, day, at, **(of_ddp if name == "ddp" else {})) for at, name in enumerate(NAMES)])


def usual(name: str, day: int, place: int = 0, factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    return scenario(name, times(factor * (1.0 + NIGHTS[(day + 5 * place) % len(NIGHTS)])), **changes)
