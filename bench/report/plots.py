"""The plots of a run, each as an SVG and a PNG that can stand alone: title, device, model, batch and source on them."""

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from bench.analyse import memory_timeline, published
from bench.analyse.analysed import Analysed
from bench.analyse.bars import bar
from bench.analyse.labels import what_ran
from bench.analyse.launches import only, shown
from bench.analyse.spread import spread
from bench.analyse.steps import phase_intervals, phases
from bench.core.channel import die_with_parent
from bench.core.records import PHASES
from bench.machine.nvml import Gpu
from bench.report import drawing
from bench.report.all_reduce import bandwidth_plot
from bench.report.device_plots import memory_held, memory_stack, power
from bench.report.drawing import Artist, Plot, axes_at, handle, legend_row, light, locator, short
from bench.report.each import each_plot
from bench.report.ladder import ladder_plot
from bench.report.loader import loader_plot
from bench.report.scaling import scaling_plot
from bench.report.search import search_plot
from bench.report.stacks import stacked
from bench.report.verdict_plots import losses, speeds, time_spent, trade_off

if TYPE_CHECKING:
    import pandas as pd

DOTS_PER_SCENARIO = 1000

MANY_SAMPLES = 500_000
"""From this many on, the samples of the whole run are drawn in a second process beside the rest."""


def of_run(run: Analysed, samples: "Future[list[Plot]] | None" = None) -> list[Plot]:
    """All plots of a run for which it has figures. ``samples``: those of :func:`of_samples`, if they were begun."""
    found = _drawn(DRAWINGS, run)
    try:
        return found + (of_samples(run) if samples is None else samples.result())
    except BrokenProcessPool:  # it was killed, such as for want of memory
        return found + of_samples(run)


def of_samples(run: Analysed) -> list[Plot]:
    """The plots of all samples of the run: about as much work as the others together if there are many."""
    found = _drawn((memory_stack,), run)
    _give_back()
    return found + _drawn((power,), run)


def begun(run: Analysed) -> "Future[list[Plot]] | None":
    """The plots of samples, begun in a second process; None if there are too few for that, or no room for it.

    The process is a fork, so that it has every table without a copy.
    """
    if len(run.memory) + len(run.device) < MANY_SAMPLES or len(os.sched_getaffinity(0)) < 2:
        return None
    _ = run.devices, run.windows  # which both need
    _give_back()
    second = ProcessPoolExecutor(1, multiprocessing.get_context("fork"), initializer=_keep, initargs=(run, os.getpid()))
    try:
        return second.submit(_of_kept)
    except OSError:
        return None
    finally:
        second.shutdown(wait=False)


_kept: list[Analysed] = []
"""In the second process: its run, which is too large to be sent there."""


def _keep(run: Analysed, parent: int) -> None:
    die_with_parent(parent)
    _kept.append(run)


def _of_kept() -> list[Plot]:
    return of_samples(_kept[0])


