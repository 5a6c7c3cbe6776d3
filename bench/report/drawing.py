"""The common parts of all plots: the style sheet, a sheet of panels, rows and keys, and the finished files.

A plot draws on the panels of a :func:`sheet` and labels what is to be in its key; matplotlib's constrained layout makes
room for names and values beside the panels. Drawn on matplotlib's Agg and SVG canvases, without a display. Colours come
from :mod:`bench.report.theme`, so that a page can give the inline SVG those of a dark one (:func:`inline`).
"""

import html
import io
import logging
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from bench.analyse.labels import what_ran
from bench.analyse.launches import failures, how_many, shown
from bench.console import count
from bench.core.text import digits, plain, printable
from bench.report.theme import DASHES, MARKERS, THEME
from bench.runs.document import RunDocument, what_is_trained
from bench.runs.launches import LaunchRecord
from bench.runs.reader import Run

if TYPE_CHECKING:
    import pandas as pd

logging.getLogger("matplotlib").setLevel(logging.ERROR)
"""It warns of a home that it cannot write, where it would keep fonts; the plots are the same."""

Artist = Any
"""A figure, axes or text of matplotlib, which comes without types."""
Look = dict[str, Any]
"""Properties of an artist."""

WIDE_IN, NARROW_IN = 10.5, 4.7
"""The width of a plot, and of the same plot on a phone, which has no files."""
HEAD_IN, FOOT_IN, ROW_IN, NARROW_ROW_IN, KEY_ROW_IN = 0.62, 0.3, 0.45, 0.78, 0.36
"""Heights: of the title with what it is about, of the source, of a row, of a scenario in a key beside a plot."""
PNG_DPI = 175
FREE_HUES = ("orange", "green", "magenta", "cyan", "red", "olive", "violet", "teal", "blue", "grey")
"""For scenarios with switches on: neighbours are told apart."""
MOST_COLUMNS = 1200
"""Places across a panel that can be told apart; what falls into the same one is drawn as one."""
LABEL_LIMIT, NARROW_NAME_LIMIT = 54, 26
"""Letters of a label of a plot, and of a name beside which a narrow one has a value; a longer one is cut."""


def light(name: str) -> str:
    return THEME[name][0]


