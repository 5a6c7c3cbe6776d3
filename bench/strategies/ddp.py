"""``torch.nn.parallel.DistributedDataParallel`` with its defaults: buckets of 25 MiB, buffers broadcast."""

from bench.seams import DDP, Implementation, Recipe, Strategy, ddp_recipe

STRATEGY = Strategy(
    label="torch DDP",
    implementations=(Implementation(name="torch", label="torch DDP", wrapper=DDP),),
    probe="logger",
    hue="blue",
    dash="solid",
)

LOGGED_EVERY = 1 << 30
"""The steps that DDP's logger times: the first ten, always, and then one in this many; torch's default is 100.
It waits for the GPU in those (``Reducer::should_collect_runtime_stats``), so none of them is to be a measured one."""

SETTLING_STEPS = 1


def build(parts, bucket_mb=None, **how):
    """``how``: more keywords for the session, from a strategy that is DDP and something besides."""

    def wrap(model):
        device_ids = [parts.device.index] if parts.device.type == "cuda" else None
        own = {"device_ids": device_ids} | ({} if bucket_mb is None else {"bucket_cap_mb": bucket_mb})
        return wrapped(model, **parts.wrapper | own)

    return parts.session(wrap=wrap, **{"quiet": lambda module: module.no_sync(), **how})


def wrapped(model, **keywords):
    """The model in DDP, whose logger keeps out of measured steps."""
    from torch.nn.parallel import DistributedDataParallel

    module = DistributedDataParallel(model, **keywords)
    module._set_ddp_runtime_logging_sample_rate(LOGGED_EVERY)
    return module


def recipe(bucket_mb=None):
    return ddp_recipe({} if bucket_mb is None else {"bucket_cap_mb": repr(bucket_mb)})


def flag(name):
    """The functions ``wrapper``, ``effect`` and ``recipe`` of a switch that turns this keyword of DDP on."""
    return (
        lambda parts: {name: True},
        lambda session, ran: None if getattr(session.module, name, False) else f"the wrapper has {name}=False",
        lambda switches: Recipe(keywords={name: "True"}),
    )


def probe(session, load, steps, tick):
    """The values of DDP's own logger for ``steps`` steps: a row a step.

    ``compute_ms`` (backward computation), ``comm_ms`` (from the first bucket's start to the last one's end) and
    ``overlap_ms`` (the part of it while gradients were still computed). The logger describes the iteration before, so
    each is read after the next forward pass.
    """
    module = session.module
    module._set_ddp_runtime_logging_sample_rate(1)
    rows = []
    for step in range(steps + SETTLING_STEPS + 1):
        loss = session.forward(load())
        logged = module._get_ddp_logging_data()
        if step > SETTLING_STEPS:
            times_ns = {"compute": "compute", "comm": "comm", "overlap": "compute_comm_overlap"}
            rows.append({f"{name}_ms": logged[f"backward_{of}_time"] / 1e6 for name, of in times_ns.items()})
        session.backward(loss)
        session.optimize()
        tick(step + 1)
    module._set_ddp_runtime_logging_sample_rate(LOGGED_EVERY)
    return rows, None
