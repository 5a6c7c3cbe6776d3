"""Batch norm over the batches of all ranks: each layer exchanges its sums, forward and backward, before it goes on.

What it trains is what one process with the whole batch does, and not what the parts of the batch do by themselves: so
its numerics are held against that.
"""

from bench.seams import DDP, Recipe, Switch

SWITCH = Switch(
    summary="batch norm over all ranks (SyncBatchNorm)",
    label="SyncBatchNorm",
    wrapper=DDP,
    device="cuda",
    searched_on=(),
    joins_norms=True,
)  # torch has none on the CPU


def model(parts, model):
    from torch.nn import SyncBatchNorm

    return SyncBatchNorm.convert_sync_batchnorm(model)


def effect(session, ran):
    return None if ran["norm_parts"] == 1 < ran["replicas"] else "each replica normalises its own part of the batch"


def recipe(switches):
    return Recipe(model="net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)")
