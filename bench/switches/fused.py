"""The optimizer's step in one kernel for all weights."""

from bench.seams import Switch
from bench.switches import foreach

SWITCH = Switch(
    summary="the optimizer's step in one kernel (fused=True)",
    label="fused",
    excludes=("foreach",),
    recovers={"cpu": {"optimizer": 0.5}, "cuda": {"optimizer": 0.5}},
    already="optimizer_fused",
)
optimizer, effect, recipe = foreach.flag("fused", "foreach")
