"""The blocks of a model: what is sharded, or computed again, as a whole."""

from collections.abc import Iterator

from torch import nn


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost ``Sequential`` and ``ModuleList`` of a model, those with parameters: the residual
    blocks of a ResNet, the layers of a transformer."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from blocks(child)
