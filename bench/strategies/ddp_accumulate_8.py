"""As ``ddp_accumulate``, with eight micro-batches a step."""

from bench.strategies import ddp_accumulate

STRATEGY, build, recipe = ddp_accumulate.of(8, hue="magenta")
