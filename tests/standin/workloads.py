"""The built-in workload with the settings of a test, as values."""

import hashlib
from dataclasses import replace
from typing import Any

from bench.core.records import Task, Training, canonical_json
from bench.seams import discover

BUILT_IN = discover.load_workload(*discover.resolve(discover.DEFAULT_WORKLOAD, discover.WORKLOAD))


def task(device: str = "cpu", **settings: Any) -> Task:
    return BUILT_IN.task(device, BUILT_IN.workload.settings_on(device) | settings)


def workload(**changes: Any) -> Training:
    """ResNet-18 with eight images of 32 px on two ranks, changed: fields of the workload, and settings."""
    fields = {"global_batch": 8, "replicas": 2, "device": "cpu", "half": "bf16", "warmup": 1}
    settings = {"model": "resnet18", "image_size": 32}
    for name, value in changes.items():
        (fields if name in Training.__dataclass_fields__ else settings)[name] = value
    found = task(str(fields["device"]), **settings)
    return Training(**{name: getattr(found, name) for name in Task.__dataclass_fields__} | fields)  # type: ignore[arg-type]


def with_settings(work: Training, **settings: Any) -> Training:
    return replace(work, settings=work.settings | settings)


def of_schema_3(work: Training) -> dict[str, Any]:
    """The same work as run.json had it when a workload was a model of torchvision."""
    names = ("global_batch", "replicas", "device", "half", "warmup", "seed", "pool_batches")
    said = {"loss": "cross_entropy", "optimizer": "sgd", "data": "synthetic", "zero_init_residual": True}
    old = {**work.settings, **said, **{name: getattr(work, name) for name in names}}
    return {**old, "hash": hashlib.sha256(canonical_json(old).encode()).hexdigest()}
