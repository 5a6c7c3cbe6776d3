"""The plots behind the verdicts: speed against memory, losses against the reference, what the time is spent on."""

from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.bars import with_bar
from bench.analyse.communication import spent
from bench.analyse.parity import loss_curves
from bench.analyse.steps import about_base, short_base
from bench.report import drawing
from bench.report.drawing import Artist, Plot, light, locator, short
from bench.runs.experiments import Diagnosis
from bench.runs.reader import Run
from bench.words.advice import recommended

SPENT = (
    *("convolutions", "matrix products", "attention", "layer norm", "batch norm", "casts", "loss scaling"),
    *("gradients of replicas", "bucket copies", "communication", "optimizer", "input", "other"),
)
"""Categories of the profiler in the order of their bars."""


def speeds(run: Analysed) -> Plot | None:
    """A bar for each scenario's throughput, the fastest on top, with its interval."""
    table = run.overview
    measured = table[table["throughput_per_s"].notna()].sort_values("throughput_per_s", ascending=False, kind="stable")
    if measured.empty:
        return None
    records = measured.to_dict("records")
    launches = {launch.scenario: launch for launch in run.document.launches}
    unit, widest = run.document.workload.unit, float(measured["throughput_per_s"].max())
    figure, (axes,) = drawing.row_sheet([(row["scenario"], row["what_ran"]) for row in records])
    for position, row in enumerate(records):
        colour = light(drawing.colour_of(run.document, launches[row["scenario"]]))
        believed = pd.isna(row["why_not"])
        (patch,) = axes.barh(position, row["throughput_per_s"], height=0.5, color=colour)
        if not believed:
            patch.set(facecolor=light("paper"), edgecolor=colour, hatch="////", linewidth=1.0)
        low, high = row["throughput_low_per_s"], row["throughput_high_per_s"]
        if pd.notna(low):
            drawing.interval(axes, low, high, position, cap="|")
        of_base = row["relative_to_ddp"]
        ratio = f"{of_base:.2f} × {short_base(row['relative_to'])}" if pd.notna(of_base) else ""
        speed = with_bar(row, "throughput_per_s", ",.1f")
        drawing.right_label(axes, position, speed, ratio if believed else short(row["why_not"]))
        drawing.hover(patch, f"{row['scenario']}: {speed} {unit} a second {ratio}")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set(xlim=(0, min(axes.get_xlim()[1], 2 * widest)), xlabel=f"{unit} a second; longer is faster")
    caption = "One launch, which has no interval."
    if (measured["launches_ok"] > 1).any():
        caption = "Lines: 95 % intervals over launches; one that ends at the edge goes on beyond it."
    elif len(records) > 1:
        caption = "One launch of each scenario: untested, so bars of about this length may change places."
    caption += "".join(f" {note}." for note in about_base(records[0]["relative_to"]))
    if measured["why_not"].notna().any():
        caption += " Hatched bars are left out of the recommendation, for the reason at the right."
    return drawing.finished(run, figure, "speed", "Speed by scenario", caption, list(measured["scenario"]))


