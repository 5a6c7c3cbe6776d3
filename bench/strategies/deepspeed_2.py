"""As ``deepspeed``, at stage 2: gradients, too, in shards."""

from bench.strategies import deepspeed

STRATEGY, build = deepspeed.of(2, hue="magenta")
