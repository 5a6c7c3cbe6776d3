"""CUDA graphs of the forward and backward pass: all of its kernels are launched at once.

With ``compile`` they hold inductor's kernels (``mode="reduce-overhead"``), by themselves torch's own, as
``torch.compile(backend="cudagraphs")`` finds them.
"""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="CUDA graphs of the forward and backward pass",
    label="CUDA graphs",
    device="cuda",
    double=False,
    excludes=("checkpointing",),
)


def module(parts, module):
    if "compile" not in parts.switches:
        module.compile(backend="cudagraphs")
    return module


def effect(session, ran):
    from torch._dynamo.utils import counters
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(session.parts.device.index, create_if_none_exists=False)
    if manager is None:
        return f"torch made no CUDA graphs ({counters['inductor']['cudagraph_skips']} skipped)"
    return None


def recipe(switches):
    return Recipe(wrap="" if "compile" in switches else 'module.compile(backend="cudagraphs")')
