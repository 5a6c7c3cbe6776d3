"""The implementation that ran, in words short enough for a table and a plot; from run.json's ``effective`` alone."""

from bench.core.dtypes import short
from bench.runs.launches import Effective


def what_ran(effective: Effective | None) -> str:
    """For example ``torch DDP · gloo ×2 · native O1 bf16``. Empty where no rank came that far."""
    if effective is None:
        return ""
    group = f"{effective.replicas} GPUs" if effective.replicas > 1 else None
    if effective.backend is not None:
        group = f"{effective.backend} ×{effective.world_size}"
    label = effective.label + _in_python(effective, effective.parallel_impl)
    return " · ".join(filter(None, (label, group, precision(effective))))


def precision(effective: Effective) -> str:
    """Who implemented which level, in which half: ``native O2 bf16``, ``apex (Python) O1 fp16``, or ``fp32``."""
    compute = "+".join(map(short, effective.compute_dtypes))
    level = effective.precision
    if level == "O0":
        tf32 = effective.tf32
        if compute != "fp32" or tf32 is None or not (tf32.cudnn or tf32.matmul):
            return compute
        return f"fp32 (TF32 {'convolutions' if tf32.cudnn else 'matrix products'})"
    if level is None:
        return f"no level of AMP, {compute}" if compute else "precision unknown"
    implementation = f"{effective.precision_impl}{_in_python(effective, effective.precision_impl)}"
    return f"{implementation} {level} {compute}" + (" by way of fp32" if effective.bf16_by_fp32 else "")


def _in_python(effective: Effective, implementation: str | None) -> str:
    """Marks apex without its kernels, whose loss scaler waits for the GPU once a gradient."""
    return " (Python)" if implementation == "apex" and effective.apex_kernels is False else ""
