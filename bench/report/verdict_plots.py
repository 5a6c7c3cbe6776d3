"""The plots behind the verdicts: speed against memory, losses against the reference, what the time is spent on."""

from typing import TYPE_CHECKING, Any

from bench.analyse.advice import recommended
from bench.analyse.analysed import Analysed
from bench.analyse.bars import plus_minus
from bench.analyse.communication import spent
from bench.analyse.parity import loss_curves
from bench.analyse.steps import about_base, short_base
from bench.report import drawing
from bench.report.drawing import Artist, Entry, Plot, axes_at, handle, legend_row, light, locator, short
from bench.report.stacks import stacked
from bench.runs.reader import Run

if TYPE_CHECKING:
    import pandas as pd

MARKS = 40
"""Marks along a line, at most."""

SPENT = {
    "convolutions": "convolutions",
    "batch norm": "batch-norm",
    "casts": "casts",
    "loss scaling": "loss-scaling",
    "gradients of replicas": "gradients-of-replicas",
    "bucket copies": "bucket-copies",
    "optimizer": "optimizer",
    "input": "data",
    "other": "other",
}
"""Categories of the profiler in the order of their bars, and their names in the theme."""


def speeds(run: Analysed) -> Plot | None:
    """A bar for each scenario's throughput, the fastest on top, with its interval."""
    import pandas as pd

    table = run.overview
    known = table[table["throughput_per_s"].notna()].sort_values("throughput_per_s", ascending=False, kind="stable")
    if known.empty:
        return None
    records = known.to_dict("records")
    launches = {launch.scenario: launch for launch in run.document.launches}
    rows = [drawing.entry_for(run, launches[row["scenario"]], short(row["what_ran"])) for row in records]
    title, unit = "Speed by scenario", run.document.workload.unit
    sheet = drawing.run_sheet(run, title, height_in=drawing.rows_height_in(len(rows)) - 0.3)  # without a legend
    axes = drawing.row_axes(sheet, rows, right_in=1.7)
    widest = float(known["throughput_per_s"].max())
    for position, (row, entry) in enumerate(zip(records, rows, strict=True)):
        believed = pd.isna(row["why_not"])
        (patch,) = axes.barh(position, row["throughput_per_s"], height=0.5, color=light(entry.colour))
        if not believed:
            patch.set(facecolor=light("paper"), edgecolor=light(entry.colour), hatch="////", linewidth=1.0)
        ends = (row["throughput_low_per_s"], row["throughput_high_per_s"])
        if pd.notna(ends[0]):
            drawing.interval(axes, ends[0], min(ends[1], 2 * widest), position, cap="|")
        base = short_base(row["relative_to"])
        ratio = "" if pd.isna(row["relative_to_ddp"]) else f"{row['relative_to_ddp']:.2f} × {base}"
        speed = " ".join(filter(None, (f"{row['throughput_per_s']:,.1f}", plus_minus(row, "throughput_per_s"))))
        drawing.right_label(axes, position, speed, ratio if believed else short(row["why_not"]))
        drawing.hover(patch, f"{row['scenario']}: {speed} {unit} a second {ratio}")
    axes.set_xlim(0, None)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"{unit} a second; longer is faster")
    caption = (
        "Lines: 95 % intervals over launches."
        if (known["launches_ok"] > 1).any()
        else "One launch of each scenario: untested, so bars of about this length may change places."
    )
    caption += "".join(f" {note}." for note in about_base(records[0]["relative_to"]))
    if known["why_not"].notna().any():
        caption += " Hatched bars are left out of the recommendation, for the reason at the right."
    return drawing.finished(run, sheet, "speed", title, caption, [row.scenario for row in rows])


