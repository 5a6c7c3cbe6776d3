"""The built-in workload with the settings of a test, as values."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from bench.core.job import Task, Training
from bench.seams import discover

BUILT_IN = discover.load_workload(*discover.resolve(discover.DEFAULT_WORKLOAD, discover.WORKLOAD))
FILES = tempfile.TemporaryDirectory(prefix="bench-workloads-")

TINY = """

def model(work):
    from collections import OrderedDict

    from torch import nn

    assert work.model.startswith("resnet")
    first = {"conv1": nn.Conv2d(3, 8, 3, stride=4, bias=False), "bn1": nn.BatchNorm2d(8), "relu": nn.ReLU()}
    then = {"layer1": nn.Conv2d(8, 8, 3, bias=False), "bn2": nn.BatchNorm2d(8), "pool": nn.AdaptiveAvgPool2d(1)}
    return nn.Sequential(OrderedDict(first | then | {"flatten": nn.Flatten(), "fc": nn.Linear(8, work.classes)}))
"""
"""Comes after the rest of the built-in workload, whose ``model`` it replaces, as :data:`NARROW` does."""

NARROW = """

def model(work):
    from torch import nn
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):
        def _make_layer(self, block, planes, *given, **named):
            return super()._make_layer(block, planes // 8, *given, **named)

    assert work.model == "resnet18"
    net = Narrow(BasicBlock, [2, 2, 2, 2], num_classes=work.classes, zero_init_residual=True)
    net.fc = nn.Linear(64, work.classes)
    return net
"""


def task(device: str = "cpu", **settings: Any) -> Task:
    return BUILT_IN.task(device, BUILT_IN.workload.settings_on(device) | settings)


def narrow() -> Task:
    """A ResNet-18 of an eighth of the width: as deep, and quicker."""
    return _changed("narrow", NARROW)


def tiny() -> Task:
    """Two convolutions with batch norm and a linear layer, 9,800 weights: for tests that are not about the model."""
    return _changed("tiny", TINY)


@cache
def _changed(name: str, source: str) -> Task:
    file = Path(FILES.name, f"{name}.py")
    file.write_text(Path(BUILT_IN.file).read_text() + source)
    settings = BUILT_IN.workload.settings_on("cpu") | {"model": "resnet18", "image_size": 32}
    return discover.load_workload(name, str(file)).task("cpu", settings)


def workload(**changes: Any) -> Training:
    """ResNet-18 with eight images of 32 px on two ranks, changed: fields of the workload, and settings."""
    fields = {"global_batch": 8, "replicas": 2, "device": "cpu", "warmup": 1}
    settings = {"model": "resnet18", "image_size": 32}
    for name, value in changes.items():
        (fields if name in Training.__dataclass_fields__ else settings)[name] = value
    found = task(str(fields["device"]), **settings)
    return Training(**{name: getattr(found, name) for name in Task.__dataclass_fields__} | fields)  # type: ignore[arg-type]