def trade_off(run: Analysed) -> Plot | None:
    """Throughput against peak memory: a point for each scenario, the recommended ones marked."""
    table = run.overview
    measured = table[table["throughput_per_s"].notna() & table["peak_total_mib"].notna()]
    if measured.empty:
        return None
    rows = measured.sort_values("throughput_per_s", ascending=False, kind="stable").to_dict("records")
    marks = recommended(run.document, table)
    launches = {launch.scenario: launch for launch in run.document.launches}
    unit, keys = run.document.workload.unit_short, []
    figure, (axes,) = drawing.sheet(max(4.4, drawing.KEY_ROW_IN * len(rows) + 0.8))
    for row in rows:
        name, x, y, left_out = row["scenario"], row["peak_total_mib"], row["throughput_per_s"], pd.notna(row["why_not"])
        note = str(row["why_not"]) if left_out else marks.get(name, row["what_ran"])
        entry = drawing.entry_for(run, launches[name], note)
        text = f"{y:,.1f} {unit}/s · {x:,.0f} MiB"
        _bars(axes, row, light(entry.colour))
        look: drawing.Look = {"markersize": 8, "markeredgewidth": 1.6, "zorder": 3, "gid": f"point-{name}"}
        point = drawing.marks(axes, [x], [y], entry.colour, entry.marker, hollow=left_out, **look)
        drawing.hover(point, f"{name}: {text}")
        keys.append((point, entry, text))
        if left_out:
            point.set_label("left out of the recommendation")
        if name in marks:
            ring: drawing.Look = {"markersize": 15.5, "markerfacecolor": "none", "zorder": 4, "label": "recommended"}
            drawing.marks(axes, [x], [y], "ink", **ring)
    drawing.key_beside(axes, keys)
    axes.margins(x=0.16, y=0.12)
    axes.set(xlim=(max(0.0, axes.get_xlim()[0]), None), ylim=(max(0.0, axes.get_ylim()[0]), None))
    axes.grid(True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel("peak memory of all processes, added up (MiB); further left is leaner")
    axes.set_ylabel(f"{run.document.workload.unit} a second; higher is faster")
    cut = [name for name, (low, _) in (("memory", axes.get_xlim()), ("speed", axes.get_ylim())) if low > 0.0]
    caption = "One launch of each scenario, so there are no error bars"
    caption += ": points this near may change places." if len(rows) > 1 else "."
    if (measured["launches_ok"] > 1).any():
        caption = (
            "Bars: 95 % intervals over launches; that of the memory is of a launch's mean peak, and the point is the "
            "largest. A scenario with one launch has none. A bar ends at half and at twice the value at the latest."
        )
    caption += " The key, fastest first, has the values of points that cover each other."
    caption += f" Not from 0: the axis of {' and '.join(cut)}." if cut else ""
    shown_in = [row["scenario"] for row in rows]
    return drawing.finished(run, figure, "trade-off", "Speed against memory", caption, shown_in)


def _bars(axes: Artist, row: dict[Any, Any], colour: str) -> None:
    """The 95 % intervals of a point, where they are known, from half of its value to twice as much at most: with two
    launches one may be a hundred times as wide as points are apart."""
    x, y = row["peak_total_mib"], row["throughput_per_s"]
    names = ("throughput_low_per_s", "throughput_high_per_s", "peak_total_low_mib", "peak_total_high_mib")
    ends = np.array([row[name] for name in names], dtype=float)
    speeds, peaks = np.clip(ends[:2], y / 2, 2 * y), np.clip(ends[2:], x / 2, 2 * x)
    for name, across, up, cap in (("speed", [x, x], speeds, "_"), ("peak", peaks, [y, y], "|")):
        if pd.notna([*across, *up]).all():
            look: drawing.Look = {"alpha": 0.75, "marker": cap, "markersize": 5, "linewidth": 1.1}
            axes.plot(across, up, color=colour, gid=f"{name}-bar-{row['scenario']}", **look)


def losses(run: Analysed) -> Plot | None:
    """The losses of every scenario, and the first ones of the reference."""
    curves = loss_curves(run.document, run.iterations, run.numerics)
    curves = curves[np.isfinite(curves["loss"].astype(float))]
    if curves.empty:
        return None
    by_scenario = dict(list(curves.groupby("scenario")))
    rows = [row for row in drawing.rows_of(run, run.stats.frame) if row.scenario in by_scenario]
    exact = curves[curves["reference"].notna()].drop_duplicates("step")
    figure, (axes,) = drawing.sheet(2.6 + 0.02 * len(rows) ** 2)
    lines = {row.scenario: drawing.line_of(axes, row, *_xy(by_scenario[row.scenario], "loss")) for row in rows}
    frame, every = run.good_iterations.frame, 1 + int(curves["step"].max()) // drawing.MOST_COLUMNS
    few = frame.loc[(frame["step"] % every == 0) & np.isfinite(frame["loss"].astype(float))]
    for row in rows:
        band = few[few["scenario"] == row.scenario].groupby("step")["loss"].agg(["min", "max"])
        if (band["max"] > band["min"]).any():  # launches with the same seed mostly have the same losses
            axes.fill_between(band.index, band["min"], band["max"], color=light(row.colour), alpha=0.16, linewidth=0)
    drawing.shade(axes, -0.5, (run.document.workload.warmup or 0) - 0.5, "warm-up steps")
    axes.xaxis.set_major_locator(locator(9, integer=True))
    axes.set(xlim=(-0.5, max(int(curves["step"].max()), 1)), xlabel="step (counted from 0)", ylabel="loss")
    if len(exact):
        drawing.marks(axes, *_xy(exact, "reference"), "ink", "+", markersize=5, zorder=4, label="reference, in fp32")
    drawing.key_beside(axes, [(lines[row.scenario], row, "") for row in rows])
    title = "Losses against the reference" if len(exact) else "Losses"
    caption = "First launch of each scenario that ended well; the loss of the global batch, the mean over ranks."
    caption += " Band: from the lowest to the highest of its launches, where they differ."
    return drawing.finished(run, figure, "losses", title, caption, list(lines))


def _xy(table: pd.DataFrame, name: str) -> tuple[object, object]:
    return table["step"].to_numpy(), table[name].to_numpy()


def time_spent(run: Run) -> Plot | None:
    """The time of a profiled step by category of operators, one bar per scenario."""
    table = spent(run.document)
    if table.empty:
        return None
    table = table.set_index("scenario")
    launches = {one.scenario: one for one in run.document.begun(Diagnosis).launches if one.scenario in table.index}
    rows = drawing.rows_for(run, launches)
    categories = [name for name in SPENT if name in table.columns and (table[name] >= 0.05).any()]
    step, colours = table["step_ms"], {name: name.replace(" ", "-") for name in SPENT} | {"input": "data"}
    figure, axes = drawing.stacked(rows, table[categories], colours, step, unit="ms", called="the profiled step")
    axes.set_xlabel("self time of operators on rank 0 (ms a step, under the profiler)")
    caption = (
        "From diagnostic launches. The profiler makes every operator longer, so this is for shares and not for speeds. "
        "Between the end of a bar and the step, rank 0 runs no operator: it waits, or its Python does the work."
    )
    title = "What the time of a step is spent on"
    return drawing.finished(run, figure, "time-spent", title, caption, [row.scenario for row in rows])
