"""Torch DDP under an engine that starts all ranks again when one is gone: they go on from the last checkpoint.

Its steps are those of ``ddp``. After them come launches under ``torchrun --max-restarts 1`` in which a rank is killed
in the middle of training: the time until the next step is over is the result (``bench.worker.restart``).
"""

from bench.seams import DDP, Implementation, Strategy

STRATEGY = Strategy(
    label="torch DDP, elastic",
    implementations=(Implementation(name="torch", label="torch DDP, elastic", wrapper=DDP),),
    restarts=True,
    hue="cyan",
    dash="dashed",
)


def build(parts):
    return parts.build("ddp")