STYLE = {  # of all plots
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": light("ink"),
    "text.parse_math": False,
    "figure.facecolor": light("paper"),
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.12,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": light("muted"),
    "axes.labelcolor": light("ink"),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "grid.color": light("grid"),
    "grid.linewidth": 0.7,
    "xtick.color": light("muted"),
    "ytick.color": light("muted"),
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.7,
    "lines.markeredgewidth": 1.2,
    "lines.dashed_pattern": (3, 2),
    "lines.solid_capstyle": "butt",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.borderaxespad": 0,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.6,
    "path.simplify_threshold": 0.3,
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot as two files' content. ``name``: their stem. ``caption``: what to know about it, and what is left out.
    ``figure``: matplotlib's own, None of one for a page. ``page``: as SVG within it, and another one for a phone.
    ``files``: the names beside the page."""

    kind: ClassVar[str] = "plot"  # of a block of a page
    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    figure: Artist = field(default=None, compare=False, repr=False)
    page: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A scenario in a plot: its name, what really ran, its colour, and the look of its line."""

    scenario: str
    label: str
    colour: str
    dash: str
    marker: str


@contextmanager
def styled(width_in: float = WIDE_IN) -> Iterator[None]:
    """Draw in the style of bench whatever a matplotlibrc says: equal values give equal files."""
    with chdir(os.sep):  # on its first import matplotlib reads a matplotlibrc of the working directory, be it a pipe
        import matplotlib

    style = {**matplotlib.rcParamsDefault, **STYLE, "figure.figsize": (width_in, width_in)}
    with matplotlib.rc_context(style):  # rcdefaults would read all style sheets there are
        yield


def ready() -> None:
    """Have what draws imported, once for all forks."""
    with styled():
        sheet(1.0)


def for_page(draw: Callable[[], Plot | None], ids: str, width_in: float) -> Plot | None:
    """The plot that ``draw`` draws, of this width, for a page in which its ids begin with ``ids``."""
    with styled(width_in):
        plot = draw()
    if plot is None:
        return None
    form = "" if width_in == WIDE_IN else "-narrow"
    return replace(plot, page=inline(plot.svg, f"{ids}{plot.name}{form}", plot.title), figure=None)


def width_in() -> float:
    """Of the plots that are drawn now."""
    import matplotlib

    return float(matplotlib.rcParams["figure.figsize"][0])


def is_narrow() -> bool:
    return width_in() < WIDE_IN


def colour_of(document: RunDocument, launch: LaunchRecord) -> str:
    """The name in :data:`THEME` of a launch's colour: its hue, lighter with the level."""
    return f"{look_of(document, launch)[0]}-{(launch.precision or 'O0').lower()}"


def look_of(document: RunDocument, launch: LaunchRecord) -> tuple[str, str]:
    """Hue and dash of a launch: its strategy's own, or a hue that no strategy of the run has, with switches on or where
    another scenario of this level has that look already."""
    ways = {one.scenario: (one.strategy, one.scenario.replace("@", "+").partition("+")[2]) for one in document.launches}
    first: dict[object, str] = {}
    for one in document.launches:
        own = document.strategy_of(one)
        look = (own.hue, own.dash, one.precision)
        if not ways[one.scenario][1] and first.setdefault(look, one.scenario) != one.scenario:
            ways[one.scenario] = (one.strategy, one.scenario)
    declared = document.strategy_of(launch)
    way = ways.get(launch.scenario, (launch.strategy, ""))
    if not way[1]:
        return declared.hue, declared.dash
    asked = [ways[name] for name in document.request.scenarios if name in ways]
    switched = list(dict.fromkeys(one for one in asked if one[1]))
    taken = {document.strategy_of(one).hue for one in document.launches}
    free = [hue for hue in FREE_HUES if hue not in taken] or FREE_HUES
    number = switched.index(way) if way in switched else 0
    return free[number % len(free)], tuple(DASHES)[number % len(DASHES)]


def inline(svg: str, prefix: str, title: str) -> str:
    """An SVG for a page: no prolog, ids that begin with ``prefix``, colours as CSS variables, ``title`` read aloud."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r">\s+<", "><", re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL))
    body = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(?<=\.\d\d)\d+", "", path[0]), body)  # in points
    opening = f'role="img" aria-label="{html.escape(title)}">'
    body = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', lambda match: f"<svg {match[1]} {opening}", body, count=1)
    for mark in (' id="', 'href="#', "url(#"):
        body = body.replace(mark, f"{mark}{prefix}-")
    variables = {light: f"var(--{name})" for name, (light, _) in THEME.items()}
    colour = r"#[0-9a-f]{6}\b(?<=(?:fill|roke)(?:: |=\")#.{6})"  # beginning with what is rare, it is found sooner
    return re.sub(colour, lambda match: variables.get(match[0], match[0]), body)


def rows_of(run: Run, steps: "pd.DataFrame") -> list[Entry]:
    """The scenarios that have steps, with what really ran."""
    return rows_for(run, shown(run.document, steps))


def rows_for(run: Run, launches: Mapping[str, LaunchRecord]) -> list[Entry]:
    return [entry_for(run, launch, what_ran(launch.effective)) for launch in launches.values()]


def entry_for(run: Run, launch: LaunchRecord, label: str) -> Entry:
    return Entry(
        scenario=launch.scenario,
        label=short(label),
        colour=colour_of(run.document, launch),
        dash=look_of(run.document, launch)[1],
        marker=MARKERS[(launch.precision or "O0").lower()],
    )


def short(text: str, limit: int = LABEL_LIMIT) -> str:
    text = plain(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def model_and_batch(document: RunDocument) -> str:
    return what_is_trained(document.workload.title, document.workload.global_batch)


def device(document: RunDocument) -> str:
    if document.workload.device != "cpu":
        return " + ".join(f"{times} × {name}" for name, times in Counter(gpu.name for gpu in document.gpus).items())
    cpus = Counter(f"{machine.cpu}, {machine.cores_usable} cores" for machine in document.machines)
    where = [f"{count(hosts, 'host')} with {cpu}" if len(document.machines) > 1 else cpu for cpu, hosts in cpus.items()]
    return f"{count(document.workload.replicas or 0, 'CPU rank')} on {' + '.join(where)}"


def sheet(height_in: float, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Artist, list[Artist]]:
    """A figure with panels of this height in all, and its panels, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in(), height_in), layout="constrained")
    FigureCanvasAgg(figure)
    figure.hovers = {}  # type: ignore[attr-defined]  # see `hover`
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def row_sheet(rows: Sequence[tuple[str, str]], columns: int = 1) -> tuple[Artist, list[Artist]]:
    """Panels with a row for each pair from the top down: a name and, smaller, what really ran.

    Panels are beside each other; a narrow plot has them below each other, and the texts of a row above what is drawn.
    """
    narrow = is_narrow()
    height_in = (NARROW_ROW_IN if narrow else ROW_IN) * len(rows) + 0.5
    figure, panels = sheet(height_in * columns, columns) if narrow else sheet(height_in, columns=columns, sharey=True)
    for axes in panels:
        axes.set_ylim(len(rows) - 0.5 - 0.1 * narrow, -0.5 - 0.26 * narrow)
        upright_grid(axes)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", which="both", length=0)
        if narrow:
            axes.set_yticks([])
            for y, (name, label) in enumerate(rows):
                _above(axes, 0, y, short(name, NARROW_NAME_LIMIT), short(label), fontweight="bold")
    if not narrow:  # a name is the major label of its row, what ran the minor one
        names, labels = ([short(text) for text in texts] for texts in zip(*rows, strict=True))
        style = {"va": "bottom", "fontsize": 9, "fontweight": "bold", "color": light("ink")}
        panels[0].set_yticks([y - 0.04 for y in range(len(rows))], names, **style)
        panels[0].set_yticks([y + 0.06 for y in range(len(rows))], labels, minor=True, va="top", fontsize=7.2)
    return figure, panels


