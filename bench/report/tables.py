"""The tables of a report as values, and as CSV.

A table is made once, of cells that are text already, and then rendered: as HTML by the page's template, as Markdown
by ``bench.report.markdown``. What is unknown is a dash, and a note below the table says why.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.analyse import memory_timeline, published
from bench.analyse.analysed import Analysed
from bench.analyse.answer import fastest
from bench.analyse.bars import about_intervals, bar, plus_minus
from bench.analyse.intervals import half_width_percent
from bench.analyse.labels import HALF
from bench.analyse.overview import overview
from bench.analyse.spread import losses
from bench.analyse.steps import BASE, scenarios
from bench.runs.codec import encode
from bench.runs.document import Effective, LaunchRecord, RunDocument
from bench.runs.reader import Run

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = "–"

TONES = {
    "valid": "good",
    "same": "good",
    "within half precision": "good",
    "warning": "doubt",
    "invalid": "bad",
    "diverged": "bad",
    "not finite": "bad",
}
"""The colour of a verdict, by name in the theme; the word itself always stands beside it."""


Record = dict[Any, Any]
"""A row of a table of pandas, by column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading, the group it stands under (may be empty), whether it is numbers."""

    heading: str
    number: bool = False
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: its text, what is smaller below it, how long a bar behind it is (0 to 1).

    ``tone``: the name in the theme of a colour that goes with the text, or empty. ``wrap``: on several lines, as a
    sentence is.
    """

    text: str
    small: str = ""
    bar: float = 0.0
    tone: str = ""
    wrap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of cells. ``notes``: sentences for below it. ``marked``: the number of the row to stand out, or None."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    marked: int | None = None

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of neighbouring columns and how many columns each spans; empty where there are none."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return spans if any(name for name, _ in spans) else []


def summary_of(run: Run) -> "pd.DataFrame":
    """The summary of a run (``bench.analyse.overview``) with the run's id as its first column."""
    return of_run(run, overview(run))


