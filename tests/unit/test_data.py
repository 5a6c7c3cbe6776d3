"""Equal work: every scenario sees the same images in the same steps, and DataParallel's parts are DDP's."""

import pytest
import torch
from standin.workloads import workload
from torch.utils.data import DistributedSampler

from bench.worker import data
from bench.worker.workload import example_of

WORKLOAD = workload(image_size=8, global_batch=12, replicas=3)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_parts_are_those_of_distributed_sampler(replicas: int) -> None:
    examples = range(WORKLOAD.global_batch * WORKLOAD.pool_batches)
    for replica in range(replicas):
        sampler = DistributedSampler(examples, replicas, replica, shuffle=True, seed=WORKLOAD.seed, drop_last=True)
        sampler.set_epoch(0)
        dealt = [index for part in data.shard(WORKLOAD, replicas, replica) for index in part]
        assert dealt == list(sampler)


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_the_global_batch_of_a_step_is_the_same_for_any_number_of_replicas(replicas: int) -> None:
    alone = data.shard(WORKLOAD, 1, 0)
    parts = [data.shard(WORKLOAD, replicas, replica) for replica in range(replicas)]
    for step in range(WORKLOAD.pool_batches):
        together = [index for part in parts for index in part[step]]
        assert sorted(together) == sorted(alone[step])
        assert {len(part[step]) for part in parts} == {12 // replicas}


def test_one_process_with_all_replicas_holds_what_the_ranks_hold() -> None:
    ranks = [data.batches(WORKLOAD, 3, range(rank, rank + 1), pin=False) for rank in range(3)]
    alone = data.batches(WORKLOAD, 3, range(3), pin=False)
    for step, (images, labels) in enumerate(alone):
        assert torch.equal(images, torch.cat([rank[step][0] for rank in ranks]))
        assert torch.equal(labels, torch.cat([rank[step][1] for rank in ranks]))


def test_an_image_depends_on_the_seed_and_its_index_alone() -> None:
    image, label = example_of(WORKLOAD)(5)
    assert image.shape == (3, 8, 8) and label.shape == ()
    assert torch.equal(image, example_of(workload(image_size=8, global_batch=12, replicas=3, warmup=9))(5)[0])
    assert not torch.equal(image, example_of(WORKLOAD)(6)[0])
    assert not torch.equal(image, example_of(workload(image_size=8, seed=1))(5)[0])


def test_the_loader_goes_round_the_pool_in_order() -> None:
    pool = data.batches(WORKLOAD, 1, range(1), pin=False)
    load = data.loader(pool, torch.device("cpu"))
    seen = [load()[1] for _ in range(2 * len(pool))]
    assert all(torch.equal(labels, pool[step % len(pool)][1]) for step, labels in enumerate(seen))
