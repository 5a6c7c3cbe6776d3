"""The optimizer's step as one operation on all weights after the other, which is torch's default on a GPU."""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="the optimizer's step in operations on all weights at once (foreach=True)",
    label="foreach",
    excludes=("fused",),
)


def optimizer(parts):
    return {"foreach": True, "fused": False}


def effect(session, ran):
    from bench.worker.workload import flag_effect

    return flag_effect(session.optimizer, session.parts.workload, "foreach")


def recipe(switches):
    return Recipe(settings={"foreach": "True", "fused": "False"})
