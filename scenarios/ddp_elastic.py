"""Torch DDP under torchrun: a rank is killed, torchrun starts all ranks again, and they go on from the checkpoint.

The measured steps are those of ``ddp``. What it shows besides is how long training stands still: until torchrun has
noticed, new interpreters have imported torch and met, the checkpoint is loaded, and the next step is over. A cluster
that loses a node pays this, and the steps since the last checkpoint, each time.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP, a rank is killed and restarted: time to the next step", strategy="ddp_elastic")
