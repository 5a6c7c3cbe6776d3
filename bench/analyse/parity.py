"""Does a recipe still train the same model? Every launch against the chunk-accumulating fp32 reference.

The bounds come from the run itself. The *twin* is the reference with its weights moved once by at most the unit
roundoff u of half precision, in the one of eight ways that takes the first gradient farthest (``CANDIDATES`` in
``bench.worker.reference``): how far it strays, in the gradient of the first step and in the loss of every step, is what
one rounding a layer does to this model. A step in half rounds six times a layer (weight, convolution and batch norm,
forward and backward); independent errors add up as a random walk, so :data:`ROUNDINGS` = 3, a little more than the
square root of six, times the twin's distance is allowed. For another u the distance scales linearly or, through units
that an activation switches, as the square root: the larger of the two. u times the loss is added, which is rounded too.
To be called ``same`` a gradient may be off by :data:`SAME_GRADIENT`, and a loss by the bound for fp32's u.

A loss in fp32 is not called ``diverged`` before it leaves the bound of half, because in a small model a single unit
that rounding switches is most of the twin's distance: it is ``within half precision``, and a finding says so. The
gradient of the first step, before anything could build up, keeps the bound of what computes it.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from bench.core.records import PARITIES
from bench.runs.document import Effective, LaunchRecord, ParityRecord, RunDocument
from bench.runs.frames import Iterations

ROUNDINGS = 3.0
SAME_GRADIENT = 1e-5
U_FP32 = 2.0**-24
UNIT_ROUNDOFF = {"float32": U_FP32, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number (Higham, Accuracy and Stability of Numerical Algorithms, section 2.1)."""

U_TF32 = 2.0**-11

SAME, WITHIN_HALF, DIVERGED, NOT_FINITE = PARITIES

FINE = "within the bounds of half precision, but not of fp32"
COARSE = "it computes in fp32, and is within the bounds of half precision only"
UNTRUE = (DIVERGED, NOT_FINITE)  # it trains another model, or none

COLUMNS = tuple(ParityRecord.__dataclass_fields__)


