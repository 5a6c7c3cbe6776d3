"""DDP whose gradients are compressed before they are exchanged, by one of torch's communication hooks.

``hook``: ``fp16`` or ``bf16``, half the bytes; ``powersgd``, a product of two thin matrices for each gradient (Vogels
et al. 2019), with what that loses added to the next step's. On the CPU ``powersgd`` waits for each bucket's exchange:
those of several would meet in another order on each rank, and gloo hangs or aborts. Where a loss scaler leaves a step
out, what ``powersgd`` carries over is forgotten: it is not finite either, and would make all later steps so.
"""

from bench.seams import DDP, Implementation, Strategy, ddp_recipe

STRATEGY = Strategy(
    label="torch DDP, compressed",
    implementations=(Implementation(name="torch", label="torch DDP, compressed", wrapper=DDP),),
    differs="gradients are compressed before they are exchanged",
    amp=("native",),
    hue="red",
    dash="solid",
)


def build(parts, hook="fp16"):
    if hook == "powersgd":
        return by_powersgd(parts)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    session = parts.build("ddp")
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    session.module.register_comm_hook(None, hooks[hook])
    return session


def by_powersgd(parts):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
    from torch.futures import collect_all
    from torch.profiler import record_function

    skipped = 0

    def forget_skipped():
        nonlocal skipped
        amp = session.amp
        if amp.scaler is not None:
            by_kernel = getattr(amp.optimizer, "_step_supports_amp_scaling", False)  # then the GPU alone knows
            before, skipped = skipped, int(amp.skipped_steps()) if by_kernel else amp.calls - amp.executed
            if skipped > before:
                for carried in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
                    carried.clear()

    def in_turn(state, bucket):
        with record_function("c10d::powersgd"):
            return collect_all([powersgd.powerSGD_hook(state, bucket)]).wait()[0]

    session = parts.build("ddp", after_step=forget_skipped)
    # Compression from the third step on, the first that DDP allows; by default the first 1,000 steps have none.
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    session.module.register_comm_hook(state, in_turn if parts.device.type == "cpu" else powersgd.powerSGD_hook)
    return session


def recipe(hook="fp16"):
    folder = "torch.distributed.algorithms.ddp_comm_hooks"
    if hook != "powersgd":
        wrap = f"module.register_comm_hook(None, default_hooks.{hook}_compress_hook)"
        return ddp_recipe(imports=(f"from {folder} import default_hooks",), wrap=wrap)
    return ddp_recipe(
        imports=(
            f"from {folder}.powerSGD_hook import PowerSGDState, powerSGD_hook",
            "from torch.futures import collect_all",
        ),
        wrap="""\
state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
in_turn: Any = lambda state, bucket: collect_all([powerSGD_hook(state, bucket)]).wait()[0]  # noqa: E731
module.register_comm_hook(state, in_turn if device.type == "cpu" else powerSGD_hook)""",
        after_skipped="""\
for carried in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
    carried.clear()""",
        note="A checkpoint has none of what PowerSGD carries over from step to step.",
    )
