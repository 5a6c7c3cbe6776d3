"""The ladder as a table, in words and as a plot."""

from typing import Any

from bench.analyse.analysed import Analysed
from bench.analyse.ladder import ladder, sentences
from bench.report.tables import UNKNOWN, Cell, Record, Table, figure, is_unknown, tabulate, text


def ladder_table(run: Analysed) -> Table | None:
    """What each rung gains over the one before, and by itself; None of a run that is no ladder."""
    rows: list[Any] = ladder(run).to_dict("records")
    columns = (
        text("step", "change"),
        figure("step ms", "step_ms", ",.1f"),
        figure("gain", lambda row: _gain(row, "gain", ("low", "high"))),
        text("over the rung before", "verdict"),
        text("numerics", lambda row: row["numerics"] or UNKNOWN),
        figure("gain on top", lambda row: _gain(row, "on_top", ("on_top_low", "on_top_high"))),
        figure("gain by itself", lambda row: _gain(row, "alone", ("alone_low", "alone_high"))),
    )
    notes = (
        f"The lowest rung is {rows[0]['before']}." if rows else "",
        "gain: how many times as fast as the rung before, with its 95 % interval. by itself: on the lowest rung. Where "
        "that interval and the one on top part, the step interacts with those below it.",
    )
    return tabulate(columns, rows, notes) if rows else None


def ladder_words(run: Analysed) -> list[str]:
    return sentences(ladder(run))


def _gain(row: Record, name: str, bounds: tuple[str, str]) -> Cell:
    if is_unknown(row[name]):
        return Cell(text=UNKNOWN)
    low, high = (row[bound] for bound in bounds)
    small = "" if is_unknown(low) else f"{low:.2f} to {high:.2f}"
    return Cell(text=f"{row[name]:.2f}", small=small)
