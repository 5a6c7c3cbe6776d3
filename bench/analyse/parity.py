"""Does a recipe still train the same model? What every launch trained, tensor by tensor, against the reference.

After its measured steps each launch does a probe (:mod:`bench.worker.probe`): whole steps from weights, and on batches,
that it could not foresee. Three things are held against a reference that computed in the same way:

- the *gradient* of every tensor, in every step, and what the step did to the buffers. ||g - r|| / ||r||, the norm of r
  being at least :data:`LEAST_NORM` of that of the whole gradient;
- the *update* of every tensor: against the workload's own optimizer, given the launch's own gradients;
- what *all steps* of the launch did to every tensor: against the reference's training at the same precision level. A
  scenario may behave in the probe alone, and skip steps where it is measured.

Each error has a *bound*, what rounding may do, and a *limit*, below which no mistake of 5 % is. A launch whose errors
are all within both is as the reference, whatever the bound: ``same`` if it computed in fp32, ``within half precision``
if not. Beyond the bound it is ``diverged``, and between limit and bound nobody can tell.

Bounds come from the run itself. In fp32: twins of the probe with weights moved by at most the unit roundoff u show what
one rounding a layer does (their median); a step rounds some six times a layer, and independent errors add up as a
random walk, so :data:`ROUNDINGS` = 3 times that is allowed. In half: how far the reference at that level is from the
one in fp32 is all of its rounding; two such computations are sqrt(2) times that apart, and :data:`HALVES` = 2 is
allowed. Where other kernels than the reference's compute in fp32, a unit that rounding switches on or off may take the
layers in front of it far beyond their bound: so what is small is ``diverged`` only where all tensors are off. Where
other kernels compute in half, a single tensor may be farther off than the reference's rounding took it: so they are
``diverged`` only where the root mean square over all tensors is beyond that of the bounds.

Losses are held against the training at the same precision level, too; a training in half, O3 above all, may leave the
one in fp32 for good. The *twin* of the fp32 training has its weights moved once by at most the unit roundoff of half,
in the one of eight ways that takes the first gradient farthest. How far its losses stray, times :data:`ROUNDINGS`, and
the rounding of the loss itself, is what a loss may be off. In half it may be off by :data:`HALVES` times the distance
between the two references as well, as a gradient may.

So is how far the twin takes each tensor over *all steps*. A training in half differs from another by roundings of the
same size, which are made anew in every layer, and both trainings amplify what was moved in the same way; so the twin,
moved once, is the measure, and again some six roundings, added up as a random walk, are allowed: 3 times what it
strays. The limit is another one. In fp32 it is what a twin strays that is moved by a rounding in fp32. In half a
training that adds up in the same order as the reference's is no different from it at all, and any other is as far off
as chance takes it: up to :data:`TRAINED_LIMIT_IN_HALF` no mistake that matters is in it, and beyond that, where the
twin strays farther, nobody can tell.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench.core.codec import encode
from bench.core.records import PARITIES, Computation
from bench.core.text import percent
from bench.runs.document import ParityRecord, RunDocument
from bench.runs.frames import Iterations
from bench.runs.launches import Effective, LaunchRecord, ReferenceRecord

ROUNDINGS = 3.0
HALVES = 2.0
LEAST_NORM = 1e-3
U_FP32 = 2.0**-24
UNIT_ROUNDOFF = {"float32": U_FP32, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number (Higham, Accuracy and Stability of Numerical Algorithms, section 2.1)."""

U_TF32 = 2.0**-11

SAME_GRADIENT = 1e-5
"""The error that is allowed in fp32 at least."""
FP32_LIMIT = 1e-4
"""Rounding to fp16, the finer half, makes twice this error (standard deviation)."""
LIMIT = 0.04
"""Below a mistake of 5 %, by what a sketch may be off."""
TRAINED_LIMIT = 0.01
"""Of all steps, where rounding in fp32 grows from step to step."""
TRAINED_LIMIT_IN_HALF = 0.1
"""Of all steps in half: half of what a learning rate makes that is wrong by a fifth."""
LEAST_BOUND = 1e-12
"""Of a loss: one of exactly 0 has no rounding."""
GROSS = 0.25
"""An error in a single step that no rounding makes, unless a twin's is as large (:meth:`_Reference.gross`)."""

