"""The tables behind the verdicts: findings, parity, where the time goes, and how the steps scatter."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bench.analyse import communication as diagnosed
from bench.analyse import parity as numerics
from bench.analyse.analysed import Analysed
from bench.analyse.answer import listed
from bench.analyse.bars import bar
from bench.analyse.intervals import estimate
from bench.analyse.steps import scenarios
from bench.analyse.validity import grouped
from bench.report.tables import TONES, UNKNOWN, Cell, Column, Record, Table, number, of_run
from bench.runs.document import LaunchRecord, RunDocument
from bench.runs.reader import Run

if TYPE_CHECKING:
    import pandas as pd


def for_csv(run: Analysed) -> dict[str, "pd.DataFrame"]:
    """The tables in full, by the names of their files, each with the run's id as its first column."""
    tables = {
        "findings": run.findings,
        "parity": run.parity,
        "communication": diagnosed.communication(run.document, run.diagnostics),
        "time-spent": diagnosed.spent(run.document),
    }
    return {name: of_run(run, table) for name, table in tables.items()}


def findings_table(run: Analysed) -> Table | None:
    """What was found, one row for all findings that ask for the same; None where nothing was."""
    rows = [
        (
            Cell(text=row["code"], tone=TONES[row["severity"]]),
            Cell(text=row["severity"]),
            Cell(text=row["what"], wrap=True),
            Cell(text=row["where"], wrap=True),
            Cell(text=row["remedy"], wrap=True),
        )
        for row in grouped(run.findings, scenarios(run.document)).to_dict("records")
    ]
    if not rows:
        return None
    headings = ("finding", "makes it", "what was seen", "scenarios (launches)", "what to do")
    notes = (
        "invalid: the figure is wrong, or is of something else. warning: it is right for what happened, and that may "
        "not be what was meant. Where several launches show the same, the worst is the example.",
    )
    return Table(columns=tuple(Column(heading=text) for text in headings), rows=tuple(rows), notes=notes)


def parity_table(run: Analysed) -> Table | None:
    """What the gravest launch of each scenario shows of its numerics; None without a launch that ended well."""
    launches = run.parity
    if launches.empty:
        return None
    columns = (
        Column(heading="scenario"),
        Column(heading="verdict"),
        Column(heading="launch", number=True),
        Column(heading="error", number=True, group="gradient of the first step"),
        Column(heading="bound", number=True, group="gradient of the first step"),
        Column(heading="one replica alone", number=True, group="gradient of the first step"),
        Column(heading="error", number=True, group="loss, nearest to its bound"),
        Column(heading="bound", number=True, group="loss, nearest to its bound"),
        Column(heading="at step", number=True, group="loss, nearest to its bound"),
        Column(heading="parameters alike on all ranks"),
    )
    records = {launch.launch: launch for launch in run.document.launches}
    rows = []
    for row in numerics.by_scenario(launches).to_dict("records"):
        verdict = row["verdict"] if isinstance(row["verdict"], str) else "not shown"
        reason = row["reason"] if isinstance(row["reason"], str) else ""
        rows.append(
            (
                Cell(text=str(row["scenario"])),
                Cell(text=verdict, small=reason, tone=TONES.get(verdict, "")),
                Cell(text=str(row["launch"])),
                Cell(text=_error(row["gradient_error"])),
                Cell(text=_error(row["gradient_bound"])),
                Cell(text=_error(row["gradient_alone"])),
                Cell(text=_error(row["loss_error"])),
                Cell(text=_error(row["loss_bound"])),
                Cell(text=number(row["loss_step"], ".0f")),
                _alike(records[row["launch"]]),
            )
        )
    return Table(columns=columns, rows=tuple(rows), notes=_about_parity(run.document))


def _error(value: Any) -> str:
    return "0" if value == 0 else number(value, ".2g")


def _alike(launch: LaunchRecord) -> Cell:
    """Whether the checksums of all ranks' parameters agree."""
    checks = launch.checks
    if launch.processes == 1:
        return Cell(text="one process")
    start, end = checks.initial_weights_alike, checks.final_weights_alike
    if start is None and end is None:
        return Cell(text=UNKNOWN)
    said = {True: "yes", False: "no", None: UNKNOWN}
    return Cell(text=f"{said[start]} → {said[end]}")


