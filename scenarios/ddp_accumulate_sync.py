"""Torch DDP with two micro-batches a step that forgot ``no_sync``: gradients are exchanged after each of them."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP, 2 micro-batches a step, gradients exchanged twice",
    strategy="ddp_accumulate",
    options={"sync": True},
)
