"""Torch DDP with eight micro-batches a step that forgot ``no_sync``: gradients are exchanged after each of them."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP, 8 micro-batches a step, gradients exchanged 8 times",
    strategy="ddp_accumulate_8",
    options={"sync": True},
)
