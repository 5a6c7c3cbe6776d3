"""DeepSpeed ZeRO stage 2: optimizer state and gradients in shards."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="DeepSpeed ZeRO-2: optimizer state and gradients in shards", packages=("deepspeed",), strategy="deepspeed_2"
)
