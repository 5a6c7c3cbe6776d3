"""Does a scenario still train the same model?

Every strategy was trained once more in double precision (:mod:`bench.worker.probe`), where an honest computation is
within 1e-8 of the reference's and a mistake that matters is at 1e-2 or more. Held against one process, tensor by tensor
and step by step, relative to the norm of the reference's (:data:`LEAST_NORM`):

- the *gradient*, of the worst rank, and what the step did to the *buffers*, against the reference;
- the *update*: against what the workload's own optimizer makes of the launch's own gradients.

The bound is :data:`BOUND`, or :data:`TIMES_TWIN` times what moving the weights by a rounding does, where a model
computes partly in less than double precision.

What a precision level does is judged by what ran, and by one more *own* step of the measured session in its own types:
its update must be that of the workload's optimizer, but for rounding. Launches in fp32 that have the kernels of the
reference (eager, contiguous, without TF32) must have its losses, too, as far as the reference trained.

What this does not see: a mistake that the measured steps make, and neither the own step nor the steps in double
precision, unless it is in fp32 and shows in the first losses.
"""

import numpy as np
import pandas as pd

from bench.core.records import PARITIES
from bench.core.text import percent
from bench.runs.document import Imported, ParityRecord, RunDocument
from bench.runs.experiments import Numerics
from bench.runs.frames import Iterations, TableRow
from bench.runs.launches import Effective, LaunchRecord

BOUND = 1e-6  # the worst gradient of some 220 honest launches was 5e-10 off (docs/evidence.md)
TIMES_TWIN = 1000.0
COARSE = 1e-2  # a bound that hides mistakes
LEAST_NORM = 1e-3  # a tensor is held against its own norm, or this part of that of all tensors
TIMES_OWN_TWIN = 5.0
LEAST_OWN = 1e-4
LOSS_BOUND = 1e-3  # of a loss in fp32, relatively

SAME, WITHIN_HALF, BY_DESIGN, CANNOT_TELL, DIVERGED, NOT_FINITE = PARITIES
UNTRUE = (DIVERGED, NOT_FINITE)  # it trains another model, or none

QUANTITIES = {"gradient": "probed", "buffer": "buffer", "update": "update_error"}
"""The errors judged in double precision, with their quantities in numerics.parquet."""
WORDS = {
    "gradient": "the gradient of a tensor",
    "buffer": "what a step did to a buffer",
    "update": "what a step did to a tensor",
}
COLUMNS = tuple(ParityRecord.__dataclass_fields__)


