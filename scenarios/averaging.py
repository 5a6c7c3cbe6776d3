"""Every rank trains by itself, and every fourth step all take the mean of their weights (local SGD)."""

from bench.seams import Scenario

SCENARIO = Scenario(summary="weights averaged every 4 steps, gradients never exchanged", strategy="averaging")
