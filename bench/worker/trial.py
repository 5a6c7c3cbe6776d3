"""Whether a workload's model and loss fit together, tried before anything is launched.

First on torch's meta device, which knows shapes and no numbers, so that a model of any size takes a moment. What fails
there may be right elsewhere, such as a loss that makes tensors on the CPU. So it counts only if it fails on the CPU
too, with the examples that one replica trains at once.
"""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bench.core.errors import RequestError
from bench.core.job import Training
from bench.seams import execute
from bench.worker.data import Broken, Examples
from bench.worker.workload import (
    NO_MEMORY,
    build_model,
    build_optimizer,
    loss_of,
    map_tensors,
    tensors_in,
    tiny,
    wrong_loss,
)


def try_out(workload: Training) -> dict[str, object]:
    """``needs_two``: whether one example is too few for the model. Raises :class:`RequestError` where it cannot be
    trained, as far as that can be said without a launch."""
    try:
        _try(workload, torch.device("meta"), 2)
    except RequestError:
        # batch norm over one fails, and may be left out
        _try(workload, torch.device("cpu"), max(2, workload.global_batch // workload.replicas))
    return {"needs_two": _needs_two(workload)}


def _needs_two(workload: Training) -> bool:
    """Whether batch norm would have a single value of each channel in one example."""
    data = Examples(workload)
    one = data[0]
    try:
        batch = data.collate([one])
        with torch.device("meta"):
            model = build_model(workload)
        loss_of(workload)(model, map_tensors(lambda tensor: tensor.to("meta"), batch))
    except Exception as error:  # noqa: BLE001  # what else the user's functions raise is shown by a launch
        return "Expected more than 1 value per channel" in str(error)
    return False


def in_rows(workload: Training) -> bool:
    """Whether the largest tensor of a batch has a row for each example, and is not one example in a list."""
    data, count = Examples(workload), 2
    tensors = tensors_in(data.collate([data[index] for index in range(count)]))
    largest = max(tensors, key=lambda tensor: tensor.nbytes, default=None)
    return largest is None or tuple(largest.shape[:1]) == (count,)


def _try(workload: Training, device: torch.device, count: int) -> None:
    data = Examples(workload)
    examples = [data[index] for index in range(count)]
    if any(isinstance(one, Broken) for one in examples):
        return  # a launch that comes to it fails by its name
    batch = data.collate(examples)
    if isinstance(batch, Broken):
        raise RequestError("--workload", batch.problem, batch.remedy)
    if workload.device != "cpu" and not tensors_in(batch):
        kind = type(batch).__name__
        what = f"{workload.file}: collate(examples) returned {kind}, in which bench finds no tensor to move to the GPU"
        remedy = f"return a tuple, list, dict or dataclass of tensors, and make {kind} of them in loss(model, batch)"
        raise RequestError("--workload", what, remedy)
    try:
        with device:
            model = build_model(workload)
        if not isinstance(model, nn.Module):
            what = f"{workload.file}: model(work) returned {type(model).__name__}"
            raise RequestError("--workload", what, "return a torch.nn.Module")
        if any(map(is_lazy, model.parameters())):
            what = f"{workload.file}: model(work) returned a model whose lazy layers have no weights yet"
            raise RequestError("--workload", what, "call it once, or give the layers their sizes")
        if any(weight.is_complex() for weight in model.parameters()):
            what = "model(work) returned a model with complex weights, which no level of precision has"
            remedy = "keep them as torch.view_as_real gives them, and call torch.view_as_complex in forward"
            raise RequestError("--workload", f"{workload.file}: {what}", remedy)
        batch = map_tensors(lambda tensor: tensor.to(device), batch)
        floats = {one: one._version for one in tensors_in(batch) if one.is_floating_point()}
        loss = loss_of(workload)(model, batch)
        if workload.workers is None and any(one._version != before for one, before in floats.items()):
            what = f"{workload.file}: loss(model, batch) changes the batch in place, and made-up data comes again"
            raise RequestError("--workload", what, "change a copy, as x.mul(2) makes one and x.mul_(2) does not")
        if (refused := wrong_loss(workload, loss)) is not None:
            raise refused
        _try_optimizer(workload, model)
    except RequestError:
        raise
    except Exception as error:  # whatever the user's functions raise is the finding
        at = execute.line_in(workload.file, error)
        text = str(error).lower()
        unfit = isinstance(error, MemoryError | NotImplementedError) or any(one in text for one in ("meta", *NO_MEMORY))
        if at is None or workload.device != "cpu" or unfit:  # the computation may be right, and only the trial is not
            return
        what = f"{workload.file}:{at} fails on a batch of {count}: {type(error).__name__}: {error}"
        raise RequestError("--workload", " ".join(what.split()), "fix the file") from error


def _try_optimizer(workload: Training, model: nn.Module) -> None:
    try:
        build_optimizer(workload, tiny(model))
    except RequestError:
        raise
    except Exception:  # noqa: BLE001  # it may be right with the weights of a launch
        pass