def parity(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """One row per launch that is ``ok``.

    ``verdict``: of :data:`PARITIES` or None, with a ``reason`` for every one but ``same``. ``gradient_error``:
    ||g - r|| / ||r|| of the first step's gradient g (the worst rank's) and the reference's r, with its
    ``gradient_bound`` for the precision that ran; ``gradient_alone`` the same for a replica that forgets the others.
    ``loss_error``, ``loss_bound``: at the measured ``loss_step`` that comes closest to its bound, or exceeds it most.
    """
    reference = _Reference.of(document, numerics)
    sketches = numerics[(numerics["quantity"] == "gradient") & numerics["rank"].notna()]
    table = steps.frame
    of_launches = table.groupby("launch").indices
    losses = table["loss"].to_numpy()
    rows = []
    for launch in document.good:
        mine = sketches[sketches["launch"] == launch.launch]
        gradients = [rank["value"].to_numpy() for _, rank in mine.groupby("rank")]
        loss = losses[of_launches.get(launch.launch, [])]
        known = dict.fromkeys(COLUMNS) | {"launch": launch.launch, "scenario": launch.scenario}
        why_not = document.strategy_of(launch).not_comparable
        rows.append(known | _judge(launch, gradients, loss, document.workload.warmup or 0, reference, why_not))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def by_scenario(launches: pd.DataFrame) -> pd.DataFrame:
    """The gravest of each scenario's launches; :func:`parity`'s columns. Of equally grave ones the first."""
    gravity = {NOT_FINITE: 0, DIVERGED: 1, None: 2, WITHIN_HALF: 3, SAME: 4}
    order = launches["verdict"].map(lambda verdict: gravity[verdict if isinstance(verdict, str) else None])
    ordered = launches.assign(gravity=order).sort_values(["gravity", "launch"], kind="stable")
    return ordered.drop_duplicates("scenario").drop(columns="gravity").sort_values("launch").reset_index(drop=True)


def loss_curves(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """The losses of each scenario's first launch that is ``ok``, one row per step, warm-up included.

    ``scenario, launch, step``; ``loss``: of the global batch; ``reference``: of as many replicas; ``bound``: by how
    much they may differ in the precision that ran. The last two are null without such a reference.
    """
    reference = _Reference.of(document, numerics)
    means = steps.frame[["launch", "step", "loss"]]
    with_steps = set(means["launch"].unique())
    tables = []
    for scenario in dict.fromkeys(document.request.scenarios):
        launch = next((one for one in document.good if one.scenario == scenario), None)
        if launch is None or launch.launch not in with_steps:
            continue
        table = means[means["launch"] == launch.launch].reset_index(drop=True).assign(scenario=scenario)
        ran = launch.effective
        theirs, bounds = np.empty(0), np.empty(0)
        if ran is not None and not isinstance(reference, str) and ran.replicas in reference.counts:
            theirs = reference.loss(ran.replicas)
            bounds = reference.loss_bounds(ran.replicas, reference.coarse(unit_roundoff(ran)))
        tables.append(
            table.assign(reference=pd.Series(theirs, dtype="float64"), bound=pd.Series(bounds, dtype="float64"))
        )
    columns = ["scenario", "launch", "step", "loss", "reference", "bound"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


class _Reference:
    """The passes of the reference, by number of replicas, and how far the twin strays."""

    def __init__(self, rows: pd.DataFrame, unit: float) -> None:
        self.unit = unit
        self._values: dict[Any, np.ndarray] = {}
        for key, group in rows.astype({"replicas": int}).groupby(["quantity", "replicas", "twin"]):
            self._values[key] = group.sort_values("position")["value"].to_numpy()
        self.counts = sorted({replicas for quantity, replicas, _ in self._values if quantity == "loss"})
        most = self.counts[-1]
        self.gradient_strays = distance(self.gradient(most, twin=True), self.gradient(most))
        self.loss_strays = np.maximum.accumulate(np.abs(self.loss(most, twin=True) - self.loss(most)))

    @classmethod
    def of(cls, document: RunDocument, numerics: pd.DataFrame) -> "_Reference | str":
        """The reference of a run, or why it cannot be used."""
        about = document.reference
        if about is None:
            return "the reference was not computed (--no-parity, or the run ended before it)"
        if about.status != "ok":
            return f"the reference failed ({about.status}): {about.reason}"
        reference = cls(numerics[numerics["rank"].isna()], about.unit_roundoff or math.nan)
        if not np.isfinite(reference.gradient_strays) or not np.isfinite(reference.loss_strays).all():
            return "the reference itself is not finite, so nothing can be held against it"
        return reference

    def loss(self, replicas: int, *, twin: bool = False) -> np.ndarray:
        return self._values["loss", replicas, twin]

    def gradient(self, replicas: int, *, twin: bool = False) -> np.ndarray:
        return self._values["gradient", replicas, twin]

    def alone(self, replicas: int) -> float | None:
        """How far the gradient of one replica by itself is from the average; None for one replica."""
        values = self._values.get(("alone", replicas, False))
        return None if values is None else distance(values, self.gradient(replicas))

    def coarse(self, unit: float) -> float:
        """What losses of this unit roundoff are allowed: that of half, or its own where it is coarser still."""
        return max(unit, self.unit)

    def gradient_bound(self, unit: float) -> float:
        return ROUNDINGS * self._scale(unit) * self.gradient_strays

    def loss_bounds(self, replicas: int, unit: float) -> np.ndarray:
        """For each step."""
        rounding = self.unit * np.abs(self.loss(replicas))
        bounds: np.ndarray = ROUNDINGS * self._scale(unit) * (self.loss_strays + rounding)
        return bounds

    def _scale(self, unit: float) -> float:
        ratio = unit / self.unit
        return max(ratio, math.sqrt(ratio))


def _judge(
    launch: LaunchRecord,
    gradients: list[np.ndarray],
    loss: np.ndarray,
    warmup: int,
    reference: "_Reference | str",
    not_comparable: str | None,
) -> dict[str, Any]:
    if launch.effective is None:
        return {"reason": "it was imported: nothing is known of its numerics"}
    checks = launch.checks
    replicas = launch.effective.replicas
    found: dict[str, Any] = {"replicas": replicas}
    bad = np.flatnonzero(~np.isfinite(loss))
    if len(bad):
        return found | {"verdict": NOT_FINITE, "reason": f"the loss of step {bad[0]} is not finite"}
    if not_comparable is not None:
        return found | {"reason": f"not comparable: {not_comparable}"}
    if checks.final_weights_alike is False:
        when = "before the first step" if not checks.initial_weights_alike else "after the last step"
        return found | {"verdict": DIVERGED, "reason": f"the ranks hold different parameters {when}"}
    if isinstance(reference, str):
        return found | {"reason": reference}
    if replicas not in reference.counts or not gradients:
        return found | {"reason": f"there is no reference of {replicas} replicas, or no gradient of this launch"}
    unit = unit_roundoff(launch.effective)
    skipped = (checks.skipped_warmup_steps or 0) + (checks.skipped_steps or 0)
    errors = [distance(gradient, reference.gradient(replicas)) for gradient in gradients]
    error = float(np.max(errors))  # Python's own passes over a NaN that is not the first
    bound = reference.gradient_bound(unit)
    known = np.isfinite(error)
    if known:
        found |= {"gradient_error": error, "gradient_bound": max(bound, SAME_GRADIENT)}
    found["gradient_alone"] = reference.alone(replicas)
    if skipped and not known:
        return found | {"reason": f"the loss scaler skipped {skipped} steps, the first among them: nothing to compare"}
    if not known:
        return found | {"verdict": NOT_FINITE, "reason": "the gradient of the first step is not finite"}
    differ = np.abs(loss - reference.loss(replicas)[: len(loss)])[warmup:]
    half, full = (reference.loss_bounds(replicas, u)[warmup : len(loss)] for u in (reference.coarse(unit), U_FP32))
    worst = int(np.argmax(differ / half))
    found |= {"loss_error": differ[worst], "loss_bound": half[worst], "loss_step": warmup + worst}
    if error > max(bound, SAME_GRADIENT):
        return found | {"verdict": DIVERGED, "reason": f"the gradient of the first step is {error:.2g} off"}
    if skipped:
        reason = f"by the gradient alone: the loss scaler skipped {skipped} steps, so losses belong to other weights"
        return found | {"verdict": WITHIN_HALF, "reason": reason}
    if differ[worst] > half[worst]:
        first = warmup + int(np.argmax(differ > half))
        return found | {"verdict": DIVERGED, "reason": f"the loss leaves its bound at step {first}"}
    if error <= SAME_GRADIENT and (differ <= full).all():
        return found | {"verdict": SAME}
    return found | {"verdict": WITHIN_HALF, "reason": COARSE if unit == U_FP32 else FINE}


def unit_roundoff(effective: Effective) -> float:
    """Of the coarsest type that was computed in. fp32 convolutions in TF32 have the significand of fp16."""
    tf32 = effective.tf32 is not None and effective.tf32.cudnn
    units = [UNIT_ROUNDOFF[dtype] for dtype in effective.compute_dtypes if dtype in UNIT_ROUNDOFF]
    return max([*units, U_TF32 if tf32 else U_FP32])


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """||ours - theirs|| / ||theirs||; of sketches that of the vectors, within a few percent. NaN stays NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
