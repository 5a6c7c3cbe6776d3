"""The training step as a person writes it who has never heard of bench: what bench's values are held against.

    python benchmarks/handwritten.py --precision O1 --strategy ddp

Plain torch and torchvision, nothing of bench: one process on the first visible GPU (or the CPU), ResNet-101 in fp32
(TF32 as torch has it) or under autocast with a gradient scaler, SGD with momentum, four batches in pinned memory,
cuDNN's own choice of algorithms; on request in DDP, with two micro-batches a step, or in FSDP2 with a unit for each
block, and compiled. Prints what a step takes. With ``--turns`` it does as many steps as each line of its
standard input says and answers with the seconds that they took (see ``against_handwritten.py``), with the algorithms
that cuDNN chooses without timing them.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.distributed.fsdp import fully_shard


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="default: cuda")
    parser.add_argument("--model", default="resnet101", help="a classification model of torchvision")
    parser.add_argument("--image-size", type=int, default=224, metavar="PX")
    parser.add_argument("--batch", type=int, default=128, metavar="N")
    parser.add_argument("--precision", choices=("O0", "O1"), default="O0", help="fp32, or autocast (fp16; CPU: bf16)")
    wrappers = "with a world size of one; accumulate: DDP with two micro-batches a step"
    parser.add_argument("--strategy", choices=("none", "ddp", "accumulate", "fsdp2"), default="none", help=wrappers)
    parser.add_argument("--compile", action="store_true", help="by torch.compile, with inductor")
    parser.add_argument("--threads", type=int, metavar="N", help="of torch on the CPU")
    parser.add_argument("--warmup", type=int, default=20, metavar="N")
    parser.add_argument("--steps", type=int, default=50, metavar="N")
    parser.add_argument("--turns", action="store_true", help="do steps when asked for them on standard input")
    return parser.parse_args(arguments)


def training(options: argparse.Namespace) -> Callable[[int], float]:
    """A function that does so many steps and returns the seconds that they took, until the device was done."""
    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = not options.turns  # what it chooses by timing differs from one process to the next
    torch.manual_seed(0)
    residual = {"zero_init_residual": True} if "resne" in options.model else {}  # Goyal et al. 2017, section 5.1
    model: nn.Module = torchvision.models.get_model(options.model, weights=None, **residual).to(device)
    if options.strategy != "none":
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    sharded = options.strategy == "fsdp2"
    if sharded:
        for unit in units(model):
            fully_shard(unit)
        fully_shard(model)
    fused = None if sharded else True  # torch has no fused step of SGD for shards, and False would rule out foreach too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=fused)
    for parameter in model.parameters():  # torch leaves them uninitialised where the scaler skips the first step
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    if options.strategy in ("ddp", "accumulate"):
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0] if device.type == "cuda" else None)
    if options.compile:
        model.compile()
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    mixed = options.precision == "O1"
    scaler = torch.amp.GradScaler(device.type, enabled=mixed and half is torch.float16)
    criterion = nn.CrossEntropyLoss()
    shape = (options.batch, 3, options.image_size, options.image_size)
    batches = [(torch.randn(shape), torch.randint(1000, (options.batch,))) for _ in range(4)]
    if device.type == "cuda":
        batches = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    data = itertools.cycle(batches)

    def train(steps: int) -> float:
        wait(device)
        start = time.perf_counter()
        for _ in range(steps):
            images, labels = next(data)
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            if options.strategy == "accumulate":
                first, second = zip(images.chunk(2), labels.chunk(2), strict=True)
                with model.no_sync():
                    (criterion(model(first[0]), first[1]) / 2).backward()
                images, labels = second
            with torch.autocast(device.type, dtype=half, enabled=mixed):
                loss = criterion(model(images), labels)
            if options.strategy == "accumulate":
                loss = loss / 2
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        wait(device)
        return time.perf_counter() - start

    return train


def units(model: nn.Module) -> list[nn.Module]:
    """The blocks of a ResNet, or the layers of a model with ``features`` and ``classifier``: those with weights."""
    layers = ("features", "classifier") if hasattr(model, "features") else ("layer1", "layer2", "layer3", "layer4")
    blocks = [block for layer in layers for block in getattr(model, layer)]
    return [block for block in blocks if any(True for _ in block.parameters())]


def wait(device: torch.device) -> None:
    """Until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    options = options_of()
    train = training(options)
    train(options.warmup)
    if options.turns:
        print("warm", flush=True)
        for line in sys.stdin:
            print(train(int(line)), flush=True)
        return 0
    steps = [train(1) for _ in range(options.steps)]
    print(f"{1000 * statistics.median(steps):.2f} ms a step (median of {options.steps}, each waited for)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
