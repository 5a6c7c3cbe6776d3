"""Torch DDP with four micro-batches a step that forgot ``no_sync``: gradients are exchanged after each of them."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP, 4 micro-batches a step, gradients exchanged 4 times",
    strategy="ddp_accumulate_4",
    options={"sync": True},
)
