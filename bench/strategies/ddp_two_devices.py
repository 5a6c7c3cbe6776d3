"""DDP around a model that spans two GPUs: the first half of its blocks is on one, the second half on the other.

Each rank has two neighbours of the chosen GPUs, which work one after the other; nothing is pipelined. It is for models
that do not fit on one GPU. Blocks are cut where half of the parameters is reached; what a block gets is moved to its
GPU, and what the model returns to the first one.
"""

from bench.seams import DDP, Implementation, Rank, Strategy
from bench.strategies import ddp


def ranks(devices):
    if devices < 2:
        return (Rank(devices=(0,)),)
    return tuple(Rank(devices=(first, first + 1)) for first in range(0, devices - 1, 2))


def obstacle(device, devices):
    if device == "cpu":
        return "it needs two GPUs for each rank and this is the CPU; run it on a machine with GPUs"
    return f"it needs two GPUs for each rank and {devices} were chosen; choose an even number" if devices % 2 else None


LABEL = "torch DDP, two GPUs a rank"
STRATEGY = Strategy(
    label=LABEL,
    ranks=ranks,
    obstacle=obstacle,
    implementations=(Implementation(name="torch", label=LABEL, wrapper=DDP),),
    amp=("native",),
    hue="blue",
    dash="dashed",
)


def build(parts):
    import torch

    def wrap(model):
        first = parts.device.index
        second = parts.job.devices_on(parts.job.ranks[parts.rank].host).index(parts.devices[1])
        span(model, torch.device("cuda", first), torch.device("cuda", second))
        return ddp.wrapped(model, **parts.wrapper)

    return parts.session(wrap=wrap, places=True, quiet=lambda module: module.no_sync())


def span(model, first, second):
    """Take the first half of the blocks to ``first``, the second to ``second``; hooks move what passes between them."""
    whole = sum(parameter.numel() for parameter in model.parameters())
    seen = 0
    for block in blocks(model):
        device = first if seen < whole / 2 else second
        seen += sum(parameter.numel() for parameter in block.parameters())
        block.to(device)
        block.register_forward_pre_hook(lambda _, *given, device=device: moved(given, device), with_kwargs=True)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":  # in no block
            tensor.data = tensor.data.to(first)
    model.register_forward_hook(lambda module, given, made: moved(made, first))


def moved(tree, device):
    from bench.worker.workload import map_tensors

    return map_tensors(lambda tensor: tensor.to(device), tree)


def blocks(module):
    """The parts of a model in order: its children, and of those that only hold others their children."""
    from torch.nn import ModuleDict, ModuleList, Sequential

    for child in module.children():
        if isinstance(child, ModuleDict | ModuleList | Sequential):
            yield from blocks(child)
        else:
            yield child
