"""Torch DDP whose optimizer state is dealt out over the ranks, which then broadcast the weights that they updated."""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DDP + ZeroRedundancyOptimizer: momentum in shards", strategy="zero1")
