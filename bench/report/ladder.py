"""The ladder as a table, in words and as a plot."""

from typing import Any

from bench.analyse.analysed import Analysed
from bench.analyse.ladder import ladder, sentences
from bench.report import drawing
from bench.report.drawing import Plot, axes_at, handle, legend_row, light
from bench.report.tables import UNKNOWN, Cell, Record, Table, figure, is_unknown, tabulate, text


def ladder_table(run: Analysed) -> Table | None:
    """What each rung gains over the one before, and by itself; None of a run that is no ladder."""
    rows: list[Any] = ladder(run).to_dict("records")
    columns = (
        text("step", "change"),
        figure("step ms", "step_ms", ",.1f"),
        figure("gain", lambda row: _gain(row, "gain", ("low", "high"))),
        text("over the rung before", "verdict"),
        text("numerics", lambda row: row["numerics"] or UNKNOWN),
        figure("gain on top", lambda row: _gain(row, "on_top", ("on_top_low", "on_top_high"))),
        figure("gain by itself", lambda row: _gain(row, "alone", ("alone_low", "alone_high"))),
    )
    notes = (
        f"The lowest rung is {rows[0]['before']}." if rows else "",
        "gain: how many times as fast as the rung before, with its 95 % interval. by itself: on the lowest rung. Where "
        "that interval and the one on top part, the step interacts with those below it.",
    )
    return tabulate(columns, rows, notes) if rows else None


def ladder_plot(run: Analysed) -> Plot | None:
    """A row a step, the lowest rung first: its gain on top of the others, and by itself on the lowest rung."""
    rows: list[Any] = ladder(run).to_dict("records")
    if not rows:
        return None
    title, below_in = "What each step gains", 0.52 + drawing.SOURCE_IN
    height_in = drawing.ROW_IN * len(rows)
    sheet = drawing.run_sheet(run, title, height_in=drawing.TITLE_IN + 0.3 + height_in + below_in)
    axes = axes_at(sheet, 2.2, below_in, drawing.WIDTH_IN - 2.4, height_in)
    for position, row in enumerate(rows):
        _mark(axes, row, ("gain", "low", "high"), position - 0.12, "line-0")
        _mark(axes, row, ("alone", "alone_low", "alone_high"), position + 0.16, "muted")
        drawing.row_label(axes, position, row["change"], row["numerics"] or "numerics unknown")
    axes.axvline(1.0, color=light("ink"), linewidth=0.9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter("{x:.2f}")
    axes.grid(True, axis="x", color=light("grid"), linewidth=0.7)
    axes.set_xlabel("times as fast; right of 1 is a gain")
    keys = [(handle("point", "line-0"), "over the rung before"), (handle("point", "muted"), "by itself")]
    legend_row(sheet, keys)
    caption = f"Steps from top to bottom, each on top of those above it; the lowest rung is {rows[0]['before']}. "
    caption += "Lines: 95 % intervals over launches."
    return drawing.finished(run, sheet, "ladder", title, caption, [launch.scenario for launch in run.document.good])


def _mark(axes: Any, row: Record, names: tuple[str, str, str], y: float, colour: str) -> None:
    value, low, high = (row[name] for name in names)
    if is_unknown(value):
        return
    if not is_unknown(low):
        axes.plot([max(low, value / 3), min(high, 3 * value)], [y, y], color=light(colour), linewidth=1.4)
    axes.plot([value], [y], marker="o", markersize=6, color=light(colour), linestyle="none")
    drawing.hover(axes.lines[-1], f"{row['change']}: {value:.2f} times as fast")


def ladder_words(run: Analysed) -> list[str]:
    return sentences(ladder(run))


def _gain(row: Record, name: str, bounds: tuple[str, str]) -> Cell:
    if is_unknown(row[name]):
        return Cell(text=UNKNOWN)
    low, high = (row[bound] for bound in bounds)
    small = "" if is_unknown(low) else f"{low:.2f} to {high:.2f}"
    return Cell(text=f"{row[name]:.2f}", small=small)
