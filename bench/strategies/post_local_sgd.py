"""Post-local SGD (Lin et al. 2018): DDP at first, then parameters averaged every few steps.

Gradients are exchanged in the first ``after`` steps; from then on each rank trains by itself and all take the mean of
their weights every ``period`` steps. The warm-up steps of a launch should cover ``after``.
"""

from typing import Any

from bench.seams import DDP, Implementation, Recipe, Strategy, ddp_recipe
from bench.strategies import averaging

STRATEGY = Strategy(
    label="post-local SGD",
    implementations=(Implementation(name="torch", label="post-local SGD", wrapper=DDP),),
    differs="between two averages each rank has weights of its own",
    amp=("native",),
    hue="olive",
    dash="dashed",
)


def build(parts, after=2, period=4):
    from torch.distributed import new_subgroups
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    alone, _ = new_subgroups(group_size=1)
    averager = PeriodicModelAverager(period=period, warmup_steps=after)
    session: Any = parts.build("ddp", after_step=lambda: averaging.average(averager, session))
    state = local.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=after)
    session.module.register_comm_hook(state, local.post_localSGD_hook)
    return session


def recipe(after=2, period=4):
    folder = "torch.distributed.algorithms.ddp_comm_hooks"
    return ddp_recipe(
        imports=(
            f"from {folder}.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook",
            "from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager",
        ),
        wrap=f"""\
averager = PeriodicModelAverager(period={period!r}, warmup_steps={after!r})
state = PostLocalSGDState(None, dist.new_subgroups(group_size=1)[0], start_localSGD_iter={after!r})
module.register_comm_hook(state, post_localSGD_hook)""",
        optimizer=averaging.OPTIMIZER,
        after_step=averaging.AFTER_STEP,
        gather="""\
saved = {"model": net.state_dict(), "optimizer": updates.state_dict()}
saved |= {"averager": averager.step, "hook": state.iter}""",
        restore=f"""{Recipe().restore}
averager.step, state.iter = saved["averager"], saved["hook"]""",
        per_rank=True,
    )
