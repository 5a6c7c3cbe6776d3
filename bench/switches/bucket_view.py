"""Gradients are views into DDP's buckets, which saves a copy of all of them, and their memory."""

from bench.seams import DDP, Switch
from bench.strategies import ddp

SWITCH = Switch(summary="gradients are views into DDP's buckets", label="bucket_view", wrapper=DDP)
wrapper, effect, recipe = ddp.flag("gradient_as_bucket_view")
