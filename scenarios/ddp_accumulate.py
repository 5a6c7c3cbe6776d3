"""Torch DDP with two micro-batches a step and one exchange of gradients: half the activations in memory.

    python -m bench run --scenario ddp,ddp_accumulate,ddp_accumulate_sync

Against ``ddp`` it shows what smaller batches cost; against ``ddp_accumulate_sync`` what ``no_sync`` gains.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP, 2 micro-batches a step, gradients exchanged once", strategy="ddp_accumulate")
