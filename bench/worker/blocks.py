"""The blocks of a model: what is sharded, or computed again, as a whole."""

from collections.abc import Iterator

from torch import nn


def blocks(module: nn.Module) -> list[nn.Module]:
    """The members of the outermost ``Sequential`` and ``ModuleList`` of a model, those with parameters: the residual
    blocks of a ResNet, the layers of a transformer. Of a member that is a list itself, its own. Each once, also where
    two lists share it."""
    return [*dict.fromkeys(_blocks(module))]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from _members(child)
        else:
            yield from _blocks(child)


def _members(holder: nn.Module) -> Iterator[nn.Module]:
    for block in holder.children():
        if isinstance(block, nn.ModuleList | nn.ModuleDict):
            yield from _members(block)
        elif any(True for _ in block.parameters()):
            yield block