def _give_back() -> None:
    """Return freed memory to the system, since two processes share it."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl and others do it by themselves
    if trim is not None:
        trim(0)


def _drawn(drawings: Sequence[Callable[[Analysed], Plot | None]], run: Analysed) -> list[Plot]:
    with drawing.styled():
        return [plot for draw in drawings if (plot := draw(run)) is not None]


def step_times(run: Analysed) -> Plot | None:
    """Every measured step as a dot, the middle half of them as a box, the median as a bar."""
    steps, launches = run.good_iterations.frame, run.good_figures.frame
    if steps.empty:
        return None
    rows = drawing.rows_of(run, launches)
    measured = steps.loc[~steps["warmup"], ["scenario", "step_ms"]]
    middle = spread(run.good_iterations, run.good_figures).set_index("scenario").to_dict("index")
    units, unit = run.document.workload.units or 0, run.document.workload.unit_short
    low, high = float(measured["step_ms"].min()), float(measured["step_ms"].max())
    cut = high / 2 < low < high
    left = 0.0 if not cut else low - 0.06 * (high - low)
    title = "Step time by scenario"
    sheet = drawing.run_sheet(run, title, height_in=drawing.rows_height_in(len(rows)))
    axes = drawing.row_axes(sheet, rows, right_in=1.75 if launches["repeat"].max() == 0 else 2.35)
    drawn = 1
    for position, row in enumerate(rows):
        colour = light(row.colour)
        mine = measured.loc[measured["scenario"] == row.scenario, "step_ms"].to_numpy()
        every = -(-len(mine) // DOTS_PER_SCENARIO)
        drawn = max(drawn, every)
        heights = [position + jitter(k) * 0.5 for k in range(0, len(mine), every)]
        axes.plot(mine[::every], heights, linestyle="none", marker="o", markersize=3.4, markeredgewidth=0)
        dots = axes.lines[-1]
        dots.set(color=colour, alpha=0.5, gid=f"dots-{row.scenario}")
        at = middle[row.scenario]
        _box(axes, float(at["p25_ms"]), float(at["p75_ms"]), position, colour)
        axes.plot([at["median_ms"]] * 2, [position - 0.36, position + 0.36], color=light("ink"), linewidth=1.7)
        medians = launches.loc[launches["scenario"] == row.scenario, "median_ms"]
        if len(medians) > 1:
            axes.plot(medians, [position + 0.4] * len(medians), linestyle="none", marker="^", markersize=4)
            axes.lines[-1].set(color=light("ink"), markerfacecolor="none", markeredgewidth=0.8)
        speed = f"{1000 * units / at['median_ms']:,.1f} {unit}/s {bar(at['half_width_percent'])}".rstrip()
        middle_half = 100 * (at["p75_ms"] - at["p25_ms"]) / at["median_ms"]
        said = (f"{at['median_ms']:,.1f} ms · {speed}", f"p25 to p75 span {middle_half:.1f} %")
        drawing.right_label(axes, position, *said)
        drawing.hover(dots, f"{row.scenario}: {len(mine):,} steps, median {'; '.join(said)}")
    axes.set_xlim(left, high + 0.03 * (high - left))
    axes.set_xlabel("step time of the slowest rank (ms)" + ("; the axis does not begin at 0" if cut else ""))
    keys = [("dot", f"one measured step{f' (1 in {drawn} drawn)' if drawn > 1 else ''}"), ("box", "p25 to p75")]
    keys.append(("bar", "median" if launches["repeat"].max() == 0 else "geometric mean of the launches' medians"))
    if launches["repeat"].max() > 0:
        keys.append(("triangle", "median of a launch"))
    legend_row(sheet, [(handle(kind, "blue-o1"), text) for kind, text in keys])
    caption = "Warm-up steps are left out; a step lasts from the start of one iteration to the start of the next."
    if launches["repeat"].max() > 0:
        caption += " ±: from the figure to the farther end of its 95 % interval over launches."
    return drawing.finished(run, sheet, "step-times", title, caption, [row.scenario for row in rows])


BACKWARD = "backward incl. communication"


def phase_stack(run: Analysed) -> Plot | None:
    """Where a step's time goes: data, forward, backward with communication, optimizer."""
    if run.good_figures.frame.empty:
        return None
    rows = drawing.rows_of(run, run.good_figures.frame)
    medians = phases(run.good_phases).set_index("scenario")
    known = phase_intervals(run.good_phases).dropna().to_dict("records")
    bars = {(row["scenario"], row["phase"]): (row["low_ms"], row["high_ms"]) for row in known}
    middle = spread(run.good_iterations, run.good_figures).set_index("scenario")["median_ms"]
    title, called = "Phases of a step by scenario", "median of the whole step"
    widths, names = medians[[f"{phase}_ms" for phase in PHASES]].set_axis(list(PHASES), axis=1), {"backward": BACKWARD}
    colours = {phase: phase for phase in PHASES}
    sheet, axes = stacked(run, title, rows, widths, colours, middle, unit="ms", called=called, names=names)
    begins = widths.cumsum(axis=1).shift(axis=1, fill_value=0.0)
    longest = farthest = axes.get_xlim()[1] / 1.03
    for position, row in enumerate(rows):
        for number, phase in enumerate(PHASES):
            low, high = (begins[phase][row.scenario] + end for end in bars.get((row.scenario, phase), (0.0, 0.0)))
            if high > low:
                farthest = max(farthest, high)
                drawing.interval(axes, low, high, position + 0.19 * (-1) ** number)
    axes.set_xlim(0, min(farthest, 1.5 * longest) * 1.03)
    axes.set_xlabel("median of each phase (ms)")
    caption = (
        "Of the rank whose step was the slowest. Medians of phases need not add up to the median of the step. "
        "Communication overlaps the backward pass, so it is not shown apart from it."
    )
    if bars:
        caption += " Thin lines: 95 % intervals of where a phase ends, over launches."
    return drawing.finished(run, sheet, "phases", title, caption, [row.scenario for row in rows])


