"""Does a scenario still train the same model?

Every strategy was trained once more in double precision (:mod:`bench.worker.probe`), where an honest computation is
within 1e-8 of the reference's and a mistake that matters is at 1e-2 or more. Held against one process, tensor by tensor
and step by step, relative to the norm of the reference's (:data:`LEAST_NORM`):

- the *gradient*, of the worst rank, and what the step did to the *buffers*, against the reference;
- the *update*: against what the workload's own optimizer makes of the launch's own gradients.

The bound is :data:`BOUND`, or :data:`TIMES_TWIN` times what moving the weights by a rounding does, where a model
computes partly in less than double precision; of an update also what the optimizer's own rounding may do.

What a precision level does is judged by what ran, and by one more *own* step of the measured session in its own types:
its update must be that of the workload's optimizer, but for rounding. Launches in fp32 that have the kernels of the
reference (eager, contiguous, without TF32) must have its losses, too, as far as the reference trained.

What this does not see: a mistake that the measured steps make, and neither the own step nor the steps in double
precision, unless it is in fp32 and shows in the first losses.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from bench.analyse.launches import across_environments
from bench.core.records import PARITIES, UNTRUE
from bench.core.text import percent
from bench.runs.document import Imported, ParityRecord, RunDocument
from bench.runs.experiments import Numerics
from bench.runs.frames import Iterations, TableRow
from bench.runs.launches import DoubleRecord, Effective, LaunchRecord, ReferenceRecord

BOUND = 1e-6  # the worst gradient of some 220 honest launches was 5e-10 off (docs/evidence.md)
TIMES_TWIN = 1000.0
COARSE = 1e-2  # a bound that hides mistakes
LEAST_NORM = 1e-3  # a tensor is held against its own norm, or this part of that of all tensors
TIMES_OWN_TWIN = 5.0
LEAST_OWN = 1e-4
LOSS_BOUND = 1e-3  # of a loss in fp32, relatively

SAME, WITHIN_HALF, BY_DESIGN, CANNOT_TELL, DIVERGED, NOT_FINITE = PARITIES

WORDS = {
    "gradient": "the gradient of a tensor",
    "buffer": "what a step did to a buffer",
    "update": "what a step did to a tensor",
}
"""The errors judged in double precision."""
Numbers = Mapping[tuple[int, str], pd.DataFrame]  # by launch and quantity the rows of numerics.parquet
NOTHING = pd.DataFrame(columns=["value", "rank", "computation", "twin"], dtype="float64")


def parity(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """One row per launch that is ``ok``: the fields of :class:`ParityRecord`.

    ``verdict``: of :data:`PARITIES` or None, with a ``reason`` for every one but a ``same`` that nothing was left out
    of. ``gradient_error``, ``buffer_error`` and ``update_error``: in double precision, of the worst tensor, step and
    rank, beside their ``bound``. ``gradient_alone``: what a replica that forgets the others makes of the median tensor.
    ``own_update_*``: of the own step, the tensor that is closest to its bound or exceeds it most. ``loss_error``: the
    largest of the losses that the reference has.
    """
    numbers, losses = _by_launch(numerics), dict(list(steps.frame.groupby("launch")["loss"]))
    rows = []
    for launch in document.good:
        loss = losses[launch.launch].to_numpy() if launch.launch in losses else np.empty(0)
        rows.append({"launch": launch.launch, "scenario": launch.scenario} | _verdict(document, launch, loss, numbers))
    return pd.DataFrame(rows, columns=list(ParityRecord.__dataclass_fields__))


def by_scenario(launches: pd.DataFrame) -> pd.DataFrame:
    """The gravest of each scenario's launches; :func:`parity`'s columns. Of equally grave ones the first."""
    order = [NOT_FINITE, DIVERGED, None, CANNOT_TELL, BY_DESIGN, WITHIN_HALF, SAME]
    gravity = launches["verdict"].map(lambda verdict: order.index(verdict if isinstance(verdict, str) else None))
    ordered = launches.assign(gravity=gravity).sort_values(["gravity", "launch"], kind="stable")
    return ordered.drop_duplicates("scenario").drop(columns="gravity").sort_values("launch").reset_index(drop=True)


def loss_curves(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """The losses of each scenario's first launch that is ``ok``, one row per step, warm-up included.

    ``scenario, launch, step``; ``loss``: of the global batch; ``reference``: in fp32 of as many replicas, null where it
    did not train.
    """
    numbers, tables = _by_launch(numerics), []
    for launch in {one.scenario: one for one in reversed(document.good)}.values():
        table = steps.of(launch.launch).frame[["launch", "step", "loss"]].reset_index(drop=True)
        reference = pd.Series(_exact(document, launch, numbers, "loss")["value"].to_numpy(), dtype="float64")
        tables.append(table.assign(scenario=launch.scenario, reference=reference))
    columns = ["scenario", "launch", "step", "loss", "reference"]
    return pd.concat(tables[::-1], ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def between_environments(document: RunDocument, numerics: pd.DataFrame) -> list[TableRow]:
    """How far results of an interpreter are from those of the first one, a row for the reference and for each scenario.

    ``environment``, ``scenario`` (None: the reference); ``error``: of the gradient of the worst tensor, of the
    reference in double precision, else in its own types; ``bound``: what rounding may do to that, of a scenario
    :data:`TIMES_OWN_TWIN` times what moving its weights by a rounding does, and no less than :data:`LEAST_OWN`.
    """
    numbers, rows = _by_launch(numerics), []
    exact: dict[str, float] = {}
    order = list(document.environments)
    for name, environment, base, new in sorted(across_environments(document), key=lambda pair: order.index(pair[1])):
        of_base, of_new = (_of(numbers, one.launch, "own") for one in (base, new))
        theirs, twin, ours = (
            _array(of[of["twin"] == moved]) for of, moved in ((of_base, False), (of_base, True), (of_new, False))
        )
        if ours.size and ours.shape == theirs.shape:
            bound = max(LEAST_OWN, TIMES_OWN_TWIN * float(_errors(twin, theirs).max()))
            error = float(_errors(ours, theirs).max())
            rows.append({"environment": environment, "scenario": name, "error": error, "bound": bound})
        ours, theirs = (_array(_exact(document, one, numbers, "probed")) for one in (new, base))
        if ours.size and ours.shape == theirs.shape:
            exact[environment] = max(exact.get(environment, 0.0), float(_errors(ours, theirs).max()))
    return [{"environment": name, "scenario": None, "error": off, "bound": BOUND} for name, off in exact.items()] + rows


def full_precision(effective: Effective) -> bool:
    """Whether all of it computes in fp32."""
    tf32 = effective.tf32
    return set(effective.compute_dtypes) <= {"float32"} and not (tf32 and (tf32.cudnn or tf32.matmul))


def _verdict(document: RunDocument, launch: LaunchRecord, loss: np.ndarray, numbers: Numbers) -> TableRow:
    """The fields of :class:`ParityRecord` that are known of a launch with these losses."""
    ran = launch.effective
    if ran is None or not document.planned:
        return {"reason": f"{'imported' if document.of(Imported) else 'attached'}: nothing is known of the numerics"}
    values: TableRow = {"replicas": ran.norm_parts}
    if len(bad := np.flatnonzero(~np.isfinite(loss))):
        return values | {"verdict": NOT_FINITE, "reason": f"the loss of step {bad[0]} is not finite"}
    design = document.strategy_of(launch).differs
    if design is None and launch.checks.final_weights_alike is False:
        when = "before the first step" if not launch.checks.initial_weights_alike else "after the last step"
        return values | {"verdict": DIVERGED, "reason": f"the ranks hold different parameters {when}"}
    own, bound = 0.0, 0.0
    errors, bounds = (_of(numbers, launch.launch, f"update_{what}")["value"].to_numpy() for what in ("error", "bound"))
    if errors.size:
        worst = int(np.argmax(errors / np.maximum(bounds, 1e-300)))
        own, bound = float(errors[worst]), float(bounds[worst])
        values |= {"own_update_error": own, "own_update_bound": bound}
    double, reference = _judges(document, launch)
    in_double, why_not = _in_double(document, launch, ran, numbers)
    if double is None or reference is None or why_not is not None:
        verdict, reason = None if double is None else CANNOT_TELL, why_not
    else:
        values |= in_double | {"loss_error": _loss_error(ran, loss, _exact(document, launch, numbers, "loss"))}
        less = ["with a narrower model"] * reference.narrow
        less += [f"without {', '.join(double.left_out)}"] * bool(double.left_out)
        limits = f"in double precision {' and '.join(less)}" if less else None
        verdict, reason = _decided(values, design, ran, limits)
    if design is None and verdict not in UNTRUE and not own <= bound:
        off = f"{percent(own)} off" if np.isfinite(own) else "not finite"
        verdict, reason = DIVERGED, f"after the measured steps, {WORDS['update']} is {off}"
    return values | {"verdict": verdict, "reason": reason}


def _in_double(
    document: RunDocument, launch: LaunchRecord, ran: Effective, numbers: Numbers
) -> tuple[TableRow, str | None]:
    """The errors in double precision, or why it cannot be held against the reference."""
    double, reference = _judges(document, launch)
    if double is None or reference is None:
        return {}, "this run did not judge it (as with --no-parity)"
    for what, record in (("the reference", reference), ("its launch in double precision", double)):
        if record.status != "ok":
            return {}, f"{what} failed ({record.status}): {record.reason}"
    if ran.computation not in reference.computations:
        return {}, "there is no reference that computed as it did"
    exact, moved = (
        {name: _array(_exact(document, launch, numbers, name, twin)) for name in ("probed", "buffer", "alone")}
        for twin in (False, True)
    )
    probed, alone, buffer = exact["probed"], exact["alone"], exact["buffer"][:1]
    if not probed.size:
        return {}, "the reference's numbers are missing"
    by_rank = {name: _of(numbers, double.launch, name).groupby("rank") for name in ("probed", "buffer")}
    ours = {name: [_array(rows) for _, rows in ranks] for name, ranks in by_rank.items()}
    if not ours["probed"] or any(one.shape != exact[name].shape for name, ranks in ours.items() for one in ranks):
        return {}, "its tensors are not those of the workload's model"
    twins = [(twin, of) for twin, of in ((moved["probed"], alone), (moved["buffer"], buffer)) if of.size]
    if any(one.size and one.shape != other.shape for one, other in ((alone, probed[:1]), *twins)):
        return {}, "the reference's tensors differ from each other"
    errors: TableRow = {"bound": max(BOUND, *(TIMES_TWIN * float(_errors(*pair).max()) for pair in twins))}
    of_ranks = {
        "gradient": [_errors(one, probed) for one in ours["probed"]],
        "buffer": [_errors(one, exact["buffer"]) for one in ours["buffer"]],
        "update": [_of(numbers, double.launch, "update_error")["value"].to_numpy()],
    }
    for name, ranks in of_ranks.items():
        worst = [one.max() for one in ranks if one.size]
        errors[f"{name}_error"] = float(np.max(worst)) if worst else None  # NaN stays NaN
    (updates,), rounding = of_ranks["update"], _of(numbers, double.launch, "update_bound")["value"].to_numpy()
    beyond = updates > errors["bound"]
    rest_is_right = all((errors[f"{name}_error"] or 0.0) <= errors["bound"] for name in ("gradient", "buffer"))
    if rest_is_right and beyond.any() and (updates <= rounding)[beyond].all():  # an optimizer computes in less, as Muon
        errors["bound"] = float(rounding[beyond].max())
    errors["gradient_alone"] = float(np.median(_errors(alone, probed[:1]))) if ran.norm_parts > 1 else None
    return errors, None


def _loss_error(ran: Effective, loss: np.ndarray, exact: pd.DataFrame) -> float | None:
    """Of launches whose kernels are the reference's, and whose ranks draw dropout as its chunks do: once a rank."""
    eager = ran.compiled is None and ran.memory_format == "contiguous"
    if not eager or not full_precision(ran) or ran.replicas > ran.world_size:
        return None
    theirs = exact["value"].to_numpy()[: len(loss)]
    scale = np.abs(theirs).max(initial=1e-300)
    return float(np.abs(loss[: len(theirs)] - theirs).max(initial=0.0) / scale)


