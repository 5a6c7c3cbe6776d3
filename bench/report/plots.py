"""The plots of a run, each as an SVG and a PNG that can stand alone: title, device, model, batch and source on them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse import memory as held
from bench.analyse.analysed import Analysed
from bench.analyse.bars import bar
from bench.analyse.labels import what_ran
from bench.analyse.launches import only, shown
from bench.analyse.steps import base_of, phase_intervals
from bench.core.records import PHASES, Gpu
from bench.report import drawing, side_by_side
from bench.report.all_reduce import bandwidth_plot
from bench.report.bisection import bisection_plot
from bench.report.comparison import before_plot
from bench.report.device_plots import memory_held, memory_stack, power
from bench.report.device_tables import MEMORY_SOURCES
from bench.report.drawing import Artist, Plot, light, locator
from bench.report.ladder import ladder_plot
from bench.report.limits import limits_plot
from bench.report.loader import loader_plot
from bench.report.scaling import each_plot, scaling_plot
from bench.report.search import search_plot
from bench.report.verdict_plots import losses, speeds, time_spent, trade_off
from bench.runs.reader import excerpt

DOTS_PER_SCENARIO = 1000
BEYOND = 1.5
"""The axis of step times ends at this many times the largest median; steps beyond are marked at its end."""
FEW_STEPS, MOST_RANKS = 3, 16
"""Of the timeline of ranks."""
KEY_LINE_IN = 0.16  # of a key below a panel


def of_run(run: Analysed, ids: str = "") -> list[Plot]:
    """All plots of a run for which it has results. ``ids``: how their ids in a page begin."""
    draws = [partial(draw, run) for draw in DRAWINGS]
    return side_by_side.drawn(
        draws, ids, meanwhile=lambda: (run.overview, run.spread, run.good_phases, run.growth, run.beside_torch)
    )


def step_times(run: Analysed) -> Plot | None:
    """Every measured step as a dot, the middle half of them as a box, the median as a bar."""
    launches, times = run.good_stats.frame, run.good_times
    if not times:
        return None
    rows = drawing.rows_of(run, launches)
    middle = run.spread.to_dict("index")
    units, unit = run.document.workload.units, run.document.workload.unit_short
    several = launches["repeat"].max() > 0
    low, high = _reach(run)
    cut = high / 2 < low < high
    left = 0.0 if not cut else low - 0.06 * (high - low)
    edge = high + 0.03 * (high - left)
    every = max(1, -(-max(map(len, times.values())) // DOTS_PER_SCENARIO))
    figure, (axes,) = drawing.row_sheet([(row.scenario, row.label) for row in rows])
    for position, row in enumerate(rows):
        at = middle[row.scenario]
        own = times[row.scenario]
        # the golden ratio fills the height evenly, and in the same way every time
        heights = [position + 0.5 * (k * 0.6180339887498949 % 1.0 - 0.5) for k in range(0, len(own), every)]
        look: drawing.Look = {"markersize": 3.4, "markeredgewidth": 0, "alpha": 0.5, "gid": f"dots-{row.scenario}"}
        dots = drawing.marks(axes, own[::every], heights, row.colour, **look)
        look = {"color": light(row.colour), "alpha": 0.3, "zorder": 1.5}
        box = axes.barh(position, at["p75_ms"] - at["p25_ms"], 0.54, at["p25_ms"], **look)
        (bar_,) = axes.plot([at["median_ms"]] * 2, [position - 0.28, position + 0.28], color=light("ink"))
        medians = launches.loc[launches["scenario"] == row.scenario, "median_ms"]
        medians = medians if len(medians) > 1 else medians[:0]
        below = [position + 0.34] * len(medians)
        triangles = drawing.marks(axes, medians, below, "ink", "^", markersize=4, markerfacecolor="none", mew=0.8)
        beyond = int((own > high).sum())
        if beyond:
            arrow = drawing.marks(axes, [edge], [position], "ink", ">", clip_on=False, label="steps beyond the axis")
            drawing.hover(arrow, f"{row.scenario}: {beyond:,} steps beyond the axis, up to {own.max():,.1f} ms")
        speed = "" if units is None else f" · {1000 * units / at['median_ms']:,.1f} {unit}/s"
        middle_half = 100 * (at["p75_ms"] - at["p25_ms"]) / at["median_ms"]
        median = f"{at['median_ms']:,.1f} ms{speed} {bar(at['half_width_percent'])}".rstrip()
        span = f"p25 to p75 span {middle_half:.1f} %"
        drawing.right_label(axes, position, median, span)
        drawing.hover(dots, f"{row.scenario}: {len(own):,} steps, median {median}; {span}")
    dots.set_label("one measured step" + (f" (1 in {every} drawn)" if every > 1 else ""))
    box.set_label("p25 to p75")
    bar_.set_label("geometric mean of the launches' medians" if several else "median")
    if several:
        triangles.set_label("median of a launch")
    begins = "; the axis does not begin at 0" if cut else ""
    axes.set(xlim=(left, edge), xlabel=f"step time of the slowest rank (ms){begins}")
    caption = "Warm-up steps are left out; a step lasts from the start of one iteration to the start of the next."
    if several:
        caption += " ±: the wider side of the 95 % interval over launches."
    return drawing.finished(run, figure, "step-times", "Step time by scenario", caption, [row.scenario for row in rows])


def _reach(run: Analysed) -> tuple[float, float]:
    """The ends of an axis of step times, which one noisy scenario shall not flatten."""
    low, high = (end([end(times_ms) for times_ms in run.good_times.values()]) for end in (np.min, np.max))
    return float(low), min(float(high), BEYOND * float(run.spread["median_ms"].max()))


def distribution(run: Analysed) -> Plot | None:
    """The part of the measured steps that took no longer than each time, a line for each scenario."""
    if not run.good_times:
        return None
    rows = drawing.rows_of(run, run.good_stats.frame)
    figure, (axes,) = drawing.sheet(max(3.2, drawing.KEY_ROW_IN * len(rows) + 0.8))
    keys = []
    for row in rows:
        own = np.sort(run.good_times[row.scenario])
        parts = np.linspace(0.0, 1.0, min(len(own), DOTS_PER_SCENARIO))
        line = drawing.line_of(axes, row, np.quantile(own, parts), 100 * parts)
        p95, p99 = (f"{np.quantile(own, part):,.1f} ms" for part in (0.95, 0.99))
        drawing.hover(line, f"{row.scenario}: 95 % of the steps within {p95}, 99 % within {p99}")
        keys.append((line, row, f"95 % within {p95}"))
    low, high = _reach(run)
    margin = 0.03 * (high - low) or 1.0
    axes.set(xlim=(low - margin, high + margin), xlabel="step time of the slowest rank (ms)")
    axes.set(ylim=(0, 102), ylabel="part of the steps that took no longer")
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.grid(True)
    drawing.key_beside(axes, keys)
    caption = (
        "All measured steps of all launches. The steeper a line, the steadier; one that leaves at the right goes on."
    )
    return drawing.finished(run, figure, "distribution", "How steps are distributed", caption, list(run.good_times))


def ranks(run: Analysed) -> Plot | None:
    """All ranks over a few steps, of the scenario that speeds are relative to and of the fastest."""
    advised = run.document.recommendation
    wanted = dict.fromkeys([base_of(run.document.request.scenarios), *([advised.fastest] if advised else [])])
    launches = {one.scenario: one for one in reversed(run.document.good) if one.scenario in wanted}
    tables = {}
    for name, launch in launches.items():
        own = run.iterations.of(launch.launch).frame
        measured = own.loc[~own["warmup"], "step"].to_list()
        middle = measured[len(measured) // 2] if measured else 0
        table = excerpt(run, launch.launch, middle, middle + FEW_STEPS - 1)
        if table[[f"{phase}_ms" for phase in PHASES]].notna().any(axis=None) and table["start_ns"].notna().all():
            tables[name] = table[table["rank"] < MOST_RANKS]
    if not tables:
        return None
    counts = [table["rank"].nunique() for table in tables.values()]
    heights = [0.7 + 0.24 * count for count in counts]
    figure, panels = drawing.sheet(sum(heights), len(tables), height_ratios=heights)
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        begins = (table["start_ns"] - table["start_ns"].min()) / 1e6
        for phase in PHASES:
            widths = table[f"{phase}_ms"].astype(float).fillna(0.0)
            bars = axes.barh(table["rank"], widths, 0.7, begins, color=light(phase), linewidth=0)
            bars.set_label("backward incl. communication" if phase == "backward" else phase)
            begins = begins + widths
        axes.set_yticks(sorted(table["rank"].unique()))
        axes.invert_yaxis()
        drawing.upright_grid(axes)
        axes.set_ylabel("rank")
        axes.margins(x=0.01)
        drawing.panel_title(axes, name, what_ran(launches[name].effective))
    panels[-1].set_xlabel("ms")
    caption = "From the middle of the first launch that ended well. Gaps: what belongs to no phase."
    if max(counts) == MOST_RANKS:
        caption += f" Of more ranks the first {MOST_RANKS}."
    if len(run.document.hosts) > 1:
        caption += " Clocks of hosts differ: compare ranks of one host."
    return drawing.finished(run, figure, "ranks", "All ranks over a few steps", caption)


def phase_stack(run: Analysed) -> Plot | None:
    """Where a step's time goes: data, forward, backward with communication, optimizer."""
    if run.good_stats.frame.empty:
        return None
    rows = drawing.rows_of(run, run.good_stats.frame)
    bars, middle = phase_intervals(run.good_phases), run.spread["median_ms"]
    widths = run.phases[[f"{phase}_ms" for phase in PHASES]].set_axis(list(PHASES), axis=1).dropna(axis=1, how="all")
    if widths.empty:  # of a script that bench did not write, whose wait for data alone may be known
        return None
    names = {"backward": "backward incl. communication"}
    colours, called = {phase: phase for phase in PHASES}, "median of the whole step"
    figure, axes = drawing.stacked(rows, widths, colours, middle, unit="ms", called=called, names=names)
    begins = widths.cumsum(axis=1).shift(axis=1, fill_value=0.0)
    longest = farthest = axes.get_xlim()[1] / 1.03
    for position, row in enumerate(rows):
        for number, phase in enumerate(widths):
            low, high = (begins[phase][row.scenario] + end for end in bars.get((row.scenario, phase), (0.0, 0.0)))
            if high > low:
                farthest = max(farthest, high)
                drawing.interval(axes, low, high, position + 0.19 * (-1) ** number)
    axes.set(xlim=(0, min(farthest, 1.5 * longest) * 1.03), xlabel="median of each phase (ms)")
    caption = "Of the rank whose step was the slowest. Medians of phases need not add up to the median of the step."
    if "backward" in widths:
        caption += " Communication overlaps the backward pass, so it is not shown apart from it."
    if bars:
        caption += " Thin lines: 95 % intervals of where a phase ends, over launches."
    shown_in = [row.scenario for row in rows]
    return drawing.finished(run, figure, "phases", "Phases of a step by scenario", caption, shown_in)


