"""The plots of a run, each as an SVG and a PNG that can stand alone: title, device, model, batch and source on them.

Drawn object by object on matplotlib's Agg and SVG canvases: nothing here needs a display, and equal figures give equal
files. Colours come from :data:`THEME`, so that a page can give the inline SVG those of a dark one (:func:`inline`).
"""

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.analyse import memory_timeline, published
from bench.analyse.answer import failures
from bench.analyse.bars import bar
from bench.analyse.labels import what_ran
from bench.analyse.launches import ok_rows, shown
from bench.analyse.spread import spread
from bench.analyse.steps import headline, per_launch, phases
from bench.records import PHASES
from bench.store import Run

if TYPE_CHECKING:
    import pandas as pd

Artist = Any
"""A figure, axes or text of matplotlib, which comes without types."""

THEME: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14181d"),
    "ink": ("#1b2129", "#e8ebef"),
    "muted": ("#5c6672", "#9da7b3"),
    "grid": ("#e2e6ea", "#2b323a"),
    "shade": ("#eef1f4", "#20262d"),
    "single": ("#6a737d", "#a0a9b4"),
    "dp": ("#c2570c", "#f0924a"),
    "ddp-o0": ("#123f8c", "#4b82e0"),
    "ddp-o1": ("#2f6bcf", "#74a3f0"),
    "ddp-o2": ("#5f97e8", "#9cc0f8"),
    "ddp-o3": ("#90b9f1", "#c6dcfd"),
    "apex_ddp-o0": ("#0a5748", "#1f9c84"),
    "apex_ddp-o1": ("#12866f", "#46bda4"),
    "apex_ddp-o2": ("#3fae97", "#7dd6c1"),
    "apex_ddp-o3": ("#7bcbb8", "#b3ecdd"),
    "custom-o0": ("#7d1f66", "#bd4fa1"),
    "custom-o1": ("#a63e8b", "#d47abd"),
    "custom-o2": ("#c76cb0", "#e4a1d3"),
    "custom-o3": ("#df9fcf", "#f3c9e8"),
    "data": ("#d9a514", "#e3b93f"),
    "forward": ("#8a93c9", "#7c86c4"),
    "backward": ("#5a4a9c", "#a99be8"),
    "optimizer": ("#b8607c", "#d9819d"),
    "line-0": ("#1f5fbf", "#6aa5f5"),
    "line-1": ("#d1600f", "#f39a52"),
    "line-2": ("#2d8a4e", "#62c583"),
    "line-3": ("#a8329a", "#dd7fd1"),
    "line-4": ("#7a6a10", "#cdb945"),
    "line-5": ("#0f8fa3", "#55c8da"),
    "line-6": ("#b3263c", "#f07f8f"),
    "line-7": ("#4f5d6e", "#aebacb"),
}
"""By name the colour on a light page and on a dark one. A family of scenarios has one hue, lighter with the level."""

WIDTH_IN = 9.2
EDGE_IN = 0.14
TITLE_IN = 0.72
SOURCE_IN = 0.34
ROW_IN = 0.5
DOTS_PER_SCENARIO = 1000
PNG_DPI = 200
LABEL_LIMIT = 54
"""Letters of a label of a plot; a longer one is cut."""

RC = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot as two files' content. ``name``: their stem. ``caption``: what to know about it, and what is left out."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A scenario in a plot: its name, what really ran, its colour."""

    scenario: str
    label: str
    colour: str


def plots(run: Run) -> list[Plot]:
    """All plots of a run for which it has figures."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a matplotlibrc says, equal figures give equal files
        matplotlib.rcParams.update(RC)
        return [plot for draw in (step_times, phase_stack, memory, elapsed) if (plot := draw(run)) is not None]


def colour_of(launch: dict[str, Any]) -> str:
    """The name in :data:`THEME` of a launch's colour: its strategy's hue, lighter with the level."""
    strategy = launch["strategy"]
    return strategy if strategy in ("single", "dp") else f"{strategy}-{launch['precision'].lower()}"


def inline(svg: str, prefix: str) -> str:
    """An SVG to be put into a page: no prolog, ids that begin with ``prefix``, colours as the page's CSS variables."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 role="img">', body, count=1)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", body)
    names = {light: name for name, (light, _) in THEME.items()}

    def as_variable(match: re.Match[str]) -> str:
        name = names.get(match[2])
        return f"{match[1]}var(--{name})" if name else match[0]

    return re.sub(r"\b((?:fill|stroke): )(#[0-9a-f]{6})\b", as_variable, body)