def of_run(run: Run, table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with the run's id as its first column."""
    return table.assign(run=run.id)[["run", *table.columns]]


def csv(tables: Sequence["pd.DataFrame"]) -> str:
    """The tables of all runs below each other; figures in full, unknown ones empty."""
    import pandas as pd

    whole = pd.concat([table.astype("object") for table in tables], ignore_index=True)
    return whole.to_csv(index=False, lineterminator="\n")


def summary_table(run: Run, table: "pd.DataFrame") -> Table:
    """The summary for people: speed, memory, energy where it is known, what ran, how it went."""
    best = fastest(table)
    highest = table["throughput_img_s"].max()
    with_energy = table["energy_per_1000_images_j"].notna().any()
    columns = (
        Column(heading="scenario"),
        Column(heading="img/s", number=True),
        Column(heading="step median ms", number=True),
        Column(heading="step p95 ms", number=True),
        Column(heading=f"speed ÷ {BASE}", number=True),
        Column(heading="peak MiB of a PID", number=True),
        Column(heading="peak MiB in all", number=True),
        Column(heading="memory source"),
        *((Column(heading="J per 1,000 images", number=True),) if with_energy else ()),
        Column(heading="figures"),
        Column(heading="numerics"),
        Column(heading="what ran"),
        Column(heading="launches ok", number=True),
        Column(heading="status"),
    )
    rows = []
    for row in table.to_dict("records"):
        speed = row["throughput_img_s"]
        rows.append(
            (
                Cell(text=str(row["scenario"])),
                Cell(
                    text=number(speed, ",.1f"),
                    small=plus_minus(row, "throughput_img_s"),
                    bar=0.0 if _unknown(speed) else float(speed / highest),
                ),
                _figure(row, "step_median_ms", ",.1f"),
                _figure(row, "step_p95_ms", ",.1f"),
                _figure(row, "relative_to_ddp", ".2f"),
                _figure(row, "peak_pid_mib", ",.0f"),
                _figure(row, "peak_total_mib", ",.0f"),
                Cell(text=number(row["memory_source"], "")),
                *((_figure(row, "energy_per_1000_images_j", ",.0f"),) if with_energy else ()),
                _verdict(row["validity"], row["findings"]),
                _verdict(row["parity"], ""),
                Cell(text=row["what_ran"] or UNKNOWN, wrap=True),
                Cell(text=f"{row['launches_ok']}/{row['launches']}"),
                Cell(text=str(row["status"])),
            )
        )
    marked = None if best is None else list(table["scenario"]).index(best["scenario"])
    notes = (*(f"{line}." for line in about_intervals(table)), *_why_unknown(run, table))
    return Table(columns=columns, rows=tuple(rows), notes=notes, marked=marked)


def _verdict(verdict: Any, why: Any) -> Cell:
    """A verdict in its colour, with what it rests on below it."""
    if _unknown(verdict):
        return Cell(text=UNKNOWN)
    return Cell(text=verdict, small="" if _unknown(why) else why, tone=TONES[verdict], wrap=True)


def _figure(row: dict[Any, Any], name: str, form: str) -> Cell:
    """A figure of the summary with its interval below it."""
    return Cell(text=number(row[name], form), small=plus_minus(row, name))


def _why_unknown(run: Run, table: "pd.DataFrame") -> list[str]:
    """What went wrong with a scenario, and a sentence for each figure that one with steps lacks."""
    wrong = table[table["reason"].notna()].to_dict("records")
    notes = [f"{row['scenario']}: {row['status']}: {row['reason']}" for row in wrong]
    good = table[table["throughput_img_s"].notna()]
    if len(good) and good["relative_to_ddp"].isna().all():
        notes.append(f"speed ÷ {BASE} is unknown because {BASE} gave no figures in this run.")
    reasons = memory_timeline.unknown(run.memory).set_index("scenario")["reason"]
    for scenario in good["scenario"]:
        if scenario in reasons.index:
            notes.append(f"Memory of {scenario} is unknown, or a part of it: {reasons[scenario]}.")
    silent = set(good.loc[good["peak_pid_mib"].isna(), "scenario"]) - set(reasons.index)
    notes += [f"Memory of {scenario} is unknown: there is no sample of it." for scenario in sorted(silent)]
    return notes


def published_table(run: Analysed) -> Table | None:
    """Elapsed seconds of this run beside the published ones; None for a run without steps of an ``ok`` launch."""
    steps = run.good_iterations
    if steps.empty:
        return None
    form = published.table(steps, scenarios(run.document))
    mine = tuple(dict.fromkeys(published.iterations(int(steps["step"].max()) + 1)))
    theirs = published.PUBLISHED_ITERATIONS
    here, there = "this run: seconds at iteration", "published: seconds at iteration"
    columns = (
        Column(heading="scenario"),
        *(Column(heading=f"{iteration}", number=True, group=here) for iteration in mine),
        Column(heading=f"this run: time ÷ {BASE}", number=True),
        *(Column(heading=f"{iteration}", number=True, group=there) for iteration in theirs),
        Column(heading=f"published: time ÷ {BASE}", number=True),
    )
    rows = [
        (
            Cell(text=str(row["scenario"])),
            *(_with_bar(row, f"elapsed_s_{iteration}", ",.2f") for iteration in mine),
            _with_bar(row, "relative", ".2f"),
            *(Cell(text=number(row[f"published_s_{iteration}"], ".1f")) for iteration in theirs),
            Cell(text=number(row["published_relative"], ".2f")),
        )
        for row in form.to_dict("records")
    ]
    notes = (
        f"time ÷ {BASE}: at the last iteration shown; above 1 is slower. Seconds never carry from one machine to "
        "another; these ratios do so between like machines.",
        "Iteration 0 includes the cold start, and warm-up steps count here and nowhere else, because the author "
        "printed the time since training began.",
        f"Published workload: {published.PUBLISHED_WORKLOAD}. Source: the author's own figures, on three GPUs; "
        "it has no row for a single process.",
    )
    return Table(columns=columns, rows=tuple(rows), notes=notes)


def _with_bar(row: dict[Any, Any], name: str, form: str) -> Cell:
    """A figure of the published form with its interval below it."""
    known = (None if _unknown(row[column]) else row[column] for column in published.ends(name))
    return Cell(text=number(row[name], form), small=bar(half_width_percent(*known)))


def details_table(run: Run) -> Table:
    """What really ran, one row per scenario, read off the live objects of its first launch that came that far."""
    headings = (
        *("scenario", "wrapper", "parallel by", "precision by", "parameters", "gradients", "batch norm", "compute"),
        *("optimizer", "optimizer's parameters", "loss scaler", "backend × ranks", "memory format", "TF32"),
        *("cuDNN autotuning", "threads per rank", "versions"),
    )
    rows = []
    for scenario in scenarios(run.document):
        ran = _effective(run.document, scenario)
        cells = [UNKNOWN] * (len(headings) - 1) if ran is None else _detail_cells(ran)
        rows.append(tuple(Cell(text=text) for text in (scenario, *cells)))
    notes = ["dtypes with the share of the elements that have them, where there are several."]
    autotuning = headings.index("cuDNN autotuning")
    untuned = [row[0].text for row in rows if row[autotuning].text == "off"]
    if untuned:
        notes.append(
            f"cuDNN autotuning is off for {', '.join(untuned)}: torch keeps its findings by thread, and DataParallel "
            "starts new threads in every step, which would search anew in each."
        )
    absent = [row[0].text for row in rows if row[1].text == UNKNOWN]
    if absent:
        notes.append(f"No rank of {', '.join(absent)} came so far that what ran could be read; see the launches.")
    return Table(columns=tuple(Column(heading=text) for text in headings), rows=tuple(rows), notes=tuple(notes))


def _effective(document: RunDocument, scenario: str) -> Effective | None:
    mine = [launch for launch in document.launches if launch.scenario == scenario and launch.effective]
    mine.sort(key=lambda launch: launch.status != "ok")
    return mine[0].effective if mine else None


def _detail_cells(ran: Effective) -> list[str]:
    tf32, scaler = ran.tf32, ran.scaler
    versions = (f"{name} {version}" for name, version in ran.versions.items() if version is not None)
    return [
        ran.wrapper,
        ran.parallel_impl or "none",
        ran.precision_impl or "none",
        _dtypes(ran.parameter_dtypes),
        _dtypes(ran.gradient_dtypes),
        _dtypes(ran.batch_norm_dtypes),
        " + ".join(HALF.get(dtype, dtype) for dtype in ran.compute_dtypes),
        ran.optimizer.rsplit(".", 1)[-1] + (", fused" if ran.optimizer_fused else ""),
        _dtypes(ran.optimizer_dtypes),
        "none"
        if scaler is None
        else f"{scaler['class'].rsplit('.', 1)[-1]}, {'dynamic' if scaler['dynamic'] else 'static'}, "
        f"{scaler['scale']:,g} at the end",
        "none" if ran.backend is None else f"{ran.backend} × {ran.world_size}",
        ran.memory_format,
        "no GPU" if tf32 is None else ", ".join(f"{name} {'on' if on else 'off'}" for name, on in encode(tf32).items()),
        {True: "on", False: "off", None: "no GPU" if tf32 is None else UNKNOWN}[ran.cudnn_benchmark],
        str(ran.threads),
        ", ".join(versions),
    ]


def _dtypes(counts: Mapping[str, int]) -> str:
    """``fp32``, or ``bf16 99.8 % + fp32 0.2 %``."""
    names = sorted(counts, key=lambda dtype: -counts[dtype])
    if len(names) < 2:
        return "".join(HALF.get(name, name) for name in names) or "none"
    whole = sum(counts.values())
    return " + ".join(f"{HALF.get(name, name)} {100 * counts[name] / whole:.1f} %" for name in names)


def launches_table(run: Analysed) -> Table:
    """Every launch: how it went, its processes, and what was checked about its figures."""
    columns = (
        Column(heading="launch", number=True),
        Column(heading="scenario"),
        Column(heading="repeat", number=True),
        Column(heading="status"),
        Column(heading="PID by rank"),
        Column(heading="wall (s)", number=True),
        Column(heading="first forward (s)", number=True),
        Column(heading="steps vs wall time (%)", number=True),
        Column(heading="last third vs first (%)", number=True),
        Column(heading="skew of ranks (%)", number=True),
        Column(heading="outliers", number=True),
        Column(heading="cores kept busy by others", number=True),
        Column(heading="findings"),
        Column(heading="skipped steps", number=True),
        Column(heading="last loss", number=True),
        Column(heading="loss finite"),
        Column(heading="ranks alike"),
    )
    loss = losses(run.iterations).set_index("launch")
    figures = run.figures.set_index("launch")
    codes = run.findings.groupby("launch")["code"].agg(", ".join)
    rows = tuple(_launch_cells(launch, loss, figures, codes) for launch in run.document.launches)
    notes = (
        "steps vs wall time: by how much a rank's measured steps differ from the host's wall time for them, at most "
        "0.5 % in a sound launch. skipped steps: optimizer steps that the loss scaler left out of the measured window. "
        "last third vs first: of the medians of the slowest rank's steps. skew of ranks: (max - min) ÷ median over "
        "ranks; the rank that is slowest most often stands below. last loss: of the global batch.",
    )
    return Table(columns=columns, rows=rows, notes=notes)


def _launch_cells(
    launch: LaunchRecord, loss: "pd.DataFrame", figures: "pd.DataFrame", codes: "pd.Series"
) -> tuple[Cell, ...]:
    checks = launch.checks
    figure = figures.loc[launch.launch].to_dict() if launch.launch in figures.index else {}
    slowest = figure.get("slowest_rank")
    error, sound = checks.conservation_error, checks.conservation_ok
    known = launch.launch in loss.index
    first_bad = loss["first_not_finite"].get(launch.launch) if known else None
    differ = checks.ranks_differ
    failed = launch.first_failed_rank
    reason = launch.reason or ""
    return (
        Cell(text=str(launch.launch)),
        Cell(text=launch.scenario),
        Cell(text=str(launch.repeat)),
        Cell(text=launch.status, small=reason if failed is None else f"rank {failed} first: {reason}"),
        Cell(text=", ".join(f"{rank.rank}: {rank.pid}" for rank in launch.ranks) or UNKNOWN),
        Cell(text=number(launch.wall_s, ",.1f")),
        Cell(text=number(launch.first_forward_s, ",.2f")),
        Cell(text=number(None if error is None else 100 * error, ".3f"), small="" if sound else "too much"),
        Cell(text=_percent(figure.get("drift"), "+.1f")),
        Cell(text=_percent(figure.get("skew"), ".1f"), small="" if _unknown(slowest) else f"rank {slowest:.0f}"),
        Cell(text=number(figure.get("outliers"), ".0f")),
        Cell(text=number(checks.foreign_cores, ".2f")),
        Cell(text=str(codes.get(launch.launch, "")) or ("none" if launch.status == "ok" else UNKNOWN)),
        Cell(text=number(checks.skipped_steps, "d")),
        Cell(text=number(loss["last_loss"].get(launch.launch), ".4g")),
        Cell(
            text={True: "yes", False: "no", None: UNKNOWN}[checks.finite_loss],
            small="" if _unknown(first_bad) else f"not finite from step {first_bad} on",
        ),
        Cell(
            text=UNKNOWN if differ is None else "no" if differ else "yes",
            small=f"different: {', '.join(differ)}" if differ else "",
        ),
    )


def _percent(part: Any, form: str) -> str:
    return UNKNOWN if _unknown(part) else format(100 * part, form)


def number(value: Any, form: str) -> str:
    """A figure as text, or a dash where there is none."""
    return UNKNOWN if _unknown(value) else format(value, form)


def _unknown(value: Any) -> bool:
    """None, NaN and pandas' NA; infinity too, which is no figure for a table."""
    import pandas as pd

    return bool(pd.isna(value)) or (isinstance(value, float) and math.isinf(value))
