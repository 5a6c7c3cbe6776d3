"""Runs that were written by hand, so that what a report has to say of them is known."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.analyse.analysed import CONDENSE, Analysed
from bench.runs.document import State
from bench.runs.reader import read
from bench.runs.writer import RunWriter

from .documents import document, sample
from .documents import launch as launched
from .frames import step_rows

HOSTILE = "<script>alert('x')</script> & \"quoted\" | *pipe*"
SECOND_NS = 1_000_000_000
WRAPPERS = {
    "single": "torchvision.models.resnet.ResNet",
    "dp": "torch.nn.parallel.data_parallel.DataParallel",
    "ddp": "torch.nn.parallel.distributed.DistributedDataParallel",
    "apex_ddp": "bench.worker.flat_bucket.FlatBucketDataParallel",
}


USUAL: dict[str, Any] = {"optimizer": "torch.optim.sgd.SGD", "optimizer_fused": True, "device": {"type": "cpu"}}
USUAL |= {"batch_norm_dtypes": {"float32": 2}, "optimizer_dtypes": {"float32": 1000}}
USUAL["versions"] = {"torch": "2.9.0", "torchvision": "0.24.0", "cuda": None, "cudnn": None, "nccl": None}


def effective(strategy: str, precision: str) -> dict[str, Any]:
    ranks = 2 if strategy.endswith("ddp") else 1
    dtype = {"float32": 1000} if precision == "O0" else {"bfloat16": 998, "float32": 2}
    return USUAL | {
        "wrapper": WRAPPERS[strategy],
        "parallel_impl": "native" if strategy == "apex_ddp" else "torch",
        "precision_impl": "torch" if precision == "O0" else "native",
        "precision": precision,
        "backend": "gloo" if ranks > 1 else None,
        "compute_dtypes": ["float32" if precision == "O0" else "bfloat16"],
        **dict.fromkeys(("replicas", "world_size"), ranks),
        **dict.fromkeys(("parameter_dtypes", "gradient_dtypes"), dtype),
    }


@dataclass
class Launch:
    """A launch to be written: per rank its steps (ms, the first is warm-up), its memory (MiB at every half second)."""

    scenario: str
    steps_ms: list[list[float]] = field(default_factory=list)
    memory_mib: list[list[float | None]] = field(default_factory=list)
    strategy: str = "ddp"
    precision: str = "O0"
    status: str = "ok"
    reason: str | None = None
    losses: list[float] | None = None
    checks: dict[str, Any] = field(default_factory=dict)
    apart_s: int = 100
    ran: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def record(self, launch: int, repeat: int) -> dict[str, Any]:
        ran = bool(self.steps_ms)
        sound = {
            "conservation_error": 0.0001,
            "ranks_differ": [],
            "skipped_steps": 0,
            **dict.fromkeys(("conservation_ok", "finite_loss", "initial_weights_alike", "final_weights_alike"), True),
        }
        return {
            **{name: getattr(self, name) for name in ("scenario", "strategy", "precision", "status", "reason")},
            "launch": launch,
            "repeat": repeat,
            "processes": 2,
            "replicas": 2,
            "first_failed_rank": 1 if self.status == "error" else None,
            "effective": effective(self.strategy, self.precision) | self.ran if ran else None,
            "checks": sound | self.checks if ran else {},
            "ranks": [
                {"rank": rank, "pid": 100 * launch + rank, "initial_sha256": "a" * 64, "final_sha256": "b" * 64}
                for rank in range(max(len(self.memory_mib), len(self.steps_ms)))
            ],
            "wall_s": 3.0 if ran else None,
            "first_forward_s": 1.5 if ran else None,
            **self.more,
        }

    def step_rows(self, launch: int, repeat: int) -> list[dict[str, Any]]:
        rows = step_rows(launch, self.scenario, *self.steps_ms, warmup=1, repeat=repeat, loss=6.0)
        start_ns = 0
        for row in rows:
            if row["step"] == 0:
                start_ns = launch * self.apart_s * SECOND_NS + SECOND_NS
            row["start_ns"] = start_ns
            start_ns += int(row["step_ms"] * 1e6)
            if self.losses is not None:
                row["loss"] = self.losses[row["step"]]
        return rows

    def memory_rows(self, launch: int) -> list[dict[str, Any]]:
        about = {"launch": launch, "scenario": self.scenario, "host": "host"}
        begin_ns = launch * self.apart_s * SECOND_NS
        unknown = {"source": "unavailable", "reason": "it hid"}
        return [
            sample(t_ns=begin_ns + tick * SECOND_NS // 2, pid=100 * launch + rank, rank=rank, used_mib=used, **about)
            | (unknown if used is None else {})
            for rank, samples in enumerate(self.memory_mib)
            for tick, used in enumerate(samples)
        ]

    def device_rows(self, launch: int) -> list[dict[str, Any]]:
        return []


ASKED = {"warmup": 1, "iters": 4, "profile": "quick", "impl": "auto"}
WORK: dict[str, Any] = {"name": "resnet101", "file": "bench/workloads/resnet101.py", "title": "resnet18, 32 px"}
WORK |= {"unit": "images", "unit_short": "img", "global_batch": 8, "warmup": 1, "seed": 0, "pool_batches": 4}
WORK |= {"settings": {"model": "resnet18", "image_size": 32, "learning_rate": 0.01}, "hash": "0123456789abcdef0123"}
MACHINE: dict[str, Any] = {"os": "Linux", "cores_usable": 2, "cores_online": 4, "memory_gib": 8.0}


def write_run(
    out: Path,
    launches: list[Launch],
    *,
    scenarios: list[str] | None = None,
    complete: bool = True,
    label: str | None = None,
    replicas: int = 2,
    host: str = "host",
    gpus: Sequence[dict[str, Any]] = (),
    also: Callable[[RunWriter], None] = lambda writer: None,
    about: Mapping[str, dict[str, Any]] | None = None,
) -> Path:
    """A run folder with these launches, global batch 8, on the CPU unless there are ``gpus``, as in run.json.

    ``also`` writes what is no measured launch. ``about``: other values in the parts of the document.
    """
    repeats: Counter[str] = Counter()
    names = scenarios or list(dict.fromkeys(launch.scenario for launch in launches))
    asked = {"scenarios": names, "devices": [gpu["uuid"] for gpu in gpus], "label": label}
    rounds = max(1, len(launches) // max(1, len(names)))
    where = {"host": host, "cpu": f"A CPU of {host} $x_1$", "gpus": [*gpus], "environment": {"OMP_NUM_THREADS": "1"}}
    parts: dict[str, Any] = {
        "request": ASKED | asked | {"launches": rounds},
        "workload": WORK | {"replicas": replicas, "device": "cuda" if gpus else "cpu"},
        "machine": MACHINE | where,
        "versions": {"python": "3.11.0", "executable": "python", "torch": "2.9.0", "torchvision": "0.24.0"},
        "apex": {"kind": "absent"},
        "start": {"utc": "2026-01-02T03:04:05Z", "load_1min": 0.5},
    }
    parts |= {name: parts.get(name, {}) | values for name, values in (about or {}).items()}
    writer = RunWriter(str(out), document(**parts))
    for number, launch in enumerate(launches):
        repeat = repeats[launch.scenario]
        repeats[launch.scenario] += 1
        writer.add(
            launched(**launch.record(number, repeat)),
            steps=launch.step_rows(number, repeat),
            memory=launch.memory_rows(number),
            device=launch.device_rows(number),
        )
    also(writer)
    writer.finish(complete=complete, end=State(utc="2026-01-02T03:05:15Z") if complete else None)
    return Path(writer.path)


DDP = Launch("ddp", [[90, 40, 20, 30, 60], [80, 20, 40, 30, 10]], [[100, 300], [100, 200]])
"""Slowest rank of each measured step: 40, 40, 30, 60 ms; median 40, mean of 8 images: 200 img/s; 500 MiB in all."""

FAST = Launch("ddp_o2", [[50, 10, 10, 20, 20]], [[100, 250]], precision="O2", losses=[6.0, 5.0, 4.0, math.nan, 3.0])
FINITE = replace(FAST, losses=None)


def timed(steps_ms: Mapping[str, Sequence[float]], mib: float = 100.0) -> list[Launch]:
    """A launch for each time of each scenario, of one rank."""
    launches = []
    for name, times in steps_ms.items():
        strategy, precision = "single" if name == "single" else "ddp", f"O{name[-1]}" if "_o" in name else "O0"
        launches += [Launch(name, [[9, ms, ms]], [[mib]], strategy=strategy, precision=precision) for ms in times]
    return launches


APEX = Launch("apex_ddp", [[90, 50, 50, 50, 50]] * 2, [[None], [None]], strategy="apex_ddp")
GONE = Launch("dp", strategy="dp", status="unsupported", reason=f"needs <b>CUDA</b> {HOSTILE}")
BROKEN = Launch(
    "ddp_o1", [[9, 1, 1, 1, 1]], memory_mib=[[50, 60], [50, 70]], status="error", reason="RuntimeError: boom"
)


def analysed(path: str | Path, *, allow_incomplete: bool = False) -> Analysed:
    return Analysed.of(read(str(path), allow_incomplete=allow_incomplete, condense=CONDENSE))
