"""run.json of older benches, brought up to :data:`bench.core.records.SCHEMA_VERSION`: JSON in, JSON out, one step each.

The steps are written out and do not follow :mod:`bench.runs.document`, which goes on.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from bench.core.records import canonical_json

Json = dict[str, Any]


def migrate(document: Json) -> Json:
    """A run.json of any older version as one of today. Raises ``KeyError`` and its like if it is damaged."""
    version: int = document["schema_version"]
    while version in STEPS:
        document = STEPS[version](document)
        version += 1
    return {**document, "schema_version": version}


def _from_1(document: Json) -> Json:
    """Diagnostic launches, the reference, precision targets, validity and parity came with 2."""
    return {**_empty("reference precision"), **_lists("diagnostics validity parity"), **document}


def _from_2(document: Json) -> Json:
    """Superseded launches, searches for a batch, and the checksum of run.json itself came with 3."""
    return {**_lists("superseded resumed"), **_empty("batch_search"), **document}


def _from_3(document: Json) -> Json:
    """Every key is there since 4, null where it is unknown; ``precision`` is called ``interval_target``."""
    if "interval_target" in document:
        raise ValueError("it has an interval_target, which came with 4")
    found = {
        **_empty("fresh imported recommendation end seal"),
        **_lists("command"),
        "run": "",
        "sources": {},
        "strategies": _STRATEGIES,
        **document,
    }
    found["interval_target"] = found.pop("precision", None)
    found["request"] = _empty("warmup iters launches profile impl label") | {"devices": []} | document["request"]
    found["workload"] = workload_from_3(document["workload"])
    found["machine"] = _empty(_MACHINE) | {"gpus": [], "environment": {}} | document["machine"]
    found["apex"] = _empty(_APEX) | {"problems": {}} | document["apex"]
    for name in ("start", "end"):
        found[name] = found[name] and _empty(_STATE) | found[name]
    found["resumed"] = [{"force": False} | _empty(_STATE) | one for one in found["resumed"]]
    for name in ("launches", "diagnostics", "superseded"):
        found[name] = [_launch_from_3(record) for record in found[name]]
    for record in found["diagnostics"]:
        record["looks"] = [_look_from_3(look) for look in record.get("looks", ())]
    if found["reference"] is not None:
        found["reference"] = _launch_from_3(found["reference"])
    if found["batch_search"] is not None:
        tries = [_launch_from_3(record) for record in found["batch_search"]["launches"]]
        batches = {name: _renamed(one) for name, one in found["batch_search"]["scenarios"].items()}
        found["batch_search"] = {**found["batch_search"], "launches": tries, "scenarios": batches}
    found["recommendation"] = _advice_from_3(found["recommendation"])
    return found


def _from_4(document: Json) -> Json:
    """The class of the process group's backend came with 5."""
    return _launches(document, _launch_from_4)


def _launches(document: Json, change: Callable[[Json], Json]) -> Json:
    """The document with all of its launches changed."""
    found = dict(document)
    for name in ("launches", "diagnostics", "superseded"):
        found[name] = [change(record) for record in found[name]]
    if found["batch_search"] is not None:
        tries = [change(record) for record in found["batch_search"]["launches"]]
        found["batch_search"] = {**found["batch_search"], "launches": tries}
    return found


def _launch_from_4(record: Json) -> Json:
    ran = record.get("effective")  # the reference has none
    return record if ran is None else {**record, "effective": _empty("backend_class") | ran}


def _from_5(document: Json) -> Json:
    """The probe, and what is told of it, came with 6."""
    found = {**_empty("probe_seed"), **document}
    found["parity"] = [_empty("update_error update_bound trained_error trained_bound") | row for row in found["parity"]]
    if found["reference"] is not None:
        found["reference"] = _lists("computations") | found["reference"]
    found["superseded"] = [
        _lists("computations") | record if "replica_counts" in record else record for record in found["superseded"]
    ]
    return found


