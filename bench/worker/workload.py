"""What is trained: the workload's model, loss and optimizer, built for one rank."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from bench.core.records import Workload

Forward = Callable[..., Any]
"""The model, or whatever a strategy and a precision made of it: called with the model's inputs."""

Loss = Callable[[Forward, Any], Tensor]
"""``loss(model, batch)``: the mean loss of a batch, a scalar; it calls the model itself."""


def model_names() -> list[str]:
    """The classification models of torchvision."""
    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def build_model(work: Workload) -> nn.Module:
    """The model on the CPU, in fp32, with the weights that the seed gives on every rank."""
    torch.manual_seed(work.seed)
    options: dict[str, Any] = {"weights": None, "num_classes": work.classes}
    if work.zero_init_residual:
        options["zero_init_residual"] = True
    if work.model in ("googlenet", "inception_v3"):  # without the auxiliary head
        options |= {"aux_logits": False, "init_weights": True}
    return torchvision.models.get_model(work.model, **options)


def build_optimizer(work: Workload, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """SGD with momentum, fused: a fused step under ``GradScaler`` needs no synchronisation with the GPU."""
    return torch.optim.SGD(
        parameters, lr=work.learning_rate, momentum=work.momentum, weight_decay=work.weight_decay, fused=True
    )


def loss_of(work: Workload) -> Loss:
    """The loss of the workload."""

    def loss(model: Forward, batch: Any) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    return loss
