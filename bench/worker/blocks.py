"""The blocks of a model: what is sharded, or computed again, as a whole."""

from collections.abc import Iterator

from torch import nn


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost ``Sequential`` and ``ModuleList`` of a model, those with parameters: the residual
    blocks of a ResNet, the layers of a transformer. Of a member that is a list itself, its own."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from _members(child)
        else:
            yield from blocks(child)


def _members(holder: nn.Module) -> Iterator[nn.Module]:
    for block in holder.children():
        if isinstance(block, nn.ModuleList | nn.ModuleDict):
            yield from _members(block)
        elif any(True for _ in block.parameters()):
            yield block
