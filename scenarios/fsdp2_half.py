"""Torch FSDP2 under autocast, with weights rounded to half before they are gathered (``MixedPrecisionPolicy``).

``fsdp2+o1`` gathers them in fp32, twice the bytes, and autocast rounds those of convolutions and products then.
Here all are rounded but those of batch norm. Gradients are reduced in fp32 in both.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch FSDP2 with autocast, weights gathered in half",
    strategy="fsdp2",
    precision="O1",
    options={"gather_half": True},
)
