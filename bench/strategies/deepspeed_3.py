"""As ``deepspeed``, at the stage that has the weights in shards, too."""

from dataclasses import replace

from bench.strategies import deepspeed

STRATEGY = replace(deepspeed.STRATEGY, weights="sharded")
build = deepspeed.build