def trade_off(run: Analysed) -> Plot | None:
    """Throughput against peak memory: a numbered point for each scenario, the recommended ones marked."""
    import pandas as pd

    table = run.overview
    known = table[table["throughput_per_s"].notna() & table["peak_total_mib"].notna()]
    if known.empty:
        return None
    title = "Speed against memory"
    rows = known.sort_values("throughput_per_s", ascending=False, kind="stable").to_dict("records")
    marks = recommended(run.document, table)
    launches = {launch.scenario: launch for launch in run.document.launches}
    entries = [drawing.entry_for(run, launches[row["scenario"]], _note(row, marks)) for row in rows]
    unit = run.document.workload.unit_short
    texts = {
        row["scenario"]: f"{row['throughput_per_s']:,.1f} {unit}/s · {row['peak_total_mib']:,.0f} MiB" for row in rows
    }
    height_in = max(4.2, drawing.KEY_ROW_IN * len(rows) + 0.2)
    sheet = drawing.run_sheet(run, title, height_in=drawing.TITLE_IN + 0.3 + height_in + 0.52 + drawing.SOURCE_IN)
    width_in = drawing.WIDTH_IN - 0.78 - drawing.key_width_in(sheet, entries, texts)
    axes = axes_at(sheet, 0.78, 0.52 + drawing.SOURCE_IN, width_in, height_in)
    axes.set_xlim(*_around(known[["peak_total_mib", "peak_total_low_mib", "peak_total_high_mib"]], 0.16))
    axes.set_ylim(*_around(known[["throughput_per_s", "throughput_low_per_s", "throughput_high_per_s"]], 0.12))
    axes.grid(True, color=light("grid"), linewidth=0.7)
    axes.xaxis.set_major_locator(locator(8))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("peak memory of all processes, added up (MiB); further left is leaner")
    axes.set_ylabel(f"{run.document.workload.unit} a second; higher is faster")
    for row, entry in zip(rows, entries, strict=True):
        _bars(axes, row, light(entry.colour))
    in_order = {row["scenario"]: (number, row) for number, row in enumerate(rows, start=1)}

    def mark(entry: Entry, x: float, y: float, place: Artist = axes.transAxes) -> None:
        number, row = in_order[entry.scenario]
        _mark(axes, x, y, number, light(entry.colour), left_out=pd.notna(row["why_not"]), transform=place)

    for row, entry in zip(rows[::-1], entries[::-1], strict=True):  # the fastest on top
        mark(entry, row["peak_total_mib"], row["throughput_per_s"], axes.transData)
        axes.lines[-1].set_gid(f"point-{entry.scenario}")
        drawing.hover(axes.lines[-1], f"{entry.scenario}: {texts[entry.scenario]}")
    for row in rows:
        if row["scenario"] in marks:
            axes.plot([row["peak_total_mib"]], [row["throughput_per_s"]], marker="o", markersize=15.5, zorder=4)
            axes.lines[-1].set(color=light("ink"), linestyle="none", markerfacecolor="none", markeredgewidth=1.3)
    drawing.key_beside(axes, entries, texts, mark)
    keys = [(handle("hollow", "blue-o1"), "scenario, numbered by speed"), (handle("ring", "ink"), "recommended")]
    if known["why_not"].notna().any():
        keys.append((handle("square", "blue-o1"), "left out of the recommendation"))
    legend_row(sheet, keys)
    cut = [name for name, (low, _) in (("memory", axes.get_xlim()), ("speed", axes.get_ylim())) if low > 0.0]
    caption = _about_trade_off(known, table, cut)
    return drawing.finished(run, sheet, "trade-off", title, caption, [entry.scenario for entry in entries])


def _about_trade_off(known: "pd.DataFrame", table: "pd.DataFrame", cut: list[str]) -> str:
    """The caption. ``cut``: the axes that do not begin at 0."""
    if (known["launches_ok"] > 1).any():
        caption = (
            "Bars: 95 % intervals over launches; that of the memory is of a launch's mean peak, and the point is the "
            "largest. A scenario with one launch has none. A bar that ends at the edge goes on beyond it."
        )
    else:
        caption = "One launch of each scenario, so there are no error bars: points this near may change places."
    caption += " The key has the figures of points that cover each other."
    if cut:
        caption += " Neither axis begins at 0." if len(cut) == 2 else f" The axis of {cut[0]} does not begin at 0."
    without = table.loc[table["throughput_per_s"].notna() & table["peak_total_mib"].isna(), "scenario"]
    return caption + (f" Without a known peak: {', '.join(without)}." if len(without) else "")


