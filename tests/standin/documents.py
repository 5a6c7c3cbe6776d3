"""Run documents from the few values that a test is about; all others are as unknown as they may be."""

from dataclasses import replace
from typing import Any, TypeVar

from bench.core.codec import decode, encode
from bench.core.records import DEVICE_COLUMNS, MEMORY_COLUMNS
from bench.runs.document import RunDocument, WorkloadRecord
from bench.runs.experiments import DiagnosticRecord
from bench.runs.launches import LaunchRecord, ReferenceRecord
from bench.runs.migrate import migrate
from bench.runs.reader import Run

USUAL: dict[str, Any] = {
    "schema_version": 1,
    "bench": "0.1.0",
    "complete": False,
    "files": {},
    "request": {"scenarios": ["ddp"]},
    "workload": {"global_batch": 8},
    "machine": {},
    "versions": {},
    "apex": {},
    "start": {"utc": "2026-01-02T03:04:05Z"},
    "launches": [],
}
LAUNCH = {"launch": 0, "scenario": "ddp", "processes": 2, "status": "ok"}
RAN: dict[str, Any] = {
    **dict.fromkeys(("parallel_impl", "precision_impl", "scaler", "backend", "tf32", "precision")),
    "wrapper": "",
    "optimizer": "",
    "optimizer_fused": False,
    "memory_format": "contiguous",
    "device": {},
    "replicas": 2,
    "world_size": 2,
    "threads": 1,
    "affinity": 2,
    "versions": {},
    "compute_dtypes": ["float32"],
    **{f"{part}_dtypes": {} for part in ("parameter", "gradient", "batch_norm", "optimizer")},
}
GPU = {
    **dict.fromkeys(("memory_total_mib", "compute_capability", "power_limit_w", "driver")),
    "index": 0,
    "name": "a GPU",
    "pci_bus_id": "",
}

LATER = {
    2: ("diagnostics", "reference", "interval_target", "validity", "parity"),
    3: ("superseded", "resumed", "batch_search", "seal"),
}
"""The keys of run.json that came with a schema version."""

R = TypeVar("R", bound=Run)


def sample(table: str = "memory", **values: Any) -> dict[str, Any]:
    """A row of memory.parquet or device.parquet, with what a row must have and no more."""
    columns = {"memory": MEMORY_COLUMNS, "device": DEVICE_COLUMNS}[table]
    usual: dict[str, Any] = {"launch": 0, "scenario": "ddp", "host": "h", "t_ns": 5, "pid": 1, "rank": 0}
    usual |= {"device": "cpu", "source": "rss"} | ({"used_mib": 100.0} if table == "memory" else {})
    return {name: (usual | values).get(name) for name in columns}


def document(**values: Any) -> RunDocument:
    found = USUAL | values
    for kind in ("launches", "diagnostics", "superseded"):
        if kind in found:
            found[kind] = [LAUNCH | one | {"effective": _ran(one.get("effective"))} for one in found[kind]]
    gpus = [GPU | one for one in found["machine"].get("gpus", ())]
    now = migrate(found | {"machine": found["machine"] | {"gpus": gpus}})
    work = encode(WorkloadRecord()) | found["workload"]
    return decode(RunDocument, now | ({"workload": work} if "settings" in found["workload"] else {}))


def _ran(effective: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if effective is None else RAN | effective


def launch(**values: Any) -> LaunchRecord:
    return document(launches=[values]).launches[0]


def diagnostic(**values: Any) -> DiagnosticRecord:
    looks = [look | {"profile": {"steps": 3} | look["profile"]} for look in values.pop("looks", ())]
    return document(diagnostics=[values | {"looks": looks}]).diagnostics[0]


def reference(**values: Any) -> ReferenceRecord:
    usual = {"launch": 99, "status": "ok", "reason": None, "wall_s": 1.0}
    computations = values.pop("computations", ())
    record = document(reference=usual | values).reference
    assert record is not None
    return replace(record, computations=computations)


def changed(run: R, **fields: Any) -> R:
    return replace(run, document=replace(run.document, **fields))


def ran_with(run: R, *effective: dict[str, Any]) -> R:
    """The run with other fields of what really ran: of each launch, or of all of them the same."""
    launches = run.document.launches
    several = effective * len(launches) if len(effective) == 1 else effective
    pairs = zip(launches, several, strict=True)
    return changed(run, launches=tuple(replace(one, effective=replace(one.effective, **more)) for one, more in pairs))
