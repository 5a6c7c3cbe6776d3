"""How much of what a machine can do a step does: work, peaks, ceilings, and the account of a step."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from standin.workloads import workload

from bench.analyse.peaks import PEAKS, peak
from bench.core.records import Task, Training
from bench.seams import discover
from bench.seams.discover import WORKLOAD
from bench.worker import work
from bench.worker.workload import build_model, build_optimizer, loss_of


def counted(training: Training, batch: Any) -> work.Counter:
    """Of a step without memory or values (torch's device meta)."""
    with torch.device("meta"):
        model = build_model(training)
    counter = work.Counter()
    with counter:
        loss_of(training)(model, batch).backward()
    return counter


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(count, 3, 224, 224, device="meta"), torch.empty(count, dtype=torch.long, device="meta")


@pytest.mark.parametrize(("model", "gmac"), [("resnet50", 4.09), ("resnet101", 7.80)])
def test_flops_of_resnets_are_the_published_ones(model: str, gmac: float) -> None:
    """He et al. 2016 say 3.8 and 7.6 for the stride in the first 1x1; torchvision's models have it in the 3x3, and its
    documentation says 4.09 and 7.80."""
    counter = counted(workload(model=model, image_size=224), images(2))
    assert counter.forward / 2 / 2e9 == pytest.approx(gmac, abs=0.005)
    assert counter.backward == pytest.approx(2 * counter.forward, rel=0.02)  # all but the gradient of the images


def test_flops_of_gpt2_are_the_published_ones() -> None:
    """nanoGPT's transformer_sizing.ipynb: 291.6 GFLOP forward for 1,024 tokens, with a vocabulary of 50,257."""
    found = discover.load_workload("gpt", discover.names(WORKLOAD)["gpt"])
    settings = found.workload.settings_on("cuda") | {"vocabulary": 50257}
    training = Training(**vars_of(found.task("cuda", settings)), global_batch=1, replicas=1, device="cuda", warmup=1)
    tokens = torch.empty(1, 1024, dtype=torch.long, device="meta")
    counter = counted(training, (tokens, tokens))
    assert counter.forward == pytest.approx(291_648_307_200, rel=1e-3)
    assert counter.forward + counter.backward == pytest.approx(874_944_921_600, rel=1e-3)


def vars_of(trained: Task) -> dict[str, Any]:
    return {name: getattr(trained, name) for name in Task.__dataclass_fields__}


def test_bytes_of_a_step_follow_from_the_parameters() -> None:
    training = workload()
    parts = SimpleNamespace(
        workload=training,
        build_model=lambda: build_model(training),
        build_optimizer=lambda parameters: build_optimizer(training, parameters),
    )
    found = work.of_training(work.Counter(), parts)  # type: ignore[arg-type]
    size = 4 * 11_689_512  # torchvision's documentation of resnet18
    assert (found["parameters"], found["exchanged_bytes"]) == (size // 4, size)
    assert found["optimizer_bytes"] == 5 * size  # SGD: reads gradient, weight, momentum; writes the latter two


@pytest.mark.parametrize(
    ("device", "kind", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "fp16", 756.5),
        ("NVIDIA H200", "tf32", 494.7),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA L4", "fp32", 30.3),
        ("NVIDIA L40S", "bf16", 362.0),
        ("NVIDIA GeForce RTX 3090", "fp16", 71.0),
        ("NVIDIA GeForce RTX 3090 Ti", "fp16", None),
        ("NVIDIA GeForce RTX 4090", "tf32", 82.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "tf32", None),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("NVIDIA GB200", "bf16", None),
        (None, "fp32", None),
    ],
)
def test_nominal_peaks_are_dense_and_of_this_very_device(device: str | None, kind: str, tflops: float | None) -> None:
    value, why = peak(device, kind)
    assert value == tflops and why
    assert value is None or why in {source for _, _, source in PEAKS}