SAME, WITHIN_HALF, CANNOT_TELL, DIVERGED, NOT_FINITE = PARITIES

FINE = "it computes in less than fp32, as the reference of its precision level does"
COARSE = "it computes in fp32, and is within the bounds of half precision only"
"""A verdict of runs before schema 6."""
LARGER = "take a larger batch or larger examples, where rounding does less"
UNTRUE = (DIVERGED, NOT_FINITE)  # it trains another model, or none

UNFIT = (ValueError, KeyError, IndexError)
"""What numpy and dictionaries say of numbers that are too many, too few or of another shape."""

RECORDED = tuple(ParityRecord.__dataclass_fields__)
COLUMNS = (*RECORDED, "gradient_limit", "update_limit", "trained_limit")


def parity(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """One row per launch that is ``ok``; of a run that has no probe what its document says.

    ``verdict``: of :data:`PARITIES` or None, with a ``reason`` for every one but ``same``. ``gradient_error``,
    ``gradient_bound`` and ``gradient_limit``: of the probe's tensor and step that come closest to what is allowed, or
    exceed it most, of the worst rank; ``gradient_alone``: what a replica that forgets the others makes of the median
    tensor. ``update_*`` and ``trained_*`` likewise. ``loss_error``, ``loss_bound``: at the measured ``loss_step``.
    """
    if document.probe_seed is None and document.parity:
        return pd.DataFrame(encode(document.parity), columns=list(COLUMNS))
    reference = _Reference.of(document, numerics)
    of_launch = dict(list(numerics[numerics["rank"].notna()].groupby("launch")))
    table = steps.frame
    of_launches = table.groupby("launch").indices
    losses = table["loss"].to_numpy()
    rows = []
    for launch in document.good:
        mine = of_launch.get(launch.launch, numerics.iloc[:0])
        loss = losses[of_launches.get(launch.launch, [])]
        known = dict.fromkeys(COLUMNS) | {"launch": launch.launch, "scenario": launch.scenario}
        why_not = document.strategy_of(launch).not_comparable
        if not document.planned:
            how = "imported" if document.imported else "attached"
            rows.append(known | {"reason": f"it was {how}: nothing is known of its numerics"})
            continue
        try:
            rows.append(known | _judge(launch, mine, loss, document.workload.warmup or 0, reference, why_not))
        except UNFIT:
            rows.append(known | {"reason": "its numbers do not fit those of the reference"})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def by_scenario(launches: pd.DataFrame) -> pd.DataFrame:
    """The gravest of each scenario's launches; :func:`parity`'s columns. Of equally grave ones the first."""
    gravity = {NOT_FINITE: 0, DIVERGED: 1, None: 2, CANNOT_TELL: 3, WITHIN_HALF: 4, SAME: 5}
    order = launches["verdict"].map(lambda verdict: gravity[verdict if isinstance(verdict, str) else None])
    ordered = launches.assign(gravity=order).sort_values(["gravity", "launch"], kind="stable")
    return ordered.drop_duplicates("scenario").drop(columns="gravity").sort_values("launch").reset_index(drop=True)


def loss_curves(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """The losses of each scenario's first launch that is ``ok``, one row per step, warm-up included.

    ``scenario, launch, step``; ``loss``: of the global batch; ``reference``: of as many replicas, at the same precision
    level; ``bound``: by how much they may differ. The last two are null without such a reference.
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
        if ran is not None and not isinstance(reference, str) and reference.trained_as(ran.computation) is not None:
            theirs = reference.loss(ran.computation)
            bounds = reference.loss_bounds(ran.computation, unit_roundoff(ran))
        tables.append(
            table.assign(reference=pd.Series(theirs, dtype="float64"), bound=pd.Series(bounds, dtype="float64"))
        )
    columns = ["scenario", "launch", "step", "loss", "reference", "bound"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


class _Reference:
    """The passes of the reference, by computation, and how far the twin strays."""

    def __init__(self, rows: pd.DataFrame, about: ReferenceRecord) -> None:
        self.unit = about.unit_roundoff or math.nan
        self._arrays: dict[tuple[str, Computation, bool], list[np.ndarray]] = {}
        old = tuple(_fp32(count) for count in sorted(about.replica_counts))
        place = rows["computation"] if about.computations else rows["replicas"].map(sorted(about.replica_counts).index)
        computations = about.computations or old
        keys: Any
        for keys, group in rows.assign(place=place.astype(int)).groupby(["quantity", "place", "twin"]):
            quantity, number, twin = keys
            self._arrays.setdefault((quantity, computations[number], bool(twin)), []).append(_array(group))
        trained = [of for quantity, of, twin in self._arrays if quantity == "loss" and not twin]
        self.trained: dict[tuple[int, int], Computation] = {
            (one.replicas, one.threads): one for one in trained if one == _fp32(one.replicas, one.threads)
        }
        (self.most,) = [of for quantity, of, twin in self._arrays if quantity == "loss" and twin]
        self.strays = np.maximum.accumulate(np.abs(self._loss(self.most, twin=True) - self._loss(self.most)))

    @classmethod
    def of(cls, document: RunDocument, numerics: pd.DataFrame) -> "_Reference | str":
        """The reference of a run, or why it cannot be used."""
        about = document.reference
        if about is None:
            return "the reference was not computed (--no-parity, or the run ended before it)"
        if about.status != "ok":
            return f"the reference failed ({about.status}): {about.reason}"
        try:
            reference = cls(numerics[numerics["rank"].isna() & (numerics["launch"] == about.launch)], about)
        except UNFIT:
            return "the numbers of the reference are not those that its record speaks of"
        if not np.isfinite(reference.strays).all():
            return "the reference itself is not finite, so nothing can be held against it"
        return reference

    def trained_as(self, computation: Computation) -> Computation | None:
        """The training in fp32 that a launch is held against; a run before schema 6 knows no threads."""
        replicas = computation.replicas
        return self.trained.get((replicas, computation.threads)) or self.trained.get((replicas, 0))

    def loss(self, computation: Computation) -> np.ndarray:
        """Of the training that computed in the same way; of the one in fp32 if that is missing or overflows."""
        same = self._arrays.get(("loss", computation, False))
        if same is not None and np.isfinite(same[0]).all():
            return same[0]
        of = self.trained_as(computation)
        assert of is not None
        return self._loss(of)

    def loss_bounds(self, computation: Computation, unit: float) -> np.ndarray:
        """For each step: what half may do, or what is coarser still."""
        apart = HALVES * np.maximum.accumulate(self._loss_apart(computation))
        bounds: np.ndarray = np.maximum(np.maximum(self._loss_moved(computation, unit), apart), LEAST_BOUND)
        return bounds

    def leaves_fp32(self, computation: Computation, unit: float) -> int | None:
        """The first step at which the loss of training at this level is farther from that in fp32 than the twin's."""
        beyond = np.flatnonzero(self._loss_apart(computation) > self._loss_moved(computation, unit))
        return int(beyond[0]) if len(beyond) else None

    def _loss_apart(self, computation: Computation) -> np.ndarray:
        """How far the losses at this level are from those in fp32."""
        plain = self.trained_as(computation)
        assert plain is not None
        apart: np.ndarray = np.abs(self.loss(computation) - self._loss(plain))
        return apart

    def _loss_moved(self, computation: Computation, unit: float) -> np.ndarray:
        moved: np.ndarray = self._roundings(unit) * (self.strays + self.unit * np.abs(self.loss(computation)))
        return moved

    def all_steps(self, computation: Computation, unit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """What training did to each tensor: sketches [tensor, position]; and what half, and what fp32, may make of it,
        relatively. Older runs have no twin in fp32, and no training in half: None."""
        of = self.trained_as(computation) if unit == U_FP32 else computation
        if of is None or ("trained", of, False) not in self._arrays:
            return None
        (ours,), (unmoved,), (half, *full) = (
            self._arrays["trained", *key] for key in ((of, False), (self.most, False), (self.most, True))
        )
        strays = [self._roundings(unit) * _errors(moved[None], unmoved[None])[0] for moved in (half, *full)]
        return ours, strays[0], strays[-1]

    def _roundings(self, unit: float) -> float:
        """How many times what the twin strays is allowed. For another u than the twin's the distance scales linearly
        or, through units that an activation switches, as the square root: the larger of the two."""
        ratio = max(unit, self.unit) / self.unit
        return ROUNDINGS * max(ratio, math.sqrt(ratio))

    def probe(self, computation: Computation, quantity: str = "probed") -> np.ndarray | None:
        """Sketches [step, tensor, position]; None without such a probe."""
        found = self._arrays.get((quantity, computation, False))
        return found[0] if found else None

    def rounding(self, computation: Computation, unit: float, quantity: str) -> np.ndarray:
        """For each tensor the bound of its relative error."""
        plain = _fp32(computation.replicas, computation.threads)
        theirs = self._arrays[quantity, plain, False][0]
        if unit == U_FP32:
            strays = [_errors(twin, theirs) for twin in self._arrays[quantity, plain, True]]
            bound: np.ndarray = np.maximum(SAME_GRADIENT, ROUNDINGS * np.median(np.concatenate(strays), axis=0))
        else:
            half = self._arrays[quantity, computation, False][0]
            bound = np.maximum(ROUNDINGS * unit, HALVES * np.max(_errors(half, theirs), axis=0))
        return bound

    def gross(self, computation: Computation) -> float:
        """The error in a single step that no rounding makes; infinity where a twin's is as large, as behind a batch
        norm over two images."""
        plain = _fp32(computation.replicas, computation.threads)
        theirs = self._arrays["probed", plain, False][0]
        strays = [_errors(twin, theirs).max() for twin in self._arrays["probed", plain, True]]
        return GROSS if max(strays) <= GROSS else math.inf

    def alone(self, computation: Computation) -> float | None:
        """How far the gradient of one replica by itself is from the average; None for one replica."""
        alone, whole = self.probe(computation, "alone"), self.probe(computation)
        return None if alone is None or whole is None else float(np.median(_errors(alone, whole)))

    def _loss(self, computation: Computation, *, twin: bool = False) -> np.ndarray:
        return self._arrays["loss", computation, twin][0]


def _fp32(replicas: int, threads: int = 0) -> Computation:
    return Computation(replicas=replicas, threads=threads, precision="O0", dtype="float32")


def _array(rows: pd.DataFrame) -> np.ndarray:
    """The values in the order of their rows, by step, tensor and position as far as they have them."""
    shape = [int(rows[name].max()) + 1 for name in ("step", "tensor", "position") if rows[name].notna().any()]
    return rows["value"].to_numpy().reshape(shape)


def _errors(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """||ours - theirs|| / ||theirs|| by [step, tensor] of sketches by [step, tensor, position]. NaN stays NaN."""
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(theirs, axis=2)
        least = LEAST_NORM * np.linalg.norm(norms, axis=1, keepdims=True)
        found: np.ndarray = np.linalg.norm(ours - theirs, axis=2) / np.maximum(np.maximum(norms, least), 1e-300)
    return found


@dataclass(frozen=True, slots=True)
class _Held:
    """Errors by [step, tensor] beside their bounds and limits."""

    errors: np.ndarray
    bounds: np.ndarray
    limit: float | np.ndarray
    why_uncertain: str = "and rounding alone may do that"

    @property
    def worst(self) -> tuple[int, ...]:
        """Where the error is closest to what is allowed, or exceeds it most."""
        return tuple(
            map(int, np.unravel_index(np.argmax(self.errors / np.minimum(self.bounds, self.limit)), self.errors.shape))
        )

    @property
    def error(self) -> float:
        return float(self.errors[self.worst])

    @property
    def bound(self) -> float:
        return float(np.broadcast_to(self.bounds, self.errors.shape)[self.worst])

    @property
    def allowed(self) -> float:
        """The limit, where the worst is."""
        return float(np.broadcast_to(self.limit, self.errors.shape)[self.worst])

    def as_row(self, name: str) -> dict[str, float]:
        return {f"{name}_error": self.error, f"{name}_bound": self.bound, f"{name}_limit": self.allowed}

    def verdict(self, beyond: Callable[[np.ndarray, np.ndarray], bool]) -> str:
        """``beyond(errors, bounds)``: whether more than rounding is to be seen."""
        if (self.errors <= np.minimum(self.bounds, self.limit)).all():
            return SAME
        return DIVERGED if beyond(self.errors, np.broadcast_to(self.bounds, self.errors.shape)) else CANNOT_TELL


def _any_beyond(errors: np.ndarray, bounds: np.ndarray) -> bool:
    return not (errors <= bounds).all()  # NaN is beyond, too


def _beyond_switches(errors: np.ndarray, bounds: np.ndarray, gross: float) -> bool:
    """In fp32: more than units that rounding switched. A step grossly off, or every step by much or in all tensors."""
    one = (errors > np.maximum(bounds, gross)).any()
    much = (errors > np.maximum(bounds, 0.05)).any(axis=1) | (errors > bounds).all(axis=1)
    return bool(one or much.all())


def _beyond_half(errors: np.ndarray, bounds: np.ndarray) -> bool:
    """Of other kernels in half, whose roundings are not the reference's: over all tensors, the bounds are exceeded."""
    whole = [float(np.sqrt(np.mean(np.square(one)))) for one in (errors, bounds)]
    return not whole[0] <= whole[1]


def _other_kernels(effective: Effective) -> bool:
    """Whether it rounds elsewhere than eager torch: compiled kernels keep in fp32 what eager ones round to half."""
    return effective.compiled is not None or effective.memory_format != "contiguous"


def _judge(
    launch: LaunchRecord,
    numbers: pd.DataFrame,
    loss: np.ndarray,
    warmup: int,
    reference: "_Reference | str",
    not_comparable: str | None,
) -> dict[str, Any]:
    """``numbers``: the launch's rows of numerics.parquet. ``loss``: of every step."""
    assert launch.effective is not None  # of a run that bench planned
    checks, ran = launch.checks, launch.effective.computation
    found: dict[str, Any] = {"replicas": ran.replicas}
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
    if reference.trained_as(ran) is None or reference.probe(ran) is None:
        return found | {"reason": "there is no reference that computed as it did"}
    unit = unit_roundoff(launch.effective)
    gradient, buffers = (_probed(numbers, quantity, ran, unit, reference) for quantity in ("probed", "buffer"))
    if gradient is None:
        return found | {"reason": "it was not probed: its tensors are not those of the workload's model"}
    skipped = (checks.skipped_warmup_steps or 0) + (checks.skipped_steps or 0)
    update = _update(numbers)
    if not np.isfinite(gradient.errors).all():
        return found | {"verdict": NOT_FINITE, "reason": "a gradient of the probe is not finite"}
    half = reference.loss_bounds(ran, unit)[warmup : len(loss)]
    differ = np.abs(loss - reference.loss(ran)[: len(loss)])[warmup:]
    worst = int(np.argmax(differ / half))
    found |= gradient.as_row("gradient") | update.as_row("update")
    found |= {
        "gradient_alone": reference.alone(ran),
        "loss_error": differ[worst],
        "loss_bound": half[worst],
        "loss_step": warmup + worst,
    }
    full = unit == U_FP32
    of_probe = _beyond_half if _other_kernels(launch.effective) else _any_beyond
    if full:
        of_probe = partial(_beyond_switches, gross=reference.gross(ran))
    seen = [
        ("the gradient of a tensor in the probe", gradient, of_probe),
        ("what a step of the probe did to a tensor", update, _any_beyond),
    ]
    if buffers is not None:
        seen.append(("what a step of the probe did to a buffer", buffers, of_probe))
    trained = None if skipped else _trained(numbers, ran, unit, reference)
    if trained is not None:
        found |= trained.as_row("trained")
        seen.append(("what all steps did to a tensor", trained, _any_beyond))
    verdicts = [(held.verdict(beyond), what, held) for what, held, beyond in seen]
    for wanted in (DIVERGED, CANNOT_TELL):
        for verdict, what, held in verdicts:
            if verdict == wanted:
                why = "" if wanted == DIVERGED else f", {held.why_uncertain}"
                return found | {"verdict": wanted, "reason": f"{what} is {percent(held.error)} off{why}"}
        if wanted == DIVERGED and not skipped and differ[worst] > half[worst]:
            first = warmup + int(np.argmax(differ > half))
            return found | {"verdict": DIVERGED, "reason": f"the loss leaves its bound at step {first}"}
    if full:
        return found | {"verdict": SAME}
    reason, left = FINE, reference.leaves_fp32(ran, unit)
    if skipped:
        reason = f"by the probe: the loss scaler skipped {skipped} steps, so losses belong to other weights"
    elif left is not None:
        reason = f"{FINE}; the loss of that level leaves the fp32 loss at step {left}"
    return found | {"verdict": WITHIN_HALF, "reason": reason}


def _probed(numbers: pd.DataFrame, quantity: str, ran: Computation, unit: float, reference: _Reference) -> _Held | None:
    """The gradients of the worst rank, or the buffers of the first; None without any."""
    theirs, mine = reference.probe(ran, quantity), numbers[numbers["quantity"] == quantity]
    if theirs is None or mine.empty:
        return None
    ranks = [_errors(_array(rows), theirs) for _, rows in mine.groupby("rank")]
    errors, bounds = np.max(ranks, axis=0), reference.rounding(ran, unit, quantity)  # NaN stays NaN
    if unit == U_FP32:
        return _Held(errors, bounds, FP32_LIMIT, "and a unit that rounding switches on or off may do that")
    return _Held(errors, bounds, LIMIT)


def _update(numbers: pd.DataFrame) -> _Held:
    errors, bounds = (_array(numbers[numbers["quantity"] == f"update_{what}"]) for what in ("error", "bound"))
    return _Held(errors[..., 0], bounds[..., 0], LIMIT)


def _trained(numbers: pd.DataFrame, ran: Computation, unit: float, reference: _Reference) -> _Held | None:
    known = reference.all_steps(ran, unit)
    if known is None:
        return None
    theirs, half, full = known
    mine = _array(numbers[numbers["quantity"] == "trained"])
    limit: float | np.ndarray = TRAINED_LIMIT_IN_HALF
    why = "more than other sums of the same numbers do, and no more than rounding in half"
    if unit == U_FP32:
        limit = np.clip(full, FP32_LIMIT, TRAINED_LIMIT)
        why = "more than rounding in fp32 does and less than in half"
    return _Held(_errors(mine[None], theirs[None]), np.maximum(half, np.max(limit)), limit, why)


def unit_roundoff(effective: Effective) -> float:
    """Of the coarsest type that was computed in. fp32 convolutions in TF32 have the significand of fp16."""
    tf32 = effective.tf32 is not None and effective.tf32.cudnn
    units = [UNIT_ROUNDOFF[dtype] for dtype in effective.compute_dtypes if dtype in UNIT_ROUNDOFF]
    return max([*units, U_TF32 if tf32 else U_FP32])
