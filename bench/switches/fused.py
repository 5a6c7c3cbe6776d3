"""The optimizer's step in one kernel for all weights."""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="the optimizer's step in one kernel (fused=True)",
    label="fused",
    excludes=("foreach",),
    recovers={"cpu": {"optimizer": 0.5}, "cuda": {"optimizer": 0.5}},
    already="optimizer_fused",
)


def optimizer(parts):
    return {"fused": True, "foreach": False}


def effect(session, ran):
    from bench.worker.workload import flag_effect

    return flag_effect(session.optimizer, session.parts.workload, "fused")


def recipe(switches):
    return Recipe(settings={"fused": "True", "foreach": "False"})
