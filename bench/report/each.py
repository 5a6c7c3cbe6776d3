"""Every device by itself, as a table and a plot with the bound beyond which one is slow."""

from bench.analyse.analysed import Analysed
from bench.analyse.each import devices, scan_of
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Table, figure, step_cell, tabulate, text


def each_table(run: Analysed) -> Table | None:
    rows = devices(run)
    verdicts = {True: "slow", False: "like the others", None: "unknown"}
    columns = (
        text("device", lambda one: one.name),
        figure("step ms", lambda one: step_cell(one.step, one.failed)),
        figure("against the median", lambda one: UNKNOWN if one.slower is None else f"{100 * one.slower:+.1f} %"),
        text("verdict", lambda one: verdicts[one.is_slow]),
    )
    notes = (
        "A device is called slow if it is slower than the median by more than chance would make any of them in 95 of "
        "100 scans: by the scatter of launches and, of eight devices and more, by how far apart they lie.",
    )
    return tabulate(columns, rows, notes) if rows else None


def each_plot(run: Analysed) -> Plot | None:
    rows, scan = [one for one in devices(run) if one.slower is not None], scan_of(run)
    if not rows:
        return None
    labels = ["" if one.step.value is None else f"{one.step.value:,.1f} ms a step" for one in rows]
    figure, (axes,) = drawing.row_sheet([(one.name, label) for one, label in zip(rows, labels, strict=True)])
    for position, one in enumerate(rows):
        percent = 100 * (one.slower or 0.0)
        colour, label = ("line-6", "slow") if one.is_slow else ("line-0", "like the others")
        mark = drawing.marks(axes, [percent], [position], colour, markersize=7, label=label)
        drawing.hover(mark, f"{one.name}: {percent:+.1f} %")
    axes.axvline(0.0, color=light("ink"), linewidth=0.9)
    if scan.bound is not None:
        bound = 100 * scan.bound
        axes.axvline(bound, color=light("line-6"), linewidth=1.2, linestyle="--", label=f"bound, {bound:.1f} %")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter("{x:+,.3g} %")
    axes.set_xlabel("slower than the median of all devices")
    caption = "Each device by itself, with the same batch; right of the bound is slow."
    return drawing.finished(run, figure, "each", "How far each device is from the median", caption)
