"""An image classification step of torchvision: ResNet-101 as in the published comparison, or any other by ``--model``.

Images and labels are synthetic, each made from the seed and its index alone: fp32 standard normal noise and a class.
SGD with momentum updates the weights. Its step is fused, which under ``GradScaler`` needs no synchronisation.

Residual networks start with idle branches (the last batch norm of each at 0), as is usual for large batches (Goyal et
al. 2017, section 5.1): otherwise a ResNet-101 with random weights amplifies one rounding to several percent of its
gradient, and a comparison of numerics shows nothing.
"""

from bench.seams import RequestError, Workload, WorkRecipe

WORKLOAD = Workload(
    summary="image classification with ResNet-101 or any other model of torchvision, synthetic images",
    unit="images",
    unit_short="img",
    title="{model}, {image_size} px",
    imports=("torchvision",),
    global_batch={"cpu": 8, "cuda": 128},
    example_mib=121.0,  # of 224 px, as torch.autograd.graph.saved_tensors_hooks counts it (torch 2.15)
    settings={
        "model": "resnet101",
        "image_size": {"cpu": 64, "cuda": 224},
        "classes": 1000,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-4,
    },
)

RESIDUAL = ("resnet", "resnext", "wide_resnet")
"""Families of models that can start with idle residual branches: how their names begin."""


def model(work, **shape):
    from torchvision import models

    return models.get_model(work.model, **options(work), **shape)


def narrow(work):
    """In a ResNet an eighth of the channels between the outer convolutions of each block; in a ViT a quarter of all."""
    if work.model in ("resnet50", "resnet101", "resnet152"):
        return model(work, width_per_group=8)
    if work.model == "vit_b_16":
        from torchvision.models import VisionTransformer

        shape = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 12}
        return VisionTransformer(**shape, hidden_dim=192, mlp_dim=768, num_classes=work.classes)
    return None


def options(work):
    keywords = {"weights": None, "num_classes": work.classes}
    if work.model.startswith(RESIDUAL):
        keywords["zero_init_residual"] = True
    if work.model in ("googlenet", "inception_v3"):  # without the auxiliary head
        keywords |= {"aux_logits": False, "init_weights": True}
    return keywords


def example(work, index):
    import torch

    generator = torch.Generator().manual_seed(work.seed * 1_000_003 + index)
    image = torch.randn(3, work.image_size, work.image_size, generator=generator)
    return image, torch.randint(work.classes, (), generator=generator)


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    images, labels = batch
    return cross_entropy(model(images), labels)


def optimizer(work, parameters):
    from torch.optim import SGD

    return SGD(parameters, lr=work.learning_rate, momentum=work.momentum, weight_decay=work.weight_decay, fused=True)


def recipe(work):
    return WorkRecipe(
        imports=("from torch.nn.functional import cross_entropy", "from torchvision import models"),
        example=f"""\
def example(index: int) -> Any:
    generator = torch.Generator().manual_seed({work.seed!r} * 1_000_003 + index)
    image = torch.randn(3, {work.image_size!r}, {work.image_size!r}, generator=generator)
    return image, torch.randint({work.classes!r}, (), generator=generator)""",
        model=("models.get_model", repr(work.model), *(f"{name}={value!r}" for name, value in options(work).items())),
        inputs="{batch}[0]",
        loss="cross_entropy({output}, {batch}[1])",
        optimizer="torch.optim.SGD",
        settings={
            "lr": repr(work.learning_rate),
            "momentum": repr(work.momentum),
            "weight_decay": repr(work.weight_decay),
            "fused": "True",
        },
    )


def check(work):
    from difflib import get_close_matches

    from torchvision import models

    known = models.list_models(module=models)
    if work.model not in known:
        close = get_close_matches(work.model, known, n=3, cutoff=0.4) or known[:3]
        raise RequestError("--model", f"torchvision has no model {work.model!r}", f"did you mean {' or '.join(close)}?")
    if (why := _too_small(work)) is not None:
        raise RequestError("--image-size", f"{work.image_size} px: {why}", "take 224, or 32 and more for a ResNet")


def _too_small(work):
    """Why the model cannot train on images of this size, None if it can. Torch's meta device computes nothing.

    Where a layer that skips pixels has only one, it and what comes after no longer do what they are for.
    """
    import torch

    with torch.device("meta"):
        net = model(work)
        images = torch.empty(2, 3, work.image_size, work.image_size)
    idle = []

    def look(layer, args, output):
        strides = layer.stride if isinstance(layer.stride, tuple) else (layer.stride,)
        if max(strides) > 1 and min(args[0].shape[-2:]) == 1:
            idle.append(layer)

    for layer in net.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.MaxPool2d | torch.nn.AvgPool2d):
            layer.register_forward_hook(look)
    try:
        net(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        return f"{work.model} cannot take them ({str(error).splitlines()[0]})"
    return f"too small for {work.model}: one pixel is left before its last {len(idle)} reductions" if idle else None
