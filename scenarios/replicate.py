"""Torch's composable ``replicate``: what DDP does, as hooks on the model and without a wrapper."""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch replicate: DDP without a wrapper", strategy="replicate")
