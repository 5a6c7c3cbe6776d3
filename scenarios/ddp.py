"""``torch.nn.parallel.DistributedDataParallel``: one process per device.

Every rank keeps its own replica. Rank 0's weights are broadcast once at the start; after that the replicas stay equal
because each applies the same averaged gradients. The all-reduce runs in buckets of 25 MiB while the backward pass is
still computing. Every other scenario's speed is given relative to this one.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DistributedDataParallel: a process per device, fp32",
    strategy="ddp",
)
