"""Torch DDP with four micro-batches a step and one exchange of gradients.

    python -m bench run --scenario ddp_accumulate_4,ddp_accumulate_4_sync

The second shows what ``no_sync`` gains: without it there are four exchanges.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP, 4 micro-batches a step, gradients exchanged once", strategy="ddp_accumulate_4")
