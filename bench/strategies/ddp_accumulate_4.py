"""As ``ddp_accumulate``, with four micro-batches a step."""

from bench.strategies import ddp_accumulate

STRATEGY, build, recipe = ddp_accumulate.of(4, hue="green")