def memory(run: Analysed) -> Plot | None:
    """Memory of each process over the time of one launch of each scenario."""
    samples = only(run.memory, run.memory["used_mib"].notna())
    launches = shown(run.document, samples)
    if not launches:
        return None
    timelines = {name: held.timeline(launch, samples, run.iterations) for name, launch in launches.items()}
    lines = {name: line for name, (line, _) in timelines.items()}
    sources = sorted({source for line in lines.values() for source in line["source"].unique()})
    highest = max(float(line["used_mib"].max()) for line in lines.values())
    columns = 1 if drawing.is_narrow() else min(2, len(lines))
    down = -(-len(lines) // columns)
    most = max(line.groupby(held.LINE, observed=True).ngroups for line in lines.values())
    figure, panels = drawing.sheet((2.2 + KEY_LINE_IN * -(-most // 2)) * down, down, columns, sharey=True)
    for axes in panels[max(0, len(lines) - columns) : len(lines)]:
        axes.set_xlabel("seconds since the launch's processes started")
    for axes, (scenario, (line, windows)) in zip(panels, timelines.items(), strict=False):
        launch = launches[scenario]
        if windows is not None:
            drawing.shade(axes, *windows[:2], "warm-up steps", "grid")
            drawing.shade(axes, *windows[1:], "measured steps")
        axes.set_ylim(0, highest * 1.08)
        _memory_lines(axes, line, run.document.machine.gpus)
        axes.set_xlim(0, max(windows[2] if windows else 0.0, float(line["seconds"].max()), 0.5) * 1.02)
        status = "" if launch.status == "ok" else f" ({launch.status})"
        drawing.panel_title(axes, scenario + status, what_ran(launch.effective))
    for axes in panels[len(lines) :]:
        axes.remove()
    for axes in panels[::columns]:
        axes.set_ylabel(f"MiB ({', '.join(sources)})")
    explained = "; ".join(f"{source}: {MEMORY_SOURCES[source]}" for source in sources)
    caption = f"Source {explained}. First launch of each scenario; one line for each process and device."
    return drawing.finished(run, figure, "memory", "Memory of each process over time", caption, list(lines))


def _memory_lines(axes: Artist, line: pd.DataFrame, gpus: Sequence[Gpu]) -> None:
    """A line for each process and device; the first is the widest, so that equal ones stay visible."""
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    keys: list[Any] = list(line.groupby(held.LINE, sort=True, observed=True))
    keys.sort(key=lambda group: (*group[0][:2], indices.get(group[0][2], len(indices))))
    names = []
    for number, ((rank, pid, gpu), samples) in enumerate(keys):
        where = "" if gpu == "cpu" else f" · GPU {indices.get(gpu, gpu[-6:])}"
        names.append(f"rank {rank} · PID {pid}{where}")
        axes.plot(samples["seconds"], samples["used_mib"], linewidth=2.6 if number == 0 and len(keys) > 1 else 1.4)
        axes.lines[-1].set(color=light(f"line-{number % 8}"), marker="o" if len(samples) == 1 else "", markersize=3)
        drawing.hover(axes.lines[-1], f"rank {rank}, PID {pid}{where}: peak {samples['used_mib'].max():,.0f} MiB")
    axes.yaxis.set_major_locator(locator(4))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(axes.lines, names, fontsize=7, ncols=2, **drawing.below(axes, 0.4 if axes.get_xlabel() else 0.2))


def elapsed(run: Analysed) -> Plot | None:
    """Elapsed seconds against iteration, a line for each scenario, warm-up included: the published form."""
    if run.good_stats.frame.empty:
        return None
    rows = drawing.rows_of(run, run.good_stats.frame)
    table = run.good_iterations.frame
    every = max(1, -(-int(table["step"].max()) // drawing.MOST_COLUMNS))  # it only ever rises
    ends = table.groupby("launch")["step"].max().groupby(table.groupby("launch")["scenario"].first()).min()
    drawn = table[(table["step"] % every == 0) | (table["step"] == table["scenario"].map(ends).astype("int64"))]
    figure, (axes,) = drawing.sheet(max(3.2, drawing.KEY_ROW_IN * len(rows) + 0.8))
    drawing.shade(axes, -0.5, (run.document.workload.warmup or 0) - 0.5, "warm-up steps")
    keys = []
    for row in rows:
        own = drawn[drawn["scenario"] == row.scenario]
        by_launch = own.pivot(index="step", columns="launch", values="elapsed_s").dropna()
        steps, values = by_launch.index.to_numpy(), by_launch.median(axis=1).to_numpy()
        band = (by_launch.min(axis=1), by_launch.max(axis=1))
        axes.fill_between(steps, *band, color=light(row.colour), alpha=0.16, linewidth=0)
        keys.append((float(values[-1]), row, drawing.line_of(axes, row, steps, values)))
    axes.set(xlim=(-0.5, int(ends.max())), xlabel="iteration (counted from 0)")
    axes.set(ylim=(0, None), ylabel="seconds since training began")
    axes.xaxis.set_major_locator(locator(9, integer=True))
    keys.sort(key=lambda key: -key[0])
    drawing.key_beside(axes, [(line, row, f"{end:,.{1 if end >= 10 else 2}f} s") for end, row, line in keys])
    caption = (
        "The median of the launches of each scenario, and a band from the first to the last of them; at each iteration "
        "the rank that came last. Iteration 0 holds the cold start."
    )
    if every > 1:
        caption += f" One iteration in {every} is drawn."
    title = "Elapsed time by iteration, cold start and warm-up included"
    return drawing.finished(run, figure, "elapsed", title, caption, [row.scenario for row in rows])


DRAWINGS = (
    speeds,
    trade_off,
    losses,
    time_spent,
    step_times,
    distribution,
    before_plot,
    ranks,
    phase_stack,
    loader_plot,
    search_plot,
    ladder_plot,
    limits_plot,
    scaling_plot,
    bisection_plot,
    bandwidth_plot,
    each_plot,
    elapsed,
    memory_held,
    memory,
    memory_stack,
    power,
)
"""All plots, those that take longest last; where each stands in the page is up to :mod:`bench.report.chapters`."""
