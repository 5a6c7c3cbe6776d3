"""A strategy's or a switch's part of a script without bench: lines of Python, which ``bench recipe`` places.

A strategy's file may define ``recipe``, with the same options as its ``build``, and a switch's file
``recipe(switches)``, with the values of all that are on:

    from bench.seams import Recipe

    def recipe(reshard=True):
        return Recipe(imports=("from torch.distributed.fsdp import fully_shard",), wrap="fully_shard(net)")

    def recipe(switches):
        return Recipe(keywords={"bucket_cap_mb": str(switches["bucket_mb"])})

The lines may use ``net`` (the model on its ``device``), ``module`` (what the wrapper made of it), ``updates`` (the
optimizer), ``rank``, ``local_rank``, ``world`` and ``device``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """``begin``: settings of the process. ``model``: what is done to ``net`` before it is cast to its precision.
    ``places``: whether ``wrap`` takes ``net`` to the device. ``blocks``: whether the lines need ``blocks``, a list of
    the model's (as :func:`bench.worker.blocks.blocks`).

    ``wrapper``: the class that makes ``module`` of ``net``, which is ``net`` without one, and ``keywords``, the text of
    each of its values (``device_ids``: on a GPU alone). ``wrap``: lines that come next; ``HALF`` in them is the type
    that half is. ``settings``: keywords of the optimizer that replace the workload's own, as text. ``unfused``: the
    names of optimizers that get ``fused=None``, so that torch chooses their step. ``optimizer``: what is done to
    ``updates`` once they are made. ``micro_batches``: how many parts a rank has of a batch, all but the last of them
    within the context ``quiet``, if there is one. ``batch``: what is done to ``batch`` in each step. ``after_step``:
    what is done after each step of the optimizer, and ``after_skipped`` after one that the loss scaler leaves out.

    ``gather``: makes ``saved``, a dict of what a checkpoint has of weights and optimizer; every rank runs it.
    ``restore``: takes it from there. ``per_rank``: whether ranks differ, so that each has a checkpoint.
    ``note``: what a reader of the script should know.
    """

    imports: tuple[str, ...] = ()
    begin: str = ""
    model: str = ""
    places: bool = False
    blocks: bool = False
    wrapper: str = ""
    keywords: Mapping[str, str] = field(default_factory=dict)
    wrap: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    unfused: tuple[str, ...] = ()
    optimizer: str = ""
    micro_batches: int = 1
    quiet: str = ""
    batch: str = ""
    after_step: str = ""
    after_skipped: str = ""
    gather: str = 'saved = {"model": net.state_dict(), "optimizer": updates.state_dict()}'
    restore: str = 'net.load_state_dict(saved["model"])\nupdates.load_state_dict(saved["optimizer"])'
    per_rank: bool = False
    note: str = ""

    def with_switch(self, switch: "Recipe") -> "Recipe":
        """This strategy's with what a switch adds, in the order in which a session applies both."""

        def lines(*parts: str) -> str:
            return "\n".join(part for part in parts if part)

        return replace(
            self,
            imports=(*self.imports, *switch.imports),
            begin=lines(self.begin, switch.begin),
            model=lines(self.model, switch.model),
            blocks=self.blocks or switch.blocks,
            keywords={**self.keywords, **switch.keywords},
            wrap=lines(self.wrap, switch.wrap),
            settings={**switch.settings, **self.settings},
            optimizer=lines(switch.optimizer, self.optimizer),
            batch=lines(self.batch, switch.batch),
            note=" ".join(part for part in (self.note, switch.note) if part),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecipe:
    """A workload of bench's own in a script; that of any other is imported from its file.

    ``example``: a function ``example(index)``. ``model``: the call that makes it, and its arguments. ``loss``: an
    expression of ``{batch}``, and of ``{output}``, what the model makes of ``inputs``, an expression of ``{batch}``
    too. ``optimizer``: its class, and ``settings``, the text of each of its keywords.
    """

    imports: tuple[str, ...] = ()
    example: str
    model: tuple[str, ...]
    inputs: str
    loss: str
    optimizer: str
    settings: Mapping[str, str]


def ddp_recipe(keywords: Mapping[str, str] | None = None, imports: tuple[str, ...] = (), **more: Any) -> Recipe:
    """Of a strategy that is torch DDP, with more ``keywords`` for it, and something besides."""
    return Recipe(
        imports=("from torch.nn.parallel import DistributedDataParallel", *imports),
        wrapper="DistributedDataParallel",
        keywords={"device_ids": "[local_rank]", **(keywords or {})},
        **more,
    )
