"""Fingerprints of a model: small enough to travel, sharp enough to tell whether two processes train the same one.

The checksum says whether ranks hold the same weights, bit for bit; the sketch how far two tensors are apart.
"""

import ctypes
import hashlib
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor, nn

SKETCH_SIZE = 16

PIECE = 2**16
"""Elements that are summed at a time: what is made of them stays in a core's cache."""


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 (hex) of the tensors' bytes, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))  # torch may be without numpy
    return digest.hexdigest()


def sketch(tensor: Tensor | None, position: int) -> list[float]:
    """:data:`SKETCH_SIZE` numbers that keep the distances between tensors of one shape; None stands for one of zeros.

    Each number is the sum of elements at equal distances, with random signs, which follow from ``position`` alone, so
    all processes agree. It is computed on the tensor's device. The squared norm of the sketch of a difference is that
    of the difference, within a relative standard error of at most sqrt(2 / SKETCH_SIZE) where none of the numbers has
    most of it (Alon, Matias and Szegedy, 1996).
    """
    if tensor is None:
        return [0.0] * SKETCH_SIZE
    elements = (tensor.to_dense() if tensor.is_sparse else tensor).detach().reshape(-1)
    signs = _signs(position, len(elements)).to(elements.device)
    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=elements.device)
    for part, sign in zip(elements.split(PIECE), signs.split(PIECE), strict=True):
        signed = nn.functional.pad(part.double() * sign, (0, -len(part) % SKETCH_SIZE))
        total += signed.view(-1, SKETCH_SIZE).sum(0)
    return total.tolist()


@cache
def _signs(position: int, number: int) -> Tensor:
    """``number`` times 1 or -1: drawn on the CPU, which gives the same on every machine, and kept, since drawing them
    takes longer than the rest of a sketch.
    """
    generator = torch.Generator().manual_seed(position)
    return 2 * torch.randint(0, 2, (number,), generator=generator, dtype=torch.int8) - 1
