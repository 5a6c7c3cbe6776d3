"""How much of what this machine can do a step does, and the peaks of GPUs as their vendors state them."""

import re

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.core.dtypes import HALVES
from bench.runs.experiments import Limits
from bench.runs.launches import Effective

ACHIEVED = ("scenario", "type", "devices", "step_ms", "tflops_per_s", "tflops_per_s_low", "tflops_per_s_high")
TIMES = ("step_median_ms", "step_high_ms", "step_low_ms")  # of which a speed and the ends of its interval are
OF_PEAK = ("ceiling_tflops", "of_ceiling", "nominal_tflops", "mfu", "nominal")


def achieved(run: Analysed) -> pd.DataFrame:
    """One row per scenario that was measured, if the work of a step is known: :data:`ACHIEVED` and :data:`OF_PEAK`.

    ``type``: the fastest that its matrix products may take (:func:`arithmetic`). ``tflops_per_s``: what the model
    needs, over the step, on all devices, with its 95 % interval over launches. ``of_ceiling``: of the measured ceiling
    of matrix products; null where none is known. ``mfu``: of the dense nominal peak; null with the reason in
    ``nominal``, which else is the source.
    """
    limits, batch, columns = run.document.begun(Limits), run.document.workload.global_batch, [*ACHIEVED, *OF_PEAK]
    if limits.work is None or batch is None:
        return pd.DataFrame(columns=columns)
    tflop = (limits.work.forward_flops + limits.work.backward_flops) * batch / 1e12
    first = {one.scenario: one for one in reversed(run.document.good) if one.effective}
    rows = []
    for row in run.overview.to_dict("records"):
        launch, step_ms = first.get(row["scenario"]), row["step_median_ms"]
        if launch is None or launch.effective is None or pd.isna(step_ms):
            continue
        kind, devices = arithmetic(launch.effective), launch.devices or launch.processes
        name = launch.effective.device.get("name") if run.document.workload.device == "cuda" else None
        nominal, why = peak(str(name) if name else None, kind)
        per_s, *ends = (None if pd.isna(row[of]) else 1000 * tflop / row[of] for of in TIMES)
        ceilings = limits.ceilings_of(launch)
        held = min(ceilings.tflops.get(f"matrix products {kind}", ()), default=None) if ceilings else None
        of_ceiling = (per_s or 0.0) / (devices * held) if held else None
        mfu = (per_s or 0.0) / (devices * nominal) if nominal else None
        rows.append((row["scenario"], kind, devices, step_ms, per_s, *ends, held, of_ceiling, nominal, mfu, why))
    return pd.DataFrame(rows, columns=columns)


def arithmetic(ran: Effective) -> str:
    """The fastest type that matrix products and convolutions may take: ``fp16``, ``bf16``, ``tf32`` or ``fp32``."""
    half = next((name for name, dtype in HALVES.items() if dtype in ran.compute_dtypes), None)
    return half or ("tf32" if ran.tf32 and (ran.tf32.cudnn or ran.tf32.matmul) else "fp32")


HOPPER = "NVIDIA H100 data sheet, halved where it says with sparsity"
H200 = "NVIDIA H200 data sheet, halved where it says with sparsity"
VOLTA = "NVIDIA V100 data sheet"

PEAKS: tuple[tuple[str, dict[str, float], str], ...] = (
    ("H100 NVL", {"half": 835.5, "tf32": 417.5, "fp32": 60.0}, HOPPER),
    ("H100 PCIe", {"half": 756.5, "tf32": 378.0, "fp32": 51.0}, HOPPER),
    ("H100", {"half": 989.4, "tf32": 494.7, "fp32": 66.9}, HOPPER),
    ("H200 NVL", {"half": 835.5, "tf32": 417.5, "fp32": 60.0}, H200),
    ("H200", {"half": 989.4, "tf32": 494.7, "fp32": 66.9}, H200),
    ("A100", {"half": 312.0, "tf32": 156.0, "fp32": 19.5}, "NVIDIA A100 data sheet"),
    ("V100S", {"fp16": 130.0, "fp32": 16.4}, VOLTA),
    ("V100-SXM[23]", {"fp16": 125.0, "fp32": 15.7}, VOLTA),
    ("V100", {"fp16": 112.0, "fp32": 14.0}, VOLTA),
    ("L40S", {"half": 362.0, "tf32": 183.0, "fp32": 91.6}, "NVIDIA L40S data sheet"),
    ("L4", {"half": 121.0, "tf32": 60.0, "fp32": 30.3}, "NVIDIA L4 data sheet, halved where it says with sparsity"),
    ("RTX 3090(?! Ti)", {"half": 71.0, "tf32": 35.6, "fp32": 35.6}, "NVIDIA Ampere GA102 GPU architecture"),
    ("RTX 4090(?! D| Laptop)", {"half": 165.2, "tf32": 82.6, "fp32": 82.6}, "NVIDIA Ada GPU architecture"),
    ("RTX 5090(?! D| Laptop)", {"half": 209.5, "tf32": 104.8, "fp32": 104.8}, "NVIDIA RTX Blackwell GPU architecture"),
    ("MI300X", {"half": 1307.4, "tf32": 653.7, "fp32": 163.4}, "AMD Instinct MI300X data sheet"),
)
"""By the pattern of a device's name (the first that fits) dense TFLOP/s by type (half: fp16, bf16), and source. Data
sheets often show twice as much, "with sparsity", which no training reaches."""

OF_A_CPU = "a CPU has no nominal peak: its clock depends on the instructions and the load"


def peak(device: str | None, kind: str) -> tuple[float | None, str]:
    """Dense TFLOP/s of one device with the source, or None with the reason.

    ``device``: its name by the driver, None for a CPU. ``kind``: ``fp32``, ``tf32``, ``fp16`` or ``bf16``.
    """
    if device is None:
        return None, OF_A_CPU
    for name, peaks, source in PEAKS:
        if re.search(rf"\b{name}\b", device):
            value = peaks.get(kind, peaks.get("half") if kind in ("fp16", "bf16") else None)
            return value, source if value else f"{device} has no units for {kind}"
    return None, f"the nominal peak of {device} is not known to bench"
