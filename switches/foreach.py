"""The optimizer's step as one operation on all weights after the other, which is torch's default on a GPU."""

from bench.seams import Switch

SWITCH = Switch(
    summary="the optimizer's step in operations on all weights at once (foreach=True)",
    label="foreach",
    excludes=("fused",),
)


def optimizer(parts):
    return {"foreach": True, "fused": False}


def effect(session, ran):
    from torch import zeros

    from bench.worker.workload import build_optimizer

    if not session.optimizer.defaults.get("foreach"):
        return "the optimizer has foreach=False"
    plain = build_optimizer(session.parts.workload, [zeros(1, requires_grad=True)])
    return "the workload's optimizer has foreach=True anyway" if plain.defaults.get("foreach") else None
