"""Where, when and on what a run was measured, in words."""

from datetime import datetime
from typing import Any

from bench.analyse.launches import how_many
from bench.console import duration
from bench.report.drawing import model_and_batch
from bench.runs.document import RunDocument


def facts(document: RunDocument) -> list[tuple[str, str]]:
    """Where, when and on what a run was measured: pairs of a name and a text."""
    request, workload, machine = document.request, document.workload, document.machine
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in workload.settings.items())
    launches = f"{how_many(document)} of {request.warmup} warm-up and {request.iters} measured"
    ranks = "replica" if workload.replicas == 1 else "replicas"
    trained = [
        (
            "Workload",
            f"{model_and_batch(document)} over {workload.replicas} {ranks}, {settings}, seed {workload.seed}, "
            f"half is {workload.half}",
        ),
        *_data(document),
        ("Workload hash", (workload.hash or "")[:16]),
        ("Measured", f"{launches} steps per scenario, profile {request.profile}, implementation {request.impl}"),
    ]
    if document.attached:
        attached, script = document.attached, document.attached.script
        trained = [
            ("Command", f"{' '.join(attached.command)} in {attached.cwd}"),
            ("Script", f"{script.file}, SHA-256 {script.sha256[:16]}" if script else "unknown"),
            ("Measured", f"{launches} steps, by {attached.times}"),
        ]
    pairs = [
        ("Date", _date(document)),
        ("Host", f"{machine.host}, {machine.os}"),
        ("CPU", f"{machine.cpu}, {machine.cores_usable} of {machine.cores_online} cores usable"),
        ("Memory", f"{machine.memory_gib} GiB"),
        ("GPUs", _gpus(document)),
        ("Versions", _versions(document)),
        *trained,
        (
            "Load at the start",
            f"{document.start.load_1min:.2f} (1 min) on {machine.cores_usable} usable cores",
        ),
    ]
    if machine.environment:
        pairs.append(("Environment", ", ".join(f"{name}={value}" for name, value in machine.environment.items())))
    return pairs


def _data(document: RunDocument) -> list[tuple[str, str]]:
    """What it was trained on, and how that was loaded; nothing of a run that does not say."""
    work = document.workload
    if work.hash is None:
        return []
    what = "synthetic" if work.data is None else f"{work.examples:,} examples of {work.data}"
    if work.workers is None:
        return [("Data", f"{what}, ready in memory")]
    each = f"{work.workers} processes of each rank, whose memory is not counted" if work.workers else "the rank itself"
    ahead = f"; {work.prefetch} batches ahead each" if work.prefetch else ""
    return [("Data", f"{what}, loaded by {each}{ahead}")]


def _date(document: RunDocument) -> str:
    begin, end = document.start.utc or "", document.end and document.end.utc
    if not end:
        return f"{_minutes(begin)} UTC; no end was recorded"
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    return f"{_minutes(begin)} UTC, {duration(seconds)}"


def _minutes(utc: str) -> str:
    """``2026-11-21 12:11`` of an ISO 8601 time."""
    return utc[:16].replace("T", " ")


def _gpus(document: RunDocument) -> str:
    chosen = [gpu for gpu in document.machine.gpus if gpu.uuid in document.request.devices]
    if not chosen:
        return "none used"
    named = [f"{gpu.index}: {gpu.name} ({gpu.uuid})" for gpu in chosen]
    return f"{', '.join(named)}; driver {chosen[0].driver or 'unknown'}"


def _versions(document: RunDocument) -> str:
    known: dict[str, Any] = {"bench": document.bench, "python": document.versions["python"]}
    for launch in document.launches:
        if launch.effective:
            known |= launch.effective.versions
            break
    known |= {name: document.versions.get(name) for name in ("torch", "torchvision")}
    if document.apex.kind != "absent":
        known["apex"] = document.apex.version or document.apex.kind
    return ", ".join(f"{name} {version}" for name, version in known.items() if version is not None)
