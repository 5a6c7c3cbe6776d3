"""The workload's examples: the same for every scenario, dealt out as ``DistributedSampler`` deals.

Example ``i`` depends on the seed and ``i`` alone, so all processes agree. A pool of a few global batches is one epoch,
visited in the same order again and again; it lies ready in host memory (pinned for a GPU) before the clock starts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from bench.core.errors import BenchError
from bench.core.records import Training
from bench.worker.workload import collate_of, example_of, map_tensors

Batch = Any
"""What ``collate`` made of the examples: tensors in tuples, lists and dicts."""


def shard(workload: Training, replicas: int, replica: int) -> list[list[int]]:
    """Indices of one replica's part of every batch of the pool: ``pool_batches`` lists of equal length.

    By ``torch.utils.data.DistributedSampler``, whose parts of a step are the same examples for any number of replicas.
    """
    examples = range(workload.global_batch * workload.pool_batches)
    sampler = DistributedSampler(
        examples, num_replicas=replicas, rank=replica, shuffle=True, seed=workload.seed, drop_last=True
    )
    sampler.set_epoch(0)
    indices = list(sampler)
    part = workload.global_batch // replicas
    return [indices[start : start + part] for start in range(0, part * workload.pool_batches, part)]


def batches(workload: Training, replicas: int, mine: range, pin: bool) -> list[Batch]:
    """The pool of one process: for each batch, the parts of the replicas in ``mine``, one after the other."""
    example, collate = example_of(workload), collate_of(workload)
    shards = [shard(workload, replicas, replica) for replica in mine]
    pool = []
    for step in range(workload.pool_batches):
        examples = [example(index) for part in shards for index in part[step]]
        try:
            batch = collate(examples)
        except (RuntimeError, TypeError) as error:
            remedy = "make examples of equal shape, or define collate(examples)"
            raise BenchError(f"{workload.file}: no batch can be made of the examples: {error}; {remedy}") from error
        pool.append(map_tensors(Tensor.pin_memory, batch) if pin else batch)
    return pool


def loader(pool: list[Batch], device: torch.device) -> Callable[[], Batch]:
    """A function that gives the next batch on ``device``; on a GPU the copy does not wait."""
    step = 0
    flat = all(isinstance(batch, list | tuple) and all(isinstance(part, Tensor) for part in batch) for batch in pool)

    def load() -> Batch:
        nonlocal step
        batch = pool[step % len(pool)]
        step += 1
        if flat:
            return [part.to(device, non_blocking=True) for part in batch]
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)

    return load
