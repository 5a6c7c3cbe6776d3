"""Image classification on JPEG files in one folder for each class, as ImageNet comes, through a ``DataLoader``.

    python -m bench run --workload imagefolder --data imagenet/train --workers 4

Each image is decoded, cropped at random, resized and maybe flipped by torchvision, drawn from the seed and the index,
so that every way to train sees the same pixels. Models, loss and optimizer are those of ``resnet101``, and without
``--data`` so are the images: noise.
"""

import os
from functools import cache

from bench.seams import RequestError, Workload
from bench.workloads.resnet101 import WORKLOAD as RESNET101
from bench.workloads.resnet101 import check, loss, model, narrow, optimizer
from bench.workloads.resnet101 import example as noise

__all__ = ["WORKLOAD", "check", "example", "loss", "model", "narrow", "optimizer", "size"]

WORKLOAD = Workload(
    summary="image classification on JPEG folders, any model of torchvision",
    unit="images",
    unit_short="img",
    title="{model}, {image_size} px",
    imports=("torchvision", "PIL.Image"),
    reads="one folder of JPEG files for each class",
    global_batch={"cpu": 8, "cuda": 128},
    example_mib=121.0,
    settings={**RESNET101.settings, "model": "resnet50"},
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = (".jpg", ".jpeg", ".png")


@cache
def files(folder):
    """Each image with the number of its class."""
    images = []
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    for number, name in enumerate(classes):
        names = sorted(os.listdir(os.path.join(folder, name)))
        images += [(os.path.join(folder, name, one), number) for one in names if one.lower().endswith(SUFFIXES)]
    return images


def size(work):
    images = files(work.data)
    if not images:
        raise RequestError("--data", f"{work.data} has no folder with images", f"give {WORKLOAD.reads}")
    if images[-1][1] >= work.classes:
        what = f"{work.data} has {images[-1][1] + 1} folders, and there are {work.classes} classes"
        raise RequestError("--data", what, "raise --setting classes=N")
    return len(images)


def example(work, index):
    import torch

    if work.data is None:
        return noise(work, index)
    from PIL import Image

    path, label = files(work.data)[index]
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be decoded: {error}") from error
    with torch.random.fork_rng(devices=[]):  # what dropout draws on stays as it is
        torch.default_generator.manual_seed(work.seed * 1_000_003 + index)
        return augment(work.image_size)(image), torch.tensor(label)


@cache
def augment(edge):
    from torchvision.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

    return Compose([RandomResizedCrop(edge), RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, DEVIATION)])