def _from_6(document: Json) -> Json:
    """Attached runs, real data, its loader, and units per example came with 7."""
    found = {**_empty("attached"), **document, "workload": _workload_from_6(document["workload"])}
    if document["request"].get("task") is not None:
        found["request"] = {**document["request"], "task": _empty(_LATER_TASK) | document["request"]["task"]}
    return found


def _workload_from_6(work: Json) -> Json:
    return _empty(f"{_LATER_TASK} workers prefetch") | work


def _from_7(document: Json) -> Json:
    """What the memory of a rank holds, checkpoints, sweeps, switches, torch.compile and searches came with 8."""
    return _launches({**_empty("input_sweep tuning"), **_lists("checkpoints"), **document}, _launch_from_7)


def _launch_from_7(record: Json) -> Json:
    if "replica_counts" in record:  # the reference
        return record
    ran = record["effective"]
    if ran is not None:
        ran = {"norm_parts": ran["replicas"], "switches": {}, "compiled": None} | ran
    return {**record, "effective": ran, "ranks": [_empty("memory host_lead_ms") | rank for rank in record["ranks"]]}


def _from_8(document: Json) -> Json:
    """Cores that a switch leaves a rank, code of built-in workloads, predicted memory, scaling, restarts and hosts came
    with 9."""
    document = {**document, "workload": _empty("code_sha256") | document["workload"]}
    if document["request"].get("task") is not None:
        task = _empty("code_sha256") | document["request"]["task"]
        document["request"] = {**document["request"], "task": task}
    found = _launches({**_empty("scaling engine"), **_lists("restarts hosts"), **document}, _launch_from_8)
    found["checkpoints"] = [_launch_from_8(record) for record in found["checkpoints"]]
    for name in ("diagnostics", "superseded"):
        found[name] = [_empty("forecast") | one if "looks" in one else one for one in found[name]]
    for name in ("input_sweep", "tuning"):
        if found[name] is not None:
            found[name] = {**found[name], "launches": [_launch_from_8(record) for record in found[name]["launches"]]}
    return found


def _launch_from_8(record: Json) -> Json:
    ran = record.get("effective")  # the reference has none
    return record if ran is None else {**record, "effective": _empty("bound_cores") | ran}


_STRATEGIES = {
    name: {"hue": hue, "dash": dash, "not_comparable": None}
    for name, hue, dash in (
        ("single", "grey", "dotted"),
        ("dp", "orange", "dash-dot"),
        ("ddp", "blue", "solid"),
        ("apex_ddp", "teal", "dashed"),
    )
}
_LABELS = {
    "torch.nn.parallel.data_parallel.DataParallel": "DataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch DDP",
    "apex.parallel.distributed.DistributedDataParallel": "apex DDP",
    "bench.worker.flat_bucket.FlatBucketDataParallel": "native flat-bucket",
}
_MACHINE = "host os python cpu cores_usable cores_online memory_gib governor turbo_disabled container gpus_reason git"
_APEX = "kind path amp parallel explanation version"
_STATE = "load_1min memory_available_gib"
_LAUNCH = """strategy precision replicas reason first_failed_rank effective started_utc ended_utc wall_s first_forward_s
    failure warmup iters"""
_EFFECTIVE = "model weights optimizer_settings cudnn_benchmark bf16_instructions apex_kernels"
_CHECKS = """conservation_error conservation_ok ranks_differ skipped_steps skipped_warmup_steps finite_loss
    initial_weights_alike final_weights_alike foreign_cores sampling scrambled_lists probes cpu_energy throttle"""
_RANK = "pid host threads ran_threads cores phase step log device allocator host_lead_ms initial_sha256 final_sha256"
_FAILURE = "rank phase step where memory steps_kept"
_SETTINGS = ("model", "image_size", "classes", "learning_rate", "momentum", "weight_decay")
_RESIDUAL = ("resnet", "resnext", "wide_resnet")
_LATER_TASK = "units_per_example data data_sha256 examples"
_WORK = ("global_batch", "replicas", "device", "half", "warmup", "seed", "pool_batches")


