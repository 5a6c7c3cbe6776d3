"""Run documents from the few values that a test is about; all others are as unknown as they may be."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from bench.core.codec import Named, decode, encode
from bench.core.records import DEVICE_COLUMNS, MEMORY_COLUMNS
from bench.runs.document import RunDocument
from bench.runs.experiments import Diagnosis, DiagnosticRecord, Numerics
from bench.runs.launches import LaunchRecord, ReferenceRecord
from bench.runs.reader import Run
from bench.seams.experiment import name_of, records

USUAL: dict[str, Any] = {
    "bench": "0.3.0",
    "request": {"scenarios": ["ddp"]},
    "workload": {"unit": "images", "unit_short": "img", "global_batch": 8},
    "machine": {},
    "versions": {},
    "apex": {},
    "start": {"utc": "2026-01-02T03:04:05Z"},
    "strategies": {
        "single": {"hue": "grey", "dash": "dotted"},
        "dp": {"hue": "orange", "dash": "dash-dot"},
        "ddp": {"hue": "blue", "dash": "solid"},
        "apex_ddp": {"hue": "teal", "dash": "dashed"},
    },
}
LAUNCH = {"launch": 0, "scenario": "ddp", "repeat": 0, "processes": 2, "status": "ok"}
LABELS = {
    "torch.nn.parallel.data_parallel.DataParallel": "DataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch DDP",
    "apex.parallel.distributed.DistributedDataParallel": "apex DDP",
    "bench.worker.flat_bucket.FlatBucketDataParallel": "native flat-bucket",
    "torchvision.models.resnet.ResNet": "no wrapper",
}
RAN: dict[str, Any] = {
    **dict.fromkeys(("parallel_impl", "precision_impl", "scaler", "backend", "tf32", "precision")),
    "wrapper": "",
    "optimizer": "",
    "optimizer_fused": False,
    "bf16_by_fp32": False,
    "memory_format": "contiguous",
    "device": {},
    "replicas": 2,
    "world_size": 2,
    "threads": 1,
    "affinity": 2,
    "versions": {},
    "switches": {},
    "compute_dtypes": ["float32"],
    **{f"{part}_dtypes": {} for part in ("parameter", "gradient", "batch_norm", "optimizer")},
}
GPU = {
    **dict.fromkeys(("memory_total_mib", "compute_capability", "power_limit_w", "driver")),
    "index": 0,
    "name": "a GPU",
    "pci_bus_id": "",
}

PARTS = (
    ("diagnostics", "diagnose", "launches"),
    ("doubles", "numerics", "doubles"),
    ("reference", "numerics", "references"),
)

R = TypeVar("R", bound=Run)
HINTS = cache(partial(get_type_hints, include_extras=True))


def sample(table: str = "memory", **values: Any) -> dict[str, Any]:
    """A row of memory.parquet or device.parquet, with what a row must have and no more."""
    columns = {"memory": MEMORY_COLUMNS, "device": DEVICE_COLUMNS}[table]
    usual: dict[str, Any] = {"launch": 0, "scenario": "ddp", "host": "h", "t_ns": 5, "pid": 1, "rank": 0}
    usual |= {"device": "cpu", "source": "rss"} | ({"used_mib": 100.0} if table == "memory" else {})
    return {name: (usual | values).get(name) for name in columns}


def document(**values: Any) -> RunDocument:
    """``diagnostics``, ``doubles`` and ``reference``: of the experiments that have them."""
    values = USUAL | values
    experiments = {"diagnose": {}, "numerics": {}}
    for kind in ("launches", "diagnostics", "superseded"):
        values[kind] = [LAUNCH | one | {"effective": _ran(one.get("effective"))} for one in values.get(kind, ())]
    ran = [one["scenario"] for one in values["launches"]]
    values["request"] = values["request"] | {"scenarios": list(dict.fromkeys([*values["request"]["scenarios"], *ran]))}
    for name, place, field in PARTS:
        if part := values.pop(name, None):
            experiments[place][field] = [part] if name == "reference" else part
    values["experiments"] = {name: one for name, one in experiments.items() if one} | values.get("experiments", {})
    gpus = [GPU | one for one in values["machine"].get("gpus", ())]
    values["machine"] = values["machine"] | {"gpus": gpus}
    values["workload"] = USUAL["workload"] | values["workload"]
    return decode(RunDocument, filled(RunDocument, values))


def filled(kind: Any, value: Any) -> Any:
    """A JSON value with what it lacks as a ``kind``: the default of a field, else null."""
    if get_origin(kind) is Annotated and isinstance(get_args(kind)[1], Named):
        return {name: filled(records()[name], one) for name, one in value.items()}
    if get_origin(kind) is Annotated:
        return value
    inner = get_args(kind)
    if get_origin(kind) is UnionType and value is not None:
        kinds = [one for one in inner if one is not type(None)]
        return filled(kinds[0], value) if len(kinds) == 1 else value
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return [filled(inner[0], one) for one in value]
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return {name: filled(inner[1], one) for name, one in value.items()}
    if not is_dataclass(kind) or not isinstance(value, dict):
        return value
    hints = HINTS(kind)
    whole = dict(value)
    for field in fields(kind):
        if field.name in value:
            whole[field.name] = filled(hints[field.name], value[field.name])
        elif field.name != "more":
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            whole[field.name] = None if default is MISSING else encode(default)
    return whole


def _ran(effective: dict[str, Any] | None) -> dict[str, Any] | None:
    if effective is None:
        return None
    ran = RAN | effective
    label = LABELS.get(ran["wrapper"], ran["wrapper"].split(".")[-1])
    label = "DataParallel, pass-through" if label == "DataParallel" and ran["replicas"] == 1 else label
    return {"label": label, "norm_parts": ran["replicas"]} | ran


def launch(**values: Any) -> LaunchRecord:
    return document(launches=[values]).launches[0]


def diagnostic(**values: Any) -> DiagnosticRecord:
    looks = [{"reasons": {}} | look | {"profile": {"steps": 3} | look["profile"]} for look in values.pop("looks", ())]
    return document(diagnostics=[values | {"looks": looks}]).begun(Diagnosis).launches[0]


def reference(**values: Any) -> ReferenceRecord:
    usual = {"launch": 99, "status": "ok", "reason": None, "wall_s": 1.0}
    computations = values.pop("computations", ())
    record = document(reference=usual | values).begun(Numerics).reference_of(None)
    assert record is not None
    return replace(record, computations=computations)


def with_records(about: RunDocument, *experiments: Any) -> RunDocument:
    return replace(about, experiments={**about.experiments, **{name_of(type(one)): one for one in experiments}})


def changed(run: R, **fields: Any) -> R:
    return replace(run, document=replace(run.document, **fields))


def ran_with(run: R, *effective: dict[str, Any]) -> R:
    """The run with other fields of what really ran: of each launch, or of all of them the same."""
    launches = run.document.launches
    several = effective * len(launches) if len(effective) == 1 else effective
    pairs = zip(launches, several, strict=True)
    return changed(run, launches=tuple(replace(one, effective=replace(one.effective, **more)) for one, more in pairs))
