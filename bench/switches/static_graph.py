"""Promise DDP that every step uses the same parameters in the same order: it finds unused ones in the first step."""

from bench.seams import DDP, Switch
from bench.strategies import ddp

SWITCH = Switch(
    summary="DDP is promised the same graph in every step", label="static_graph", excludes=("find_unused",), wrapper=DDP
)
wrapper, effect, recipe = ddp.flag("static_graph")
