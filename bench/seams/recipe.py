"""What a strategy says of a training script without bench: lines of Python, put in their places by ``bench recipe``.

A strategy's file may define ``recipe``, with the same options as its ``build``:

    from bench.seams import Recipe

    def recipe(reshard=True):
        return Recipe(imports=("from torch.distributed.fsdp import fully_shard",), wrap="module = fully_shard(net)")

The lines may use ``net`` (the model on its ``device``, in its precision), ``module`` (what ``wrap`` made of it),
``updates`` (the optimizer), ``rank``, ``local_rank``, ``world`` and ``device``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """``wrap``: makes ``module``. ``optimizer``: what is done to ``updates`` once they are made. ``micro_batches``: how
    many parts a rank has of a batch, all but the last of them within the context ``quiet``, if there is one.
    ``after_step``: what is done after each step of the optimizer.

    ``gather``: makes ``held``, a dict of what a checkpoint has of the weights and of the optimizer; every rank runs it.
    ``restore``: takes it from there.
    """

    wrap: str = "module = net"
    imports: tuple[str, ...] = ()
    optimizer: str = ""
    micro_batches: int = 1
    quiet: str = ""
    after_step: str = ""
    gather: str = 'held = {"model": net.state_dict(), "optimizer": updates.state_dict()}'
    restore: str = 'net.load_state_dict(held["model"])\nupdates.load_state_dict(held["optimizer"])'
