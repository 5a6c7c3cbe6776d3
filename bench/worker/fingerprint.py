"""Fingerprints of a model: small enough to travel, sharp enough to tell whether two processes train the same one.

The checksum says whether ranks hold the same weights, bit for bit; the sketch how far two gradients are apart.
"""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

SKETCH_SIZE = 1024


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 (hex) of the tensors' bytes, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def sketch(tensors: Sequence[Tensor | None]) -> list[float]:
    """:data:`SKETCH_SIZE` numbers that keep the distances between vectors: here all tensors' elements as one vector.

    Every element goes with a random sign into a random one of the numbers, which follow from the tensor's position
    alone, so all processes agree. The norm of the sketch of a difference is that of the difference within a relative
    standard error of 1/sqrt(2 * SKETCH_SIZE), 2.2 % (the CountSketch of Charikar, Chen and Farach-Colton, 2002; its
    second moment as in Alon, Matias and Szegedy, 1996). None stands for a tensor of zeros.
    """
    sums = torch.zeros(2 * SKETCH_SIZE, dtype=torch.float64)  # of each number what goes into it negated, and what as is
    for position, tensor in enumerate(tensors):
        if tensor is None:
            continue
        elements = tensor.detach().reshape(-1).float().cpu()
        generator = torch.Generator().manual_seed(position)
        draws = torch.randint(2 * SKETCH_SIZE, (len(elements),), generator=generator, dtype=torch.int32)
        sums += torch.bincount(draws, weights=elements.double(), minlength=2 * SKETCH_SIZE)
    values: list[float] = (sums[1::2] - sums[::2]).tolist()
    return values