def step_times(run: Run) -> Plot | None:
    """Every measured step as a dot, the middle half of them as a box, the median as a bar."""
    steps = ok_rows(run.document, run.steps)
    if steps.empty:
        return None
    rows = _rows(run, steps)
    measured = headline(steps)
    measured = measured[~measured["warmup"]]
    middle = spread(steps).set_index("scenario").to_dict("index")
    launches = per_launch(steps)
    global_batch = run.document["workload"]["global_batch"]
    low, high = float(measured["step_ms"].min()), float(measured["step_ms"].max())
    cut = low > high / 2
    left = 0.0 if not cut else low - 0.06 * (high - low)
    title = "Step time by scenario"
    figure = _sheet(run, title, height_in=_rows_height_in(len(rows)))
    axes = _row_axes(figure, rows, right_in=1.75 if launches["repeat"].max() == 0 else 2.35)
    drawn = 1
    for position, row in enumerate(rows):
        colour = _light(row.colour)
        mine = measured.loc[measured["scenario"] == row.scenario, "step_ms"].to_numpy()
        every = -(-len(mine) // DOTS_PER_SCENARIO)
        drawn = max(drawn, every)
        heights = [position + jitter(k) * 0.5 for k in range(0, len(mine), every)]
        axes.plot(mine[::every], heights, linestyle="none", marker="o", markersize=3.4, markeredgewidth=0)
        axes.lines[-1].set(color=colour, alpha=0.5, gid=f"dots-{row.scenario}")
        at = middle[row.scenario]
        _box(axes, float(at["p25_ms"]), float(at["p75_ms"]), position, colour)
        axes.plot([at["median_ms"]] * 2, [position - 0.36, position + 0.36], color=_light("ink"), linewidth=1.7)
        medians = launches.loc[launches["scenario"] == row.scenario, "median_ms"]
        if len(medians) > 1:
            axes.plot(medians, [position + 0.4] * len(medians), linestyle="none", marker="^", markersize=4)
            axes.lines[-1].set(color=_light("ink"), markerfacecolor="none", markeredgewidth=0.8)
        speed = f"{1000 * global_batch / at['median_ms']:,.1f} img/s {bar(at['precision_percent'])}".rstrip()
        middle_half = 100 * (at["p75_ms"] - at["p25_ms"]) / at["median_ms"]
        _right_label(axes, position, f"{at['median_ms']:,.1f} ms · {speed}", f"p25 to p75 span {middle_half:.1f} %")
    axes.set_xlim(left, high + 0.03 * (high - left))
    axes.set_xlabel("step time of the slowest rank (ms)" + ("; the axis does not begin at 0" if cut else ""))
    keys = [("dot", f"one measured step{f' (1 in {drawn} drawn)' if drawn > 1 else ''}"), ("box", "p25 to p75")]
    keys.append(("bar", "median" if launches["repeat"].max() == 0 else "geometric mean of the launches' medians"))
    if launches["repeat"].max() > 0:
        keys.append(("triangle", "median of a launch"))
    _legend(figure, [(_key(kind, "ddp-o1"), text) for kind, text in keys])
    caption = "Warm-up steps are left out; a step lasts from the start of one iteration to the start of the next."
    if launches["repeat"].max() > 0:
        caption += " ±: half-width of the 95 % interval over launches."
    return _finished(run, figure, "step-times", title, caption, rows)


def phase_stack(run: Run) -> Plot | None:
    """Where a step's time goes: data, forward, backward with communication, optimizer."""
    steps = ok_rows(run.document, run.steps)
    if steps.empty:
        return None
    rows = _rows(run, steps)
    medians = phases(steps).set_index("scenario")
    middle = spread(steps).set_index("scenario").to_dict("index")
    longest = max(float(medians.sum(axis=1).max()), *(at["median_ms"] for at in middle.values()))
    title = "Phases of a step by scenario"
    figure = _sheet(run, title, height_in=_rows_height_in(len(rows)))
    axes = _row_axes(figure, rows, right_in=0.35)
    for position, row in enumerate(rows):
        start = 0.0
        for phase in PHASES:
            width = float(medians[f"{phase}_ms"][row.scenario])
            axes.barh(position, width, left=start, height=0.56, color=_light(phase), linewidth=0)
            if width > 0.06 * longest:
                text = axes.text(start + width / 2, position, f"{width:,.0f}" if width >= 10 else f"{width:.1f}")
                text.set(ha="center", va="center_baseline", fontsize=7.5, color=_light("paper"))
            start += width
        axes.plot([middle[row.scenario]["median_ms"]], [position], marker="D", markersize=4.6, linestyle="none")
        axes.lines[-1].set(markerfacecolor=_light("paper"), markeredgecolor=_light("ink"), markeredgewidth=1.1)
    axes.set_xlim(0, longest * 1.03)
    axes.set_xlabel("median of each phase (ms)")
    names = {"backward": "backward incl. communication"}
    keys = [(_key("box-full", phase), names.get(phase, phase)) for phase in PHASES]
    _legend(figure, [*keys, (_key("diamond", "ink"), "median of the whole step")])
    caption = (
        "Of the rank whose step was the slowest. Medians of phases need not add up to the median of the step. "
        "Communication overlaps the backward pass, so it is not shown apart from it."
    )
    return _finished(run, figure, "phases", title, caption, rows)


def memory(run: Run) -> Plot | None:
    """Memory of each process over the time of one launch of each scenario."""
    known = run.memory[run.memory["used_mib"].notna()]
    launches = shown(run.document, known)
    if not launches:
        return None
    lines = {name: memory_timeline.timeline(launch, known, run.steps) for name, launch in launches.items()}
    sources = sorted({source for line in lines.values() for source in line["source"]})
    highest = max(float(line["used_mib"].max()) for line in lines.values())
    columns = 1 if len(lines) == 1 else 2
    panel_in, title_in, left_in, between_in = 1.55, 0.66, 0.72, 0.62
    width_in = (WIDTH_IN - left_in - 0.2 - between_in * (columns - 1)) / columns
    top_in = -(-len(lines) // columns) * (panel_in + title_in) + 0.5 + 0.18
    title = "Memory of each process over time"
    figure = _sheet(run, title, height_in=top_in + TITLE_IN + 0.15)
    for number, (scenario, line) in enumerate(lines.items()):
        down, across = divmod(number, columns)
        y_in = top_in - (down + 1) * (panel_in + title_in)
        axes = _axes(figure, left_in + across * (width_in + between_in), y_in, width_in, panel_in)
        launch = launches[scenario]
        end_s = _shade_windows(axes, memory_timeline.windows(launch, known, run.steps))
        axes.set_ylim(0, highest * 1.08)
        _memory_lines(axes, line, run.document["machine"]["gpus"])
        axes.set_xlim(0, max(end_s, float(line["seconds"].max()), 0.5) * 1.02)
        status = "" if launch["status"] == "ok" else f" ({launch['status']})"
        _panel_title(axes, _short(scenario + status), _short(what_ran(launch["effective"])))
        if across == 0:
            axes.set_ylabel(f"MiB ({', '.join(sources)})")
        if number + columns >= len(lines):
            axes.set_xlabel("seconds since the launch's processes started")
    keys = [("shade", "grid", "warm-up steps"), ("shade", "shade", "measured steps")]
    _legend(figure, [(_key(kind, colour), text) for kind, colour, text in keys])
    what = {"rss": "rss: resident host memory of the process", "nvml_pid": "nvml_pid: what the driver counts for it"}
    explained = "; ".join(what.get(source, source) for source in sources)
    caption = f"Source {explained}. First launch of each scenario; one line for each process and device."
    rows = [Row(scenario=name, label="", colour="ink") for name in lines]
    return _finished(run, figure, "memory", title, caption, rows)


def elapsed(run: Run) -> Plot | None:
    """Elapsed seconds against iteration, a line for each scenario, warm-up included: the published form."""
    steps = ok_rows(run.document, run.steps)
    if steps.empty:
        return None
    rows = _rows(run, steps)
    launches = shown(run.document, steps)
    seconds = published.elapsed(steps)
    series = {}
    for row in rows:
        mine = seconds[seconds["launch"] == launches[row.scenario]["launch"]]
        series[row.scenario] = (mine["step"].to_numpy(), mine["elapsed_s"].to_numpy())
    warmup = run.document["workload"]["warmup"]
    last = max(int(iterations[-1]) for iterations, _ in series.values())
    highest = max(float(values[-1]) for _, values in series.values())
    title = "Elapsed time by iteration, cold start and warm-up included"
    plot_in = max(3.0, 0.36 * len(rows) + 0.2)
    height = TITLE_IN + 0.3 + plot_in + 0.52 + SOURCE_IN
    figure = _sheet(run, title, height_in=height)
    label_in = max(_width_in(figure, _short(row.scenario) + " 0,000.0 s", 8.5) for row in rows)
    label_in = max(label_in, *(_width_in(figure, row.label, 7.0) for row in rows)) + 0.62
    axes = _axes(figure, 0.72, 0.52 + SOURCE_IN, WIDTH_IN - 0.72 - label_in - EDGE_IN, plot_in)
    axes.axvspan(-0.5, warmup - 0.5, color=_light("shade"), linewidth=0, zorder=0)
    axes.set_xlim(-0.5, last)
    axes.set_ylim(0, highest * 1.05)
    for row in rows:
        axes.plot(*series[row.scenario], color=_light(row.colour), linewidth=1.9, linestyle=_dashes(row))
    axes.grid(True, axis="y", color=_light("grid"), linewidth=0.7)
    axes.set_xlabel("iteration (counted from 0)")
    axes.set_ylabel("seconds since training began")
    axes.xaxis.set_major_locator(_locator(9, integer=True))
    _end_labels(axes, rows, {name: float(values[-1]) for name, (_, values) in series.items()}, plot_in)
    _legend(figure, [(_key("shade", "shade"), "warm-up steps")])
    caption = (
        "First launch of each scenario; at each iteration the rank that came last. Iteration 0 holds the cold start."
    )
    return _finished(run, figure, "elapsed", title, caption, rows)


def jitter(k: int) -> float:
    """The k-th of a sequence in [-0.5, 0.5) that fills it evenly and is the same every time (golden ratio)."""
    return (k * 0.6180339887498949) % 1.0 - 0.5


def spaced(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions for labels, in the given order: as near to ``positions`` as neighbours at least ``gap`` apart can be.

    Between ``low`` and ``high`` where they fit in.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    placed: list[list[float]] = []  # clusters: their centre, and how many labels stand in them
    for index in order:
        placed.append([positions[index], 1])
        while True:
            for cluster in placed:
                half = (cluster[1] - 1) * gap / 2
                cluster[0] = max(low + half, min(high - half, cluster[0]))
            if len(placed) < 2:
                break
            (first, n), (second, m) = placed[-2:]
            if second - first >= gap * (n + m) / 2 - 1e-9:
                break
            placed[-2:] = [[(first * n + second * m) / (n + m), n + m]]
    flat = [centre + (k - (count - 1) / 2) * gap for centre, count in placed for k in range(int(count))]
    result = [0.0] * len(positions)
    for index, value in zip(order, flat, strict=True):
        result[index] = value
    return result


def _rows(run: Run, steps: "pd.DataFrame") -> list[Row]:
    """The scenarios that have steps, with what really ran."""
    return [
        Row(scenario=name, label=_short(what_ran(launch["effective"])), colour=colour_of(launch))
        for name, launch in shown(run.document, steps).items()
    ]


def _plain(text: str) -> str:
    """Text from outside on one line, without what no font can draw."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _short(text: str) -> str:
    text = _plain(text)
    return text if len(text) <= LABEL_LIMIT else text[: LABEL_LIMIT - 1] + "…"


def _light(name: str) -> str:
    return THEME[name][0]


def _sheet(run: Run, title: str, *, height_in: float) -> Artist:
    """A figure with its title, on what it was measured, and its source."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor=_light("paper"))
    FigureCanvasAgg(figure)
    x, top = EDGE_IN / WIDTH_IN, 1 - 0.14 / height_in
    figure.text(x, top, title, fontsize=12.5, fontweight="bold", color=_light("ink"), va="top")
    what = textwrap.shorten(_plain(measured_on(run.document)), 116, placeholder=" …")
    figure.text(x, top - 0.25 / height_in, what, fontsize=8.5, color=_light("muted"), va="top")
    request = run.document["request"]
    launches = "1 launch" if request["launches"] == 1 else f"{request['launches']} launches"
    much = f"{launches} of {request['warmup']} + {request['iters']} steps per scenario"
    source = f"bench {run.document['bench']} · run {_plain(run.id)} · {much}"
    figure.text(x, 0.12 / height_in, source, fontsize=7, color=_light("muted"), va="bottom")
    return figure


def measured_on(document: dict[str, Any]) -> str:
    """Model, batch and device in a line, for under a title."""
    return f"{model_and_batch(document)} · {device(document)}"


def model_and_batch(document: dict[str, Any]) -> str:
    """What is trained, in a few words."""
    workload = document["workload"]
    return f"{workload['model']}, {workload['image_size']} px, global batch {workload['global_batch']}"


def device(document: dict[str, Any]) -> str:
    """What it is trained on, in a few words."""
    workload, machine = document["workload"], document["machine"]
    count = workload["replicas"]
    if workload["device"] == "cpu":
        return f"{count} CPU rank{'s' if count > 1 else ''} on {machine['cpu']}, {machine['cores_usable']} cores"
    names = [gpu["name"] for gpu in machine["gpus"] if gpu["uuid"] in document["request"]["devices"]]
    return " + ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _finished(run: Run, figure: Artist, name: str, title: str, caption: str, rows: Sequence[Row]) -> Plot:
    left_out = failures(run.document, [row.scenario for row in rows])
    if left_out:
        caption += f" Without figures and left out: {left_out}."
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return Plot(name=name, title=title, caption=caption, svg=svg.getvalue(), png=png.getvalue())


def _axes(figure: Artist, left_in: float, bottom_in: float, width_in: float, height_in: float) -> Artist:
    total = figure.get_figheight()
    axes = figure.add_axes((left_in / WIDTH_IN, bottom_in / total, width_in / WIDTH_IN, height_in / total))
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_light("muted"))
    axes.tick_params(colors=_light("muted"), labelcolor=_light("muted"), labelsize=8)
    axes.xaxis.label.set_color(_light("ink"))
    axes.yaxis.label.set_color(_light("ink"))
    return axes


def _rows_height_in(rows: int) -> float:
    return TITLE_IN + 0.3 + rows * ROW_IN + 0.5 + SOURCE_IN


def _row_axes(figure: Artist, rows: Sequence[Row], *, right_in: float) -> Artist:
    """Axes with a row for each scenario from the top down; at the left its name and, smaller, what really ran."""
    names = max(_width_in(figure, _short(row.scenario), 9, bold=True) for row in rows)
    left_in = max(names, *(_width_in(figure, row.label, 7.2) for row in rows)) + EDGE_IN + 0.14
    height_in = len(rows) * ROW_IN
    axes = _axes(figure, left_in, 0.5 + SOURCE_IN, WIDTH_IN - left_in - right_in, height_in)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x", color=_light("grid"), linewidth=0.7)
    for position, row in enumerate(rows):
        place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "right"}
        axes.annotate(
            _short(row.scenario), (0, position), (-7, 1.5), va="bottom", fontsize=9, fontweight="bold", **place
        )
        axes.texts[-1].set_color(_light("ink"))
        axes.annotate(row.label, (0, position), (-7, -2), va="top", fontsize=7.2, color=_light("muted"), **place)
    return axes


def _right_label(axes: Artist, position: int, first: str, second: str) -> None:
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "left"}
    axes.annotate(first, (1, position), (8, 1.5), va="bottom", fontsize=8.5, color=_light("ink"), **place)
    axes.annotate(second, (1, position), (8, -2), va="top", fontsize=7.2, color=_light("muted"), **place)


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
    axes.axvspan(first, measured, color=_light("grid"), linewidth=0, zorder=0)
    axes.axvspan(measured, end, color=_light("shade"), linewidth=0, zorder=0)
    return end


