"""As ``deepspeed``, at stage 2: gradients, too, in shards."""

from bench.strategies import deepspeed

STRATEGY = deepspeed.of(2, hue="magenta")


def build(parts):
    return deepspeed.build(parts, stage=2)
