"""The largest global batch that trains: doubling until one does not, then bisection. Pure; ``bench.pipeline`` tries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TRY_WARMUP, TRY_ITERS = 1, 3
KEPT_FREE = 0.05
"""The part of a device's memory that a batch has to leave free: what fits to the last byte fails in another epoch."""

MOST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One batch that was tried, or that was seen to be too large without.

    ``peak_mib``: of the fullest device; on the CPU of all ranks together. ``why_not``: None where it trains.
    """

    global_batch: int
    why_not: str | None
    peak_mib: float | None = None
    throughput_img_s: float | None = None


def next_batch(tries: Mapping[int, bool], unit: int) -> int | None:
    """What to try after ``tries`` (by global batch: whether it trains); None when the largest is known.

    Multiples of ``unit``, so that all replicas have equal parts; first two images each, since batch norm needs two.
    """
    largest = max((batch for batch, trains in tries.items() if trains), default=0)
    too_large = min((batch for batch, trains in tries.items() if not trains), default=None)
    if too_large is None:
        return 2 * largest if 0 < largest <= MOST // 2 else None if largest else 2 * unit
    middle = (largest + too_large) // 2 // unit * unit
    return middle if middle > largest else None


def predicted_mib(tries: Sequence[Try], global_batch: int) -> float | None:
    """What ``global_batch`` will need, on the line through the two largest that train; None before there are two."""
    known = sorted(
        (one.global_batch, one.peak_mib) for one in tries if one.why_not is None and one.peak_mib is not None
    )
    if len(known) < 2:
        return None
    (below, low), (above, high) = known[-2:]
    return high + max(0.0, high - low) / (above - below) * (global_batch - above)


def fullest_mib(memory: Iterable[Mapping[str, Any]]) -> float | None:
    """The most that a device held at one moment, over all processes of the launch (rows of memory.parquet)."""
    held: dict[tuple[str, int], float] = {}
    for row in memory:
        if row["used_mib"] is not None:
            moment = row["device"], row["t_ns"]
            held[moment] = held.get(moment, 0.0) + row["used_mib"]
    return max(held.values(), default=None)


def outcome(tries: Sequence[Try]) -> dict[str, Any]:
    """What was found, for run.json: the largest batch that trains with its figures, and what the next one lacks."""
    best = max((one for one in tries if one.why_not is None), key=lambda one: one.global_batch, default=None)
    over = min((one for one in tries if one.why_not is not None), key=lambda one: one.global_batch, default=None)
    return {
        "largest": best.global_batch if best else None,
        "throughput_img_s": best.throughput_img_s if best else None,
        "peak_mib": best.peak_mib if best else None,
        "too_large": over.global_batch if over else None,
        "why_not": over.why_not if over else None,
    }
