"""What this CPU can compute fast: of no use to know on a GPU, and the first thing to know without one."""

import torch


def bf16_instructions() -> bool | None:
    """Whether torch hands convolutions in bf16 to oneDNN on this CPU, as it does where there are instructions for it
    (AVX-512 and later, or Arm's). Elsewhere a loop of its own computes them, dozens of times slower than those in fp32.

    None where this torch does not tell: it is the question that it asks itself, and not part of its documented API.
    """
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return None