def _memory_lines(axes: Artist, line: "pd.DataFrame", gpus: list[dict[str, Any]]) -> None:
    """A line for each process and device; the first is the widest, so that equal ones stay visible."""
    indices = {gpu["uuid"]: gpu["index"] for gpu in gpus}
    keys: list[Any] = list(line.groupby(memory_timeline.LINE, sort=True))
    for number, (key, samples) in enumerate(keys):
        rank, pid, gpu = key
        where = "" if gpu == "cpu" else f" · GPU {indices.get(gpu, gpu[-6:])}"
        width = 2.6 if number == 0 and len(keys) > 1 else 1.4
        axes.plot(samples["seconds"], samples["used_mib"], linewidth=width, label=f"rank {rank} · PID {pid}{where}")
        axes.lines[-1].set(color=_light(f"line-{number % 8}"), marker="o" if len(samples) == 1 else "", markersize=3)
    axes.grid(True, axis="y", color=_light("grid"), linewidth=0.7)
    axes.yaxis.set_major_locator(_locator(4))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(_locator(6))
    ends = [float(samples["used_mib"].iloc[-1]) / axes.get_ylim()[1] for _, samples in keys]
    free = "upper right" if min(ends) < 0.45 and max(ends) < 0.55 else "lower right"
    legend = axes.legend(loc=free, fontsize=7, ncols=-(-len(keys) // 4), handlelength=1.6, fancybox=False)
    legend.get_frame().set(facecolor=_light("paper"), edgecolor="none", alpha=0.75)
    for text in legend.get_texts():
        text.set_color(_light("ink"))


def _panel_title(axes: Artist, name: str, label: str) -> None:
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(name, (0, 1), (0, 13), fontsize=9, fontweight="bold", color=_light("ink"), **place)
    axes.annotate(label, (0, 1), (0, 3.5), fontsize=7.2, color=_light("muted"), **place)


def _dashes(row: Row) -> Any:
    """A family's kind of line, so that its hue is not the only sign of it."""
    kinds = {"single": (0, (1, 1)), "dp": (0, (4, 1, 1, 1)), "apex_ddp": (0, (3.2, 1)), "custom": (0, (1.5, 1))}
    return kinds.get(row.colour.split("-")[0], "-")


def _end_labels(axes: Artist, rows: Sequence[Row], ends: dict[str, float], height_in: float) -> None:
    """At the right of the axes each line's name, what ran and its last value, moved apart where lines end together."""
    low, high = axes.get_ylim()
    inch = (high - low) / height_in
    heights = spaced([ends[row.scenario] for row in rows], 0.34 * inch, low + 0.15 * inch, high - 0.1 * inch)
    across = axes.get_yaxis_transform()
    for row, height in zip(rows, heights, strict=True):
        end = ends[row.scenario]
        axes.plot([1, 1.03], [end, height], transform=across, color=_light("muted"), linewidth=0.7, clip_on=False)
        sample = axes.plot([1.03, 1.075], [height, height], transform=across, color=_light(row.colour), clip_on=False)
        sample[0].set(linewidth=2.4, linestyle=_dashes(row))
        place = {"xycoords": across, "textcoords": "offset points"}
        text = f"{_short(row.scenario)}  {end:,.{1 if end >= 10 else 2}f} s"
        axes.annotate(text, (1.075, height), (6, 0), va="bottom", fontsize=8.5, color=_light("ink"), **place)
        axes.annotate(row.label, (1.075, height), (6, -1), va="top", fontsize=7, color=_light("muted"), **place)


def _width_in(figure: Artist, text: str, size: float, *, bold: bool = False) -> float:
    """How wide a text will be, in inches."""
    probe = figure.text(0, 0, text, fontsize=size, fontweight="bold" if bold else "normal")
    width = probe.get_window_extent(figure.canvas.get_renderer()).width / figure.dpi
    probe.remove()
    return float(width)


def _key(kind: str, colour: str) -> Artist:
    """A handle for a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ink, own, paper = _light("ink"), _light(colour), _light("paper")
    if kind == "box":
        return Patch(facecolor=own, alpha=0.35)
    if kind == "box-full":
        return Patch(facecolor=own)
    if kind == "shade":
        return Patch(facecolor=own, edgecolor=_light("muted"), linewidth=0.4)
    marks: dict[str, dict[str, Any]] = {
        "dot": {"marker": "o", "markersize": 4, "color": own, "alpha": 0.6},
        "bar": {"marker": "|", "markersize": 10, "color": ink, "markeredgewidth": 2},
        "triangle": {"marker": "^", "markersize": 4, "color": ink, "markerfacecolor": "none", "markeredgewidth": 0.8},
        "diamond": {"marker": "D", "markersize": 4.6, "color": ink, "markerfacecolor": paper, "markeredgewidth": 1.1},
    }
    return Line2D([], [], linestyle="none", **marks[kind])


def _legend(figure: Artist, keys: Sequence[tuple[Artist, str]]) -> None:
    """A row of keys under the title."""
    height = figure.get_figheight()
    legend = figure.legend(
        [handle for handle, _ in keys],
        [text for _, text in keys],
        loc="upper left",
        bbox_to_anchor=((EDGE_IN - 0.04) / WIDTH_IN, 1 - (TITLE_IN - 0.1) / height),
        ncols=len(keys),
        frameon=False,
        fontsize=8,
        borderaxespad=0,
        handlelength=1.4,
        columnspacing=1.6,
    )
    for text in legend.get_texts():
        text.set_color(_light("ink"))


def _locator(most: int, *, integer: bool = False) -> Artist:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=integer, steps=[1, 2, 2.5, 5, 10] if not integer else [1, 2, 5, 10])
