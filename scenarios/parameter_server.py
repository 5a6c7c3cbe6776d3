"""A parameter server and its trainers: what was usual before all-reduce, over RPC.

python -m bench run --scenario ddp,parameter_server --device cpu
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="one server with the weights, the rest trainers, by RPC", strategy="parameter_server")
