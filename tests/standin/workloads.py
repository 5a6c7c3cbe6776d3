"""The built-in workload with the settings of a test, as values."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bench.core.records import Task, Training
from bench.seams import discover

BUILT_IN = discover.load_workload(*discover.resolve(discover.DEFAULT_WORKLOAD, discover.WORKLOAD))


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
"""Comes after the rest of the built-in workload, whose ``model`` it replaces."""


def task(device: str = "cpu", **settings: Any) -> Task:
    return BUILT_IN.task(device, BUILT_IN.workload.settings_on(device) | settings)


FILES = tempfile.TemporaryDirectory(prefix="bench-workloads-")


@cache
def narrow(image_size: int = 32) -> Task:
    """A ResNet-18 of an eighth of the width: as deep, and quicker."""
    file = Path(FILES.name, "narrow.py")
    file.write_text(Path(BUILT_IN.file).read_text() + NARROW)
    settings = BUILT_IN.workload.settings_on("cpu") | {"model": "resnet18", "image_size": image_size}
    return discover.load_workload("narrow", str(file)).task("cpu", settings)


def workload(**changes: Any) -> Training:
    """ResNet-18 with eight images of 32 px on two ranks, changed: fields of the workload, and settings."""
    fields = {"global_batch": 8, "replicas": 2, "device": "cpu", "warmup": 1}
    settings = {"model": "resnet18", "image_size": 32}
    for name, value in changes.items():
        (fields if name in Training.__dataclass_fields__ else settings)[name] = value
    found = task(str(fields["device"]), **settings)
    return Training(**{name: getattr(found, name) for name in Task.__dataclass_fields__} | fields)  # type: ignore[arg-type]


def with_settings(work: Training, **settings: Any) -> Training:
    return replace(work, settings=work.settings | settings)
