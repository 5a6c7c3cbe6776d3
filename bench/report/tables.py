"""The tables of a report as values, and as CSV.

A table is made once, of cells that are text already, and rendered by the page's template and by
``bench.report.markdown``. What is unknown is a dash, and a note below the table says why.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.analyse import memory_timeline, published
from bench.analyse.advice import is_clear
from bench.analyse.analysed import Analysed
from bench.analyse.bars import about_intervals, bar, plus_minus
from bench.analyse.intervals import half_width_percent
from bench.analyse.labels import HALF
from bench.analyse.overview import overview
from bench.analyse.spread import losses
from bench.analyse.steps import BASE, scenarios
from bench.core.codec import encode
from bench.core.text import printable
from bench.report.drawing import plain
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
    "cannot tell": "doubt",
    "invalid": "bad",
    "diverged": "bad",
    "not finite": "bad",
}
"""The colour of a verdict, by name in the theme; the word itself always stands beside it."""

FORMULA = re.compile(r"\s*([=@\uff1d\uff20]|[-+\uff0b\uff0d](?!\d*\.?\d+$))")
"""What a spreadsheet begins to calculate at, also where letters are wide."""

Record = dict[Any, Any]
"""A row of a table of pandas, by column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: its text, what is smaller below it, how long a bar behind it is (0 to 1), its colour in the theme.

    ``wrap``: on several lines, as a sentence is.
    """

    text: str
    small: str = ""
    bar: float = 0.0
    tone: str = ""
    wrap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading, what it shows of a record, whether that is numbers, the group it stands under if any."""

    heading: str
    of: Callable[[Any], Cell | str] = str
    number: bool = False
    group: str = ""


def text(heading: str, of: str | Callable[[Any], Cell | str], *, group: str = "") -> Column:
    """A column of words. ``of``: the key of a record, or a function of it."""
    return Column(heading=heading, of=of if callable(of) else lambda row: str(row[of]), group=group)


def figure(heading: str, of: str | Callable[[Any], Cell | str], form: str = "", *, group: str = "") -> Column:
    """A column of numbers. ``of``: the key of a record, whose value takes ``form``, or a function of it."""
    show = of if callable(of) else lambda row: number(row[of], form)
    return Column(heading=heading, of=show, number=True, group=group)


def bounded(heading: str, name: str, form: str, *, group: str = "") -> Column:
    """A column of numbers with how far the farther end of the 95 % interval is below each."""
    return figure(heading, lambda row: Cell(text=number(row[name], form), small=plus_minus(row, name)), group=group)


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

    def texts(self, *, repeats: bool = True) -> list[list[str]]:
        """The headings and the cells. Without ``repeats`` a first cell is empty if it is that of the row before."""
        lines = [[plain(cell.text) for cell in row] for row in self.rows]
        before = ""
        for line in () if repeats else lines:
            line[0], before = ("" if line[0] == before else line[0]), line[0]
        return [[column.heading for column in self.columns], *lines]


def tabulate(
    columns: Sequence[Column], records: Iterable[Any], notes: Iterable[str] = (), marked: int | None = None
) -> Table:
    """A table with a row for each record."""
    cells = ((column.of(record) for column in columns) for record in records)
    rows = tuple(tuple(Cell(text=cell) if isinstance(cell, str) else cell for cell in row) for row in cells)
    return Table(columns=tuple(columns), rows=rows, notes=tuple(notes), marked=marked)


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
    for name in whole:
        whole[name] = pd.Series(map(_no_formula, whole[name]), dtype="object")
    return whole.to_csv(index=False, lineterminator="\n")


