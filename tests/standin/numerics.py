"""Rows of numerics.parquet from a few numbers: two tensors in two steps, all of which are (1, 0)."""

import math
from collections.abc import Sequence
from typing import Any

from bench.core.job import EXAMPLES, Computation
from bench.runs.launches import DoubleRecord

Rows = list[dict[str, Any]]
Errors = float | Sequence[Sequence[float]]
"""The relative error of everything, or of each step's tensors."""

STEPS, TENSORS = range(2), range(2)


def computation(replicas: int, threads: int = 1) -> Computation:
    return Computation(replicas=replicas, threads=threads, examples=EXAMPLES * replicas)


def sketches(quantity: str, off: Errors, **about: Any) -> Rows:
    errors = [[off] * len(TENSORS)] * len(STEPS) if isinstance(off, float) else off
    return [
        {**about, "quantity": quantity, "step": step, "tensor": tensor, "position": at, "value": value}
        for step in range(len(errors))
        for tensor in TENSORS
        for at, value in enumerate((1.0, errors[step][tensor]))
    ]


def updates(launch: int, error: Errors = 0.0, bound: float = 1e-6) -> Rows:
    about = {"launch": launch, "scenario": "ddp", "rank": 0}
    errors = [row for row in sketches("update_error", error, **about) if row["position"]]
    rows = [{**row, "position": 0} for row in errors]
    return rows + [{**row, "quantity": "update_bound", "value": bound} for row in rows]


def in_double(
    launch: int,
    gradient: Errors = 0.0,
    *,
    buffer: Errors = 0.0,
    update: Errors = 0.0,
    rounding: float = 1e-6,
    other_rank: float | None = None,
) -> Rows:
    """``rounding``: the update's bound. ``other_rank``: the error of the gradients of a second rank that differs."""
    about = {"launch": launch, "scenario": "ddp"}
    rows = sketches("probed", gradient, **about, rank=0) + sketches("buffer", buffer, **about, rank=0)
    if other_rank is not None:
        rows += sketches("probed", other_rank, **about, rank=1)
    return rows + updates(launch, update, rounding)


def double(launch: int, *scenarios: str, **fields: Any) -> DoubleRecord:
    return DoubleRecord(
        **{"launch": launch, "scenarios": scenarios, "status": "ok", "reason": None, "wall_s": 1.0} | fields
    )


def of_reference(
    computations: Sequence[Computation], *, loss: Sequence[float], twin: float = 1e-10, alone: float = 0.7
) -> Rows:
    """``twin``: how far moving the weights by a rounding takes it."""
    rows: Rows = []
    for place, one in enumerate(computations):
        about = {"launch": 99, "scenario": "reference", "computation": place, "replicas": one.replicas}
        rows += [{**about, "quantity": "loss", "position": at, "value": value} for at, value in enumerate(loss)]
        apart = alone if one.replicas > 1 else 0.0
        moved = {"probed": apart + twin * math.hypot(1.0, apart), "buffer": twin}
        for quantity, off in moved.items():
            rows += sketches(quantity, 0.0, **about) + sketches(quantity, [[off] * 2], **about, twin=True)
        rows += sketches("alone", [[apart] * 2], **about)
    return [{"rank": None, "twin": False, **row} for row in rows]
