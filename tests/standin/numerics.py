"""Rows of numerics.parquet from a few numbers: two tensors in two steps of the probe, and all of them are (1, 0)."""

from collections.abc import Sequence
from typing import Any

from bench.core.records import Computation

Rows = list[dict[str, Any]]

STEPS, TENSORS = range(2), range(2)


def computation(replicas: int, precision: str = "O0", dtype: str = "float32", **more: Any) -> Computation:
    return Computation(**{"replicas": replicas, "threads": 1, "precision": precision, "dtype": dtype} | more)


def sketches(quantity: str, off: float | Sequence[Sequence[float]], **about: Any) -> Rows:
    """``off``: the relative error of everything, or of each step's tensors."""
    of = [[off] * len(TENSORS)] * len(STEPS) if isinstance(off, float) else off
    return [
        {**about, "quantity": quantity, "step": step, "tensor": tensor, "position": at, "value": value}
        for step in STEPS
        for tensor in TENSORS
        for at, value in enumerate((1.0, of[step][tensor]))
    ]


def trained(off: float, **about: Any) -> Rows:
    return [row | {"step": None} for row in sketches("trained", off, **about) if row["step"] == 0]


def of_launch(
    launch: int,
    scenario: str,
    gradient: float | Sequence[Sequence[float]] = 0.0,
    *,
    rank: int = 0,
    buffer: float | Sequence[Sequence[float]] = 0.0,
    update: tuple[float, float] = (0.0, 1e-6),
    all_steps: float = 0.0,
) -> Rows:
    about = {"launch": launch, "scenario": scenario, "rank": rank}
    rows = sketches("probed", gradient, **about)
    if rank == 0:
        rows += sketches("buffer", buffer, **about) + trained(all_steps, **about)
        for name, value in zip(("error", "bound"), update, strict=True):
            mine = [row for row in sketches(f"update_{name}", 0.0, **about) if row["position"] == 0]
            rows += [row | {"value": value} for row in mine]
    return rows


def of_reference(
    computations: Sequence[Computation],
    *,
    loss: Sequence[float],
    twin_loss: Sequence[float],
    rounding: float | Sequence[Sequence[float]] = 1e-6,
    half: float = 0.1,
    alone: float = 0.7,
    twin_all_steps: Sequence[float] = (0.1, 0.01),
    trained_in_half: bool = True,
    half_loss: Sequence[float] | None = None,
    launch: int = 99,
) -> tuple[tuple[Computation, ...], Rows]:
    """How each pass computed, and the rows of all. ``rounding``: how far the probe's twins stray; ``half``: how far
    from fp32 a computation in half is;
    ``twin_all_steps``: how far training strays that is moved by a rounding in half, and in fp32; ``trained_in_half``:
    whether it trained at every precision level, as older runs did not; ``half_loss``: of these (default: ``loss``)."""
    full = [one for one in computations if one.precision == "O0" and not any(one.tf32)]
    passes: list[tuple[Computation, Rows]] = []
    for one, strays in [*((one, None) for one in full), *((full[-1], strays) for strays in twin_all_steps)]:
        twin = strays is not None
        rows = [
            {"quantity": "loss", "position": at, "value": value} for at, value in enumerate(twin_loss if twin else loss)
        ]
        passes.append((one, [row | {"twin": twin} for row in rows + trained(strays or 0.0)]))
    for one in [one for one in computations if trained_in_half and one not in full]:
        rows = [{"quantity": "loss", "position": at, "value": value} for at, value in enumerate(half_loss or loss)]
        passes.append((one, [row | {"twin": False} for row in rows + trained(0.0)]))
    for one in computations:
        for twin in (False, True, True) if one in full else (False,):
            off = rounding if twin else 0.0 if one in full else half
            rows = sketches("probed", off) + sketches("buffer", off)
            if one.replicas > 1 and not twin:
                rows += sketches("alone", alone)
            passes.append((one, [row | {"twin": twin} for row in rows]))
    found = [
        row | {"launch": launch, "scenario": "reference", "rank": None, "computation": place, "replicas": one.replicas}
        for place, (one, rows) in enumerate(passes)
        for row in rows
    ]
    return tuple(one for one, _ in passes), found