def right_label(axes: Artist, y: float, first: str, second: str, colour: str = "ink", *, within: bool = False) -> None:
    """At the right of a row a value and a smaller text. ``within``: ``y`` is a part of the height of the axes."""
    if is_narrow() and not within:
        _above(axes, 1, y, first, second, color=light(colour), ha="right")
        return
    place = {"xycoords": "axes fraction" if within else axes.get_yaxis_transform(), "textcoords": "offset points"}
    axes.annotate(first, (1, y), (8, 1.5), va="bottom", color=light(colour), **place)
    axes.annotate(second, (1, y), (8, -2), va="top", fontsize=7.2, color=light("muted"), **place)


def _above(axes: Artist, x: float, y: float, first: str, second: str, **look: Any) -> None:
    """A text and a smaller one above what a row of a narrow plot shows, at its left (0) or right end (1)."""
    place = {"xycoords": axes.get_yaxis_transform(), "va": "bottom", "annotation_clip": False}
    axes.annotate(first, (x, y - 0.5), **place, **look)
    small = look | {"color": light("muted"), "fontweight": "normal"}
    axes.annotate(second, (x, y - 0.34), fontsize=7, **place, **small)


def panel_title(axes: Artist, name: str, label: str, above: float = 0.0) -> None:
    """Above a panel its name and, smaller, what really ran. ``above``: points higher than usual."""
    axes.set_title(short(name), pad=15 + above, y=1.0)  # a place is given: to look for one takes a tenth of a plot
    place = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(short(label), (0, 1), (0, 5 + above), fontsize=7.2, color=light("muted"), **place)


def key_beside(axes: Artist, rows: Sequence[tuple[Artist, Entry, str]]) -> None:
    """At the right of the axes a key from the top down: an artist, the scenario's name and a value, its label below.

    A narrow plot has it below the axes.
    """
    from matplotlib.lines import Line2D

    limit = NARROW_NAME_LIMIT if is_narrow() else LABEL_LIMIT
    texts = [text for _, entry, value in rows for text in (f"{short(entry.scenario, limit)}  {value}", entry.label)]
    artists = [artist for one, _, _ in rows for artist in (one, Line2D([], [], linestyle="none"))]
    place: Look = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
    if is_narrow():
        figure = axes.get_figure()
        figure.set_figheight(figure.get_figheight() + KEY_ROW_IN * len(rows))
        place = below(axes, 0.5, 0.4)
    legend = axes.legend(artists, texts, labelspacing=0.35, **place)
    for number, text in enumerate(legend.get_texts()):
        text.set(fontweight="normal" if number % 2 else "bold", fontsize=7 if number % 2 else 8)
        text.set_color(light("muted" if number % 2 else "ink"))


