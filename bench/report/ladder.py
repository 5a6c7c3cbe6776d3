"""The ladder as a table, in words and as a plot."""

from bench.analyse.analysed import Analysed
from bench.analyse.ladder import ladder, sentences
from bench.report import drawing
from bench.report.drawing import Artist, Plot, light
from bench.report.tables import UNKNOWN, Table, is_unknown, numeric, ranged, tabulate, text
from bench.runs.frames import TableRow


def ladder_table(run: Analysed) -> Table | None:
    rows: list[TableRow] = ladder(run).to_dict("records")
    columns = (
        text("step", "change"),
        numeric("step ms", "step_ms", ",.1f"),
        ranged("gain", ("gain", "low", "high"), ".2f"),
        text("over the rung before", "verdict"),
        text("numerics", lambda row: row["numerics"] or UNKNOWN),
        ranged("gain on top", ("on_top", "on_top_low", "on_top_high"), ".2f"),
        ranged("gain by itself", ("alone", "alone_low", "alone_high"), ".2f"),
    )
    notes = (
        f"The lowest rung is {rows[0]['before']}." if rows else "",
        "gain: how many times as fast as the rung before, with its 95 % interval. by itself: on the lowest rung. Where "
        "that interval and the one on top part, the step interacts with those below it.",
    )
    return tabulate(columns, rows, notes) if rows else None


def ladder_plot(run: Analysed) -> Plot | None:
    """A row a step, the lowest rung first: its gain on top of the others, and by itself on the lowest rung."""
    rows: list[TableRow] = ladder(run).to_dict("records")
    if not rows:
        return None
    figure, (axes,) = drawing.row_sheet([(row["change"], row["numerics"] or "numerics unknown") for row in rows])
    for position, row in enumerate(rows):
        _mark(axes, row, ("gain", "low", "high"), position - 0.12, "line-0", "over the rung before")
        _mark(axes, row, ("alone", "alone_low", "alone_high"), position + 0.16, "muted", "by itself")
    axes.axvline(1.0, color=light("ink"), linewidth=0.9)
    axes.xaxis.set_major_formatter("{x:.2f}")
    axes.set_xlabel("times as fast; right of 1 is a gain")
    caption = f"Steps from top to bottom, each on top of those above it; the lowest rung is {rows[0]['before']}. "
    caption += "Lines: 95 % intervals over launches."
    shown_in = [launch.scenario for launch in run.document.good]
    return drawing.finished(run, figure, "ladder", "What each step gains", caption, shown_in)


def _mark(axes: Artist, row: TableRow, names: tuple[str, str, str], y: float, colour: str, label: str) -> None:
    value, low, high = (row[name] for name in names)
    if is_unknown(value):
        return
    if not is_unknown(low):
        axes.plot([max(low, value / 3), min(high, 3 * value)], [y, y], color=light(colour), linewidth=1.4)
    mark = drawing.marks(axes, [value], [y], colour, label=label)
    drawing.hover(mark, f"{row['change']}: {value:.2f} times as fast")


def ladder_words(run: Analysed) -> list[str]:
    return sentences(ladder(run))
