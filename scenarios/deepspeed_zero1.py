"""DeepSpeed ZeRO stage 1: optimizer state in shards."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="DeepSpeed ZeRO-1: optimizer state in shards", packages=("deepspeed",), strategy="deepspeed"
)
