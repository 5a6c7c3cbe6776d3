"""Parameters averaged every few steps in place of gradients in every step (local SGD).

Each rank trains by itself for ``period`` steps; then all take the mean of their weights. Nothing overlaps with the
backward pass, and the ranks' weights differ in between: with a period of 1 and SGD it is what DDP does, up to rounding.
"""

from typing import Any

from bench.seams import Recipe, Strategy

STRATEGY = Strategy(
    label="averaging", differs="between two averages each rank has weights of its own", hue="olive", dash="solid"
)


def build(parts, period=4):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=period)
    session: Any = parts.session(after_step=lambda: average(averager, session), quiet="gradients are never exchanged")
    return session


def average(averager, session):
    """Average the weights if that is due. It makes new tensors, all contiguous: they go back to where the weights lay,
    which a CUDA graph has recorded, in the layout of their momentum, which a fused step takes for the weight's."""
    weights = [*session.model.parameters(), *session.amp.masters]
    before = [weight.data for weight in weights]
    averager.average_parameters([{"params": weights}])
    for weight, data in zip(weights, before, strict=True):
        if weight.data_ptr() != data.data_ptr():
            weight.data = data.copy_(weight.data)


OPTIMIZER = 'weights = list(dict.fromkeys([*net.parameters(), *updates.param_groups[0]["params"]]))  # masters, too'
AFTER_STEP = """\
before = [weight.data for weight in weights]
averager.average_parameters([{"params": weights}])
for weight, held in zip(weights, before, strict=True):
    if weight.data_ptr() != held.data_ptr():  # back to where it lay, and in its layout: NHWC is contiguous now
        weight.data = held.copy_(weight.data)"""


def recipe(period=4):
    return Recipe(
        imports=("from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager",),
        wrap=f"averager = PeriodicModelAverager(period={period!r})",
        optimizer=OPTIMIZER,
        after_step=AFTER_STEP,
        gather='saved = {"model": net.state_dict(), "optimizer": updates.state_dict(), "averager": averager.step}',
        restore=f'{Recipe().restore}\naverager.step = saved["averager"]',
        per_rank=True,
    )
