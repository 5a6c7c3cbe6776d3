"""Where, when and on what a run was measured, what ran, and how each launch went: "How was it measured?"."""

import re
from collections.abc import Mapping
from datetime import datetime

from bench.analyse.analysed import Analysed
from bench.analyse.launches import how_many
from bench.analyse.steps import losses
from bench.console import duration
from bench.core.codec import encode
from bench.core.dtypes import short
from bench.core.text import by_key, listed
from bench.report.drawing import model_and_batch
from bench.report.tables import UNKNOWN, Cell, Column, Table, change, number, numeric, tabulate, text
from bench.runs.document import Attached, RunDocument
from bench.runs.launches import Effective, LaunchRecord
from bench.runs.reader import Run

LOG = re.compile(r"logs/launch-(?P<launch>\d+)-.*-rank(?P<rank>\d+)\.log")


def details(run: Run) -> tuple[list[tuple[str, str]], Table | None]:
    """The first launch of each scenario that came that far, as it was read off its live objects.

    First what is the same for all scenarios, as pairs of a name and a text, then a table of what differs, if anything.
    """
    names = run.document.request.scenarios
    in_turn = reversed((*run.document.good, *run.document.launches))
    ran = {launch.scenario: launch.effective for launch in in_turn if launch.effective}
    cells = {name: _detail_cells(ran[name]) for name in names if name in ran}
    first, *others = cells.values() or [{}]
    alike = [name for name in first if others and all(row[name] == first[name] for row in others)]
    rows = [{"scenario": name, **cells.get(name, dict.fromkeys(first, UNKNOWN))} for name in names]

    def column(name: str) -> Column:
        return text(name, lambda row: Cell(text=row[name], wrap=True))

    columns = [text("scenario", "scenario"), *(column(name) for name in first if name not in alike)]
    notes = ["dtypes with the share of the elements that have them, where there are several."]
    untuned = [name for name in cells if cells[name]["cuDNN autotuning"] == "off"]
    if untuned:
        why = "torch keeps its findings by thread, and DataParallel starts new threads in every step"
        notes.append(f"cuDNN autotuning is off for {', '.join(untuned)}: {why}; ddp_untuned is torch DDP without it.")
    if absent := [name for name in names if name not in cells]:
        notes.append(f"No rank of {', '.join(absent)} got far enough to show what ran; see the launches.")
    differs = len(columns) + len(notes) > 2
    return [(name, first[name]) for name in alike], tabulate(columns, rows, notes) if differs else None


def _detail_cells(ran: Effective) -> dict[str, str]:
    states = {True: "on", False: "off", None: "no GPU" if ran.tf32 is None else UNKNOWN}
    tf32 = {name: states[on] for name, on in encode(ran.tf32 or {}).items() if on is not None}
    scaling = "none"
    if ran.scaler is not None:
        kind = "dynamic" if ran.scaler["dynamic"] else "static"
        scaling = f"{ran.scaler['class'].rsplit('.', 1)[-1]}, {kind}, {ran.scaler['scale']:,g} at the end"
    backend = f"{ran.backend}{f' ({ran.backend_class})' if ran.backend_class else ''} × {ran.world_size}"
    return {
        "wrapper": ran.wrapper,
        "parallel by": ran.parallel_impl or "none",
        "precision by": ran.precision_impl or "none",
        "parameters": _dtypes(ran.parameter_dtypes),
        "gradients": _dtypes(ran.gradient_dtypes),
        "batch norm": _dtypes(ran.batch_norm_dtypes),
        "compute": " + ".join(map(short, ran.compute_dtypes)),
        "optimizer": ran.optimizer.rsplit(".", 1)[-1] + (", fused" if ran.optimizer_fused else ""),
        "optimizer's parameters": _dtypes(ran.optimizer_dtypes),
        "loss scaler": scaling,
        "backend × ranks": backend if ran.backend else "none",
        "memory format": ran.memory_format,
        "TF32": ", ".join(map(" ".join, tf32.items())) or "no GPU",
        "cuDNN autotuning": states[ran.cudnn_benchmark],
        "threads per rank": str(ran.threads),
        "versions": _listed(ran.versions),
    }


def _dtypes(counts: Mapping[str, int]) -> str:
    """``fp32``, or ``bf16 99.8 % + fp32 0.2 %``."""
    names = sorted(counts, key=lambda dtype: -counts[dtype])
    if len(names) < 2:
        return "".join(map(short, names)) or "none"
    whole = sum(counts.values())
    return " + ".join(f"{short(name)} {100 * counts[name] / whole:.1f} %" for name in names)