def _around(ends: "pd.DataFrame", part: float) -> tuple[float, float]:
    """Limits of an axis for points (the first column) and the ends of their bars, NaN apart, none below 0.

    The margin is ``part`` of the range. A bar does not reach beyond half of the least or twice the most of all points:
    with two launches an interval may be a hundred times as wide as the points are apart.
    """
    import numpy as np

    values = ends.astype(float).to_numpy()
    values = np.clip(values, np.nanmin(values[:, 0]) / 2, np.nanmax(values[:, 0]) * 2)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = part * (high - low) or 0.1 * abs(high) or 1.0
    return max(0.0, low - margin), high + margin


def _bars(axes: Artist, row: dict[Any, Any], colour: str) -> None:
    """The 95 % intervals of a point, where they are known."""
    import pandas as pd

    x, y = row["peak_total_mib"], row["throughput_per_s"]
    speeds = (row["throughput_low_per_s"], row["throughput_high_per_s"])
    peaks = (row["peak_total_low_mib"], row["peak_total_high_mib"])
    for name, ends, across, up, cap in (("speed", speeds, (x, x), speeds, "_"), ("peak", peaks, peaks, (y, y), "|")):
        if pd.notna(ends[0]):
            axes.plot(across, up, color=colour, alpha=0.75, marker=cap, markersize=5, linewidth=1.1)
            axes.lines[-1].set_gid(f"{name}-bar-{row['scenario']}")


def _mark(axes: Artist, x: float, y: float, number: int, colour: str, *, left_out: bool, transform: Artist) -> None:
    """A numbered point; a square where the scenario is left out of the recommendation."""
    axes.plot([x], [y], marker="s" if left_out else "o", markersize=10, transform=transform, color=colour)
    axes.lines[-1].set(markerfacecolor=light("paper"), markeredgewidth=1.8, clip_on=False, zorder=3)
    text = axes.text(x, y, str(number), transform=transform, fontsize=6.5, color=light("ink"), clip_on=False, zorder=3)
    text.set(ha="center", va="center_baseline")


def _note(row: dict[Any, Any], marks: dict[str, str]) -> str:
    """What stands below a scenario's name in the key."""
    import pandas as pd

    return short(str(row["why_not"]) if pd.notna(row["why_not"]) else marks.get(row["scenario"], row["what_ran"]))


