"""Post-local SGD: DDP for two steps, then weights averaged every fourth step."""

from bench.seams import Scenario

SCENARIO = Scenario(summary="post-local SGD: DDP, then weights averaged every 4 steps", strategy="post_local_sgd")