def _about_parity(document: RunDocument) -> tuple[str, ...]:
    """How the verdicts come about, or why there are none."""
    about = document.reference
    if about is None or about.status != "ok":
        why = "was not computed (--no-parity, or the run ended before it)" if about is None else "failed"
        if about is not None:
            why += f" ({about.status}): {about.reason}"
        return (
            f"The fp32 reference {why}, so nothing can be said about same or not; a loss that is not finite, and ranks "
            "that do not hold the same parameters, show without it.",
        )
    return (
        "Of each scenario the launch with the gravest verdict. The reference is one process in fp32 that accumulates "
        "the same chunks of the same data from the same weights; errors of gradients are ||g - r|| ÷ ||r||, of the "
        "worst rank.",
        "Bounds: a twin of the reference, whose weights were moved once by at most the unit roundoff of "
        f"{about.half}, shows how far one rounding a layer takes this model (of several such, the one whose first "
        "gradient strays farthest). A step in half rounds some six times a layer, and "
        f"independent errors add up like a random walk, so {numerics.ROUNDINGS:g} times that distance (a little more "
        "than √6) is allowed; the loss, which is rounded itself, may be off by its own rounding besides. For another "
        "precision the bound goes with its unit roundoff, or with the root of that where this is larger, because "
        "activations switch on and off.",
        f"same: the gradient within {numerics.SAME_GRADIENT:g} and every measured loss within the bound for fp32. "
        "within half precision: within the bounds shown: of a gradient that of the precision that ran, of a loss "
        "that of half or of what is coarser. "
        "diverged: beyond them, or ranks that hold different parameters. "
        "One replica alone: how far its gradient is from the average, so what a strategy that "
        "forgets to average would show. Parameters alike: SHA-256 of all parameters of every rank, before the first "
        "step → after the last.",
    )


def communication_table(run: Run) -> Table | None:
    """What synchronisation costs; None without a diagnostic launch."""
    table = diagnosed.communication(run.document, run.diagnostics)
    if table.empty:
        return None
    columns = (
        Column(heading="scenario"),
        Column(heading="exposed communication ms", number=True),
        Column(heading="method"),
        Column(heading="cost of synchronising ms", number=True),
        Column(heading="backward without it ms", number=True),
        Column(heading="communication ms", number=True),
        Column(heading="of it overlapped ms", number=True),
        Column(heading="computation slowed by ms", number=True),
        Column(heading="the two methods agree"),
        Column(heading="pairs of steps", number=True),
    )
    rows = []
    for row in table.to_dict("records"):
        reason = row["reason"] if isinstance(row["reason"], str) else ""
        rows.append(
            (
                Cell(text=str(row["scenario"])),
                _with_interval(row, "exposed"),
                Cell(text=row["method"] if isinstance(row["method"], str) else UNKNOWN, small=reason, wrap=True),
                _with_interval(row, "cost"),
                Cell(text=number(row["without_ms"], ",.1f")),
                Cell(text=number(row["comm_ms"], ",.1f")),
                Cell(text=number(row["overlap_ms"], ",.1f")),
                _with_interval(row, "slowed"),
                Cell(text={True: "yes", False: "no"}.get(row["agree"], UNKNOWN)),
                Cell(text=number(row["pairs"], ".0f")),
            )
        )
    notes = (
        "From diagnostic launches, whose steps count in no other figure. Below a figure its 95 % interval over steps. "
        "Exposed: what of the communication is left after the last gradient is computed, by torch DDP's own logger; "
        "elsewhere the paired difference. Cost of synchronising: the backward pass with it less that without "
        "(no_sync() or its like), steps taken in pairs, the slowest rank's.",
    )
    return Table(columns=columns, rows=tuple(rows), notes=notes)


def _with_interval(row: Record, name: str) -> Cell:
    low, high = (number(row[f"{name}_{end}_ms"], ",.1f") for end in ("low", "high"))
    small = "" if UNKNOWN in (low, high) else f"{low} to {high}"
    return Cell(text=number(row[f"{name}_ms"], ",.1f"), small=small)


def communication_words(run: Run) -> list[str]:
    """Of each DDP scenario whether its two figures agree, and from what the difference comes where they do not."""
    table = diagnosed.communication(run.document, run.diagnostics)
    agreeing = [row["scenario"] for row in table.to_dict("records") if row["agree"] is True]
    said = [_explained(row) for row in table.to_dict("records") if row["agree"] is False]
    if agreeing:
        said.append(
            f"{listed(agreeing)}: the logger's exposed communication and the cost of synchronising agree within their "
            "intervals."
        )
    return said


def _explained(row: Record) -> str:
    """cost = exposed + computation that got slower + rest, in words."""
    rest = row["cost_ms"] - row["exposed_ms"] - row["slowed_ms"]
    wide = math.hypot(*((row[f"{name}_high_ms"] - row[f"{name}_low_ms"]) / 2 for name in ("cost", "exposed", "slowed")))
    text = (
        f"{row['scenario']}: synchronising costs {_span(row, 'cost')} a step, while {_span(row, 'exposed')} of the "
        f"communication is exposed. "
    )
    overlapped = f"{row['overlap_ms']:,.1f} of {row['comm_ms']:,.1f} ms"
    if row["slowed_low_ms"] > 0:
        text += (
            f"The backward computation takes {_span(row, 'slowed')} longer than without synchronisation: the "
            f"communication that overlaps it ({overlapped}) shares the hardware with it. "
        )
    else:
        text += (
            f"That the communication which overlaps it ({overlapped}) slows the backward computation down is not shown "
            f"({_span(row, 'slowed')}). "
        )
    text += (
        f"In sum: {row['cost_ms']:,.1f} = {row['exposed_ms']:,.1f} exposed "
        f"{_term(row['slowed_ms'])} slower computation "
        f"{_term(rest)} rest"
    )
    if abs(rest) <= wide:
        return f"{text}; the rest is no larger than what the three are uncertain by (±{wide:,.1f} ms)."
    return f"{text}; the rest is larger than what the three are uncertain by (±{wide:,.1f} ms) and is not explained."