def losses(run: Analysed) -> Plot | None:
    """The losses of every scenario, and by how much of its bound each is off the reference."""
    import numpy as np

    curves = loss_curves(run.document, run.iterations, run.numerics)
    curves = curves[np.isfinite(curves["loss"].astype(float))]
    if curves.empty:
        return None
    drawn = set(curves["scenario"].unique())
    rows = [row for row in drawing.rows_of(run, run.figures.frame) if row.scenario in drawn]
    held = curves[curves["bound"].notna()]
    title = "Losses against the reference" if len(held) else "Losses"
    upper_in, between_in = 2.2, 0.62
    lower_in = max(2.2, drawing.KEY_ROW_IN * len(rows) + 0.2)
    panels_in = upper_in + (between_in + lower_in if len(held) else 0.0)
    sheet = drawing.run_sheet(run, title, height_in=drawing.TITLE_IN + 0.3 + panels_in + 0.52 + drawing.SOURCE_IN)
    texts = {row.scenario: "+0,000.00" for row in rows}
    width_in = drawing.WIDTH_IN - 0.78 - drawing.key_width_in(sheet, rows, texts)
    bottom_in = 0.52 + drawing.SOURCE_IN
    upper = axes_at(sheet, 0.78, bottom_in + panels_in - upper_in, width_in, upper_in)
    _loss_lines(upper, rows, curves, run.document.workload.warmup or 0)
    keys = [(handle("shade", "shade"), "warm-up steps")]
    caption = "First launch of each scenario that ended well; the loss of the global batch, the mean over ranks."
    if len(held):
        widest = held.sort_values("bound", ascending=False, kind="stable")["scenario"].iloc[0]
        band = held[held["scenario"] == widest]
        band = band.iloc[:: -(-len(band) // drawing.STRETCHES)]
        upper.plot(band["step"], band["reference"], color=light("ink"), linestyle="none", marker="+", markersize=5)
        upper.lines[-1].set(markeredgewidth=0.9, markevery=-(-len(band) // MARKS), zorder=4)  # dots are those of single
        edges = [band["reference"] + sign * band["bound"] for sign in (-1, 1)]
        upper.fill_between(band["step"], *edges, color=light("muted"), alpha=0.28, linewidth=0, zorder=0.5)
        keys.append((handle("plus", "ink"), f"reference for {short(widest)}"))
        keys.append((handle("box", "muted"), "allowed deviation"))
        with_bound = set(held["scenario"].unique())
        lower = axes_at(sheet, 0.78, bottom_in, width_in, lower_in)
        _parts_of_bound(lower, [row for row in rows if row.scenario in with_bound], held)
        lower.set_xlim(upper.get_xlim())
        lower.axvspan(-0.5, (run.document.workload.warmup or 0) - 0.5, color=light("shade"), linewidth=0, zorder=0)
        caption += (
            " Below: the difference from the reference of as many replicas, in parts of the bound for the precision "
            "that ran; within ±1 is within the bound. The verdict goes by the measured steps."
        )
    caption += drawing.about_lines(int(curves.groupby("scenario").size().max()))
    legend_row(sheet, keys)
    return drawing.finished(run, sheet, "losses", title, caption, [row.scenario for row in rows])


def _loss_lines(axes: Artist, rows: list[Entry], curves: "pd.DataFrame", warmup: int) -> None:
    for row in rows:
        mine = curves[curves["scenario"] == row.scenario]
        drawing.line_of(axes, row, mine["step"].to_numpy(), mine["loss"].to_numpy())
    axes.axvspan(-0.5, warmup - 0.5, color=light("shade"), linewidth=0, zorder=0)
    axes.set_xlim(-0.5, max(int(curves["step"].max()), 1))
    axes.grid(True, axis="y", color=light("grid"), linewidth=0.7)
    axes.xaxis.set_major_locator(locator(9, integer=True))
    axes.yaxis.set_major_locator(locator(5))
    axes.set_xlabel("step (counted from 0)")
    axes.set_ylabel("loss")


def _parts_of_bound(axes: Artist, rows: list[Entry], held: "pd.DataFrame") -> None:
    """The difference from the reference over the bound; the band from -1 to 1 is what is allowed."""
    parts = held.assign(part=(held["loss"] - held["reference"]) / held["bound"])
    furthest = float(parts["part"].abs().max())
    if furthest > 20:
        axes.set_yscale("symlog", linthresh=1.0)
    reach = max(1.25, furthest * (1.15 if furthest <= 20 else 2.0))
    axes.set_ylim(-reach, reach)
    axes.axhspan(-1, 1, color=light("muted"), alpha=0.18, linewidth=0, zorder=0.5)
    axes.axhline(0, color=light("ink"), linewidth=0.9, linestyle=(0, (2, 2)))
    ends = {}
    for row in rows:
        mine = parts[parts["scenario"] == row.scenario]
        drawing.line_of(axes, row, mine["step"].to_numpy(), mine["part"].to_numpy())
        ends[row.scenario] = float(mine["part"].iloc[-1])
    axes.grid(True, axis="y", color=light("grid"), linewidth=0.7)
    axes.xaxis.set_major_locator(locator(9, integer=True))
    axes.set_xlabel("step (counted from 0)")
    axes.set_ylabel("difference ÷ bound")
    drawing.line_key(axes, rows, ends, {name: _signed(end) for name, end in ends.items()})


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+,.2f}"


def time_spent(run: Run) -> Plot | None:
    """What the operators of a profiled step are spent on, one bar per scenario."""
    table = spent(run.document)
    if table.empty:
        return None
    table = table.set_index("scenario")
    launches = {launch.scenario: launch for launch in run.document.diagnostics if launch.looks}
    rows = drawing.rows_for(run, launches)
    categories = [name for name in SPENT if name in table.columns and (table[name] >= 0.05).any()]
    title, step = "What the time of a step is spent on", table["step_ms"]
    sheet, axes = stacked(run, title, rows, table[categories], SPENT, step, unit="ms", called="the profiled step")
    axes.set_xlabel("self time of operators on rank 0 (ms a step, under the profiler)")
    caption = (
        "From diagnostic launches. The profiler makes every operator longer, so this is for shares and not for speeds. "
        "Between the end of a bar and the step, rank 0 runs no operator: it waits, or its Python does the work."
    )
    return drawing.finished(run, sheet, "time-spent", title, caption, [row.scenario for row in rows])
