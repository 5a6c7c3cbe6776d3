"""CUDA graphs of the forward and backward pass: all of its kernels are launched at once.

They hold the kernels of ``compile`` (``mode="reduce-overhead"``). Without it every replay would copy all weights, and
write batch norm's buffers back outside of the graph, which is not what people mean by CUDA graphs.
"""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="CUDA graphs of the forward and backward pass, with compile",
    recovers={"cuda": {"host": 0.9}},
    label="CUDA graphs",
    device="cuda",
    double=False,
    excludes=("checkpointing",),
    needs=("compile",),
    overwrites=True,
    tried_on="ddp+compile",
)


def effect(session, ran):
    from torch._dynamo.utils import counters
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(session.parts.device.index, create_if_none_exists=False)
    return f"torch made no CUDA graphs ({counters['inductor']['cudagraph_skips']} skipped)" if manager is None else None


def recipe(switches):
    return Recipe()  # compile's has the mode
