"""How a sweep of the input is laid out: how many workers are tried, and how many batches each of them loads. Pure."""

from collections.abc import Sequence

from bench.core.records import Host
from bench.experiments.plan import Request, job_of
from bench.seams.discover import Found

WINDOW_S = 1.0  # how long the fastest loader is timed, at the least; a slower one takes longer for the same batches

MOST_BATCHES = 2000


def worker_counts(request: Request, found: Found, hosts: Sequence[Host]) -> tuple[int, ...]:
    """Workers of each rank: 0, 1, 2, 4, ... up to the cores that a rank may use."""
    cores = min(rank.threads for rank in job_of(request, found, 0, 0, hosts).ranks)
    return (0, *(1 << power for power in range(cores.bit_length())))


def batches(per_s: float, counts: Sequence[int]) -> int:
    """How many batches each launch loads. ``per_s``: how many the most workers load.

    A multiple of each of ``counts``: workers deliver in turn, so that the batches of a turn come together. It begins
    with :func:`fewest_batches`.
    """
    turn = max(1, *counts)
    return max(fewest_batches(counts), turn * -(-int(min(MOST_BATCHES, WINDOW_S * per_s)) // turn))


def fewest_batches(counts: Sequence[int]) -> int:
    return 2 * max(1, *counts)
