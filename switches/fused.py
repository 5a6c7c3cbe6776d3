"""The optimizer's step in one kernel for all weights."""

from bench.seams import Switch

SWITCH = Switch(summary="the optimizer's step in one kernel (fused=True)", label="fused", excludes=("foreach",))


def optimizer(parts):
    return {"fused": True, "foreach": False}


def effect(session, ran):
    from torch import zeros

    from bench.worker.workload import build_optimizer

    if not session.optimizer.defaults.get("fused"):
        return "the optimizer has fused=False"
    plain = build_optimizer(session.parts.workload, [zeros(1, requires_grad=True)])
    return "the workload's optimizer has fused=True anyway" if plain.defaults.get("fused") else None
