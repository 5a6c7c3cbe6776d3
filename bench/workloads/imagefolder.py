"""Image classification on JPEG files in one folder for each class, as ImageNet comes, through a ``DataLoader``.

    python -m bench run --workload imagefolder --data imagenet/train --workers 4

Each image is decoded, cropped at random, resized and maybe flipped by torchvision, drawn from the seed and the index,
so that every way to train sees the same pixels. Without ``--data`` images are noise.
"""

import os
from functools import cache

from bench.seams import RequestError, Workload

WORKLOAD = Workload(
    summary="image classification on JPEG folders, any model of torchvision",
    unit="images",
    unit_short="img",
    title="{model}, {image_size} px",
    imports=("torchvision", "PIL.Image"),
    reads="one folder of JPEG files for each class",
    global_batch={"cpu": 8, "cuda": 128},
    example_mib=121.0,
    settings={
        "model": "resnet50",
        "image_size": {"cpu": 64, "cuda": 224},
        "classes": 1000,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-4,
    },
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = (".jpg", ".jpeg", ".png")


def model(work, **shape):
    from torchvision import models

    if work.model.startswith(("resnet", "resnext", "wide_resnet")):
        shape["zero_init_residual"] = True
    return models.get_model(work.model, weights=None, num_classes=work.classes, **shape)


def narrow(work):
    return model(work, width_per_group=16) if work.model in ("resnet50", "resnet101", "resnet152") else None


def check(work):
    from torchvision import models

    if work.model not in models.list_models(module=models):
        raise RequestError("--model", f"torchvision has no model {work.model!r}", "give one, such as resnet50")


@cache
def files(folder):
    """Each image with the number of its class."""
    found = []
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    for number, name in enumerate(classes):
        names = sorted(os.listdir(os.path.join(folder, name)))
        found += [(os.path.join(folder, name, one), number) for one in names if one.lower().endswith(SUFFIXES)]
    return found


def size(work):
    found = files(work.data)
    if not found:
        raise RequestError("--data", f"{work.data} has no folder with images", f"give {WORKLOAD.reads}")
    if found[-1][1] >= work.classes:
        what = f"{work.data} has {found[-1][1] + 1} folders, and there are {work.classes} classes"
        raise RequestError("--data", what, "raise --setting classes=N")
    return len(found)


def example(work, index):
    import torch

    seed = work.seed * 1_000_003 + index
    if work.data is None:
        made = torch.Generator().manual_seed(seed)
        image = torch.randn(3, work.image_size, work.image_size, generator=made)
        return image, torch.randint(work.classes, (), generator=made)
    from PIL import Image

    path, label = files(work.data)[index]
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be decoded: {error}") from error
    with torch.random.fork_rng(devices=[]):  # what dropout draws on stays as it is
        torch.default_generator.manual_seed(seed)
        return augment(work.image_size)(image), torch.tensor(label)


@cache
def augment(edge):
    from torchvision.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

    return Compose([RandomResizedCrop(edge), RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, DEVIATION)])


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    images, labels = batch
    return cross_entropy(model(images), labels)


def optimizer(work, parameters):
    from torch.optim import SGD

    return SGD(parameters, lr=work.learning_rate, momentum=work.momentum, weight_decay=work.weight_decay, fused=True)
