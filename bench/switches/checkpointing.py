"""Activation checkpointing: each block of the model keeps its input alone, and the backward pass computes it again.

Less memory for activations, about a third more computation. Batch norm takes its statistics from the first time only:
computed again, a batch would count twice.
"""

from contextlib import contextmanager, nullcontext

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="activation checkpointing: the backward pass computes each block again",
    label="checkpointing",
    searched_on=(),
)


def model(parts, model):
    from bench.worker.blocks import blocks

    for block in blocks(model):  # by its class: a replica of DataParallel has the block's own attributes, bound to it
        kind = type(block)
        block.__class__ = type(kind.__name__, (kind,), {"forward": computed_again(kind.forward)})
    return model


def computed_again(forward):
    from torch.utils.checkpoint import checkpoint

    def checkpointed(self, *args, **kwargs):
        def both():
            return nullcontext(), without_statistics(self)

        return checkpoint(forward, self, *args, use_reentrant=False, context_fn=both, **kwargs)

    return checkpointed


@contextmanager
def without_statistics(block):
    """Within this context batch norm normalises a batch and does not add it to its running statistics."""
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [one for one in block.modules() if isinstance(one, _BatchNorm)]
    before = [(norm.momentum, norm._buffers["num_batches_tracked"]) for norm in norms]
    for norm in norms:
        norm.momentum, norm._buffers["num_batches_tracked"] = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm._buffers["num_batches_tracked"] = momentum, count


def effect(session, ran):
    from bench.worker.blocks import blocks

    names = (getattr(block.forward, "__name__", "") for block in blocks(session.model))
    return None if "checkpointed" in names else "the model has no blocks"


def recipe(switches):
    return Recipe(
        imports=("from functools import partial, partialmethod", "from torch.utils.checkpoint import checkpoint"),
        blocks=True,
        model="""\
for block in blocks:
    for layer in block.modules():  # which sees each batch twice, so that half of its momentum is due each time
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.momentum:
            layer.momentum = 1 - (1 - layer.momentum) ** 0.5
    kind: Any = type(block)
    again = partialmethod(partial(checkpoint, kind.forward, use_reentrant=False))
    block.__class__ = type(kind.__name__, (kind,), {"forward": again})  # which replicas of DataParallel have, too""",
    )
