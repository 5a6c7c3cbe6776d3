"""Torch DDP with eight micro-batches a step and one exchange of gradients.

    python -m bench run --scenario ddp_accumulate_8,ddp_accumulate_8_sync

The second shows what ``no_sync`` gains: without it there are eight exchanges.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP, 8 micro-batches a step, gradients exchanged once", strategy="ddp_accumulate_8")