def below(axes: Artist, down_in: float, left_in: float = 0.0) -> Look:
    """The place of a key that begins so far below the axes."""
    from matplotlib.transforms import ScaledTranslation

    begins = axes.transAxes + ScaledTranslation(-left_in, -down_in, axes.get_figure().dpi_scale_trans)
    return {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": begins}


def stacked(
    rows: Sequence[Entry],
    parts: "pd.DataFrame",
    colours: Mapping[str, str],
    whole: "pd.Series[float]",
    *,
    unit: str,
    called: str,
    names: Mapping[str, str] | None = None,
) -> tuple[Artist, Artist]:
    """A bar of parts for each scenario, with a diamond where the whole was measured.

    ``parts``: a row per scenario, a column per part, in their order. ``whole``: by scenario; ``called``: what the
    diamond is. ``names``: what the key calls a part, if not as it is.
    """
    order = [row.scenario for row in rows]
    parts, whole = parts.loc[order], whole[order]
    longest = float(max(parts.sum(axis=1).max(), whole.max()))
    figure, (axes,) = row_sheet([(row.scenario, row.label) for row in rows])
    begins, least = parts.cumsum(axis=1).shift(axis=1, fill_value=0.0), 0.06 * longest * WIDE_IN / width_in()
    for part in map(str, parts):
        label = (names or {}).get(part, part)
        bars = axes.barh(range(len(rows)), parts[part], left=begins[part], height=0.56, label=label)
        labels = [f"{size:,.{0 if size >= 10 else 1}f}" if size > least else "" for size in parts[part]]
        axes.bar_label(bars, labels, label_type="center", fontsize=7.5, color=light("paper"))
        for patch, size in zip(bars, parts[part], strict=True):
            patch.set(color=light(colours[part]), linewidth=0)
            if not np.isnan(size):
                hover(patch, f"{part} ({unit}): {size:,.1f}")
    marks(axes, whole, range(len(rows)), "ink", "D", markersize=4.6, hollow=True, label=called)
    axes.set_xlim(0, longest * 1.03)
    return figure, axes


def line_of(axes: Artist, row: Entry, x: Any, y: Any) -> Artist:
    """A scenario's line, with marks of its level. Of very many points the lowest and the highest at each place."""
    if len(x) > 2 * MOST_COLUMNS:
        edges = np.linspace(0, len(x), MOST_COLUMNS + 1, dtype="int64")
        ends = [start + at(y[start:end]) for start, end in pairwise(edges) for at in (np.argmin, np.argmax)]
        kept = np.unique([0, *ends, len(x) - 1])
        x, y = x[kept], y[kept]
    (line,) = axes.plot(x, y, marker=row.marker, markersize=4.5, markevery=max(1, -(-len(x) // 12)))
    line.set(color=light(row.colour), linestyle=DASHES[row.dash])
    hover(line, f"{row.scenario}: {digits(y[-1], 4)} at {x[-1]:,}")
    return line


def marks(
    axes: Artist, x: object, y: object, colour: str, marker: str = "o", *, hollow: bool = False, **look: Any
) -> Artist:
    """Marks without a line; ``hollow``: their rims alone. ``colour``: its name in the theme."""
    face = light("paper" if hollow else colour)
    (mark,) = axes.plot(x, y, marker=marker, color=light(colour), **({"markerfacecolor": face, "linestyle": ""} | look))
    return mark


def error_bar(axes: Artist, x: float, value: float, low: float | None, high: float | None, colour: str) -> None:
    """An upright interval, if it is known; a wild one ends at twice the value."""
    if low is not None and high is not None:
        axes.plot([x, x], np.clip([low, high], 0, 2 * value), color=light(colour), marker="_", linewidth=1.1)


def upright_grid(axes: Artist) -> None:
    axes.grid(False, axis="y", which="both")
    axes.grid(True, axis="x")


def interval(axes: Artist, low: float, high: float, y: float, cap: str = "") -> None:
    """A thin line from low to high, with a halo so that it shows on a bar of any colour."""
    for colour, width in (("paper", 3.2), ("ink", 1.2)):
        axes.plot([low, high], [y, y], color=light(colour), linewidth=width)
    axes.lines[-1].set(marker=cap, markersize=7)


def shade(axes: Artist, low: float, high: float, label: str, colour: str = "shade") -> None:
    """A stretch of the x axis as a ground."""
    axes.axvspan(low, high, facecolor=light(colour), edgecolor=light("muted"), linewidth=0.3, zorder=0, label=label)


def hover(artist: Artist, text: str) -> None:
    """Show a text where a pointer rests on what was drawn: the title of its group in the SVG."""
    hovers = artist.get_figure().hovers
    if artist.get_gid() is None:
        artist.set_gid(f"hover-{len(hovers)}")
    hovers[artist.get_gid()] = plain(text)


def locator(most: int, *, integer: bool = False) -> Artist:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=integer, steps=[1, 2, 2.5, 5, 10] if not integer else [1, 2, 5, 10])


def finished(run: Run, figure: Artist, name: str, title: str, caption: str, has: Sequence[str] | None = None) -> Plot:
    """The files of a figure of a run. ``has``: the scenarios whose launches are in it; the caption names the others."""
    request = run.document.request
    left_out = "" if has is None else failures(run.document, has)
    if left_out:
        caption += f" Left out: {left_out}."
    about = f"{model_and_batch(run.document)} · {device(run.document)}"
    much = f" · {how_many(run.document)} of {request.warmup} + {request.iters} steps per scenario" if has else ""
    source = f"bench {run.document.bench} · run {plain(run.id)}{much}"
    return drawn(figure, name, title, caption, about=about, source=source)


def drawn(figure: Artist, name: str, title: str, caption: str, *, about: str, source: str, dpi: int = PNG_DPI) -> Plot:
    """The files of a figure with its head (``title``, ``about``, the key of what has a label), and ``source`` below.

    A narrow one has the title alone, and no PNG: the page says what it is about.
    """
    figure.set_dpi(dpi)  # what measures texts then has them for the PNG, too
    narrow, panels_in = is_narrow(), figure.get_figheight()
    lines = textwrap.wrap(title, 42) if narrow else [title]
    head_in, foot_in = (0.15 + 0.22 * len(lines), 0.05) if narrow else (HEAD_IN, FOOT_IN)
    key, key_in = _key(figure)
    height_in = head_in + key_in + panels_in + foot_in
    figure.set_figheight(height_in)
    x, top = 0.12 / width_in(), 1 - 0.12 / height_in
    figure.text(x, top, "\n".join(lines), fontsize=12.5 - 1.5 * narrow, fontweight="bold", va="top")
    if not narrow:
        what = textwrap.shorten(plain(about), 130, placeholder=" …")
        figure.text(x, top - 0.25 / height_in, what, color=light("muted"), va="top")
        figure.text(x, 0.1 / height_in, source, fontsize=7, color=light("muted"), va="bottom")
    if key is not None:
        key.set_bbox_to_anchor((x, 1 - head_in / height_in), transform=figure.transFigure)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if not axis.get_label_text()):
        axis.set_label_coords(0.5, 0.5)  # there is no label, and a place for it is not looked for
    figure.get_layout_engine().set(rect=(0, foot_in / height_in, 1, panels_in / height_in))
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)  # it is done, for both files
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    if not narrow:
        figure.savefig(png, format="png", dpi=dpi, metadata={"Software": None}, pil_kwargs={"compress_level": 3})
    text = svg.getvalue()
    for gid, words in figure.hovers.items():
        group = f"<g id={quoteattr(gid)}>"
        text = text.replace(group, f"{group}<title>{escape(words)}</title>", 1)
    return Plot(name=name, title=title, caption=caption, svg=printable(text), png=png.getvalue(), figure=figure)


def _key(figure: Artist) -> tuple[Artist, float]:
    """The legend of what has a label, in as few rows as fit, and its height in inches; None and 0 without any."""
    keys: dict[str, Artist] = {}
    for axes in figure.axes:
        for artist, label in zip(*axes.get_legend_handles_labels(), strict=True):
            keys.setdefault(label, artist)
    columns = len(keys)
    while columns:
        legend = figure.legend(keys.values(), keys, loc="upper left", ncols=columns)
        size = legend.get_window_extent(figure.canvas.get_renderer())
        if size.width <= figure.bbox.width or columns == 1:
            return legend, size.height / figure.dpi + 0.05
        legend.remove()
        columns = max(1, min(columns - 1, int(columns * figure.bbox.width / size.width)))
    return None, 0.0