def _decided(values: TableRow, design: str | None, ran: Effective, limits: str | None) -> tuple[str | None, str | None]:
    """``limits``: of what double precision shows."""
    errors = {name: values[f"{name}_error"] for name in WORDS if values[f"{name}_error"] is not None}
    if not np.isfinite(list(errors.values())).all():
        return NOT_FINITE, "a number in double precision is not finite"
    worst = max(errors, key=lambda name: errors[name])
    off = f"in double precision, {WORDS[worst]} is {percent(errors[worst])} off"
    if design is not None:
        return BY_DESIGN, f"{design}; {off}"
    if values["bound"] > COARSE:
        coarse = "the model or its optimizer computes too coarsely for double precision to show mistakes"
        return CANNOT_TELL, f"{coarse}, or it draws random numbers from another generator than torch's default one"
    if errors[worst] > values["bound"]:
        return DIVERGED, off
    loss = values["loss_error"]
    if loss is not None and loss > LOSS_BOUND:
        return CANNOT_TELL, f"its first losses are up to {percent(loss)} away from the reference's"
    if full_precision(ran):
        return SAME, limits
    return WITHIN_HALF, limits or "what its level casts is judged by what ran"


def _judges(document: RunDocument, launch: LaunchRecord) -> tuple[DoubleRecord | None, ReferenceRecord | None]:
    numerics = document.begun(Numerics)
    double = next((one for one in numerics.doubles if launch.scenario in one.scenarios), None)
    return double, numerics.reference_of(launch.environment)


