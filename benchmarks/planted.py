"""An MLP in which something slow is planted, for `account.py`; a workload that bench runs by its path.

python -m bench limits --workload benchmarks/planted.py --setting plant=host --scenario single --ranks 1
"""

import time

from bench.seams import Workload

WORKLOAD = Workload(
    summary="an MLP with something slow in it",
    unit="samples",
    title="MLP, planted: {plant}",
    reads="nothing",
    global_batch=64,
    settings={"width": 1024, "plant": "nothing"},
)
PLANTED_S = 0.02
COUNTED, TIMES = 1_000_000, 24  # integers that one thread counts so often in about as long, out of a cache
in_loader = False  # whether the loader is slow, which collate is not told


def model(work):
    from torch import nn

    return nn.Sequential(nn.Linear(work.width, work.width), nn.ReLU(), nn.Linear(work.width, 10), Planted(work))


def Planted(work):
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            if work.plant == "operator":
                self.register_buffer("numbers", torch.arange(COUNTED) % 10, persistent=False)

        def forward(self, x):
            if work.plant == "host":
                time.sleep(PLANTED_S)
            for _ in range(TIMES if work.plant == "operator" else 0):
                # bincount is not parallel on the CPU; on a GPU it waits for its result, which would be the host
                self.numbers.cumsum(0) if x.is_cuda else torch.bincount(self.numbers)
            return x

    return Layer()


def size(work):
    return 1024


def example(work, index):
    import torch

    global in_loader
    in_loader = work.plant == "loader"
    return torch.ones(work.width) * (index % 7), torch.tensor(index % 10)


def collate(examples):
    import torch

    time.sleep(PLANTED_S if in_loader else 0.0)
    return torch.utils.data.default_collate(examples)


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch[0]), batch[1])


def optimizer(work, parameters):
    import torch

    return torch.optim.SGD(parameters, lr=0.01)
