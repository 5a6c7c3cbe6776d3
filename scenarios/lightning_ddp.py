"""Torch DDP as Lightning Fabric makes it: ``setup`` wraps model and optimizer, and the step is its own.

    fabric = Fabric(strategy="ddp", devices=...)
    model, optimizer = fabric.setup(model, optimizer)
    ...
    fabric.backward(loss)
    optimizer.step()

Beside ``ddp`` it shows what the framework costs. Data comes as in every other scenario. Lightning's ``Trainer`` owns
the loop around all this: ``bench attach`` measures that.
"""

from bench.seams import Implementation, Scenario, Strategy

SCENARIO = Scenario(
    summary="torch DDP by way of Lightning Fabric",
    packages=("lightning",),
    strategy=Strategy(
        label="Lightning Fabric DDP",
        implementations=(
            Implementation(
                name="torch", label="Lightning Fabric DDP", wrapper="lightning.fabric.wrappers._FabricModule"
            ),
        ),
        precisions=("O0",),
        amp=("native",),
        hue="orange",
    ),
)


def build(parts):
    import os

    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.fabric.strategies import DDPStrategy

    from bench.worker.session import Session

    backend = "nccl" if parts.device.type == "cuda" else "gloo"
    hosts = [rank.host for rank in parts.job.ranks]
    here = hosts.count(hosts[parts.rank])
    os.environ["NODE_RANK"] = str(parts.rank // here)
    fabric = Fabric(
        accelerator=parts.device.type,
        devices=here,
        num_nodes=len(hosts) // here,
        # by the variables of bench's ranks, also within Slurm, whose own are those of the one task on each host
        strategy=DDPStrategy(cluster_environment=LightningEnvironment(), process_group_backend=backend),
    )
    fabric.launch()

    class Fabricated(Session):
        def backward(self, loss):
            fabric.backward(loss)

    return Fabricated(
        parts,
        wrap=fabric.setup_module,
        optimizer=lambda parameters: fabric.setup_optimizers(parts.build_optimizer(parameters)),
        quiet=lambda module: fabric.no_backward_sync(module),
    )