def _exact(
    document: RunDocument, launch: LaunchRecord, numbers: Numbers, quantity: str, twin: bool = False
) -> pd.DataFrame:
    """The reference's numbers for the computation of a launch; the losses are of the first steps, in fp32."""
    _, reference = _judges(document, launch)
    if reference is None or launch.effective is None or launch.effective.computation not in reference.computations:
        return NOTHING
    rows = _of(numbers, reference.launch, quantity)
    place = reference.computations.index(launch.effective.computation)
    return rows[(rows["computation"] == place) & (rows["twin"] == twin)]


def _of(numbers: Numbers, launch: int, quantity: str) -> pd.DataFrame:
    return numbers.get((launch, quantity), NOTHING)


def _by_launch(numerics: pd.DataFrame) -> Numbers:
    return dict(list(numerics.groupby(["launch", "quantity"])))  # type: ignore[arg-type]


def _array(rows: pd.DataFrame) -> np.ndarray:
    """Sketches by [step, tensor, position], of the first rank."""
    if rows.empty:
        return np.empty((0, 0, 0))
    if rows["rank"].notna().any():
        rows = rows[rows["rank"] == rows["rank"].min()]
    shape = [int(rows[name].max()) + 1 for name in ("step", "tensor", "position")]
    return rows["value"].to_numpy().reshape(shape)


def _errors(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """||ours - theirs|| / ||theirs|| by [step, tensor] of sketches by [step, tensor, position]. NaN stays NaN."""
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(theirs, axis=2)
        least = LEAST_NORM * np.linalg.norm(norms, axis=1, keepdims=True)
        errors: np.ndarray = np.linalg.norm(ours - theirs, axis=2) / np.maximum(np.maximum(norms, least), 1e-300)
    return errors