def _no_formula(cell: Any) -> Any:
    """Text that a spreadsheet would calculate gets the mark of text before it; numbers stay."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if FORMULA.match(text) else text


def summary_table(run: Run, table: "pd.DataFrame") -> Table:
    """The summary for people: speed, memory, energy where it is known, what ran, how it went."""
    work = run.document.workload
    highest = table["throughput_per_s"].max()

    def speed(row: Record) -> Cell:
        known = row["throughput_per_s"]
        length = 0.0 if _unknown(known) else float(known / highest)
        return Cell(text=number(known, ",.1f"), small=plus_minus(row, "throughput_per_s"), bar=length)

    with_energy = table["energy_per_1000_j"].notna().any()
    columns = (
        text("scenario", "scenario"),
        figure(f"{work.unit_short}/s", speed),
        bounded("step median ms", "step_median_ms", ",.1f"),
        bounded("step p95 ms", "step_p95_ms", ",.1f"),
        bounded(f"speed ÷ {BASE}", "relative_to_ddp", ".2f"),
        bounded("peak MiB of a PID", "peak_pid_mib", ",.0f"),
        bounded("peak MiB in all", "peak_total_mib", ",.0f"),
        text("memory source", lambda row: number(row["memory_source"], "")),
        *((bounded(f"J per 1,000 {work.unit}", "energy_per_1000_j", ",.0f"),) if with_energy else ()),
        text("figures", lambda row: _verdict(row["validity"], row["findings"])),
        text("numerics", lambda row: _verdict(row["parity"], "")),
        text("what ran", lambda row: Cell(text=row["what_ran"] or UNKNOWN, wrap=True)),
        figure("launches ok", lambda row: f"{row['launches_ok']}/{row['launches']}"),
        text("status", "status"),
    )
    sorted_ = table.sort_values("throughput_per_s", ascending=False, kind="stable").to_dict("records")
    believed = [place for place, row in enumerate(sorted_) if _unknown(row["why_not"])]
    marked = believed[0] if is_clear(run.document, table) else None
    notes = (*(f"{line}." for line in about_intervals(table)), *_why_unknown(run, table))
    return tabulate(columns, sorted_, notes, marked)


def _verdict(verdict: Any, why: Any) -> Cell:
    """A verdict in its colour, with what it rests on below it."""
    if _unknown(verdict):
        return Cell(text=UNKNOWN)
    return Cell(text=verdict, small="" if _unknown(why) else why, tone=TONES[verdict], wrap=True)


def _why_unknown(run: Run, table: "pd.DataFrame") -> list[str]:
    """What went wrong with a scenario, and a sentence for each figure that one with steps lacks."""
    wrong = table[table["reason"].notna()].to_dict("records")
    notes = [f"{row['scenario']}: {row['status']}: {row['reason']}" for row in wrong]
    good = table[table["throughput_per_s"].notna()]
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
    if steps.frame.empty:
        return None
    form = published.table(steps, scenarios(run.document))
    mine = tuple(dict.fromkeys(published.iterations(int(steps.frame["step"].max()) + 1)))
    theirs = published.PUBLISHED_ITERATIONS
    here, there = "this run: seconds at iteration", "published: seconds at iteration"
    columns = (
        text("scenario", "scenario"),
        *(_with_bar(f"{iteration}", f"elapsed_s_{iteration}", group=here) for iteration in mine),
        _with_bar(f"this run: time ÷ {BASE}", "relative"),
        *(figure(f"{iteration}", f"published_s_{iteration}", ".1f", group=there) for iteration in theirs),
        figure(f"published: time ÷ {BASE}", "published_relative", ".2f"),
    )
    notes = (
        f"time ÷ {BASE}: at the last iteration shown; above 1 is slower. Seconds never carry from one machine to "
        "another; these ratios do so between like machines.",
        "Iteration 0 includes the cold start, and warm-up steps count here and nowhere else, because the author "
        "printed the time since training began.",
        f"Published workload: {published.PUBLISHED_WORKLOAD}. Source: the author's own figures, on three GPUs; "
        "it has no row for a single process.",
    )
    return tabulate(columns, form.to_dict("records"), notes)


def _with_bar(heading: str, name: str, group: str = "") -> Column:
    """A column of the published form, each figure with its interval below it."""

    def cell(row: Record) -> Cell:
        known = (None if _unknown(row[column]) else row[column] for column in published.ends(name))
        return Cell(text=number(row[name], ",.2f"), small=bar(half_width_percent(*known)))

    return figure(heading, cell, group=group)


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
            "starts new threads in every step, which would search anew in each; ddp_untuned is torch DDP without it."
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
        "none" if ran.backend is None else f"{_backend(ran)} × {ran.world_size}",
        ran.memory_format,
        "no GPU" if tf32 is None else ", ".join(f"{name} {'on' if on else 'off'}" for name, on in encode(tf32).items()),
        {True: "on", False: "off", None: "no GPU" if tf32 is None else UNKNOWN}[ran.cudnn_benchmark],
        str(ran.threads),
        ", ".join(versions),
    ]


def _backend(ran: Effective) -> str:
    return f"{ran.backend} ({ran.backend_class})" if ran.backend_class else f"{ran.backend}"


def _dtypes(counts: Mapping[str, int]) -> str:
    """``fp32``, or ``bf16 99.8 % + fp32 0.2 %``."""
    names = sorted(counts, key=lambda dtype: -counts[dtype])
    if len(names) < 2:
        return "".join(HALF.get(name, name) for name in names) or "none"
    whole = sum(counts.values())
    return " + ".join(f"{HALF.get(name, name)} {100 * counts[name] / whole:.1f} %" for name in names)


def launches_table(run: Analysed) -> Table:
    """Every launch: how it went, its processes, and what was checked about its figures."""
    loss = losses(run.iterations).set_index("launch")
    figures = run.figures.frame.set_index("launch").to_dict("index")
    codes = run.findings.groupby("launch")["code"].agg(", ".join)

    def status(launch: LaunchRecord) -> Cell:
        reason, failed = launch.reason or "", launch.first_failed_rank
        return Cell(text=launch.status, small=reason if failed is None else f"rank {failed} first: {reason}")

    def conservation(launch: LaunchRecord) -> Cell:
        sound = "" if launch.checks.conservation_ok else "too much"
        return Cell(text=_percent(launch.checks.conservation_error, ".3f"), small=sound)

    def known(launch: LaunchRecord, name: str) -> Any:
        return figures.get(launch.launch, {}).get(name)

    def skew(launch: LaunchRecord) -> Cell:
        slowest = known(launch, "slowest_rank")
        small = "" if _unknown(slowest) else f"rank {slowest:.0f}"
        return Cell(text=_percent(known(launch, "skew"), ".1f"), small=small)

    def finite(launch: LaunchRecord) -> Cell:
        first_bad = loss["first_not_finite"].get(launch.launch)
        small = "" if _unknown(first_bad) else f"not finite from step {first_bad} on"
        return Cell(text={True: "yes", False: "no", None: UNKNOWN}[launch.checks.finite_loss], small=small)

    def alike(launch: LaunchRecord) -> Cell:
        differ = launch.checks.ranks_differ
        small = f"different: {', '.join(differ)}" if differ else ""
        return Cell(text=UNKNOWN if differ is None else "no" if differ else "yes", small=small)

    def found(launch: LaunchRecord) -> str:
        return str(codes.get(launch.launch, "")) or ("none" if launch.status == "ok" else UNKNOWN)

    columns = (
        figure("launch", lambda launch: str(launch.launch)),
        text("scenario", lambda launch: launch.scenario),
        figure("repeat", lambda launch: str(launch.repeat)),
        text("status", status),
        text("PID by rank", lambda launch: ", ".join(f"{rank.rank}: {rank.pid}" for rank in launch.ranks) or UNKNOWN),
        figure("wall (s)", lambda launch: number(launch.wall_s, ",.1f")),
        figure("first forward (s)", lambda launch: number(launch.first_forward_s, ",.2f")),
        figure("steps vs wall time (%)", conservation),
        figure("last third vs first (%)", lambda launch: _percent(known(launch, "drift"), "+.1f")),
        figure("skew of ranks (%)", skew),
        figure("outliers", lambda launch: number(known(launch, "outliers"), ".0f")),
        figure("cores kept busy by others", lambda launch: number(launch.checks.foreign_cores, ".2f")),
        text("findings", found),
        figure("skipped steps", lambda launch: number(launch.checks.skipped_steps, "d")),
        figure("last loss", lambda launch: number(loss["last_loss"].get(launch.launch), ".4g")),
        text("loss finite", finite),
        text("ranks alike", alike),
    )
    notes = (
        "steps vs wall time: by how much a rank's measured steps differ from the host's wall time for them, at most "
        "0.5 % in a sound launch. skipped steps: optimizer steps that the loss scaler left out of the measured window. "
        "last third vs first: of the medians of the slowest rank's steps. skew of ranks: (max - min) ÷ median over "
        "ranks; the rank that is slowest most often stands below. last loss: of the global batch.",
    )
    return tabulate(columns, run.document.launches, notes)


def _percent(part: Any, form: str) -> str:
    return UNKNOWN if _unknown(part) else format(100 * part, form)


def number(value: Any, form: str) -> str:
    """A figure as text, or a dash where there is none."""
    return UNKNOWN if _unknown(value) else format(value, form)


def _unknown(value: Any) -> bool:
    """None, NaN and pandas' NA; infinity too, which is no figure for a table."""
    import pandas as pd

    return bool(pd.isna(value)) or (isinstance(value, float) and math.isinf(value))
