"""Torch FSDP2 in two groups of ranks (HSDP): each group holds all weights, and shares them among its ranks.

On several hosts a group that lies within one host gathers weights over its fast links alone. It takes an even number
of ranks; on two, every rank holds all weights.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch FSDP2 in two groups that hold all weights each (HSDP)", strategy="fsdp2", options={"copies": 2}
)
