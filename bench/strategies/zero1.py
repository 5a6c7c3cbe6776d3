"""ZeRO stage 1: DDP whose optimizer state is dealt out over the ranks, by ``ZeroRedundancyOptimizer``.

Each rank updates its part of the weights and broadcasts it, so that the state (momentum, here) takes an N-th of the
memory on each of N ranks.
"""

from bench.seams import DDP, Implementation, Strategy, ddp_recipe

STRATEGY = Strategy(
    label="DDP + ZeRO-1",
    implementations=(Implementation(name="torch", label="DDP + ZeRO-1", wrapper=DDP),),
    amp=("native",),
    hue="green",
    dash="solid",
)


def build(parts):
    from inspect import signature

    from torch.distributed.optim import ZeroRedundancyOptimizer

    from bench.core.errors import BenchError

    def optimizer(parameters):
        usual = parts.build_optimizer(parameters)
        taken = list(signature(type(usual)).parameters.values())[1:]
        missing = [one.name for one in taken if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        if missing := [name for name in missing if name not in usual.defaults]:
            what = f"ZeRO-1 makes an optimizer of its own, and {type(usual).__name__} takes {' and '.join(missing)}"
            raise BenchError(f"{what} besides parameters; leave zero1 out, or give them defaults")
        own = {one.name: usual.defaults[one.name] for one in taken if one.name in usual.defaults}
        return ZeroRedundancyOptimizer(usual.param_groups, type(usual), **own)

    return parts.build("ddp", optimizer=optimizer)


def recipe():
    return ddp_recipe(
        imports=("from inspect import signature", "from torch.distributed.optim import ZeroRedundancyOptimizer"),
        optimizer="""\
own = {name: updates.defaults[name] for name in signature(type(updates)).parameters if name in updates.defaults}
updates = ZeroRedundancyOptimizer(updates.param_groups, type(updates), **own)""",
        gather="""\
updates.consolidate_state_dict(to=0)
saved = {"model": net.state_dict(), "optimizer": updates.state_dict() if rank == 0 else {}}""",
    )
