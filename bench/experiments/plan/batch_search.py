"""The largest global batch that trains: doubling until one does not, then bisection. Pure;
``bench.experiments.batch_search`` tries.

The line through what was held so far says what should fit: on a GPU, whose memory is known to the byte, that is tried
next, and on the CPU nothing beyond it is tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.runs.experiments import LargestBatch

TRY_WARMUP, TRY_ITERS = 1, 3
KEPT_FREE = 0.05
"""The part of a device's memory that a batch has to leave free: what fits to the last byte fails in another epoch."""

MOST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One batch that was tried, or is too large by prediction. ``why_not``: None if it trains.

    ``peak_mib``: of the fullest device, by the driver or torch, whichever is more; on the CPU of all ranks together.
    """

    global_batch: int
    why_not: str | None
    peak_mib: float | None = None
    throughput_per_s: float | None = None


def next_batch(
    tries: Mapping[int, bool], unit: int, first: int | None = None, expected: float | None = None
) -> int | None:
    """The batch to try after ``tries`` (by global batch: whether it trains); None when the largest is known.

    Multiples of ``unit``, so that all replicas have equal parts. ``first``: by default two examples each, since batch
    norm needs two. ``expected``: the largest that should fit. It replaces the double and the middle, though never so
    near to what is known that a search could creep.
    """
    largest = max((batch for batch, trains in tries.items() if trains), default=0)
    too_large = min((batch for batch, trains in tries.items() if not trains), default=None)
    aim = 0 if expected is None else int(min(max(expected, 0.0), MOST)) // unit * unit
    if too_large is None:
        if not largest:
            return max(2 * unit, (first or 0) // unit * unit)
        if largest > MOST // 2:
            return None
        return 2 * largest if expected is None else max(aim, largest + _part(largest, unit))
    if expected is not None:
        margin = _part(too_large - largest, unit)
        aim = min(max(aim, largest + margin), too_large - margin)
        if largest < aim < too_large:
            return aim
    middle = (largest + too_large) // 2 // unit * unit
    return middle if middle > largest else None


def _part(batches: int, unit: int) -> int:
    """A tenth, in whole units and at least one."""
    return max(unit, batches // 10 // unit * unit)


def expected_batch(tries: Sequence[Try], capacity_mib: float) -> float | None:
    """The largest batch that should leave :data:`KEPT_FREE` of ``capacity_mib``, on the line through the two largest
    that were computed (those that left too little free, too); None before there are two, or where it does not rise."""
    ran = (one for one in tries if one.throughput_per_s is not None)  # whose peak is that of a step
    points = sorted((one.global_batch, one.peak_mib) for one in ran if one.peak_mib is not None)
    if len(points) < 2 or points[-1][1] <= points[-2][1]:
        return None
    (below, low), (above, high) = points[-2:]
    return above + ((1.0 - KEPT_FREE) * capacity_mib - high) * (above - below) / (high - low)


def expected_s(took_s: Sequence[tuple[int, float]], batch: int) -> float:
    """How long a try will take, by the last two (batch, seconds): the time of the last, extrapolated upwards only."""
    (before, fewer), (last, seconds) = ([(0, 0.0)] * 2 + list(took_s))[-2:]
    if len(took_s) < 2 or batch <= last or last <= before:
        return seconds
    return seconds + max(0.0, seconds - fewer) / (last - before) * (batch - last)


def outcome(tries: Sequence[Try], stopped_by: str | None) -> LargestBatch:
    by_size = sorted(tries, key=lambda one: one.global_batch)
    best = next((one for one in reversed(by_size) if one.why_not is None), None)
    over = next((one for one in by_size if one.why_not is not None), None)
    return LargestBatch(
        largest=best.global_batch if best else None,
        throughput_per_s=best.throughput_per_s if best else None,
        peak_mib=best.peak_mib if best else None,
        too_large=over.global_batch if over else None,
        why_not=over.why_not if over else None,
        tries=len(tries),
        failed=stopped_by == "failure",
        stopped_by=stopped_by,
    )
