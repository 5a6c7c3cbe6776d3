"""How much of what this machine can do a step does."""

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.peaks import peak
from bench.core.dtypes import HALVES
from bench.runs.experiments import Limits, Work
from bench.runs.launches import Effective

ACHIEVED = (
    *("scenario", "type", "devices", "step_ms", "tflops_per_s", "tflops_per_s_low", "tflops_per_s_high"),
    *("ceiling_tflops", "of_ceiling", "nominal_tflops", "mfu", "nominal"),
)
TIMES = ("step_median_ms", "step_high_ms", "step_low_ms")  # of which a speed and the ends of its interval are


def achieved(run: Analysed) -> pd.DataFrame:
    """One row per scenario that was measured, if the work of a step is known: :data:`ACHIEVED`.

    ``type``: that of most of its arithmetic (:func:`arithmetic`). ``tflops_per_s``: what the model
    needs, over the step, on all devices, with its 95 % interval over launches. ``of_ceiling``: of the measured ceiling
    of matrix products; null where none is known. ``mfu``: of the dense nominal peak; null with the reason in
    ``nominal``, which else is the source.
    """
    limits, batch, columns = run.document.begun(Limits), run.document.workload.global_batch, list(ACHIEVED)
    if limits.work is None or batch is None:
        return pd.DataFrame(columns=columns)
    tflop = (limits.work.forward_flops + limits.work.backward_flops) * batch / 1e12
    first = {one.scenario: one for one in reversed(run.document.good) if one.effective}
    rows = []
    for row in run.overview.to_dict("records"):
        launch, step_ms = first.get(row["scenario"]), row["step_median_ms"]
        if launch is None or launch.effective is None or pd.isna(step_ms):
            continue
        kind, devices = arithmetic(launch.effective, limits.work), launch.devices or launch.processes
        name = launch.effective.device.get("name") if run.document.workload.device == "cuda" else None
        nominal, why = peak(str(name) if name else None, kind)
        per_s, *ends = (None if pd.isna(row[of]) else 1000 * tflop / row[of] for of in TIMES)
        ceilings = limits.ceilings_of(launch)
        held = min(ceilings.tflops.get(f"matrix products {kind}", ()), default=None) if ceilings else None
        of_ceiling = (per_s or 0.0) / (devices * held) if held else None
        mfu = (per_s or 0.0) / (devices * nominal) if nominal else None
        rows.append((row["scenario"], kind, devices, step_ms, per_s, *ends, held, of_ceiling, nominal, mfu, why))
    return pd.DataFrame(rows, columns=columns)


def arithmetic(ran: Effective, work: Work) -> str:
    """The type that most of its arithmetic may take: ``fp16``, ``bf16``, ``tf32`` or ``fp32``."""
    half = next((name for name, dtype in HALVES.items() if dtype in ran.compute_dtypes), None)
    convolutions = 2 * work.convolution_flops > work.forward_flops + work.backward_flops
    return half or ("tf32" if ran.tf32 and (ran.tf32.cudnn if convolutions else ran.tf32.matmul) else "fp32")
