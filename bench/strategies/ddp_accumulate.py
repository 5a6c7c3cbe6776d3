"""DDP with gradient accumulation: each rank's part of a batch in micro-batches, and one all-reduce for all of them.

All but the last micro-batch are in ``no_sync``. Batch norm sees one micro-batch at a time, and memory holds the
activations of one. ``sync``: exchange gradients after every micro-batch all the same: it shows what ``no_sync`` gains.
"""

from bench.seams import DDP, Implementation, Rank, Strategy, ddp_recipe

MICRO_BATCHES = 2


def ranks(devices):
    return tuple(Rank(devices=(device,), replicas=MICRO_BATCHES) for device in range(devices))


LABEL = f"torch DDP, {MICRO_BATCHES} micro-batches"
STRATEGY = Strategy(
    label=LABEL,
    ranks=ranks,
    implementations=(Implementation(name="torch", label=LABEL, wrapper=DDP),),
    amp=("native",),
    hue="cyan",
    dash="dashed",
)


def build(parts, sync=False):
    from contextlib import nullcontext

    return parts.build(
        "ddp",
        micro_batches=MICRO_BATCHES,
        quiet=lambda module: nullcontext() if sync else module.no_sync(),
        replicas=lambda module: MICRO_BATCHES * parts.world_size,
    )


def recipe(sync=False):
    return ddp_recipe(micro_batches=MICRO_BATCHES, quiet="" if sync else "module.no_sync()")
