"""Synthetic images: the same for every scenario, dealt out as ``DistributedSampler`` deals.

Image ``i`` is made from the seed and ``i`` alone, so a process makes only the images it will see and all processes
agree. A pool of a few global batches is one epoch; it is visited in the same order again and again. The batches lie
ready in host memory (pinned for a GPU) before the clock starts: the data phase is the copy to the device.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from bench.core.records import Workload

Batch = tuple[Tensor, Tensor]


class SyntheticImages(Dataset[Batch]):
    """``len`` images of shape (3, image_size, image_size), fp32 standard normal, with a label in [0, classes)."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __len__(self) -> int:
        return self.workload.global_batch * self.workload.pool_batches

    def __getitem__(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed(self.workload.seed * 1_000_003 + index)
        size = self.workload.image_size
        image = torch.randn(3, size, size, generator=generator)
        label = torch.randint(self.workload.classes, (), generator=generator)
        return image, label


def shard(workload: Workload, replicas: int, replica: int) -> list[list[int]]:
    """Indices of one replica's part of every batch of the pool: ``pool_batches`` lists of equal length.

    Taken from ``torch.utils.data.DistributedSampler`` (shuffled, epoch 0), whose parts of step ``i`` are together the
    same images for any number of replicas.
    """
    sampler = DistributedSampler(
        SyntheticImages(workload), num_replicas=replicas, rank=replica, shuffle=True, seed=workload.seed, drop_last=True
    )
    sampler.set_epoch(0)
    indices = list(sampler)
    part = workload.global_batch // replicas
    return [indices[start : start + part] for start in range(0, part * workload.pool_batches, part)]


def batches(workload: Workload, replicas: int, mine: range, pin: bool) -> list[Batch]:
    """The pool of one process: for each batch, the parts of the replicas in ``mine``, one after the other.

    A process that drives several replicas (DataParallel) so holds for each of them what that rank of DDP would see.
    """
    images = SyntheticImages(workload)
    shards = [shard(workload, replicas, replica) for replica in mine]
    pool = []
    for step in range(workload.pool_batches):
        items = [images[index] for part in shards for index in part[step]]
        batch = torch.stack([image for image, _ in items]), torch.stack([label for _, label in items])
        pool.append((batch[0].pin_memory(), batch[1].pin_memory()) if pin else batch)
    return pool


def loader(pool: list[Batch], device: torch.device) -> Callable[[], Batch]:
    """A function that gives the next batch on ``device``; on a GPU the copy does not wait."""
    step = 0

    def load() -> Batch:
        nonlocal step
        images, labels = pool[step % len(pool)]
        step += 1
        return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    return load
