"""FashionMNIST with the network of PyTorch's tutorial, 28x28-512-512-10, batch 32 a rank.

``--data DIR`` has FashionMNIST's own ``train-images-idx3-ubyte.gz`` and ``train-labels-idx1-ubyte.gz``, from
https://github.com/zalandoresearch/fashion-mnist. They are small and unpacked once, so a step reads memory.
"""

import os
from functools import cache

from bench.seams import RequestError, Workload

WORKLOAD = Workload(
    summary="FashionMNIST with an MLP, 28x28-512-512-10",
    unit="images",
    unit_short="img",
    reads="FashionMNIST's train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz",
    global_batch={"cpu": 64, "cuda": 256},
    settings={"width": 512, "learning_rate": 0.05},
)
IMAGE = 28 * 28
MOST_IMAGES = 1_000_000


def model(work):
    from torch import nn

    hidden = [nn.Linear(IMAGE, work.width), nn.ReLU(), nn.Linear(work.width, work.width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(work.width, 10))


@cache
def files(folder):
    """All pixels and all labels as bytes."""
    pixels, images = idx(os.path.join(folder, "train-images-idx3-ubyte.gz"), b"\0\0\x08\x03", 16, IMAGE)
    labels, count = idx(os.path.join(folder, "train-labels-idx1-ubyte.gz"), b"\0\0\x08\x01", 8, 1)
    if (len(pixels), len(labels)) != (images * IMAGE, count) or images != count or max(labels, default=10) > 9:
        raise RequestError("--data", f"{folder} has not one label for each image of 28x28", "download the files again")
    return pixels, labels


def idx(path, magic, header, size):
    """The values of an idx file, and how many items of this size it says it has. No more is unpacked than it says."""
    import gzip
    import zlib

    try:
        with gzip.open(path) as file:
            start = file.read(header)
            count = int.from_bytes(start[4:8], "big")
            values = file.read(min(count, MOST_IMAGES) * size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError("--data", f"{path} cannot be read: {error}", "download it again") from error
    if start[:4] != magic:
        raise RequestError("--data", f"{path} is not an idx file of bytes", "download it again")
    return values, count


def size(work):
    return len(files(work.data)[1])


def example(work, index):
    import torch

    if work.data is None:
        random = torch.Generator().manual_seed(work.seed * 1_000_003 + index)
        return torch.rand(1, 28, 28, generator=random), torch.randint(10, (), generator=random)
    pixels, labels = files(work.data)
    image = torch.frombuffer(bytearray(pixels[index * IMAGE : (index + 1) * IMAGE]), dtype=torch.uint8)
    return image.reshape(1, 28, 28) / 255, torch.tensor(labels[index])


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    images, labels = batch
    return cross_entropy(model(images), labels)


def optimizer(work, parameters):
    from torch.optim import SGD

    return SGD(parameters, lr=work.learning_rate, fused=True)
