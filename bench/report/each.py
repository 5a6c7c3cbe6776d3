"""Every device by itself, as a table and a plot with the bound beyond which one is slow."""

from bench.analyse.analysed import Analysed
from bench.analyse.each import devices, scan_of
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Table, figure, step_cell, tabulate, text
from bench.words.scaling import slow_devices


def each_table(run: Analysed) -> Table | None:
    """A row for each device; None of a run that measured them together."""
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


def on_terminal(run: Analysed, width: int | None) -> list[str]:
    table = each_table(run)
    return [slow_devices(run), "", *([table.as_text(width)] if table else [])]


def each_plot(run: Analysed) -> Plot | None:
    """A row for each device: how much slower than the median it is, and the bound."""
    rows, scan = [one for one in devices(run) if one.slower is not None], scan_of(run)
    if not rows:
        return None
    labels = ["" if one.step.value is None else f"{one.step.value:,.1f} ms a step" for one in rows]
    figure, (axes,) = drawing.row_sheet([(one.name, label) for one, label in zip(rows, labels, strict=True)])
    for position, one in enumerate(rows):
        percent, colour = 100 * (one.slower or 0.0), light("line-6" if one.is_slow else "line-0")
        axes.plot([percent], [position], marker="o", markersize=7, linestyle="none", color=colour)
        axes.lines[-1].set_label("slow" if one.is_slow else "like the others")
        drawing.hover(axes.lines[-1], f"{one.name}: {percent:+.1f} %")
    axes.axvline(0.0, color=light("ink"), linewidth=0.9)
    if scan.bound is not None:
        axes.axvline(100 * scan.bound, color=light("line-6"), linewidth=1.2, linestyle=(0, (3, 2)))
        axes.lines[-1].set_label(f"bound, {100 * scan.bound:.1f} %")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter("{x:+,.3g} %")
    axes.set_xlabel("slower than the median of all devices")
    caption = "Each device by itself, with the same batch; right of the bound is slow."
    return drawing.finished(run, figure, "each", "How far each device is from the median", caption)