def memory(run: Analysed) -> Plot | None:
    """Memory of each process over the time of one launch of each scenario."""
    known = only(run.memory, run.memory["used_mib"].notna())
    launches = shown(run.document, known)
    if not launches:
        return None
    own = {
        name: (known[known["launch"] == launch.launch], run.iterations.of(launch.launch))
        for name, launch in launches.items()
    }
    lines = {name: memory_timeline.timeline(launch, *own[name]) for name, launch in launches.items()}
    sources = sorted({source for line in lines.values() for source in line["source"].unique()})
    highest = max(float(line["used_mib"].max()) for line in lines.values())
    columns = 1 if len(lines) == 1 else 2
    panel_in, title_in, left_in, between_in = 1.55, 0.66, 0.72, 0.62
    width_in = (drawing.WIDTH_IN - left_in - 0.2 - between_in * (columns - 1)) / columns
    top_in = -(-len(lines) // columns) * (panel_in + title_in) + 0.5 + 0.18
    title = "Memory of each process over time"
    sheet = drawing.run_sheet(run, title, height_in=top_in + drawing.TITLE_IN + 0.15)
    for number, (scenario, line) in enumerate(lines.items()):
        down, across = divmod(number, columns)
        y_in = top_in - (down + 1) * (panel_in + title_in)
        axes = axes_at(sheet, left_in + across * (width_in + between_in), y_in, width_in, panel_in)
        launch = launches[scenario]
        end_s = _shade_windows(axes, memory_timeline.windows(launch, *own[scenario]))
        axes.set_ylim(0, highest * 1.08)
        _memory_lines(axes, line, run.document.machine.gpus)
        axes.set_xlim(0, max(end_s, float(line["seconds"].max()), 0.5) * 1.02)
        status = "" if launch.status == "ok" else f" ({launch.status})"
        _panel_title(axes, short(scenario + status), short(what_ran(launch.effective)))
        if across == 0:
            axes.set_ylabel(f"MiB ({', '.join(sources)})")
        if number + columns >= len(lines):
            axes.set_xlabel("seconds since the launch's processes started")
    keys = [("shade", "grid", "warm-up steps"), ("shade", "shade", "measured steps")]
    legend_row(sheet, [(handle(kind, colour), text) for kind, colour, text in keys])
    what = {"rss": "rss: resident host memory of the process", "nvml_pid": "nvml_pid: what the driver counts for it"}
    explained = "; ".join(what.get(source, source) for source in sources)
    caption = f"Source {explained}. First launch of each scenario; one line for each process and device."
    caption += drawing.about_lines(
        max(int(line.groupby(memory_timeline.LINE, observed=True).size().max()) for line in lines.values())
    )
    return drawing.finished(run, sheet, "memory", title, caption, list(lines))


def elapsed(run: Analysed) -> Plot | None:
    """Elapsed seconds against iteration, a line for each scenario, warm-up included: the published form."""
    if run.good_figures.frame.empty:
        return None
    rows = drawing.rows_of(run, run.good_figures.frame)
    seconds = published.elapsed(run.good_iterations)
    series: dict[Any, Any] = {}
    bands: dict[Any, Any] = {}
    for scenario, mine in seconds.groupby("scenario"):
        by_launch = mine.pivot(index="step", columns="launch", values="elapsed_s").dropna()
        steps = by_launch.index.to_numpy()
        series[scenario] = (steps, by_launch.median(axis=1).to_numpy())
        every = -(-len(steps) // drawing.STRETCHES)
        bands[scenario] = tuple(of[::every] for of in (steps, by_launch.min(axis=1), by_launch.max(axis=1)))
    warmup = run.document.workload.warmup or 0
    last = max(int(iterations[-1]) for iterations, _ in series.values())
    highest = max(float(values[-1]) for _, values in series.values())
    title = "Elapsed time by iteration, cold start and warm-up included"
    plot_in = max(3.0, drawing.KEY_ROW_IN * len(rows) + 0.2)
    height = drawing.TITLE_IN + 0.3 + plot_in + 0.52 + drawing.SOURCE_IN
    sheet = drawing.run_sheet(run, title, height_in=height)
    ends = {name: float(values[-1]) for name, (_, values) in series.items()}
    texts = {name: f"{end:,.{1 if end >= 10 else 2}f} s" for name, end in ends.items()}
    width_in = drawing.WIDTH_IN - 0.72 - drawing.key_width_in(sheet, rows, texts)
    axes = axes_at(sheet, 0.72, 0.52 + drawing.SOURCE_IN, width_in, plot_in)
    axes.axvspan(-0.5, warmup - 0.5, color=light("shade"), linewidth=0, zorder=0)
    axes.set_xlim(-0.5, last)
    axes.set_ylim(0, highest * 1.05)
    for row in rows:
        axes.fill_between(*bands[row.scenario], color=light(row.colour), alpha=0.16, linewidth=0)
        drawing.line_of(axes, row, *series[row.scenario])
    axes.grid(True, axis="y", color=light("grid"), linewidth=0.7)
    axes.set_xlabel("iteration (counted from 0)")
    axes.set_ylabel("seconds since training began")
    axes.xaxis.set_major_locator(locator(9, integer=True))
    drawing.line_key(axes, rows, ends, texts)
    legend_row(sheet, [(handle("shade", "shade"), "warm-up steps")])
    caption = (
        "The median of the launches of each scenario, and a band from the first to the last of them; at each iteration "
        "the rank that came last. Iteration 0 holds the cold start."
    )
    caption += drawing.about_lines(max(len(values) for _, values in series.values()))
    return drawing.finished(run, sheet, "elapsed", title, caption, [row.scenario for row in rows])


def jitter(k: int) -> float:
    """The k-th of a sequence in [-0.5, 0.5) that fills it evenly and is the same every time (golden ratio)."""
    return (k * 0.6180339887498949) % 1.0 - 0.5


def _box(axes: Artist, low: float, high: float, position: int, colour: str) -> None:
    from matplotlib.patches import Rectangle

    for fill, alpha in ((True, 0.22), (False, 1.0)):
        patch = Rectangle((low, position - 0.27), high - low, 0.54, facecolor=colour if fill else "none", alpha=alpha)
        patch.set(edgecolor="none" if fill else colour, linewidth=1.1)
        axes.add_patch(patch)


def _shade_windows(axes: Artist, windows: tuple[float, float, float] | None) -> float:
    """Shade the warm-up steps and the measured ones; returns where the last one ends (s), 0 where there are none."""
    if windows is None:
        return 0.0
    first, measured, end = windows
    axes.axvspan(first, measured, color=light("grid"), linewidth=0, zorder=0)
    axes.axvspan(measured, end, color=light("shade"), linewidth=0, zorder=0)
    return end


def _memory_lines(axes: Artist, line: "pd.DataFrame", gpus: Sequence[Gpu]) -> None:
    """A line for each process and device; the first is the widest, so that equal ones stay visible."""
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    keys: list[Any] = list(line.groupby(memory_timeline.LINE, sort=True, observed=True))
    keys.sort(key=lambda group: (*group[0][:2], indices.get(group[0][2], len(indices))))
    for number, (key, samples) in enumerate(keys):
        rank, pid, gpu = key
        where = "" if gpu == "cpu" else f" · GPU {indices.get(gpu, gpu[-6:])}"
        width = 2.6 if number == 0 and len(keys) > 1 else 1.4
        points = drawing.line_points(samples["seconds"].to_numpy(), samples["used_mib"].to_numpy())
        axes.plot(*points, linewidth=width, label=f"rank {rank} · PID {pid}{where}")
        axes.lines[-1].set(color=light(f"line-{number % 8}"), marker="o" if len(samples) == 1 else "", markersize=3)
        drawing.hover(axes.lines[-1], f"rank {rank}, PID {pid}{where}: peak {samples['used_mib'].max():,.0f} MiB")
    axes.grid(True, axis="y", color=light("grid"), linewidth=0.7)
    axes.yaxis.set_major_locator(locator(4))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(locator(6))
    ends = [float(samples["used_mib"].iloc[-1]) / axes.get_ylim()[1] for _, samples in keys]
    free = "upper right" if min(ends) < 0.45 and max(ends) < 0.55 else "lower right"
    legend = axes.legend(loc=free, fontsize=7, ncols=-(-len(keys) // 4), handlelength=1.6, fancybox=False)
    legend.get_frame().set(facecolor=light("paper"), edgecolor="none", alpha=0.75)
    for text in legend.get_texts():
        text.set_color(light("ink"))


def _panel_title(axes: Artist, name: str, label: str) -> None:
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(name, (0, 1), (0, 13), fontsize=9, fontweight="bold", color=light("ink"), **place)
    axes.annotate(label, (0, 1), (0, 3.5), fontsize=7.2, color=light("muted"), **place)


DRAWINGS = (
    speeds,
    trade_off,
    losses,
    time_spent,
    step_times,
    phase_stack,
    loader_plot,
    search_plot,
    ladder_plot,
    scaling_plot,
    bandwidth_plot,
    each_plot,
    memory,
    memory_held,
    elapsed,
)
"""All plots but those of samples; where each stands in the page is up to :mod:`bench.report.chapters`."""
