"""The workload's examples: the same for every scenario, dealt out as ``DistributedSampler`` deals.

Example ``i`` depends on the seed and ``i`` alone, so all processes agree. Made-up data is a pool of a few global
batches, one epoch, visited in the same order again and again; it lies ready in host memory (pinned for a GPU) before
the clock starts. With ``workers`` a ``DataLoader`` makes the batches during training, each epoch in another order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from bench.core.errors import BenchError
from bench.core.job import Training
from bench.seams import execute
from bench.worker.workload import Batch as Batch
from bench.worker.workload import collate_of, example_of, map_tensors


def shard(workload: Training, replicas: int, replica: int, epoch: int = 0) -> list[list[int]]:
    """Indices of one replica's part of every batch of an epoch: lists of equal length.

    By ``torch.utils.data.DistributedSampler``, whose parts of a step are the same examples for any number of replicas.
    """
    examples = range(workload.examples or workload.global_batch * workload.pool_batches)
    sampler = DistributedSampler(examples, num_replicas=replicas, rank=replica, seed=workload.seed, drop_last=True)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    part = workload.global_batch // replicas
    return [indices[start : start + part] for start in range(0, part * _steps(workload), part)]


def _steps(workload: Training) -> int:
    """Whole batches in an epoch."""
    if workload.examples is None:
        return workload.pool_batches
    if workload.examples < workload.global_batch:
        what = f"{workload.data} has {workload.examples} examples, fewer than a global batch of {workload.global_batch}"
        raise BenchError(f"{what}; use a smaller batch")
    return workload.examples // workload.global_batch


def batches(workload: Training, replicas: int, mine: range, pin: bool) -> list[Batch]:
    """The pool of one process: for each batch, the parts of the replicas in ``mine``, one after the other."""
    if not mine:
        return [None] * workload.pool_batches
    examples = Examples(workload)
    shards = [shard(workload, replicas, replica) for replica in mine]
    pool = []
    for step in range(workload.pool_batches):
        indices = [index for part in shards for index in part[step % len(part)]]
        batch = _whole(examples.collate([examples[index] for index in indices]))
        pool.append(map_tensors(Tensor.pin_memory, batch) if pin else batch)
    return pool


def feeds(workload: Training, replicas: int, groups: Sequence[range], device: torch.device) -> Callable[[], Batch]:
    """A function that gives the next batch on ``device``, from the pool or from a ``DataLoader``: for each step one for
    each group of replicas. On a GPU the copy does not wait.

    What a ``DataLoader`` has started ends when the function is no longer referred to.
    """
    pin = device.type == "cuda"
    if workload.workers is None:
        pools = [batches(workload, replicas, group, pin) for group in groups]
        stream: Iterator[Batch] = cycle([batch for step in zip(*pools, strict=True) for batch in step])
    else:
        stream = stream_of(workload, replicas, groups, pin)
    return lambda: map_tensors(lambda tensor: tensor.to(device, non_blocking=True), next(stream))


def stream_of(workload: Training, replicas: int, groups: Sequence[range], pin: bool) -> Iterator[Batch]:
    """Batches in host memory without end, epoch after epoch. What loads them starts with the first."""
    assert workload.workers is not None
    if not any(groups):  # a server trains no replica
        yield from repeat(None)
    examples, order = Examples(workload), _Order(workload, replicas, groups)
    _whole(examples[0])  # here, so that a setting that only examples use is known to be used
    loading: DataLoader[object] = DataLoader(
        examples,
        batch_sampler=order,
        collate_fn=examples.collate,
        num_workers=workload.workers,
        prefetch_factor=workload.prefetch,
        persistent_workers=workload.workers > 0,
        pin_memory=pin,
        multiprocessing_context="fork" if workload.workers else None,
        generator=torch.Generator(),  # so that it draws nothing from the one that dropout uses
    )
    while True:
        for batch in loading:
            yield _whole(batch)
        order.epoch += 1


class _Order:
    """The indices of each batch of an epoch: in each step one batch for each group of replicas. That of made-up data,
    which is short, has no end, since a ``DataLoader`` runs empty at each.
    """

    def __init__(self, workload: Training, replicas: int, groups: Sequence[range]) -> None:
        self.workload, self.replicas, self.groups, self.epoch = workload, replicas, groups, 0

    def __iter__(self) -> Iterator[list[int]]:
        shards = [[shard(self.workload, self.replicas, one, self.epoch) for one in group] for group in self.groups]
        epoch = range(_steps(self.workload))
        for step in epoch if self.workload.examples is not None else cycle(epoch):
            for group in shards:
                yield [index for part in group for index in part[step]]


@dataclass(frozen=True, slots=True)
class Broken:
    """In place of an example or a batch: why there is none. It crosses from a loader's process without a traceback."""

    problem: str
    remedy: str = ""


class Examples:
    """The data set, as ``DataLoader`` wants it."""

    def __init__(self, workload: Training) -> None:
        self.file, self.example, self._collate = workload.file, example_of(workload), collate_of(workload)

    def __getitem__(self, index: int) -> Batch:
        try:
            return self.example(index)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises is the finding
            at = execute.line_in(self.file, error)
            return Broken(f"{self.file}:{at} fails on example {index}: {type(error).__name__}: {error}")

    def collate(self, examples: list[object]) -> Batch:
        if (broken := next((one for one in examples if isinstance(one, Broken)), None)) is not None:
            return broken
        try:
            return self._collate(examples)
        except (RuntimeError, TypeError) as error:
            remedy = "make examples of equal shape, or define collate(examples)"
            return Broken(f"{self.file}: no batch can be made of the examples: {error}", remedy)


def _whole(made: Batch) -> Batch:
    if isinstance(made, Broken):
        raise BenchError("; ".join(filter(None, (made.problem, made.remedy))))
    return made
