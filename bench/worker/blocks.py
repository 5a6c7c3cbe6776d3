"""The blocks of a model: what is sharded, or computed again, as a whole."""

from collections.abc import Iterator

from torch import nn


def blocks(module: nn.Module) -> list[nn.Module]:
    """The members of the outermost ``Sequential`` and ``ModuleList`` in a model, those with parameters: the residual
    blocks of a ResNet, the layers of a transformer. Of a member that is a list itself, its own. Of a model that is a
    ``Sequential``, also its own members that have no blocks. Each once, also where two lists share it."""
    return [*dict.fromkeys(_blocks(module))]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        within = [*(_members if isinstance(child, nn.ModuleList | nn.Sequential) else _blocks)(child)]
        alone = isinstance(module, nn.Sequential) and not within and any(True for _ in child.parameters())
        yield from [child] if alone else within


def _members(holder: nn.Module) -> Iterator[nn.Module]:
    for block in holder.children():
        if isinstance(block, nn.ModuleList | nn.ModuleDict):
            yield from _members(block)
        elif any(True for _ in block.parameters()):
            yield block