def _term(value: float) -> str:
    return f"{'+' if value >= 0 else '-'} {abs(value):,.1f}"


def _span(row: Record, name: str) -> str:
    return f"{row[f'{name}_ms']:,.1f} ms ({row[f'{name}_low_ms']:,.1f} to {row[f'{name}_high_ms']:,.1f})"


def data_parallel_table(run: Run) -> Table | None:
    """The parts of DataParallel's forward pass; None where it was not looked at."""
    table = diagnosed.data_parallel(run.diagnostics)
    if table.empty:
        return None
    columns = (
        Column(heading="scenario"),
        *(Column(heading=f"{part.replace('_', ' ')} ms", number=True) for part in diagnosed.PARTS),
    )
    rows = [
        (
            Cell(text=str(row["scenario"])),
            *(Cell(text=number(row[f"{part}_ms"], ",.2f")) for part in diagnosed.PARTS),
        )
        for row in table.to_dict("records")
    ]
    notes = ("Parts of the forward pass, medians over the steps of the diagnostic launch, devices idle in between.",)
    return Table(columns=columns, rows=tuple(rows), notes=notes)


def spent_table(run: Run) -> Table | None:
    """What a profiled step is spent on; None where none was profiled."""
    table = diagnosed.spent(run.document)
    if table.empty:
        return None
    names = [name for name in table.columns if name not in ("scenario", "step_ms")]
    columns = (
        Column(heading="scenario"),
        *(Column(heading=f"{name} ms", number=True) for name in names),
        Column(heading="all operators ms", number=True),
        Column(heading="the profiled step ms", number=True),
    )
    rows = []
    for row in table.to_dict("records"):
        whole = sum(row[name] for name in names)
        rows.append(
            (
                Cell(text=str(row["scenario"])),
                *(Cell(text=number(row[name], ",.1f"), small=_share(row[name], whole)) for name in names),
                Cell(text=number(whole, ",.1f")),
                Cell(text=number(row["step_ms"], ",.1f")),
            )
        )
    notes = (
        "Self times on rank 0 under the profiler, which makes operators longer; below each its share of all. casts: "
        "conversions and copies between precisions. other: what has no category of its own.",
    )
    return Table(columns=columns, rows=tuple(rows), notes=notes)


def _share(value: float, whole: float) -> str:
    return f"{100 * value / whole:.1f} %" if whole > 0 and value / whole >= 0.0005 else ""


def traces(run: Run) -> list[str]:
    """The profiles that were kept, as paths within the run folder."""
    return sorted(name for name in run.document.files if name.startswith("traces/"))


def statistics_table(run: Analysed) -> Table | None:
    """How the steps of each scenario scatter; None without steps of an ``ok`` launch."""
    figures = run.good_figures
    if figures.empty:
        return None
    columns = (
        Column(heading="scenario"),
        Column(heading="launches", number=True),
        Column(heading="measured steps", number=True),
        Column(heading="median ms", number=True),
        Column(heading="mean ms", number=True),
        Column(heading="p95 ms", number=True),
        Column(heading="p99 ms", number=True),
        Column(heading="middle half ÷ median (%)", number=True),
        Column(heading="outliers", number=True),
        Column(heading="last third vs first (%)", number=True),
        Column(heading="skew of ranks (%)", number=True),
        Column(heading="waiting for data (%)", number=True),
    )
    rows = []
    for scenario in scenarios(run.document):
        mine = figures[figures["scenario"] == scenario]
        if mine.empty:
            continue
        steps, out = int(mine["measured"].sum()), int(mine["outliers"].sum())
        drift = max(mine["drift"].dropna(), key=abs, default=None)
        rows.append(
            (
                Cell(text=scenario),
                Cell(text=str(len(mine))),
                Cell(text=str(steps)),
                *(
                    Cell(text=number(estimate(mine[name]).value, ",.1f"), small=_bar(mine[name]))
                    for name in ("median_ms", "mean_ms", "p95_ms", "p99_ms")
                ),
                Cell(text=number(100 * float((mine["iqr_ms"] / mine["median_ms"]).max()), ".1f")),
                Cell(text=str(out), small=f"{100 * out / steps:.1f} %" if out else ""),
                Cell(text=UNKNOWN if drift is None else number(100 * drift, "+.1f")),
                Cell(text=number(100 * mine["skew"].max(), ".1f")),
                Cell(text=number(100 * mine["data_share"].max(), ".1f")),
            )
        )
    notes = (
        "Of the slowest rank's step; median, mean, p95 and p99 of each launch, and of several launches the geometric "
        "mean of theirs. Outliers (beyond 1.5 interquartile ranges from the quartiles of their launch) are labelled "
        "and stay in every figure. Percentages in the other columns are of the launch that is worst in it.",
    )
    return Table(columns=columns, rows=tuple(rows), notes=notes)


def _bar(values: Iterable[float]) -> str:
    return bar(estimate(values).half_width_percent)
