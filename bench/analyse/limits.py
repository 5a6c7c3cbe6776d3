"""How much of what this machine can do a step does."""

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.peaks import peak
from bench.core.dtypes import HALVES
from bench.runs.experiments import Limits
from bench.runs.launches import Effective, LaunchRecord

ACHIEVED = ("scenario", "type", "devices", "step_ms", "tflops_per_s", "tflops_per_s_low", "tflops_per_s_high")
ENDS = {"": "step_median_ms", "_low": "step_high_ms", "_high": "step_low_ms"}  # of a speed, by those of a time
OF_PEAK = ("ceiling_tflops", "of_ceiling", "nominal_tflops", "mfu", "nominal")


def achieved(run: Analysed) -> pd.DataFrame:
    """One row per scenario that was measured, if the work of a step is known: :data:`ACHIEVED` and :data:`OF_PEAK`.

    ``type``: the fastest that its matrix products may take (:func:`arithmetic`). ``tflops_per_s``: what the model
    needs, over the step, on all devices, with its 95 % interval over launches. ``of_ceiling``: of the measured ceiling
    of matrix products; null where none is known. ``mfu``: of the dense nominal peak; null with the reason in
    ``nominal``, which else is the source.
    """
    work, batch = run.document.begun(Limits).work, run.document.workload.global_batch
    rows = []
    for row in run.overview.to_dict("records") if work and batch else ():
        launch = next((one for one in run.document.good if one.scenario == row["scenario"] and one.effective), None)
        if launch is None or launch.effective is None or pd.isna(row["step_median_ms"]):
            continue
        assert work is not None and batch is not None
        tflop = (work.forward_flops + work.backward_flops) * batch / 1e12
        kind, devices = arithmetic(launch.effective), launch.replicas or launch.processes
        nominal, why = peak(device_of(run, launch), kind)
        reached = {
            f"tflops_per_s{end}": None if pd.isna(row[of]) else 1000 * tflop / row[of] for end, of in ENDS.items()
        }
        mfu = None if nominal is None else (reached["tflops_per_s"] or 0.0) / (devices * nominal)
        columns = {"scenario": row["scenario"], "type": kind, "devices": devices, "step_ms": row["step_median_ms"]}
        ceilings = run.document.begun(Limits).ceilings_of(launch)
        held = min(ceilings.tflops.get(f"matrix products {kind}", ()), default=None) if ceilings else None
        of_ceiling = (reached["tflops_per_s"] or 0.0) / (launch.processes * held) if held else None
        columns |= {"ceiling_tflops": held, "of_ceiling": of_ceiling}
        rows.append({**columns, **reached, "nominal_tflops": nominal, "mfu": mfu, "nominal": why})
    return pd.DataFrame(rows, columns=[*ACHIEVED, *OF_PEAK])


def arithmetic(ran: Effective) -> str:
    """The fastest type that matrix products and convolutions may take: ``fp16``, ``bf16``, ``tf32`` or ``fp32``."""
    half = next((name for name, dtype in HALVES.items() if dtype in ran.compute_dtypes), None)
    return half or ("tf32" if ran.tf32 and (ran.tf32.cudnn or ran.tf32.matmul) else "fp32")


def device_of(run: Analysed, launch: LaunchRecord) -> str | None:
    """The name of the GPU that the first rank used; None on the CPU."""
    name = launch.effective.device.get("name") if launch.effective else None
    return str(name) if run.document.workload.device == "cuda" and name else None
