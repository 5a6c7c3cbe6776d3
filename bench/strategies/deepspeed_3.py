"""As ``deepspeed``, at stage 3: weights, too, in shards."""

from bench.strategies import deepspeed

STRATEGY, build = deepspeed.of(3, hue="teal", weights="sharded")
