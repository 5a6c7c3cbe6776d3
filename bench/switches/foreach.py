"""The optimizer's step as one operation on all weights after the other, which is torch's default on a GPU."""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="the optimizer's step in operations on all weights at once (foreach=True)",
    label="foreach",
    excludes=("fused",),
)


def flag(on, off):
    """The functions ``optimizer``, ``effect`` and ``recipe`` of a switch that turns one keyword on, and another off."""

    def effect(session, ran):
        from bench.worker.workload import flag_effect

        return flag_effect(session.optimizer, session.parts.workload, on)

    return (lambda parts: {on: True, off: False}), effect, lambda switches: Recipe(settings={on: "True", off: "False"})


optimizer, effect, recipe = flag("foreach", "fused")
