"""DeepSpeed ZeRO stage 3: weights, too, in shards, gathered as they are needed."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="DeepSpeed ZeRO-3: weights, too, in shards, gathered as they are needed",
    packages=("deepspeed",),
    strategy="deepspeed_3",
)
