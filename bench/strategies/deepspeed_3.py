"""As ``deepspeed``, at stage 3: weights, too, in shards."""

from bench.strategies import deepspeed

STRATEGY = deepspeed.of(3, hue="teal", weights="sharded")


def build(parts):
    return deepspeed.build(parts, stage=3)
