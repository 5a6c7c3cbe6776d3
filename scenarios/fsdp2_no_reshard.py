"""Torch FSDP2 that keeps the gathered weights from the forward to the backward pass: as ZeRO stage 2."""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch FSDP2 that gathers weights once a step", strategy="fsdp2", options={"reshard": False}
)
