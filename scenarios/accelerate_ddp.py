"""Torch DDP as Hugging Face accelerate makes it: ``prepare`` wraps model and optimizer, and the step is its own.

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model), accelerator.prepare(optimizer)
    ...
    accelerator.backward(loss)
    optimizer.step()

Beside ``ddp`` it shows what the framework costs. Data comes as in every other scenario.
"""

from bench.seams import DDP, Implementation, Scenario, Strategy

SCENARIO = Scenario(
    summary="torch DDP by way of Hugging Face accelerate",
    packages=("accelerate",),
    strategy=Strategy(
        label="accelerate DDP",
        implementations=(Implementation(name="torch", label="accelerate DDP", wrapper=DDP),),
        precisions=("O0",),
        amp=("native",),
        hue="olive",
    ),
)


def build(parts):
    from accelerate import Accelerator

    from bench.worker.session import Session

    accelerator = Accelerator(cpu=parts.device.type == "cpu")

    class Accelerated(Session):
        def backward(self, loss):
            accelerator.backward(loss)

    return Accelerated(
        parts,
        wrap=accelerator.prepare,
        optimizer=lambda parameters: accelerator.prepare(parts.build_optimizer(parameters)),
        quiet=lambda module: accelerator.no_sync(module),
    )
