"""Torch DDP that exchanges its gradients in fp16: half the bytes, with a rounding of each gradient."""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP, gradients exchanged in fp16", strategy="ddp_hooks", options={"hook": "fp16"})
