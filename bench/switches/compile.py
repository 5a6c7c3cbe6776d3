"""``torch.compile`` of the wrapped model, with inductor.

The value says what becomes of DDP's overlap (``torch._dynamo.config.optimize_ddp``): ``ddp_optimizer`` compiles a graph
for each bucket, so that buckets are exchanged while the backward pass goes on; with ``no_optimization`` there is one
graph, and they are exchanged when it is over; with ``python_reducer`` compiled autograd takes the backward pass and its
all-reduces into one graph, in place of DDP's own reducer. Without DDP all are the same. How long compiling took is
recorded apart from the steps (``effective.compiled``); the graphs are kept where torch keeps them
(``TORCHINDUCTOR_CACHE_DIR``).
"""

import atexit
import os
import sys
from contextlib import ExitStack
from importlib.util import find_spec

from bench.seams import Recipe, Switch

PYTHON_REDUCER = "python_reducer"
SWITCH = Switch(
    summary="torch.compile of the wrapped model",
    recovers={"cpu": {"memory": 0.5}, "cuda": {"host": 0.8, "memory": 0.5}},
    label="compile",
    value="ddp_optimizer",
    choices=("ddp_optimizer", PYTHON_REDUCER, "no_optimization"),
    searched_on=("cuda",),  # on the CPU compiling takes longer than a search
    slow_start=10,
    double=False,  # its kernels are not those of fp32, and take minutes to make
    excludes=("checkpointing",),  # which changes batch norm while the backward pass computes again
)

ENTERED = ExitStack()
"""What lasts as long as the process."""


def obstacle(device):
    if device == "cuda" and find_spec("triton") is None:
        return "compile needs triton on a GPU; install it where torch is"
    python = f"python{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    header = os.path.join(sys.base_prefix, "include", python, "Python.h")  # asking sysconfig takes 'bench list' a 50th
    if not os.path.isfile(header):
        return f"compile needs Python.h, and there is no {header}; install Python's headers, such as python3-dev"
    compilers = ("g++", "clang++", "c++") if device == "cpu" else ("gcc", "clang", "cc")
    named = os.environ.get("CXX" if device == "cpu" else "CC")
    places = (os.path.join(folder, name) for folder in os.get_exec_path() for name in compilers)
    if named or any(os.access(place, os.X_OK) for place in places):  # shutil.which would cost 'bench list' a tenth
        return None
    return f"compile needs a C{'++' if device == 'cpu' else ''} compiler; install {compilers[0]}"


def begin(parts):
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = parts.switches["compile"]


def module(parts, module):
    import torch
    from torch._dynamo import compiled_autograd

    mode = "reduce-overhead" if "cuda_graphs" in parts.switches else None
    if getattr(module, "_use_python_reducer", False):
        ENTERED.enter_context(compiled_autograd._enable(torch.compile(mode=mode)))
        atexit.register(ENTERED.close)
    module.compile(mode=mode)
    return module


def effect(session, ran):
    from torch._dynamo.utils import counters

    if not ran["compiled"]:
        return "torch.compile made no graph"
    if session.parts.switches["compile"] != PYTHON_REDUCER:
        return None
    if not getattr(session.module, "_use_python_reducer", False):
        return "there is no DDP whose reducer it would replace"
    return None if counters["compiled_autograd"]["captures"] else "compiled autograd took no backward pass into a graph"


def recipe(switches):
    mode = 'mode="reduce-overhead"' if "cuda_graphs" in switches else ""
    wrap = f"module.compile({mode})"
    if switches["compile"] == SWITCH.value:  # torch's own choice
        return Recipe(wrap=wrap)
    begin = f'torch._dynamo.config.optimize_ddp = "{switches["compile"]}"'
    if switches["compile"] != PYTHON_REDUCER:
        return Recipe(imports=("import torch._dynamo",), begin=begin, wrap=wrap)
    wrap = f"""\
whole = torch._dynamo.compiled_autograd._enable(torch.compile({mode}))
whole.__enter__()
{wrap}"""
    return Recipe(imports=("import torch._dynamo.compiled_autograd",), begin=begin, wrap=wrap)
