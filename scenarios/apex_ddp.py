"""Apex DistributedDataParallel: one process per device, flat buckets.

Gradients are put into buckets of ten million elements in the order in which they arrive; a full bucket is flattened
and all-reduced while the backward pass goes on. Where apex.parallel or CUDA is missing, bench's own flat-bucket
all-reduce of the same design runs in its place, and every table says which of the two it was.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="apex DDP (or the native flat-bucket all-reduce): fp32",
    strategy="apex_ddp",
)
