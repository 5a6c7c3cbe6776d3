"""Fingerprints of a model: small enough to travel, sharp enough to tell whether two processes train the same one.

The checksum says whether ranks hold the same weights, bit for bit; the sketch how far two tensors are apart.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

SKETCH_SIZE = 16


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 (hex) of the tensors' bytes, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def sketch(tensor: Tensor | None, position: int) -> list[float]:
    """:data:`SKETCH_SIZE` numbers that keep the distances between tensors of one shape; None stands for one of zeros.

    Each number is the sum of every so many elements with random signs, which follow from ``position`` alone, so all
    processes agree. The squared norm of the sketch of a difference is that of the difference, within a relative
    standard error of at most sqrt(2 / SKETCH_SIZE) where none of the numbers has most of it (Alon, Matias and Szegedy,
    1996).
    """
    if tensor is None:
        return [0.0] * SKETCH_SIZE
    elements = tensor.detach().reshape(-1).float().cpu()
    generator = torch.Generator().manual_seed(position)
    signs = torch.randint(0, 2, (len(elements),), generator=generator, dtype=torch.int8)
    signed = nn.functional.pad(elements * (2 * signs - 1), (0, -len(elements) % SKETCH_SIZE))
    values: list[float] = signed.view(-1, SKETCH_SIZE).double().sum(0).tolist()
    return values
