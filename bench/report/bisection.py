"""The search of ``bench bisect``: every candidate that was launched as a table and a plot."""

from bench.analyse.analysed import Analysed
from bench.core.text import plain
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Cell, Table, numeric, tabulate, text
from bench.runs.experiments import Bisected
from bench.words.bisected import interval_text, ratio_text, span_text


def bisection_table(run: Analysed) -> Table | None:
    search = run.document.begun(Bisected)
    counts = [launch.scenario for launch in run.document.good]

    def part(name: str) -> Cell:
        words = {search.low: "the last as the good end", search.high: "the first as the bad end"}
        return Cell(text=words.get(name, ""), tone="bad" if search.decided and name == search.high else "")

    columns = (
        text("candidate", str),
        numeric(f"{search.metric} ÷ that of the good end", lambda name: ratio_text(search.levels.get(name))),
        numeric("95 % interval", lambda name: interval_text(search.levels.get(name)) or UNKNOWN),
        numeric("launches", lambda name: f"{counts.count(name)}"),
        text("", part),
        text("what it is", lambda name: Cell(text=search.skipped.get(name) or search.candidates[name], wrap=True)),
    )
    shown = [name for name in search.candidates if name in search.levels or name in search.skipped]
    notes = ("levels are of all blocks, each of which has the good end, a candidate and the bad end in turn",)
    return tabulate(columns, shown, notes) if shown else None


def bisection_plot(run: Analysed) -> Plot | None:
    search = run.document.of(Bisected)
    if search is None or len(search.levels) < 2:
        return None
    figure, (axes,) = drawing.sheet(3.5)
    names = [*search.candidates]
    axes.axvspan(names.index(search.low), names.index(search.high), color=light("grid"), zorder=0)
    for name, level in search.levels.items():
        drawing.error_bar(axes, names.index(name), level.ratio, level.low, level.high, "line-0")
        mark = drawing.marks(axes, [names.index(name)], [level.ratio], "line-0")
        drawing.hover(mark, f"{name} ({search.candidates[name]}): {span_text(level)}")
    axes.axhline(1.0, color=light("muted"), linewidth=0.9)
    sides = {names[0]: "left", names[-1]: "right", search.low: "right", search.high: "left"}
    shown = [name for name in search.levels if name in sides]
    below = {name: "\n" * (name in (search.low, search.high)) for name in shown}  # the bracket's two are neighbours
    axes.set_xticks([names.index(name) for name in shown], [below[name] + plain(name) for name in shown])
    for name, label in zip(shown, axes.get_xticklabels(), strict=True):
        label.set_horizontalalignment(sides[name])
    axes.set(xlim=(-0.5, len(names) - 0.5), ylabel=f"{search.metric} ÷ good")
    caption = "Each candidate that was launched, in order. Bars: 95 % intervals. Grey: the bracket that is left."
    return drawing.finished(run, figure, "bisection", f"{search.metric.capitalize()} of all candidates", caption)
