"""Torch DDP that exchanges a low-rank approximation of its gradients (PowerSGD, rank 1)."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP, gradients exchanged as low-rank products (PowerSGD)",
    strategy="ddp_hooks",
    options={"hook": "powersgd"},
)
