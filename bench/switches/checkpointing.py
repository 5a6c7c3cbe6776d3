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
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    from bench.worker.blocks import blocks

    for block in blocks(model):
        both = partial(lambda block: (nullcontext(), without_statistics(block)), block)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=both)
    return model


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

    return None if any("forward" in vars(block) for block in blocks(session.model)) else "the model has no blocks"


def recipe(switches):
    return Recipe(
        imports=("from functools import partial", "from torch.utils.checkpoint import checkpoint"),
        blocks=True,
        model="""\
for block in blocks:
    for layer in block.modules():  # which sees each batch twice, so that half of its momentum is due each time
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.momentum:
            layer.momentum = 1 - (1 - layer.momentum) ** 0.5
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)""",
    )
