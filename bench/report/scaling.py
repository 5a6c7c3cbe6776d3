"""How something scales: its efficiency by number of devices, what is predicted, and every device by itself."""

from collections.abc import Callable, Sequence

from bench.analyse.algorithms import Algorithms
from bench.analyse.all_reduce import samples
from bench.analyse.all_reduce import sentences as about_all_reduces
from bench.analyse.analysed import Analysed
from bench.analyse.each import devices, scan_of
from bench.analyse.predicted import Prediction
from bench.analyse.scaling import PARTS, Scaled, foreseen, scaled
from bench.core.text import digits, signed
from bench.report import all_reduce, drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Cell, Table, change, in_text, number, numeric, step_cell, tabulate, text
from bench.runs.experiments import Scaling
from bench.words import scaling as scaling_words

COLOURS = {"weak": "line-0", "strong": "line-1"}
MOST_DRAWN = 64
"""How many times beyond the measured numbers a prediction is drawn."""


def scaling_table(run: Analysed) -> Table | None:
    """A row for each number of devices on each curve; None of a run that is not of ``bench scale``."""
    points = scaled(run)

    def efficiency(one: Scaled) -> Cell:
        low, high = one.efficiency.low, one.efficiency.high
        small = "" if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f}"
        return Cell(text=_share(one.efficiency.value, " %"), small=small)

    def share_of(part: str) -> Callable[[Scaled], str]:
        return lambda one: _share(one.loss.shares.get(part))

    columns = (
        text("scaling", lambda one: one.mode),
        numeric("devices", lambda one: f"{one.count}"),
        numeric("batch in all", lambda one: f"{one.global_batch}"),
        numeric("step ms", lambda one: step_cell(one.step, one.failed)),
        numeric(f"{run.document.workload.unit_short}/s", lambda one: number(one.per_s, ",.1f")),
        numeric("efficiency", efficiency),
        numeric("loses ms", lambda one: number(one.loss.total_ms, ",.1f")),
        *(numeric(f"{part} %", share_of(part)) for part in PARTS),
    )
    notes = (
        "efficiency: weak T(1) / T(N), strong T(1) / (N T(N)), with its 95 % interval over launches. loses: what a "
        "step is longer than at an efficiency of 1, and the shares of it that a diagnostic launch saw.",
        "communication: steps with synchronisation less steps without, of the slowest rank. skew: how much longer the "
        "slowest rank takes than their mean. input: waiting for data. computation: all else that takes longer.",
    )
    return tabulate(columns, points, notes) if points else None


def prediction_table(checks: Sequence[Prediction], asked: Sequence[Prediction]) -> Table | None:
    rows, unknown = [*checks, *asked], Cell(text="algorithm not measured", wrap=True)
    columns = (
        text("scaling", lambda one: one.mode),
        numeric("devices", lambda one: f"{one.count:,}"),
        numeric("predicted step ms", lambda one: unknown if one.step_ms is None else f"{one.step_ms:,.1f}"),
        numeric("of that waiting ms", lambda one: number(one.exposed_ms, ",.1f")),
        numeric("efficiency", lambda one: _share(one.efficiency, " %")),
        numeric("measured ms", lambda one: number(one.measured_ms, ",.1f")),
        numeric("error", lambda one: change(one.error, " %", 0)),
        text("beyond what was measured", lambda one: f"{digits(one.beyond, 4)} times" if one.beyond > 1 else "no"),
    )
    notes = (
        "From ranks that compute with the same batch and exchange nothing, and the fit of all-reduces. "
        "Overlap is simulated from the moments at which gradients are handed over. efficiency: beside one device as "
        "predicted, not as measured.",
    )
    return tabulate(columns, rows, notes) if rows else None


def predictions_title(what_if_mbit: float | None) -> str:
    link = f" on a link of {what_if_mbit:,.0f} Mbit/s, and on the measured one to check them" if what_if_mbit else ""
    return f"Predictions{link}"


