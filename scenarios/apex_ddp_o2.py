"""Apex DistributedDataParallel with AMP level O2: half weights, fp32 master weights.

As ``apex_ddp``, with the mixed precision of ``ddp_o2``. Half gradients and the fp32 gradients of batch norm travel in
buckets of their own.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="apex DDP (or native flat-bucket) + O2: half weights, fp32 master weights",
    strategy="apex_ddp",
    precision="O2",
)
