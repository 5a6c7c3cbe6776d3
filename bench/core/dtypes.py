"""Floating-point types by name, and which of them "half" is."""

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # the usual name of a type, by torch's name
HALVES = {"fp16": "float16", "bf16": "bfloat16"}  # torch's name of each type that half can be

HALF_ON = {"cuda": "fp16", "cpu": "bf16"}
"""Half on a device, unless a scenario or a switch says otherwise (:attr:`bench.seams.discover.Found.half`)."""


def short(dtype: str) -> str:
    """``fp16`` for ``float16``; of another type torch's name."""
    return SHORT.get(dtype, dtype)
