"""Torch FSDP2: weights, gradients and momentum in shards, gathered block by block as they are needed.

Each rank keeps an N-th of everything. The gathered weights of a block are dropped after its forward pass and gathered
again for its backward pass: least memory, most communication. What is in no block is gathered once, as torch does it.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch FSDP2: everything in shards, blocks gathered twice a step", strategy="fsdp2")