def parity(document: RunDocument, steps: Iterations, numerics: pd.DataFrame) -> pd.DataFrame:
    """One row per launch that is ``ok``: the fields of :class:`ParityRecord`.

    ``verdict``: of :data:`PARITIES` or None, with a ``reason`` for every one but a ``same`` that nothing was left out
    of. ``gradient_error``, ``buffer_error`` and ``update_error``: in double precision, of the worst tensor, step and
    rank, beside their ``bound``. ``gradient_alone``: what a replica that forgets the others makes of the median tensor.
    ``own_update_*``: of the own step, the tensor that is closest to its bound or exceeds it most. ``loss_error``: the
    largest of the losses that the reference has.
    """
    of_launch = _by_launch(numerics)
    losses = dict(list(steps.frame.groupby("launch")["loss"]))
    rows = []
    for launch in document.good:
        loss = losses[launch.launch].to_numpy() if launch.launch in losses else np.empty(0)
        names = {"launch": launch.launch, "scenario": launch.scenario}
        rows.append(names | _Judged(document, launch, loss, of_launch).verdict())
    return pd.DataFrame(rows, columns=list(COLUMNS))


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
    of_launch = _by_launch(numerics)
    tables = []
    for launch in {one.scenario: one for one in reversed(document.good)}.values():
        own = steps.frame["launch"] == launch.launch
        table = steps.frame.loc[own, ["launch", "step", "loss"]].reset_index(drop=True)
        losses = _Judged(document, launch, np.empty(0), of_launch).exact("loss")["value"].to_numpy()
        reference = pd.Series(losses, dtype="float64")
        tables.append(table.assign(scenario=launch.scenario, reference=reference))
    columns = ["scenario", "launch", "step", "loss", "reference"]
    return pd.concat(tables[::-1], ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def between_environments(document: RunDocument, numerics: pd.DataFrame) -> list[TableRow]:
    """How far results of an interpreter are from those of the first one, a row for the reference and for each scenario.

    ``environment``, ``scenario`` (None: the reference); ``error``: of the gradient of the worst tensor, of the
    reference in double precision, else in its own types; ``bound``: what rounding may do to that, of a scenario
    :data:`TIMES_OWN_TWIN` times what moving its weights by a rounding does, and no less than :data:`LEAST_OWN`.
    """
    of_launch, rows = _by_launch(numerics), []
    first, *others = document.environments or ("",)
    launches = {(one.scenario.removesuffix(f"@{one.environment}"), one.environment): one for one in document.good[::-1]}
    both = [
        (name, environment, launches[name, first], launches[name, environment])
        for environment in others
        for name in list(dict.fromkeys(name for name, _ in launches))[::-1]
        if {(name, first), (name, environment)} <= {*launches}
    ]
    exact: dict[str, float] = {}
    for name, environment, base, new in both:
        of_base, of_new = (_of(of_launch.get(one.launch), "own") for one in (base, new))
        theirs, twin, ours = (
            _array(of[of["twin"] == moved]) for of, moved in ((of_base, False), (of_base, True), (of_new, False))
        )
        if ours.size and ours.shape == theirs.shape:
            bound = max(LEAST_OWN, TIMES_OWN_TWIN * float(_errors(twin, theirs).max()))
            error = float(_errors(ours, theirs).max())
            rows.append({"environment": environment, "scenario": name, "error": error, "bound": bound})
        ours, theirs = (_array(_Judged(document, one, np.empty(0), of_launch).exact("probed")) for one in (new, base))
        if ours.size and ours.shape == theirs.shape:
            exact[environment] = max(exact.get(environment, 0.0), float(_errors(ours, theirs).max()))
    return [{"environment": name, "scenario": None, "error": off, "bound": BOUND} for name, off in exact.items()] + rows


def full_precision(effective: Effective) -> bool:
    """Whether all of it computes in fp32."""
    return set(effective.compute_dtypes) <= {"float32"} and not (effective.tf32 and effective.tf32.cudnn)


class _Judged:
    """A launch, held against the reference."""

    def __init__(
        self, document: RunDocument, launch: LaunchRecord, loss: np.ndarray, numbers: dict[int, pd.DataFrame]
    ) -> None:
        numerics, effective = document.begun(Numerics), launch.effective
        self.document, self.launch, self.loss, self.numbers = document, launch, loss, numbers
        self.double, self.reference = numerics.double_of(launch.scenario), numerics.reference_of(launch.environment)
        places = {one: place for place, one in enumerate(self.reference.computations if self.reference else ())}
        self.place = places.get(effective.computation) if effective else None

    def exact(self, quantity: str, twin: bool = False) -> pd.DataFrame:
        """The reference's numbers for the computation of the launch; the losses are of the first steps, in fp32."""
        if self.reference is None or self.place is None:
            return pd.DataFrame({"value": np.empty(0)})
        rows = _of(self.numbers.get(self.reference.launch), quantity)
        return rows[(rows["computation"] == self.place) & (rows["twin"] == twin)]

    def verdict(self) -> TableRow:
        values: TableRow = {}
        launch, effective = self.launch, self.launch.effective
        if effective is None or not self.document.planned:
            how = "imported" if self.document.of(Imported) else "attached"
            return {"reason": f"it was {how}: nothing is known of its numerics"}
        values["replicas"] = effective.norm_parts
        bad = np.flatnonzero(~np.isfinite(self.loss))
        if len(bad):
            return values | {"verdict": NOT_FINITE, "reason": f"the loss of step {bad[0]} is not finite"}
        design = self.document.strategy_of(launch).differs
        if design is None and launch.checks.final_weights_alike is False:
            when = "before the first step" if not launch.checks.initial_weights_alike else "after the last step"
            return values | {"verdict": DIVERGED, "reason": f"the ranks hold different parameters {when}"}
        values |= self._own_step()
        why_not = self._why_not()
        if why_not is None:
            values |= self._in_double() | {"loss_error": self._loss_error()}
            verdict, reason = self._decided(values, design, effective)
        else:
            verdict, reason = None if self.double is None else CANNOT_TELL, why_not
        own = values.get("own_update_error", 0.0)
        if design is None and verdict not in UNTRUE and not own <= values.get("own_update_bound", 0.0):
            verdict, reason = DIVERGED, f"after the measured steps, {WORDS['update']} is {percent(own)} off"
        return values | {"verdict": verdict, "reason": reason}

    def _why_not(self) -> str | None:
        """Why it cannot be held against the reference."""
        if self.double is None or self.reference is None:
            return "it was not judged (--no-parity, or the run ended before it)"
        for what, record in (("the reference", self.reference), ("its launch in double precision", self.double)):
            if record.status != "ok":
                return f"{what} failed ({record.status}): {record.reason}"
        if self.place is None:
            return "there is no reference that computed as it did"
        exact = {name: _array(self.exact(name)) for name in ("probed", "buffer")}
        if not exact["probed"].size:
            return "the reference's numbers are missing"
        if _array(self._doubled("probed")).shape != exact["probed"].shape or any(
            _array(rank).shape != theirs.shape
            for name, theirs in exact.items()
            for _, rank in self._doubled(name).groupby("rank")
        ):
            return "its tensors are not those of the workload's model"
        first = {"probed": _array(self.exact("alone")), "buffer": exact["buffer"][:1]}
        twins = [(_array(self.exact(name, twin=True)), theirs) for name, theirs in first.items() if theirs.size]
        pairs = [(first["probed"], exact["probed"][:1]), *twins]
        if any(twin.size and twin.shape != theirs.shape for twin, theirs in pairs):
            return "the reference's tensors differ from each other"
        return None

    def _in_double(self) -> dict[str, object]:
        exact = {name: _array(self.exact(name)) for name in ("probed", "buffer")}
        alone, buffer = _array(self.exact("alone")), exact["buffer"][:1]
        first = {"probed": alone, "buffer": buffer}
        twins = [_errors(_array(self.exact(name, twin=True)), first[name]) for name in first if first[name].size]
        errors: dict[str, object] = {"bound": max(BOUND, *(TIMES_TWIN * float(twin.max()) for twin in twins))}
        for name, quantity in QUANTITIES.items():
            rows = self._doubled(quantity)
            if quantity in exact:
                of_ranks = [_errors(_array(rank), exact[quantity]) for _, rank in rows.groupby("rank")]
            else:
                of_ranks = [rows["value"].to_numpy()]
            worst = [rank.max() for rank in of_ranks if rank.size]
            errors[f"{name}_error"] = float(np.max(worst)) if worst else None  # NaN stays NaN
        assert self.launch.effective is not None
        apart = float(np.median(_errors(alone, exact["probed"][:1])))
        errors["gradient_alone"] = apart if self.launch.effective.norm_parts > 1 else None
        return errors

    def _own_step(self) -> dict[str, object]:
        rows = self.numbers.get(self.launch.launch)
        errors, bounds = (_of(rows, f"update_{what}")["value"].to_numpy() for what in ("error", "bound"))
        if not errors.size:
            return {}
        worst = int(np.argmax(errors / np.maximum(bounds, 1e-300)))
        return {"own_update_error": float(errors[worst]), "own_update_bound": float(bounds[worst])}

    def _loss_error(self) -> float | None:
        """Of launches whose kernels are the reference's, and whose ranks draw dropout as its chunks do: once a rank."""
        effective = self.launch.effective
        assert effective is not None
        eager = effective.compiled is None and effective.memory_format == "contiguous"
        if not eager or not full_precision(effective) or effective.replicas > effective.world_size:
            return None
        theirs = self.exact("loss")["value"].to_numpy()[: len(self.loss)]
        scale = np.abs(theirs).max(initial=1e-300)
        return float(np.abs(self.loss[: len(theirs)] - theirs).max(initial=0.0) / scale)

    def _decided(self, values: TableRow, design: str | None, effective: Effective) -> tuple[str | None, str | None]:
        errors = {name: values[f"{name}_error"] for name in QUANTITIES if values[f"{name}_error"] is not None}
        if not np.isfinite(list(errors.values())).all():
            return NOT_FINITE, "a number in double precision is not finite"
        worst = max(errors, key=lambda name: errors[name])
        off = f"in double precision, {WORDS[worst]} is {percent(errors[worst])} off"
        if design is not None:
            return BY_DESIGN, f"{design}; {off}"
        if values["bound"] > COARSE:
            return CANNOT_TELL, "the model computes too coarsely for double precision to show mistakes"
        if errors[worst] > values["bound"]:
            return DIVERGED, off
        loss = values["loss_error"]
        if loss is not None and loss > LOSS_BOUND:
            return CANNOT_TELL, f"its first losses are up to {percent(loss)} away from the reference's"
        assert self.double is not None and self.reference is not None
        how = ["with a narrower model"] * self.reference.narrow
        how += [f"without {', '.join(self.double.left_out)}"] * bool(self.double.left_out)
        limits = f"in double precision {' and '.join(how)}" if how else None
        if full_precision(effective):
            return SAME, limits
        return WITHIN_HALF, limits or "what its level casts is judged by what ran"

    def _doubled(self, quantity: str) -> pd.DataFrame:
        assert self.double is not None
        return _of(self.numbers.get(self.double.launch), quantity)


def _by_launch(numerics: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return dict(list(numerics.groupby("launch")))  # type: ignore[arg-type]


def _of(rows: pd.DataFrame | None, quantity: str) -> pd.DataFrame:
    if rows is None:
        return pd.DataFrame({"value": np.empty(0), "rank": [], "computation": [], "twin": []})
    return rows[rows["quantity"] == quantity]


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
