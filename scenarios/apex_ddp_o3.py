"""Apex DistributedDataParallel with AMP level O3: everything in half.

As ``apex_ddp``, with the precision of ``ddp_o3``: the fastest row of the published comparison.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="apex DDP (or native flat-bucket) + O3: everything in half",
    strategy="apex_ddp",
    precision="O3",
)
