"""``torch.nn.DataParallel``: one process, a thread per GPU; on the CPU torch makes it a pass-through."""

import time
from contextlib import contextmanager

from bench.seams import Implementation, Rank, Recipe, Strategy

STRATEGY = Strategy(
    label="DataParallel",
    ranks=lambda devices: (Rank(devices=tuple(range(devices)), replicas=devices, on_cpu=1),),
    group=False,
    implementations=(
        Implementation(name="torch", label="DataParallel", wrapper="torch.nn.parallel.data_parallel.DataParallel"),
    ),
    alone_label="DataParallel, pass-through",
    probe="data_parallel",
    threads=True,
    hue="orange",
    dash="dash-dot",
)

STAGES = ("scatter", "replicate", "parallel_apply", "gather")
"""The parts of DataParallel's forward pass."""


def build(parts):
    from torch.nn import DataParallel

    return parts.session(
        wrap=lambda model: DataParallel(model, device_ids=list(range(len(parts.devices))) or None),
        replicas=lambda module: max(1, len(module.device_ids)),
        quiet="one process: there is nothing to synchronise",
    )


def probe(session, load, steps, tick):
    """The parts of the forward pass in ``steps`` steps: a row a step (ms, with the devices idle in between).

    Returns no rows and the reason where DataParallel is a pass-through.
    """
    if len(session.module.device_ids) < 2:
        return [], "DataParallel on one device or on the CPU is a pass-through: nothing is replicated"
    rows = []
    with timed_stages(session.module, rows):
        for step in range(steps):
            rows.append({})
            session.backward(session.forward(load()))
            session.optimize()
            tick(step + 1)
    return rows, None


@contextmanager
def timed_stages(module, rows):
    """Within this context each of :data:`STAGES` of ``module`` puts its time (ms) into the last row."""

    def timed(stage):
        call = getattr(module, stage)

        def measured(*args, **kwargs):
            wait_for_all_devices()
            start = time.perf_counter_ns()
            result = call(*args, **kwargs)
            wait_for_all_devices()
            rows[-1][f"{stage}_ms"] = (time.perf_counter_ns() - start) / 1e6
            return result

        return measured

    wrappers = {stage: timed(stage) for stage in STAGES}
    for stage, wrapper in wrappers.items():
        object.__setattr__(module, stage, wrapper)
    try:
        yield
    finally:
        for stage in STAGES:
            object.__delattr__(module, stage)


def wait_for_all_devices():
    """Until every visible GPU is idle."""
    import torch

    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)


def recipe():
    return Recipe(wrapper="torch.nn.DataParallel", keywords={"device_ids": "list(range(REPLICAS))"})
