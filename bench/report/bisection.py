"""What ``bench bisect`` found: every candidate that was launched as a table and a plot."""

from bench.analyse.analysed import Analysed
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Cell, Table, figure, tabulate, text
from bench.runs.experiments import Bisected
from bench.words.bisected import interval_text, ratio_text, span_text


def bisection_table(run: Analysed) -> Table | None:
    """Every candidate that was launched or skipped, in order."""
    found = run.document.of(Bisected)
    if found is None:
        return None
    counts = [launch.scenario for launch in run.document.good]

    def part(name: str) -> Cell:
        words = {found.low: "the last as the good end", found.high: "the first as the bad end"}
        return Cell(text=words.get(name, ""), tone={found.high: "bad"}.get(name, "") if found.decided else "")

    columns = (
        text("candidate", lambda name: name),
        figure(f"{found.figure} ÷ that of the good end", lambda name: ratio_text(found.levels.get(name))),
        figure("95 % interval", lambda name: interval_text(found.levels.get(name)) or UNKNOWN),
        figure("launches", lambda name: f"{counts.count(name)}"),
        text("", part),
        text("what it is", lambda name: Cell(text=found.skipped.get(name) or found.candidates[name], wrap=True)),
    )
    shown = [name for name in found.candidates if name in found.levels or name in found.skipped]
    notes = ("levels are of all blocks, each of which has the good end, a candidate and the bad end in turn",)
    return tabulate(columns, shown, notes) if shown else None


def bisection_plot(run: Analysed) -> Plot | None:
    """Every candidate that was launched, in order, with its interval."""
    found = run.document.of(Bisected)
    if found is None or len(found.levels) < 2:
        return None
    figure_, (axes,) = drawing.sheet(3.5)
    names = [*found.candidates]
    axes.axvspan(names.index(found.low), names.index(found.high), color=light("grid"), zorder=0)
    for name, level in found.levels.items():
        place = names.index(name)
        axes.plot([place] * 2, [level.low, level.high], color=light("line-0"), marker="_", linewidth=1.2)
        axes.plot([place], [level.ratio], color=light("line-0"), marker="o", linestyle="none", markersize=6)
        drawing.hover(axes.lines[-1], f"{name} ({found.candidates[name]}): {span_text(level)}")
    axes.axhline(1.0, color=light("muted"), linewidth=0.9)
    shown = [name for name in found.levels if name in (names[0], found.low, found.high, names[-1])]
    axes.set_xticks([names.index(name) for name in shown], [drawing.plain(name) for name in shown], rotation=20)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylabel=f"{found.figure} ÷ good")
    caption = "Each candidate that was launched, in order. Bars: 95 % intervals. Grey: the bracket that is left."
    return drawing.finished(run, figure_, "bisection", f"{found.figure.capitalize()} of all candidates", caption)
