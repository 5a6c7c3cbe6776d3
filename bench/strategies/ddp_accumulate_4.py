"""As ``ddp_accumulate``, with four micro-batches a step."""

from bench.strategies import ddp_accumulate

STRATEGY = ddp_accumulate.of(4, hue="green")


def build(parts, sync=False):
    return ddp_accumulate.build(parts, sync, 4)


def recipe(sync=False):
    return ddp_accumulate.recipe(sync, 4)
