"""FSDP2, ``torch.distributed.fsdp.fully_shard``: weights, gradients and optimizer state in shards.

Each block of the model is a unit whose weights are gathered before it computes and whose gradients are scattered after:
the blocks are what the outermost ``Sequential`` and ``ModuleList`` of a model hold, such as the residual blocks of a
ResNet or the layers of a transformer. What is left forms a unit with the whole model. ``reshard``: drop the gathered
weights of a block after its forward pass and gather them again for the backward pass (less memory, more communication).
That is torch's default; it keeps the weights that are in no block, which the backward pass needs at once.
``copies``: how many groups of ranks share the weights, each all of them (HSDP); gradients are also averaged over the
groups. ``gather_half``: round weights to half before they are gathered (a ``MixedPrecisionPolicy``), and not after, as
autocast does: half the bytes. Gradients are still reduced in fp32, and all batch norms, which need weights in fp32,
form a unit.
"""

from bench.seams import Recipe, Strategy


def obstacle(device, devices, copies=1):
    if devices % copies:
        return f"{copies} groups cannot have equal shares of {devices} ranks; choose a multiple of {copies}"
    return None


STRATEGY = Strategy(
    label="FSDP2",
    obstacle=obstacle,
    weights="sharded",
    precisions=("O0", "O1"),  # a unit has weights of one type
    amp=("native",),
    without={"channels_last": "fully_shard takes contiguous weights alone"},
    torch_on_cpu=(2, 8),  # 2.6 lacks events of CPU streams, 2.7 what HSDP needs of gloo
    hue="violet",
    dash="solid",
)

MESH = ("replicate", "shard")
UNFUSED = ("SGD", "Adagrad")
"""Optimizers whose fused step has no rule for shards in ``torch/distributed/tensor/_ops``; Adam's have one."""


def build(parts, reshard=True, copies=1, gather_half=False):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.modules.batchnorm import _BatchNorm

    from bench.worker.blocks import blocks

    policy = MixedPrecisionPolicy()
    if gather_half and parts.job.purpose != "probe":  # which is in double precision
        policy = MixedPrecisionPolicy(parts.half, torch.float32, cast_forward_inputs=False)  # autocast casts them

    def wrap(model):
        shape = (copies, parts.world_size // copies)
        mesh = init_device_mesh(parts.device.type, shape, mesh_dim_names=MESH) if copies > 1 else None
        how = {"mesh": mesh} | ({} if reshard else {"reshard_after_forward": False})
        norms = [one for one in model.modules() if isinstance(one, _BatchNorm)] if gather_half else []
        if norms:
            fully_shard(norms, **how)
        for unit in (*blocks(model), model):
            if unit not in norms:
                fully_shard(unit, mp_policy=policy, **how)
        return model

    def optimizer(parameters):
        made = parts.build_optimizer(parameters)
        if type(made).__name__ in UNFUSED:
            for group in (made.defaults, *made.param_groups):
                group["fused"] = None  # False would keep torch from its step on all weights at once, too
            made._step_supports_amp_scaling = False
        return made

    return parts.session(
        wrap=wrap,
        places=True,  # unit by unit, so that no GPU ever holds the whole model
        optimizer=optimizer,
        whole=lambda tensor: tensor.full_tensor(),
        quiet="FSDP2 gathers weights in every step: one without any communication would compute nothing",
    )


def recipe(reshard=True, copies=1, gather_half=False):
    how, mesh = "" if reshard else ", reshard_after_forward=False", ""
    imports = ("from torch.distributed.device_mesh import init_device_mesh",) if copies > 1 else ()
    if copies > 1:
        mesh = f"mesh = init_device_mesh(device.type, ({copies}, world // {copies}), mesh_dim_names={MESH})\n"
        mesh, how = mesh.replace("'", '"'), f", mesh=mesh{how}"
    policy, units, norms = "", "blocks", ""
    if gather_half:
        policy, units = ", mp_policy=half", "(it for it in blocks if it not in norms)"
        norms = f"""\
half = MixedPrecisionPolicy(HALF, torch.float32, cast_forward_inputs=False)
norms = [it for it in net.modules() if isinstance(it, torch.nn.modules.batchnorm._BatchNorm)]
if norms:  # they need weights in fp32
    fully_shard(norms{how})
"""
    return Recipe(
        imports=(
            "from torch.distributed.checkpoint import state_dict",
            *imports,
            f"from torch.distributed.fsdp import {'MixedPrecisionPolicy, ' * gather_half}fully_shard",
        ),
        places=True,
        blocks=True,
        wrap=f"""\
{mesh}{norms}for unit in [*{units}, net]:
    fully_shard(unit{policy}{how})
how = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)""",
        unfused=UNFUSED,
        gather="""\
saved = dict(zip(("model", "optimizer"), state_dict.get_state_dict(net, updates, options=how), strict=True))""",
        restore="""\
state_dict.set_model_state_dict(net, saved["model"], options=how)
if saved["optimizer"]["state"]:
    state_dict.set_optimizer_state_dict(net, updates, saved["optimizer"], options=how)
else:  # torch deals out tensors alone, and there are none without momentum
    updates.load_state_dict(saved["optimizer"])""",
    )