def launches_table(run: Analysed) -> Table:
    """Every launch: how it went, its processes, and what was checked about its results."""
    loss = losses(run.iterations).set_index("launch").to_dict("index")
    attached = run.document.of(Attached)
    final = {one.launch: one.final_loss for one in attached.launches} if attached else {}
    stats = run.stats.frame.set_index("launch").to_dict("index")
    codes = run.findings.groupby("launch")["code"].agg(", ".join)
    matches = ((name, LOG.fullmatch(name)) for name in run.document.files)
    logs = by_key((int(log["launch"]), (f"rank {log['rank']}", name)) for name, log in matches if log)

    def status(launch: LaunchRecord) -> Cell:
        reason, failed = launch.reason or "", launch.first_failed_rank
        return Cell(text=launch.status, small=reason if failed is None else f"rank {failed} first: {reason}", wrap=True)

    def value(launch: LaunchRecord, name: str) -> float | None:
        return stats.get(launch.launch, {}).get(name)

    def skew(launch: LaunchRecord) -> Cell:
        slowest = number(value(launch, "slowest_rank"), ".0f")
        if slowest == UNKNOWN:  # there is one rank
            return Cell(text=UNKNOWN)
        return Cell(text=number(100 * (value(launch, "skew") or 0.0), ".1f"), small=f"rank {slowest}")

    def findings(launch: LaunchRecord) -> Cell:
        nothing = "none" if launch.status == "ok" else UNKNOWN
        return Cell(text=str(codes.get(launch.launch, "")) or nothing, wrap=True)

    def last_loss(launch: LaunchRecord) -> Cell:
        if launch.checks.finite_loss is None:
            known = number(final.get(launch.launch), ".4g")
            return Cell(text=known, small="mean of the last steps" if known != UNKNOWN else "")
        own = loss.get(launch.launch, {})
        small = "" if launch.checks.finite_loss else "not finite"
        if (first := own.get("first_not_finite")) is not None:
            small = f"not finite from step {first} on"
        return Cell(text=number(own.get("last_loss"), ".4g"), small=small)

    columns = (
        numeric("launch", lambda launch: Cell(text=str(launch.launch), launch=launch.launch, anchor=True)),
        text("scenario", lambda launch: Cell(text=launch.scenario, small=f"repeat {launch.repeat}")),
        text("status", status),
        text("logs", lambda launch: Cell(text="", files=tuple(logs.get(launch.launch, ())), wrap=True)),
        numeric("wall (s)", lambda launch: number(launch.wall_s, ",.1f")),
        numeric("first forward (s)", lambda launch: number(launch.first_forward_s, ",.2f")),
        numeric("last third vs first (%)", lambda launch: change(value(launch, "drift"))),
        numeric("skew of ranks (%)", skew),
        numeric("outliers", lambda launch: number(value(launch, "outliers"), ".0f")),
        numeric("cores busy with others", lambda launch: number(launch.checks.foreign_cores, ".2f")),
        text("findings", findings),
        numeric("skipped steps", lambda launch: number(launch.checks.skipped_steps, "d")),
        numeric("last loss", last_loss),
    )
    notes = (
        "last third vs first: medians of the slowest rank's steps. skew of ranks: (max - min) ÷ median over ranks, and "
        "which is slowest most often. skipped steps: that the loss scaler left out of those measured.",
    )
    return tabulate(columns, run.document.launches, notes)


def facts(document: RunDocument) -> list[tuple[str, str]]:
    """Where, when and on what a run was measured: pairs of a name and a text."""
    request, workload, machine = document.request, document.workload, document.machine
    lasted = "; no end was recorded"
    if document.end and document.end.utc:
        begin, end = (datetime.fromisoformat(at.utc or "") for at in (document.start, document.end))
        lasted = f", {duration((end - begin).total_seconds())}"
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in workload.settings.items())
    launches = f"{how_many(document)} of {request.warmup} warm-up and {request.iters} measured"
    ranks = "replica" if workload.replicas == 1 else "replicas"
    trained = [
        ("Workload", f"{model_and_batch(document)} over {workload.replicas} {ranks}, {settings}, seed {workload.seed}"),
        *_data(document),
        ("Measured", f"{launches} steps per scenario, profile {request.profile}, implementation {request.impl}"),
    ]
    if (attached := document.of(Attached)) is not None:
        trained = [("Measured", f"{launches} steps, by {attached.times}")]
        for name, one in attached.commands.items():
            of = f" of {name}" if len(attached.commands) > 1 else ""
            script = f"{one.script.file}, SHA-256 {one.script.sha256[:16]}" if one.script else "unknown"
            trained += [(f"Command{of}", f"{' '.join((*one.environment, *one.command))} in {one.cwd}")]
            trained += [(f"Script{of}", script)]
    gpus = [f"{gpu.index}: {gpu.name} ({gpu.uuid})" for gpu in document.gpus]
    pairs = [
        ("Date", f"{start_date(document)}{lasted}"),
        *[("Hosts", f"{listed([one.name for one in document.hosts])}; of the first:")] * (len(document.hosts) > 1),
        ("Host", f"{machine.host}, {machine.os}"),
        ("CPU", f"{machine.cpu}, {machine.cores_usable} of {machine.cores_online} cores usable"),
        ("Memory", f"{machine.memory_gib} GiB"),
        ("GPUs", f"{', '.join(gpus)}; driver {document.gpus[0].driver or 'unknown'}" if gpus else "none used"),
        ("Versions", _versions(document)),
        *trained,
    ]
    variables = ", ".join(f"{name}={value}" for name, value in machine.environment.items())
    return pairs + [("Environment", variables)] * bool(variables)


def _data(document: RunDocument) -> list[tuple[str, str]]:
    """The data, and how it was loaded; nothing of a run that does not say."""
    work = document.workload
    if work.hash is None:
        return []
    what = "synthetic" if work.data is None else f"{work.examples:,} examples of {work.data}"
    if work.workers is None:
        return [("Data", f"{what}, ready in memory")]
    each = f"{work.workers} processes of each rank, whose memory is not counted" if work.workers else "the rank itself"
    ahead = f"; {work.prefetch} batches ahead each" if work.prefetch else ""
    return [("Data", f"{what}, loaded by {each}{ahead}")]


def start_date(document: RunDocument) -> str:
    return f"{(document.start.utc or '')[:16].replace('T', ' ')} UTC"


def _versions(document: RunDocument) -> str:
    versions: dict[str, object] = {"bench": document.bench, "python": document.versions["python"]}
    versions |= next((launch.effective.versions for launch in document.launches if launch.effective), {})
    versions |= {name: document.versions.get(name) for name in ("torch", "torchvision")}
    if document.apex.kind != "absent":
        versions["apex"] = document.apex.version or document.apex.kind
    return _listed(versions)


def _listed(versions: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
