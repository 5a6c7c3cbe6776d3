"""Trends as plots: one panel for each scenario below the other, over the same nights, with levels and shifts.

Nights stand beside each other in their order, whatever time lies between them. If there are more than a panel has room
for, each column shows a few of them: the median, and from the lowest to the highest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.history.shifts import MIN_NIGHTS
from bench.history.trends import Track, Trend
from bench.report import drawing
from bench.report.drawing import Artist, Plot, axes_at, handle, legend_row, light, locator, short

PANEL_IN, GAP_IN, LEFT_IN, RIGHT_IN = 0.82, 0.5, 0.72, 1.3

DOTS_AT_MOST = 500
"""Nights that are drawn one by one; more are drawn in columns."""

COLUMNS = 250

NARROWEST = 0.04
"""The least height of a panel, in parts of its figure: noise is not to look like a cliff."""

FLAT = 0.001
"""A figure that never moves by more is told in words."""

STRIP_IN = (0.03, 0.3)
"""The width of the strip under a single night: at least, and at most."""

PNG_DPI = 120
"""Less than that of the other plots: these are tall."""

LABEL_IN = 0.46
"""The width of the label of a shift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How a figure is called: the title of its plot, its unit, and the form of a value."""

    title: str
    unit: str
    form: str


WORDS = {
    "step_ms": Words(title="Step time, night by night", unit="ms", form=",.4g"),
    "peak_total_mib": Words(title="Peak memory of all processes, night by night", unit="MiB", form=",.0f"),
    "energy_per_1000_j": Words(title="Energy per 1,000 examples, night by night", unit="J", form=",.4g"),
}


def value(metric: str, figure: float) -> str:
    """A figure with as many digits as matter: ``1,234``, ``26.61``."""
    form = ",.0f" if figure >= 1000 else WORDS[metric].form
    return format(figure, form)


def percent(ratio: float) -> str:
    """A ratio as a change: ``+3.1 %``; a change that rounds to nothing has no sign."""
    text = f"{100.0 * (ratio - 1.0):+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def of_track(track: Track, prefix: str = "history") -> list[Plot]:
    """A plot for each figure that some night has; their names begin with ``prefix``."""
    with drawing.styled():
        return [_plot(track, metric, trends, prefix) for metric in WORDS if (trends := moving(track, metric))]


def moving(track: Track, metric: str) -> list[Trend]:
    """The trends of a figure that a plot shows something of: those that do not stay where they are."""
    return [trend for trend in track.of(metric) if not is_flat(trend)]


def is_flat(trend: Trend) -> bool:
    """All nights, and more than one, lie within :data:`FLAT` of each other: as memory often does."""
    known = [figure for figure in trend.values if figure is not None]
    return len(known) > 1 and max(known) <= min(known) * (1.0 + FLAT)


def _plot(track: Track, metric: str, trends: Sequence[Trend], prefix: str) -> Plot:
    words = WORDS[metric]
    height_in = drawing.TITLE_IN + 0.12 + len(trends) * (PANEL_IN + GAP_IN) + 0.3 + drawing.SOURCE_IN
    nights = f"1 night ({track.nights[0].date})"
    if len(track.nights) > 1:
        nights = f"{len(track.nights):,} nights from {track.nights[0].date} to {track.nights[-1].date}"
    sheet = drawing.titled(
        words.title, f"{track.work} · {track.place}", f"bench history · {nights}", height_in=height_in
    )
    keys = [(handle("dot", "muted"), "a night")]
    if any(_has_levels(trend) for trend in trends):
        keys.append((handle("line-full", "ink"), "level"))
    many = len(track.nights) > DOTS_AT_MOST
    if many:
        keys[0] = (handle("box", "muted"), f"lowest to highest of some {len(track.nights) / COLUMNS:.0f} nights")
    for number, trend in enumerate(trends):
        bottom = drawing.SOURCE_IN + 0.3 + (len(trends) - 1 - number) * (PANEL_IN + GAP_IN)
        axes = axes_at(sheet, LEFT_IN, bottom, drawing.WIDTH_IN - LEFT_IN - RIGHT_IN, PANEL_IN)
        _panel(axes, track, trend, many=many, last=number == len(trends) - 1)
    if any(trend.levels.shifts for trend in trends):
        keys += [(handle("line-full", "bad"), "shift to more"), (handle("line-full", "good"), "shift to less")]
    if any(_outside(trend, _limits(trend)) for trend in trends):
        keys.append((handle("triangle", "ink"), "night beyond the panel"))
    if any(trend.regressed for trend in trends):
        keys.append((handle("box-full", "bad"), "stopped by the gate"))
    if any(night.accepted for night in track.nights):
        keys.append((handle("diamond", "ink"), "accepted by a person"))
    legend_row(sheet, keys)
    caption = (
        "Nights in their order; a night's figure is the geometric mean of its launches. A level is a stretch without a "
        f"shift. Panels do not begin at 0, and each has a height of its own, of at least {100 * NARROWEST:.0f} %."
    )
    if many:
        caption += " The line within the shade is the median of the nights that share a column."
    still = [trend for trend in track.of(metric) if is_flat(trend)]
    if still:
        names = ", ".join(f"{trend.scenario} ({value(metric, trend.latest or math.nan)})" for trend in still)
        caption += f" Not drawn, since all nights are within {100 * FLAT:.1f} % of each other: {names} {words.unit}."
    return drawing.drawn(sheet, f"{prefix}-{metric.replace('_', '-')}", words.title, caption, dpi=PNG_DPI)


def _panel(axes: Artist, track: Track, trend: Trend, *, many: bool, last: bool) -> None:
    low, high = _limits(trend)
    known = np.array(trend.known)
    figures = np.array([trend.values[night] for night in known], dtype="float64")
    axes.set_ylim(low, high)
    room = max(0.6, 0.012 * len(track.nights))
    axes.set_xlim(-room, len(track.nights) - 1 + room)
    axes.grid(True, color=light("grid"), linewidth=0.7)
    axes.yaxis.set_major_locator(locator(3))
    axes.yaxis.set_major_formatter(lambda at, _: f"{at:,.10g}")
    axes.tick_params(labelsize=7, length=2)
    (_columns if many else _dots)(axes, known, figures)
    for level in trend.levels.levels if _has_levels(trend) else ():
        axes.plot([level.first - 0.5, level.last + 0.5], [level.value] * 2, color=light("ink"), linewidth=1.4)
        axes.lines[-1].set_solid_capstyle("butt")
    _beyond(axes, trend, (low, high))
    _judged(axes, track, trend)
    _shifts(axes, trend)
    _dates(axes, track, shown=last)
    place = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(short(trend.scenario), (0, 1), (0, 17), fontsize=9, fontweight="bold", va="bottom", **place)
    name = axes.texts[-1]
    name.set_color(light("ink"))
    after = name.get_window_extent(axes.figure.canvas.get_renderer()).width / axes.figure.dpi * 72 + 7
    axes.annotate(short(trend.what_ran), (0, 1), (after, 17.5), fontsize=7.2, va="bottom", **place)
    axes.texts[-1].set_color(light("muted"))
    latest = f"{value(trend.metric, trend.latest or math.nan)} {WORDS[trend.metric].unit}"
    axes.annotate(latest, (1, 0.5), (8, 1), fontsize=9, color=light("ink"), va="bottom", **place)
    if trend.over_all is not None:
        axes.annotate(f"{percent(trend.over_all)} over all", (1, 0.5), (8, -2), fontsize=7.2, va="top", **place)
        axes.texts[-1].set_color(light("muted"))


def _has_levels(trend: Trend) -> bool:
    """There are nights enough to tell one level from another."""
    return len(trend.known) >= 2 * MIN_NIGHTS


def _limits(trend: Trend) -> tuple[float, float]:
    """From the lowest to the highest night that is no outlier, and some room."""
    outliers = set(trend.levels.outliers)
    shown = [figure for night in trend.known if night not in outliers and (figure := trend.values[night]) is not None]
    shown += [level.value for level in trend.levels.levels]
    low, high = min(shown), max(shown)
    lacking = max(0.0, NARROWEST * (low + high) / 2 - (high - low))
    room = lacking / 2 + 0.08 * (high - low)
    return low - room, high + room


def _dots(axes: Artist, nights: NDArray[np.intp], figures: NDArray[np.float64]) -> None:
    size = 4.2 if len(nights) <= 60 else 2.8
    axes.plot(nights, figures, linestyle="none", marker="o", markersize=size, markeredgewidth=0)
    axes.lines[-1].set(color=light("muted"), alpha=0.75)


def _columns(axes: Artist, nights: NDArray[np.intp], figures: NDArray[np.float64]) -> None:
    """Some nights to a column: their median as a line, and from the lowest to the highest as a shade."""
    parts = np.array_split(np.arange(len(nights)), min(COLUMNS, len(nights)))
    middle = [float(np.mean(nights[part])) for part in parts]
    lowest, highest = ([float(of(figures[part])) for part in parts] for of in (np.min, np.max))
    axes.fill_between(middle, lowest, highest, color=light("muted"), alpha=0.35, linewidth=0)
    axes.plot(middle, [float(np.median(figures[part])) for part in parts], color=light("muted"), linewidth=0.7)


def _outside(trend: Trend, limits: tuple[float, float]) -> list[tuple[int, bool]]:
    """The nights that no limits hold, and whether they are above them."""
    low, high = limits
    figures = ((night, trend.values[night]) for night in trend.known)
    return [(night, figure > high) for night, figure in figures if figure is not None and not low <= figure <= high]


def _beyond(axes: Artist, trend: Trend, limits: tuple[float, float]) -> None:
    """A triangle at the edge for each night that is beyond it."""
    for above, marker in ((True, "^"), (False, "v")):
        nights = [night for night, is_above in _outside(trend, limits) if is_above == above]
        edge = [0.95 if above else 0.05] * len(nights)
        axes.plot(nights, edge, transform=axes.get_xaxis_transform(), linestyle="none", marker=marker, markersize=4)
        axes.lines[-1].set(color=light("ink"), markerfacecolor="none", markeredgewidth=0.8)


def _judged(axes: Artist, track: Track, trend: Trend) -> None:
    """A strip along the foot under the nights that the gate stops, and a diamond on each that a person accepted."""
    first, last = axes.get_xlim()
    least, most = (wide_in * (last - first) / (drawing.WIDTH_IN - LEFT_IN - RIGHT_IN) for wide_in in STRIP_IN)
    night = min(most, max(least, 1.0))
    strips = [(start - night / 2, end - start + night) for start, end in _stretches(trend.regressed)]
    axes.broken_barh(strips, (0.0, 0.07), transform=axes.get_xaxis_transform(), color=light("bad"), linewidth=0)
    nights = [night for night in trend.known if track.nights[night].accepted]
    low, high = axes.get_ylim()
    heights = [min(high, max(low, trend.values[night] or low)) for night in nights]
    axes.plot(nights, heights, linestyle="none", marker="D", markersize=4.6, zorder=4, clip_on=False)
    axes.lines[-1].set(color=light("ink"), markerfacecolor=light("paper"), markeredgewidth=1.1)


def _stretches(nights: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of nights that follow each other."""
    found: list[tuple[int, int]] = []
    for night in nights:
        if found and found[-1][1] == night - 1:
            found[-1] = (found[-1][0], night)
        else:
            found.append((night, night))
    return found


def _shifts(axes: Artist, trend: Trend) -> None:
    """A line between the nights of each shift, and above it how large it is; of neighbours the largest alone."""
    first, last = axes.get_xlim()
    gap = LABEL_IN * (last - first) / (drawing.WIDTH_IN - LEFT_IN - RIGHT_IN)
    labelled: list[float] = []
    for shift in sorted(trend.levels.shifts, key=lambda shift: -abs(math.log(shift.ratio))):
        place = (shift.before + shift.after) / 2
        colour = light("bad" if shift.ratio > 1.0 else "good")
        axes.axvline(place, color=colour, linewidth=1.1)
        if all(abs(place - other) >= gap for other in labelled):
            labelled.append(place)
            of = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            axes.annotate(percent(shift.ratio), (place, 1.0), (0, 2), fontsize=7.2, color=colour, **of)


def _dates(axes: Artist, track: Track, *, shown: bool) -> None:
    """The dates of some nights, spread over all; no night is named twice."""
    count = len(track.nights)
    at = sorted({round(part * (count - 1) / 5) for part in range(6)})
    axes.set_xticks(at, [drawing.plain(track.nights[night].date) for night in at] if shown else [""] * len(at))
