"""More mistakes in a training strategy, as in :mod:`frauds`, written without a look at how mistakes are found.

Some act in the measured steps alone, as what begins after the warm-up would.
"""

from frauds import forward, step

DECAYING_RATE = step("""calls.append(1)
        group, past = session.optimizer.param_groups[0], len(calls) - parts.workload.warmup
        rate = group["lr"]
        if 0 < past <= parts.job.iters:
            group["lr"] = rate * 0.9 ** past
        optimize()
        group["lr"] = rate""")
"""An exponential schedule, which begins when the warm-up is over."""

DECAYED_TWICE = step("""group = session.optimizer.param_groups[0]
        with torch.no_grad():
            for weight in weights.values():
                weight.mul_(1 - group["lr"] * group["weight_decay"])
        optimize()""")
"""Decoupled decay, as of AdamW, besides that of the optimizer."""

MOMENTUM_LOST = step("""calls.append(1)
        if len(calls) == parts.workload.warmup + 1 <= parts.job.steps:
            session.optimizer.state.clear()
        optimize()""")
"""The optimizer is made anew after the warm-up."""

CLIPPED = step("""torch.nn.utils.clip_grad_norm_(session.model.parameters(), 1.0)
        optimize()""")

SUMMED_LOSS = """session.forward = lambda batch: forward(batch) * len(batch[0])"""
"""Reduction "sum": gradients are as many times too large as a rank has examples."""

SMOOTHED = """def loss(call, batch):
        return torch.nn.functional.cross_entropy(call(batch[0]), batch[1], label_smoothing=0.1)
    session._loss = loss"""

SAME_HALF = forward("""first = [part.clone() for part in batch]
        for part in first:
            dist.broadcast(part, 0)
        return forward(first)""")
"""A sampler that does not know the rank: all ranks train the first one's examples."""

BIG_ONLY = step("""for weight in weights.values():
            if weight.ndim > 1:
                dist.all_reduce(weight.grad)
                weight.grad /= parts.world_size
        optimize()""")
"""Biases and batch norms are not among what is reduced."""

STALE = step(
    """calls.append(1)
        before = [weight.detach().clone() for weight in late]
        optimize()
        past = len(calls) - parts.workload.warmup
        if 0 < past <= parts.job.iters and past % 2:
            for weight, old in zip(late, before):
                dist.broadcast(old, 0)
                weight.data.copy_(old)""",
    before="""late = [weight for name, weight in weights.items() if name.startswith(("layer4", "fc"))]""",
)
"""Rank 0 sends the last layers every other step, in a copy that it took before the step."""

FIXED_POINT = step("""for weight in weights.values():
            ticks = (weight.grad * 2**16).to(torch.int32)
            dist.all_reduce(ticks)
            weight.grad = ticks.to(weight.dtype) / (2**16 * parts.world_size)
        optimize()""")
"""Gradients are cut to 16 binary places and added as integers."""

BN_MOMENTUM = """for module in session.model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.9"""
"""What other libraries call 0.9 is 0.1 in torch; it changes nothing but the running statistics."""

BN_FROZEN = forward("""calls.append(1)
        if len(calls) > max(parts.workload.warmup, 1):
            for module in session.model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.momentum = 0.0
        return forward(batch)""")
"""The running statistics stand still from the first measured step on."""

REPEATED = forward("""calls.append(1)
        if len(calls) <= max(parts.workload.warmup, 1):
            changed.last = [part.clone() for part in batch]
        elif len(calls) <= parts.job.steps:
            batch = [part.clone() for part in changed.last]
        return forward(batch)""")
"""The iterator is at its end after the warm-up, and its last batch is trained again and again."""

ACCUMULATING = """zero_grad = session.amp.zero_grad
    def every_other():
        calls.append(1)
        if len(calls) % 2:
            zero_grad()
    session.amp.zero_grad = every_other"""
"""Left from accumulation: gradients are dropped every other step, and the optimizer steps in each."""

LEFT_OUT = step("""idle = [*session.amp.masters[-2:], *(session.amp.half_weights[-2:] if session.amp.masters else [])]
        before = [weight.detach().clone() for weight in idle]
        optimize()
        for weight, old in zip(idle, before):
            weight.data.copy_(old)""")
"""The masters of the last layer are not among what is updated."""

ODD_HEAD = step(
    """calls.append(1)
        if len(calls) % 2:
            for weight in head:
                weight.grad.zero_()
        optimize()""",
    before="""head = list(weights.values())[-2:]""",
)
"""The last layer has no gradient in odd steps."""

ROUNDED_WEIGHTS = step("""optimize()
        for weight in weights.values():
            weight.data.copy_(weight.data.bfloat16())""")
"""Weights that are kept in fp32 and sent around in bf16 after every step."""

LOCAL = step("""calls.append(1)
        optimize()
        if len(calls) % 2 == 0:
            for weight in weights.values():
                dist.all_reduce(weight.data)
                weight.data /= parts.world_size""")
"""Weights are averaged every other step, gradients never."""

TWICE = step("""calls.append(1)
        optimize()
        if parts.workload.warmup < len(calls) <= parts.job.steps:
            optimize()""")

EMA = step(
    """optimize()
        for weight, average in zip(weights.values(), averages):
            average.lerp_(weight.data, 0.1)
            weight.data.copy_(average)""",
    before="""averages = [weight.detach().clone() for weight in weights.values()]""",
)
"""The moving averages, meant for evaluation, are left in the model."""

THIRD_SKIPPED = step("""calls.append(1)
        past = len(calls) - parts.workload.warmup
        if not (0 < past <= parts.job.iters and past % 3 == 1):
            optimize()""")
"""Every third measured step is left out, as if its gradients had overflowed."""

MORE_FRAUDS: dict[str, dict[str, str]] = {
    "decaying_rate": {"precision": "O1", "fault": DECAYING_RATE},
    "decayed_twice": {"fault": DECAYED_TWICE},
    "momentum_lost": {"fault": MOMENTUM_LOST},
    "clipped": {"precision": "O2", "fault": CLIPPED},
    "summed_loss": {"fault": SUMMED_LOSS},
    "smoothed": {"fault": SMOOTHED},
    "dropped_out": {"fault": "each(lambda gradient: torch.nn.functional.dropout(gradient, 0.05))"},
    "same_half": {"fault": SAME_HALF},
    "averaged_twice": {"fault": "each(lambda gradient: gradient / dist.get_world_size())"},
    "big_only": {"strategy": "single", "fault": BIG_ONLY},
    "stale": {"fault": STALE},
    "fp16_gradients": {"fault": "each(lambda gradient: gradient.half().to(gradient.dtype))"},
    "fixed_point": {"strategy": "single", "fault": FIXED_POINT},
    "bn_momentum": {"fault": BN_MOMENTUM},
    "bn_frozen": {"fault": BN_FROZEN},
    "repeated": {"fault": REPEATED},
    "accumulating": {"fault": ACCUMULATING},
    "left_out": {"precision": "O2", "fault": LEFT_OUT},
    "odd_head": {"precision": "O1", "fault": ODD_HEAD},
    "rounded_weights": {"fault": ROUNDED_WEIGHTS},
    "sign": {"fault": "each(lambda gradient: gradient.sign() * gradient.abs().mean())"},
    "local": {"strategy": "single", "fault": LOCAL},
    "twice": {"fault": TWICE},
    "ema": {"fault": EMA},
    "third_skipped": {"precision": "O3", "fault": THIRD_SKIPPED},
}
