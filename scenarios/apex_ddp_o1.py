"""Apex DistributedDataParallel with AMP level O1: fp32 weights, half where it is safe.

As ``apex_ddp``, with the mixed precision of ``ddp_o1``: the published "apex + O1", which its author found slower
than no AMP at all.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="apex DDP (or native flat-bucket) + O1: fp32 weights, autocast to half",
    strategy="apex_ddp",
    precision="O1",
)
