"""Trends as plots: one panel for each scenario below the other, over the same nights, with levels and shifts.

Nights stand beside each other in their order, whatever time lies between them. If there are more than a panel has room
for, each column shows a few of them: the median, and from the lowest to the highest.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.analyse.history.shifts import MIN_NIGHTS
from bench.analyse.history.trends import Track, Trend
from bench.console import count
from bench.core.text import plain
from bench.report import drawing, side_by_side
from bench.report.drawing import Artist, Plot, light, locator
from bench.report.tables import as_change, digits

PANEL_IN = 1.4
DOTS_AT_MOST = 500
"""Nights that are drawn one by one; more are drawn in columns."""
COLUMNS = 250
NARROWEST = 0.04
"""The least height of a panel, in parts of its value: noise is not to look like a cliff."""
FLAT = 0.001
"""A value that never moves by more is described in words."""
PNG_DPI = 120
"""Less than that of the other plots: these are tall."""


@dataclass(frozen=True, slots=True)
class Words:
    """A metric: its name, the heading of its column, the title of its plot, its unit."""

    name: str
    heading: str
    title: str
    unit: str


WORDS = {
    "step_ms": Words("step time", "step ms", "Step time", "ms"),
    "peak_total_mib": Words("peak memory", "MiB total", "Peak memory of all processes", "MiB"),
    "energy_per_1000_j": Words("energy", "J/1,000", "Energy per 1,000 examples", "J"),
}


def span(track: Track) -> str:
    dates = dict.fromkeys([track.nights[0].date, track.nights[-1].date])
    return f"{count(len(track.nights), 'night')}, {' to '.join(dates)}"


def of_track(track: Track, prefix: str = "history", meanwhile: Callable[[], object] = lambda: None) -> list[Plot]:
    """A plot for each value that some night has; names begin with ``prefix``. ``meanwhile``: done as another draws."""
    # the step times last: they wait for the gate
    moved = [(metric, trends) for metric in reversed(WORDS) if (trends := moving(track, metric))]
    plots = [partial(_plot, track, metric, trends, prefix) for metric, trends in moved]
    return side_by_side.drawn(plots, meanwhile=meanwhile)[::-1]


def moving(track: Track, metric: str) -> list[Trend]:
    """The trends of a value that a plot shows something of: those that do not stay where they are."""
    return [trend for trend in track.of(metric) if not is_flat(trend)]


def is_flat(trend: Trend) -> bool:
    """All nights, and more than one, lie within :data:`FLAT` of each other: as memory often does."""
    values = [value for value in trend.values if value is not None]
    return len(values) > 1 and max(values) <= min(values) * (1.0 + FLAT)


def _plot(track: Track, metric: str, trends: Sequence[Trend], prefix: str) -> Plot:
    words, many = WORDS[metric], len(track.nights) > DOTS_AT_MOST
    figure, panels = drawing.sheet(PANEL_IN * len(trends), len(trends), sharex=True)
    room = max(0.6, 0.012 * len(track.nights))
    panels[0].set_xlim(-room, len(track.nights) - 1 + room)
    for axes, trend in zip(panels, trends, strict=True):
        _panel(axes, track, trend, many=many)
    steps = 2 if drawing.is_narrow() else 5
    places = sorted({round(part * (len(track.nights) - 1) / steps) for part in range(steps + 1)})
    panels[-1].set_xticks(places, [plain(track.nights[night].date) for night in places])
    caption = (
        f"In {words.unit}, lower is better. Nights in their order; a night's value is the geometric mean "
        "of its launches. A level is a stretch without a shift. Panels do not begin at 0, and each has a height of its "
        f"own, of at least {100 * NARROWEST:.0f} %."
    )
    if many:
        caption += " The line within the shade is the median of the nights that share a column."
    still = [trend for trend in track.of(metric) if is_flat(trend)]
    if still:
        names = ", ".join(f"{trend.scenario} ({digits(trend.latest)})" for trend in still)
        caption += f" Not drawn, since all nights are within {100 * FLAT:.1f} % of each other: {names} {words.unit}."
    about, source = f"{track.work} · {track.place}", f"bench history · {span(track)}"
    name = f"{prefix}-{metric.replace('_', '-')}"
    title = f"{words.title}, night by night"
    return drawing.drawn(figure, name, title, caption, about=about, source=source, dpi=PNG_DPI)


def _panel(axes: Artist, track: Track, trend: Trend, *, many: bool) -> None:
    low, high = _limits(trend)
    nights = np.array(trend.known)
    values = np.array([trend.values[night] for night in nights], dtype="float64")
    axes.set_ylim(low, high)
    axes.grid(True, axis="both")
    axes.yaxis.set_major_locator(locator(3))
    axes.yaxis.set_major_formatter(lambda at, _: f"{at:,.10g}")
    axes.tick_params(labelsize=7, length=2)
    look: drawing.Look
    if many:
        _columns(axes, nights, values, len(track.nights))
    else:
        look = {"markersize": 4.2 if len(nights) <= 60 else 2.8, "alpha": 0.75, "markeredgewidth": 0}
        drawing.marks(axes, nights, values, "muted", label="a night", **look)
    for level in trend.levels.levels if len(trend.known) >= 2 * MIN_NIGHTS else ():
        axes.plot([level.first - 0.5, level.last + 0.5], [level.value] * 2, color=light("ink"), linewidth=1.4)
        axes.lines[-1].set_label("level")
    for above, marker in ((True, "^"), (False, "v")):
        beyond = nights[values > high if above else values < low]
        if len(beyond):
            edge = [0.95 if above else 0.05] * len(beyond)
            look = {"markersize": 4, "markerfacecolor": "none", "mew": 0.8, "label": "night beyond the panel"}
            drawing.marks(axes, beyond, edge, "ink", marker, transform=axes.get_xaxis_transform(), **look)
    _judged(axes, track, trend)
    _shifts(axes, trend)
    drawing.panel_title(axes, trend.scenario, trend.what_ran, above=9 if trend.levels.shifts else 0)
    over_all = "" if trend.over_all is None else f"{as_change(trend.over_all)} long term"
    drawing.right_label(axes, 0.5, f"{digits(trend.latest)} {WORDS[trend.metric].unit}", over_all, within=True)


def _limits(trend: Trend) -> tuple[float, float]:
    """From the lowest to the highest night that is no outlier, and some room."""
    outliers = set(trend.levels.outliers)
    shown = [value for night in trend.known if night not in outliers and (value := trend.values[night]) is not None]
    shown += [level.value for level in trend.levels.levels]
    low, high = min(shown), max(shown)
    lacking = max(0.0, NARROWEST * (low + high) / 2 - (high - low))
    room = lacking / 2 + 0.08 * (high - low)
    return low - room, high + room


def _columns(axes: Artist, nights: NDArray[np.intp], values: NDArray[np.float64], all_nights: int) -> None:
    """Some nights to a column: their median as a line, and from the lowest to the highest as a shade."""
    edges = np.linspace(0, len(nights), min(COLUMNS, len(nights)) + 1).astype("int64")
    starts, ends = edges[:-1], edges[1:]
    columns = np.repeat(np.arange(len(starts)), ends - starts)
    rising = values[np.lexsort((values, columns))]  # within each column
    middle = np.add.reduceat(nights, starts) / (ends - starts)
    axes.fill_between(middle, rising[starts], rising[ends - 1], color=light("muted"), alpha=0.35, linewidth=0)
    axes.collections[-1].set_label(f"lowest to highest of some {all_nights / COLUMNS:.0f} nights")
    median = (rising[(starts + ends - 1) // 2] + rising[(starts + ends) // 2]) / 2
    axes.plot(middle, median, color=light("muted"), linewidth=0.7)


def _judged(axes: Artist, track: Track, trend: Trend) -> None:
    """A strip along the foot under the nights that the gate stops, and a diamond on each that a person accepted."""
    first, last = axes.get_xlim()
    night = min(0.04 * (last - first), max(0.004 * (last - first), 1.0))
    strips = [(one - night / 2, night) for one in track.regressed(trend)]
    if strips:
        axes.broken_barh(strips, (0.0, 0.07), transform=axes.get_xaxis_transform(), color=light("bad"), linewidth=0)
        axes.collections[-1].set_label("stopped by the gate")
    nights = [night for night in trend.known if track.nights[night].accepted]
    if nights:
        heights = np.clip([trend.values[night] or 0.0 for night in nights], *axes.get_ylim())
        look: drawing.Look = {"markersize": 4.6, "zorder": 4, "clip_on": False, "label": "accepted by a person"}
        drawing.marks(axes, nights, heights, "ink", "D", hollow=True, **look)


def _shifts(axes: Artist, trend: Trend) -> None:
    """A line between the nights of each shift, and above it how large it is; of neighbours the largest alone."""
    first, last = axes.get_xlim()
    labelled: list[float] = []
    for shift in sorted(trend.levels.shifts, key=lambda shift: -abs(math.log(shift.ratio))):
        place, more = (shift.before + shift.after) / 2, shift.ratio > 1.0
        colour = light("bad" if more else "good")
        axes.axvline(place, color=colour, linewidth=1.1, label=f"shift to {'more' if more else 'less'}")
        if all(abs(place - other) >= 0.06 * (last - first) for other in labelled):
            labelled.append(place)
            of = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center"}
            axes.annotate(as_change(shift.ratio), (place, 1.0), (0, 2), fontsize=7.2, color=colour, **of)
