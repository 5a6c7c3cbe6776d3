"""Plots of what makes up a whole: a bar of parts for each scenario, with a diamond where the whole was measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.report import drawing
from bench.report.drawing import Artist, light

if TYPE_CHECKING:
    import pandas as pd


def stacked(
    rows: Sequence[drawing.Entry],
    parts: "pd.DataFrame",
    colours: Mapping[str, str],
    whole: "pd.Series[float]",
    *,
    unit: str,
    called: str,
    names: Mapping[str, str] | None = None,
) -> tuple[Artist, Artist]:
    """The figure and its axes. ``parts``: a row per scenario, a column per part, in their order. ``whole``: by
    scenario; ``called``: what the diamond is. ``names``: what the key calls a part, if not as it is.
    """
    order = [row.scenario for row in rows]
    parts, whole = parts.loc[order], whole[order]
    longest = float(max(parts.sum(axis=1).max(), whole.max()))
    figure, (axes,) = drawing.row_sheet([(row.scenario, row.label) for row in rows])
    begins = parts.cumsum(axis=1).shift(axis=1, fill_value=0.0)
    for part in map(str, parts):
        bars = axes.barh(
            range(len(rows)), parts[part], left=begins[part], height=0.56, label=(names or {}).get(part, part)
        )
        labels = [f"{size:,.0f}" if size >= 10 else f"{size:.1f}" for size in parts[part]]
        labels = [text if size > 0.06 * longest else "" for text, size in zip(labels, parts[part], strict=True)]
        axes.bar_label(bars, labels, label_type="center", fontsize=7.5, color=light("paper"))
        for patch, size in zip(bars, parts[part], strict=True):
            patch.set(color=light(colours[part]), linewidth=0)
            drawing.hover(patch, f"{part} ({unit}): {size:,.1f}")
    axes.plot(whole, range(len(rows)), linestyle="none", marker="D", markersize=4.6, label=called)
    axes.lines[-1].set(markerfacecolor=light("paper"), markeredgecolor=light("ink"), markeredgewidth=1.1)
    axes.set_xlim(0, longest * 1.03)
    return figure, axes
