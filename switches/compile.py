"""``torch.compile`` of the wrapped model, with inductor.

The value says what becomes of DDP's overlap (``torch._dynamo.config.optimize_ddp``): ``ddp_optimizer`` compiles a graph
for each bucket, so that buckets are exchanged while the backward pass goes on; with ``no_optimization`` there is one
graph, and they are exchanged when it is over. Without DDP both are the same. How long compiling took is recorded apart
from the steps (``effective.compiled``); the graphs are kept where torch keeps them (``TORCHINDUCTOR_CACHE_DIR``).
"""

import os
import shutil
from importlib.util import find_spec

from bench.seams import Switch

SWITCH = Switch(
    summary="torch.compile of the wrapped model",
    label="compile",
    value="ddp_optimizer",
    choices=("ddp_optimizer", "no_optimization"),
    searched_on=("cuda",),  # on the CPU compiling takes longer than a search
    slow_start=10,
    excludes=("checkpointing",),  # which changes batch norm while the backward pass computes again
)


def obstacle(device):
    if device == "cuda" and find_spec("triton") is None:
        return "compile needs triton on a GPU; install it where torch is"
    compilers = ("g++", "clang++", "c++") if device == "cpu" else ("gcc", "clang", "cc")
    named = os.environ.get("CXX" if device == "cpu" else "CC")
    if named or any(map(shutil.which, compilers)):
        return None
    return f"compile needs a C{'++' if device == 'cpu' else ''} compiler; install {compilers[0]}"


def begin(parts):
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = parts.switches["compile"]


def module(parts, module):
    module.compile(mode="reduce-overhead" if "cuda_graphs" in parts.switches else None)
    return module


def effect(session, ran):
    return None if ran["compiled"] else "torch.compile made no graph"
