"""Torch DistributedDataParallel with AMP level O2: half weights, fp32 master weights.

The model and its gradients are half, so the all-reduce moves half the bytes; batch norm stays fp32. The optimizer
updates an fp32 copy of the weights, which is copied back after each step. Dynamic loss scale.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP + O2: half weights, fp32 batch norm and master weights, dynamic loss scale",
    strategy="ddp",
    precision="O2",
)
