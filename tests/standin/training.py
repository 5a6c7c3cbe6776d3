"""A training script as people write them, which knows nothing of bench. It prints the time of each step by itself."""

import argparse
import inspect
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--load-ms", type=float, default=0.0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--end", default="0")
options = parser.parse_args()


for method in torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad:
    plain = inspect.unwrap(method)
    setattr(plain, "__dynamo_disable", plain)  # else torch imports its compiler, which takes longer than all the rest


class Numbers(Dataset):
    def __len__(self):
        return 8 * options.steps

    def __getitem__(self, index):
        time.sleep(options.load_ms / 8e3)
        return torch.randn(32), index % 10


class Descent(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= self.defaults["lr"] * parameter.grad


class Other(Descent):
    pass


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = Descent(model.parameters())
other = Other([nn.Parameter(torch.zeros(1))])
times = []
begin = None
for x, y in DataLoader(Numbers(), batch_size=8, num_workers=options.workers):
    for part in slice(8), slice(4), slice(4, 8):  # a pass whose gradients are dropped, and two micro-batches
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x[part]).float(), y[part]) / 2
        loss.backward()
        if part == slice(8):
            optimizer.zero_grad()
    time.sleep(0.01)
    optimizer.step()
    now = time.perf_counter()
    times += [] if begin is None else [now - begin]
    begin = now
    other.step()
steps = " ".join(str(1000 * one) for one in times)
print(f"steps {steps}\n", end="", flush=True)  # in one write, beside those of other ranks
if options.end == "kill":
    time.sleep(1.2)
    optimizer.step()
    os.kill(os.getpid(), signal.SIGKILL)
if "RANK" in os.environ:
    dist.destroy_process_group()
sys.exit(int(options.end))
