"""Torch DDP with a model over two GPUs, for models that are too large for one.

    python -m bench run --scenario ddp,ddp_two_devices --gpus 0,1,2,3

Against ``ddp`` on the same GPUs it shows what a model in two halves costs: while one half computes, the other waits.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP, each rank's model over two GPUs", strategy="ddp_two_devices")
