"""Plots of what makes up a whole: a bar of parts for each scenario, with a diamond where the whole was measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.report import drawing
from bench.report.drawing import Artist, handle, light
from bench.runs.reader import Run

if TYPE_CHECKING:
    import pandas as pd


def stacked(
    run: Run,
    title: str,
    rows: Sequence[drawing.Entry],
    parts: "pd.DataFrame",
    colours: Mapping[str, str],
    whole: "pd.Series[float]",
    *,
    unit: str,
    called: str,
    names: Mapping[str, str] | None = None,
) -> tuple[Artist, Artist]:
    """The sheet and its axes, with a legend. ``parts``: a row per scenario, a column per part, in their order.
    ``whole``: by scenario; ``called``: what the diamond is. ``names``: what the legend calls a part, if not as it is.
    """
    known = [str(part) for part in parts]
    longest = float(max(parts.sum(axis=1).max(), whole.max()))
    sheet = drawing.run_sheet(run, title, height_in=drawing.rows_height_in(len(rows)))
    axes = drawing.row_axes(sheet, rows, right_in=0.35)
    for position, row in enumerate(rows):
        sizes = [(colours[part], f"{part} ({unit})", float(parts[part][row.scenario])) for part in known]
        _bar(axes, position, sizes, longest, whole[row.scenario])
    axes.set_xlim(0, longest * 1.03)
    keys = [(handle("box-full", colours[part]), (names or {}).get(part, part)) for part in known]
    drawing.legend_row(sheet, [*keys, (handle("diamond", "ink"), called)])
    return sheet, axes


def _bar(axes: Artist, position: int, parts: Sequence[tuple[str, str, float]], longest: float, whole: float) -> None:
    """A bar of ``parts`` (colour, name and width), labelled if wide enough, with a diamond at ``whole``."""
    start = 0.0
    for colour, name, width in parts:
        (patch,) = axes.barh(position, width, left=start, height=0.56, color=light(colour), linewidth=0)
        drawing.hover(patch, f"{name}: {width:,.1f}")
        if width > 0.06 * longest:
            text = axes.text(start + width / 2, position, f"{width:,.0f}" if width >= 10 else f"{width:.1f}")
            text.set(ha="center", va="center_baseline", fontsize=7.5, color=light("paper"))
        start += width
    axes.plot([whole], [position], marker="D", markersize=4.6, linestyle="none")
    axes.lines[-1].set(markerfacecolor=light("paper"), markeredgecolor=light("ink"), markeredgewidth=1.1)
