"""Object detection with torchvision's RetinaNet-R50-FPN from random weights, on images of all sizes.

    python -m bench run --workload retinanet --data VOCdevkit/VOC2012 --workers 4

``--data DIR`` is a folder of Pascal VOC (``Annotations/*.xml``, ``JPEGImages/``) or COCO
(``annotations/instances_train*.json``, ``train*/``). Without it images are noise with some boxes. The model computes
its losses itself, each the mean over the images of a batch.
"""

import os
from functools import cache
from glob import glob

from bench.seams import RequestError, Workload

WORKLOAD = Workload(
    summary="object detection with RetinaNet-R50-FPN",
    unit="images",
    unit_short="img",
    title="RetinaNet-R50-FPN, {image_size} px",
    imports=("torchvision", "PIL.Image"),
    reads="Annotations/*.xml and JPEGImages/ (Pascal VOC), or annotations/instances_train*.json and train*/ (COCO)",
    global_batch={"cpu": 4, "cuda": 16},
    example_mib=1810.0,  # as torch.autograd.graph.saved_tensors_hooks counts it (torch 2.15)
    settings={
        "image_size": {"cpu": 96, "cuda": 800},
        "classes": 91,
        "learning_rate": 0.005,
        "momentum": 0.9,
        "weight_decay": 1e-4,
    },
)


def model(work):
    from torchvision.models.detection import retinanet_resnet50_fpn

    sizes = {"min_size": work.image_size, "max_size": work.image_size * 5 // 3}
    return retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=work.classes, **sizes)


@cache
def files(folder):
    """Each image with its boxes (left, top, right, bottom) and their classes."""
    annotations = sorted(glob(os.path.join(folder, "annotations", "instances_train*.json")))
    return of_coco(folder, annotations[0]) if annotations else of_voc(folder)


def of_coco(folder, file):
    import json

    try:
        with open(file, encoding="utf-8") as text:
            content = json.load(text)
        images = os.path.join(folder, os.path.basename(file)[len("instances_") : -len(".json")])
        boxes_of = {one["id"]: (os.path.join(images, one["file_name"]), []) for one in content["images"]}
        for one in content["annotations"]:
            left, top, width, height = one["bbox"]
            boxes_of[one["image_id"]][1].append((left, top, left + width, top + height, one["category_id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError("--data", f"{file} is not COCO's: {type(error).__name__} {error}", "fix it") from error
    return list(boxes_of.values())


def of_voc(folder):
    import xml.etree.ElementTree as xml

    images, names = [], {}
    for file in sorted(glob(os.path.join(folder, "Annotations", "*.xml"))):
        try:
            root = xml.parse(file).getroot()
            boxes = []
            for one in root.iter("object"):
                edges = [float(one.find("bndbox").find(edge).text) for edge in ("xmin", "ymin", "xmax", "ymax")]
                boxes.append((*edges, names.setdefault(one.find("name").text, len(names) + 1)))
            images.append((os.path.join(folder, "JPEGImages", root.find("filename").text), boxes))
        except (xml.ParseError, AttributeError, TypeError, ValueError) as error:
            raise RequestError("--data", f"{file} is not Pascal VOC's: {error}", "fix it") from error
    return images


def size(work):
    images = files(work.data)
    if not images:
        raise RequestError("--data", f"{work.data} has no annotations", f"give {WORKLOAD.reads}")
    most = max((box[4] for _, boxes in images for box in boxes), default=0)
    if most >= work.classes:
        raise RequestError("--data", f"{work.data} has the class {most}", f"use --setting classes={most + 1}")
    return len(images)


def example(work, index):
    import torch

    if work.data is None:
        random = torch.Generator().manual_seed(work.seed * 1_000_003 + index)
        height, width = (torch.rand(2, generator=random) + 1).mul(work.image_size / 1.5).int().tolist()
        corners = torch.rand(1 + index % 8, 2, generator=random) * 0.6
        edges = torch.tensor([width, height, width, height])
        boxes = torch.cat([corners, corners + 0.1 + 0.3 * torch.rand(corners.shape, generator=random)], 1) * edges
        labels = torch.randint(1, work.classes, (len(boxes),), generator=random)
        return torch.rand(3, height, width, generator=random), {"boxes": boxes, "labels": labels}
    from PIL import Image
    from torchvision.transforms.functional import to_tensor

    path, boxes = files(work.data)[index]
    try:
        with Image.open(path) as file:
            image = to_tensor(file.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be decoded: {error}") from error
    valid = torch.tensor([box for box in boxes if box[2] > box[0] and box[3] > box[1]]).reshape(-1, 5).float()
    return image, {"boxes": valid[:, :4], "labels": valid[:, 4].long()}


def collate(examples):
    images, targets = zip(*examples, strict=True)
    return list(images), list(targets)


def loss(model, batch):
    return sum(model(*batch).values())


def optimizer(work, parameters):
    from torch.optim import SGD

    return SGD(parameters, lr=work.learning_rate, momentum=work.momentum, weight_decay=work.weight_decay, fused=True)
