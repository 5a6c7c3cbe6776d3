"""The composable ``replicate`` of torch: DDP as hooks on the model itself, without a wrapper around it."""

from bench.seams import Recipe, Strategy
from bench.strategies.ddp import LOGGED_EVERY

STRATEGY = Strategy(label="replicate", hue="teal", dash="solid")


def build(parts):
    from torch.distributed._composable.replicate import replicate

    def wrap(model):
        replicated = replicate(model)
        state = replicate.state(replicated)
        state.lazy_init()  # now and not in the first forward pass: its DDP has a logger, which waits for the GPU
        state._ddp._set_ddp_runtime_logging_sample_rate(LOGGED_EVERY)
        return replicated

    return parts.session(wrap=wrap, quiet="the composable API has no step without synchronisation")


def recipe():
    imports = ("from torch.distributed._composable.replicate import replicate",)
    return Recipe(imports=imports, wrap="replicate(net)", note="The composable replicate is not a public API of torch.")
