"""Look for parameters that took no part in the loss, in every step: what a model with unused parameters needs."""

from bench.seams import DDP, Switch
from bench.strategies import ddp

SWITCH = Switch(
    summary="DDP looks for parameters without a gradient in every step",
    label="find_unused",
    wrapper=DDP,
    searched_on=(),
)
wrapper, effect, recipe = ddp.flag("find_unused_parameters")
