"""DDP with gradient accumulation: each rank's part of a batch in micro-batches, and one all-reduce for all of them.

All but the last micro-batch are in ``no_sync``. Batch norm sees one micro-batch at a time, and memory holds the
activations of one. ``sync``: exchange gradients after every micro-batch all the same: it shows what ``no_sync`` gains.
"""

from bench.seams import DDP, Implementation, Rank, Strategy, ddp_recipe


def of(micro_batches, hue="cyan"):
    """The strategy with so many micro-batches a step: other scenarios take it for their own."""
    label = f"torch DDP, {micro_batches} micro-batches"
    return Strategy(
        label=label,
        ranks=lambda devices: tuple(Rank(devices=(device,), replicas=micro_batches) for device in range(devices)),
        implementations=(Implementation(name="torch", label=label, wrapper=DDP),),
        amp=("native",),
        without={
            "static_graph": "torch's DDP then exchanges gradients in its first backward pass",
            "cuda_graphs": "gradients lie in their memory, which the next micro-batch takes (pytorch/pytorch#169545)",
        },
        hue=hue,
        dash="dashed",
    )


STRATEGY = of(2)


def build(parts, sync=False, micro_batches=2):
    return parts.build(
        "ddp",
        micro_batches=micro_batches,
        exchange_each=sync,
        replicas=lambda module: micro_batches * parts.world_size,
    )


def recipe(sync=False, micro_batches=2):
    return ddp_recipe(micro_batches=micro_batches, quiet="" if sync else "module.no_sync()")
