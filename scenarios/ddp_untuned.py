"""Torch DDP without cuDNN autotuning: the partner of ``dp`` on several GPUs, which runs without.

    python -m bench run --scenario dp,ddp_untuned,ddp

``dp`` against this is what the strategy costs; this against ``ddp`` is what the search for algorithms saves. On the CPU
it is the same as ``ddp``.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP without cuDNN autotuning, as dp runs on several GPUs", strategy="ddp", switches=("untuned",)
)
