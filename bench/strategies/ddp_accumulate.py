"""DDP with gradient accumulation: each rank's part of a batch in micro-batches, and one all-reduce for all of them.

All but the last micro-batch are in ``no_sync``. Batch norm sees one micro-batch at a time, and memory holds the
activations of one. ``sync``: exchange gradients after every micro-batch all the same: it shows what ``no_sync`` gains.
"""

from bench.seams import DDP, Implementation, Rank, Strategy, ddp_recipe


def of(micro_batches, hue):
    """The declaration, ``build`` and ``recipe`` with this many micro-batches a step."""
    label = f"torch DDP, {micro_batches} micro-batches"
    strategy = Strategy(
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

    def build(parts, sync=False):
        replicas = micro_batches * parts.world_size
        return parts.build("ddp", micro_batches=micro_batches, exchange_each=sync, replicas=lambda module: replicas)

    def recipe(sync=False):
        return ddp_recipe(micro_batches=micro_batches, quiet="" if sync else "module.no_sync()")

    return strategy, build, recipe


STRATEGY, build, recipe = of(2, hue="cyan")
