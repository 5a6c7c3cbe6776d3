"""Torch DistributedDataParallel with AMP level O1: fp32 weights, half where it is safe.

Weights, gradients and batch norm stay fp32; convolutions and matrix products run in half, each with a cast of its
inputs. A dynamic loss scale keeps fp16 gradients from underflowing (bf16 on the CPU needs none). The native O1 is
``torch.autocast`` with ``GradScaler``; where apex.amp is available on CUDA, that is what runs.
"""

from bench.seams import Scenario

SCENARIO = Scenario(
    summary="torch DDP + O1: fp32 weights, autocast to half, dynamic loss scale",
    strategy="ddp",
    precision="O1",
)
