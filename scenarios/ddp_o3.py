"""Torch DistributedDataParallel with AMP level O3: everything in half.

Weights, gradients, batch norm and optimizer state are half and nothing is scaled: an upper limit for speed, and a
recipe whose numerics need a look before it is used to train.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP + O3: everything in half, no loss scale",
    strategy="ddp",
    precision="O3",
)
