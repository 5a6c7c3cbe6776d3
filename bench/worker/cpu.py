"""The types that this CPU computes fast in."""

import torch


def bf16_instructions() -> bool | None:
    """Whether oneDNN computes convolutions in bf16 here (AVX-512 and later, or Arm's); elsewhere they take dozens of
    times longer than in fp32. None where this torch does not say: its question is not a documented API.
    """
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return None
