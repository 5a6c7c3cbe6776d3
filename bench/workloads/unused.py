"""A perceptron with a branch that takes no part in the loss: what DDP complains of, unless it is told.

    python -m bench run --workload unused --scenario ddp,ddp+find_unused,ddp+static_graph

Plain ``ddp`` ends in its second step, since a bucket waits for gradients that never come.
"""

from bench.seams import Workload

WORKLOAD = Workload(
    summary="a perceptron with a branch that takes no part in the loss",
    unit="samples",
    title="MLP with unused parameters, {layers} x {width}",
    global_batch={"cpu": 64, "cuda": 4096},
    settings={"layers": 8, "width": {"cpu": 128, "cuda": 1024}},
)


def model(work):
    from torch import nn

    layers = [layer for _ in range(work.layers) for layer in (nn.Linear(work.width, work.width), nn.ReLU())]
    branches = {"used": nn.Sequential(*layers, nn.Linear(work.width, 10)), "unused": nn.Linear(work.width, 10)}

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleDict(branches)

        def forward(self, x):
            return self.branches["used"](x)

    return Branches()


def example(work, index):
    import torch

    random = torch.Generator().manual_seed(work.seed * 1_000_003 + index)
    return torch.randn(work.width, generator=random), torch.randint(10, (), generator=random)


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch[0]), batch[1])


def optimizer(work, parameters):
    from torch.optim import SGD

    return SGD(parameters, lr=0.01, momentum=0.9, fused=True)