def on_terminal(
    run: Analysed, width: int | None, predict: Sequence[int] = (), what_if_mbit: float | None = None
) -> list[str]:
    """The answer, what is lost on what, the link, and the predictions. ``width``: of the terminal."""
    scaling = run.document.begun(Scaling)
    if scaling.by_itself:
        return [scaling_words.slow_devices(run), *in_text(each_table(run), width=width)]
    mbit, algorithms = what_if_mbit or scaling.what_if_mbit, Algorithms.of(run.document)
    bandwidth = all_reduce.bandwidth_table(samples(scaling.bandwidth, algorithms))
    predictions = prediction_table(*foreseen(run, predict, what_if_mbit))
    parts = (
        ("", scaling_table(run), scaling_words.sentences(run)),
        ("All-reduces", bandwidth, about_all_reduces(scaling.bandwidth, algorithms)),
        (predictions_title(mbit), predictions, scaling_words.about_predictions(run, predict, what_if_mbit)),
    )
    lines = scaling_words.answer(run)
    for title, table, words in parts:
        lines += [*(["", title] if title and table else []), *in_text(table, width=width), "", *words]
    return lines


def scaling_plot(run: Analysed) -> Plot | None:
    """Efficiency by number of devices: measured with intervals, and what is predicted."""
    points = [one for one in scaled(run) if one.efficiency.value is not None]
    if not points:
        return None
    checks, asked = foreseen(run)
    most = max(one.count for one in points)
    predicted = [one for one in (*checks, *asked) if one.efficiency is not None and one.count <= MOST_DRAWN * most]
    figure, (axes,) = drawing.sheet(3.5)
    axes.axhline(100, color=light("muted"), linewidth=0.9)
    for mode, colour in COLOURS.items():
        own = [one for one in points if one.mode == mode]
        if own:
            values = [100 * (one.efficiency.value or 0.0) for one in own]
            label = f"{mode}: the same batch {'on each' if mode == 'weak' else 'in all'}"
            drawing.marks(axes, [one.count for one in own], values, colour, linestyle="-", gid=mode, label=label)
        for one in own:
            value, low, high = 100 * (one.efficiency.value or 0.0), one.efficiency.low, one.efficiency.high
            if low is not None and high is not None:
                drawing.error_bar(axes, one.count, value, 100 * low, 100 * high, colour)
                drawing.hover(axes.lines[-1], f"{mode}, {one.count} devices: {value:.0f} %")
        ahead = sorted((one.count, 100 * (one.efficiency or 0.0)) for one in predicted if one.mode == mode)
        if ahead:
            x, y = zip(*ahead, strict=True)
            look: drawing.Look = {"linestyle": "--", "linewidth": 1.2, "markersize": 5}
            gid, label = f"predicted-{mode}", f"{mode}, predicted"
            drawing.marks(axes, x, y, colour, "s", hollow=True, gid=gid, label=label, **look)
    counts = sorted({one.count for one in points} | {one.count for one in predicted})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(0, max(110.0, 1.08 * max(100 * (one.efficiency.value or 0.0) for one in points)))
    axes.yaxis.set_major_formatter("{x:,.0f} %")
    axes.set(xlabel="devices", ylabel="efficiency")
    caption = "At 100 % every device is as fast as one by itself. Bars: 95 % intervals over launches."
    return drawing.finished(run, figure, "scaling", "What is left of the speed of each device", caption)


def _share(part: float | None, unit: str = "") -> str:
    return UNKNOWN if part is None else f"{round(100 * part)}{unit}"


def each_table(run: Analysed) -> Table | None:
    rows = devices(run)
    verdicts = {True: "slow", False: "like the others", None: "unknown"}
    columns = (
        text("device", lambda one: one.name),
        numeric("step ms", lambda one: step_cell(one.step, one.failed)),
        numeric("against the median", lambda one: change(one.slower, " %")),
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
    figure, (axes,) = drawing.row_sheet([(one.name, f"{one.step.value:,.1f} ms a step") for one in rows])
    for position, one in enumerate(rows):
        percent = 100 * (one.slower or 0.0)
        colour, label = ("line-6", "slow") if one.is_slow else ("line-0", "like the others")
        mark = drawing.marks(axes, [percent], [position], colour, markersize=7, label=label)
        drawing.hover(mark, f"{one.name}: {signed(percent)} %")
    axes.axvline(0.0, color=light("ink"), linewidth=0.9)
    if scan.bound is not None:
        bound = 100 * scan.bound
        axes.axvline(bound, color=light("line-6"), linewidth=1.2, linestyle="--", label=f"bound, {bound:.1f} %")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter("{x:+,.3g} %")
    axes.set_xlabel("slower than the median of all devices")
    caption = "Each device by itself, with the same batch; right of the bound is slow."
    return drawing.finished(run, figure, "each", "How far each device is from the median", caption)