def workload_from_3(stored: Json) -> Json:
    """A workload was a model of torchvision on synthetic images; since 4 it has the name of a file, and settings.

    Its hash becomes that of the same work today; one that was not that of its fields stays what it is.
    """
    old, seal = {name: value for name, value in stored.items() if name != "hash"}, stored.get("hash")
    settings = {name: old[name] for name in _SETTINGS if old.get(name) is not None}
    if old.get("zero_init_residual") is False and str(old.get("model")).startswith(_RESIDUAL):
        settings["zero_init_residual"] = False
    work = {"name": "resnet101" if seal else None, "sha256": None, "unit": "images", "settings": settings}
    work |= {name: old.get(name) for name in _WORK}
    words = (old.get("model"), f"{old['image_size']} px" if old.get("image_size") else None)
    title = ", ".join(word for word in words if word) or None
    if seal is not None and seal == _hash(old):
        seal = _hash(work)
    return {"file": None, "unit_short": "img", "title": title, **work, "hash": seal}


def _hash(fields: Json) -> str:
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()


def digest_from_1(digest: Json) -> Json:
    """Since 2 the figures of a digest name no unit, and its workload is as in run.json of version 4."""
    scenarios = [
        {**scenario, "launches": [_renamed(launch) for launch in scenario["launches"]]}
        for scenario in digest["scenarios"]
    ]
    return {**digest, "digest_version": 2, "workload": workload_from_3(digest["workload"]), "scenarios": scenarios}


def digest_from_2(digest: Json) -> Json:
    """Attached runs came with 3, and its workload is as in run.json of version 7."""
    return {**digest, "digest_version": 3, "attached": None, "workload": _workload_from_6(digest["workload"])}


def digest_from_3(digest: Json) -> Json:
    """Its workload is as in run.json of version 9 since 4."""
    return {**digest, "digest_version": 4, "workload": _empty("code_sha256") | digest["workload"]}


def _renamed(figures: Json) -> Json:
    names = {"throughput_img_s": "throughput_per_s", "energy_per_1000_images_j": "energy_per_1000_j"}
    return {names.get(name, name): value for name, value in figures.items()}


def _launch_from_3(record: Json) -> Json:
    if "replica_counts" in record:  # the reference
        return _empty("reason wall_s unit_roundoff") | record
    found = _empty(_LAUNCH) | {"repeat": 0, "ranks": [], "checks": {}} | record
    found["checks"] = _empty(_CHECKS) | {"foreign": []} | found["checks"]
    found["ranks"] = [_empty(_RANK) | rank for rank in found["ranks"]]
    if found["effective"] is not None:
        ran = {name: value for name, value in found["effective"].items() if name != "session"}
        found["effective"] = _empty(_EFFECTIVE) | {"label": _label_from_3(ran)} | ran
    if found["failure"] is not None:
        found["failure"] = _empty(_FAILURE) | _lists("log_end others") | found["failure"]
    return found


def _label_from_3(ran: Json) -> str:
    wrapper: str = ran["wrapper"]
    known = _LABELS.get(wrapper, "no wrapper" if wrapper.startswith("torchvision.") else wrapper.split(".")[-1])
    return "DataParallel, pass-through" if known == "DataParallel" and ran["replicas"] == 1 else known


def _look_from_3(look: Json) -> Json:
    reasons = {name.removesuffix("_reason"): why for name, why in look.items() if name.endswith("_reason")}
    nccl = {"transports": {}, "algorithms": {}, "reason": "NCCL's log was not read"}
    return {"reasons": reasons, "profile": {"trace": None} | look["profile"], "nccl": nccl}


def _advice_from_3(found: Json | None) -> Json | None:
    return found and {**found, "parallel": _advice_from_3(found.get("parallel"))}


def _empty(names: str) -> Json:
    return dict.fromkeys(names.split())


def _lists(names: str) -> Json:
    return {name: [] for name in names.split()}


STEPS: dict[int, Callable[[Json], Json]] = dict(
    enumerate((_from_1, _from_2, _from_3, _from_4, _from_5, _from_6, _from_7, _from_8), start=1)
)
"""By the version that each step begins at."""
