"""Peaks of GPUs as their vendors state them: dense, not sparse, and half precision with sums in fp32.

Data sheets often show twice as much, "with sparsity", which no training reaches.
"""

import re

HOPPER = "NVIDIA H100 data sheet, halved where it says with sparsity"
H200 = "NVIDIA H200 data sheet, halved where it says with sparsity"
VOLTA = "NVIDIA V100 data sheet"
BLACKWELL = "NVIDIA Blackwell data sheet (HGX B200, GB200 NVL72), halved where it says with sparsity"

PEAKS: tuple[tuple[str, dict[str, float], str], ...] = (
    ("H100 NVL", {"half": 835.5, "tf32": 417.5, "fp32": 60.0}, HOPPER),
    ("H100 PCIe", {"half": 756.5, "tf32": 378.0, "fp32": 51.0}, HOPPER),
    ("H100", {"half": 989.4, "tf32": 494.7, "fp32": 66.9}, HOPPER),
    ("H200 NVL", {"half": 835.5, "tf32": 417.5, "fp32": 60.0}, H200),
    ("H200", {"half": 989.4, "tf32": 494.7, "fp32": 66.9}, H200),
    ("GH200", {"half": 989.4, "tf32": 494.7, "fp32": 66.9}, HOPPER.replace("H100", "GH200")),
    ("B200", {"half": 2250.0, "tf32": 1100.0, "fp32": 75.0}, BLACKWELL),
    ("GB200", {"half": 2500.0, "tf32": 1250.0, "fp32": 80.0}, BLACKWELL),
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
"""By the pattern of a device's name (the first that fits) dense TFLOP/s by type, and its source (half: fp16, bf16)."""

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
