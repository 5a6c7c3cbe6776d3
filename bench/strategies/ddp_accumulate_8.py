"""As ``ddp_accumulate``, with eight micro-batches a step."""

from bench.strategies import ddp_accumulate

STRATEGY = ddp_accumulate.of(8, hue="magenta")


def build(parts, sync=False):
    return ddp_accumulate.build(parts, sync, 8)


def recipe(sync=False):
    return ddp_accumulate.recipe(sync, 8)
