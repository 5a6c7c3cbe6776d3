"""Ways to train that look like DDP and train something else: what benchmarks/honest_parity.py and the tests plant.

Each is what a person could write by mistake into a strategy of theirs: a scenario file of :data:`SOURCE`, with the
values of :data:`FRAUDS` over those of :data:`HONEST`.
"""

from pathlib import Path

SOURCE = """
from bench.seams import Scenario, Strategy

SCENARIO = Scenario(summary="broken", precision={precision!r}, strategy=Strategy(label="planted"))


def build(parts):
    import torch
    import torch.distributed as dist
    session = parts.build({strategy!r})
    forward, optimize, calls = session.forward, session.optimize, []
    weights = dict(session.model.named_parameters())
    branches = [weight for name, weight in weights.items() if "layer" in name and "downsample" not in name]
    def each(change, those=weights.values()):
        def step():
            for weight in those:
                weight.grad = change(weight.grad)
            optimize()
        session.optimize = step
    {fault}
    return session
"""
"""``each(change)``: gradients are changed before every step of the optimizer."""

HONEST = {"strategy": "ddp", "precision": "O0", "fault": "pass"}


def step(body: str, before: str = "") -> str:
    """A fault: these lines in place of the step of the optimizer, ``optimize()``."""
    return f"{before}\n    def step():\n        {body}\n    session.optimize = step"


def forward(body: str) -> str:
    """A fault: these lines in place of the forward pass, ``forward(batch)``."""
    return f"def changed(batch):\n        {body}\n    session.forward = changed"


NAN_LATER = forward("""calls.append(1)
        loss = forward(batch)
        return loss * float("nan") if len(calls) == 4 else loss""")

TIMID = step("""group = session.optimizer.param_groups[0]
        group["lr"] /= 2
        optimize()
        group["lr"] *= 2""")

STRANGER = "[weights.data.mul_(1 + parts.rank / 100) for weights in session.model.parameters()]"

TOP_TENTH = """def kept(gradient):
        flat = gradient.flatten().abs()
        return gradient * (gradient.abs() >= flat.topk(1 + len(flat) // 10).values[-1])
    each(kept)"""

ONE_RANK = """def shared(name, gradient):
        if "layer" in name:
            dist.broadcast(gradient, 0)
        else:
            dist.all_reduce(gradient)
            gradient /= 2
    def step():
        for name, weight in weights.items():
            shared(name, weight.grad)
        optimize()
    session.optimize = step"""

LATE = step("""now = [weight.grad.clone() for weight in weights.values()]
        for weight, before in zip(weights.values(), calls or now):
            weight.grad.copy_(before)
        calls[:] = now
        optimize()
        for weight, mine in zip(weights.values(), now):
            weight.grad.copy_(mine)""")

UNDECAYED = step("""group = session.optimizer.param_groups[0]
        decay, group["weight_decay"] = group["weight_decay"], 0.0
        optimize()
        group["weight_decay"] = decay""")

COARSE_LATER = forward("""calls.append(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=len(calls) > 1):
            return forward(batch)""")

MASTERLESS = step("""optimize()
        for master, half in zip(session.amp.masters, session.amp.half_weights):
            master.data.copy_(half)""")

WHILE_MEASURED = step("""calls.append(1)
        if 1 < len(calls) <= parts.job.steps:
            for weight in weights.values():
                weight.grad *= 2
        optimize()""")

SKIPPING = step("""calls.append(1)
        if not (1 < len(calls) <= parts.job.steps and len(calls) % 2):
            optimize()""")

COARSE_BUCKETS = """from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    session.module.register_comm_hook(None, bf16_compress_hook)"""

FRAUDS: dict[str, dict[str, str]] = {
    "forgetful": {"strategy": "single"},
    "stranger": {"fault": STRANGER},
    "timid": {"fault": TIMID},
    "idle": {"fault": "session.optimize = lambda: None"},
    "poisoned": {"fault": NAN_LATER},
    "lazy": {"fault": "session.forward = lambda batch: forward([part[:2] for part in batch])"},
    "summing": {"fault": "each(lambda gradient: 2 * gradient, branches)"},
    "frozen": {"fault": "each(lambda gradient: None, branches)"},
    "one_rank": {"strategy": "single", "fault": ONE_RANK},
    "undecayed": {"fault": UNDECAYED},
    "coarse_later": {"precision": "O0", "fault": COARSE_LATER},
    "coarse_buckets": {"fault": COARSE_BUCKETS},
    "top_tenth": {"fault": TOP_TENTH},
    "late": {"fault": LATE},
    "masterless": {"precision": "O2", "fault": MASTERLESS},
    "while_measured": {"fault": WHILE_MEASURED},
    "skipping": {"precision": "O1", "fault": SKIPPING},
}


def source(name: str) -> str:
    """The scenario file of a fraud."""
    return SOURCE.format(**(HONEST | FRAUDS[name]))


def write(folder: Path, name: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(source(name))
    return file
