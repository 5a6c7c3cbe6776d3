"""The page: one HTML file with everything in it, which needs no network and opens from a disk."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bench.analyse.advice import Advice, advice, answer, is_clear
from bench.analyse.analysed import Analysed
from bench.analyse.caveats import caveats, failures
from bench.analyse.launches import how_many
from bench.analyse.questions import Answer, questions
from bench.console import duration
from bench.core.text import printable
from bench.report import device_tables, tables, verdict_tables
from bench.report.drawing import THEME, Plot, inline, model_and_batch
from bench.report.loader import loader_table, loader_words
from bench.runs.document import RunDocument

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = "page.html.j2"

NO_DIAGNOSIS = (
    "This run has no diagnostic launch: python -m bench run --diagnose shows what communication costs, how much of it "
    "is exposed, and what a step is spent on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlot:
    """A plot as it stands in the page: inline SVG, and the files beside the page that hold it."""

    title: str
    caption: str
    svg: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page says about one run: text as it is in the run, which the template escapes, and tables by name."""

    run: Analysed
    answer: str
    loader: list[str]
    clear: bool
    advice: list[Advice]
    caveats: list[str]
    facts: list[tuple[str, str]]
    questions: list[Answer]
    tables: dict[str, tables.Table | None]
    communication: list[str]
    traces: list[str]
    about_memory: str
    no_energy: str
    plots: dict[str, PagePlot]
    left_out: str


def section(run: Analysed, table: "pd.DataFrame", plots: dict[str, PagePlot]) -> Section:
    """The section of a run, whose summary is ``table``."""
    return Section(
        run=run,
        answer=answer(run.document, table),
        loader=loader_words(run),
        clear=is_clear(run.document, table),
        advice=advice(run.document, table),
        caveats=caveats(run.document, table),
        facts=facts(run.document),
        questions=questions(run),
        tables={
            "summary": tables.summary_table(run, table),
            "findings": verdict_tables.findings_table(run),
            "parity": verdict_tables.parity_table(run),
            "communication": verdict_tables.communication_table(run),
            "data_parallel": verdict_tables.data_parallel_table(run),
            "spent": verdict_tables.spent_table(run),
            "memory_parts": device_tables.memory_parts_table(run),
            "loader": loader_table(run),
            "memory": device_tables.beside_torch_table(run),
            "energy": device_tables.energy_table(run),
            "published": tables.published_table(run),
            "statistics": verdict_tables.statistics_table(run),
            "details": tables.details_table(run),
            "launches": tables.launches_table(run),
        },
        communication=verdict_tables.communication_words(run),
        traces=sorted(name for name in run.document.files if name.startswith("traces/")),
        about_memory="Memory of each rank" if run.document.workload.device == "cpu" else "Memory beside torch",
        no_energy=device_tables.no_energy(run),
        plots=plots,
        left_out=failures(run.document, ()),
    )


def placed(plots: Iterable[Plot], *, files: str = "", ids: str = "") -> tuple[dict[str, PagePlot], dict[str, bytes]]:
    """Plots for a page by name, and their files; the names of files and the ids begin with ``files`` and ``ids``."""
    in_page: dict[str, PagePlot] = {}
    contents: dict[str, bytes] = {}
    for plot in plots:
        names = (f"{files}{plot.name}.svg", f"{files}{plot.name}.png")
        contents.update(zip(names, (plot.svg.encode(), plot.png), strict=True))
        svg = inline(plot.svg, f"{ids}{plot.name}", plot.title)
        in_page[plot.name] = PagePlot(title=plot.title, caption=plot.caption, svg=svg, files=names)
    return in_page, contents


def render(sections: Sequence[Section], files: Sequence[str]) -> str:
    """The page of these sections as HTML. ``files``: names of the tables beside it."""
    return render_page(TEMPLATE, sections=sections, files=files, no_diagnosis=NO_DIAGNOSIS)


def render_page(template: str, **values: Any) -> str:
    """A page of this folder's templates as HTML; every value is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(os.path.dirname(__file__)),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_together,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return printable(environment.get_template(template).render(theme=THEME, **values))


def _together(value: Any) -> Any:
    """Text in which no line ends between a number and its per cent; what is marked up already stays as it is."""
    return re.sub(r"(?<=\d) %", "\u00a0%", value) if type(value) is str else value


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
