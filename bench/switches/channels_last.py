"""Weights and images in NHWC, the layout in which tensor cores take convolutions.

What is not an image stays as it is. A layer without a kernel for NHWC copies its input to NCHW and back, which can cost
more than the convolutions gain.
"""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="weights and images in NHWC (memory_format=torch.channels_last)",
    label="channels_last",
    recovers={"cuda": {"kernels": 0.3}},
    convolutions=True,
)


def model(parts, model):
    import torch

    return model.to(memory_format=torch.channels_last)


def batch(parts, batch):
    import torch

    from bench.worker.workload import map_tensors

    def last(tensor):
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return map_tensors(last, batch)


def effect(session, ran):
    return None if ran["memory_format"] == "channels_last" else f"the first layer computes {ran['memory_format']}"


def recipe(switches):
    return Recipe(
        model='nhwc: Any = {"memory_format": torch.channels_last}\nnet = net.to(**nhwc)',
        batch="batch = tree_map_only("
        "torch.Tensor, lambda item: item.contiguous(**nhwc) if item.dim() == 4 else item, batch)",
    )
