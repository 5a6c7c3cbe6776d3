"""All-reduces by size and number of ranks: a table, and a plot with the fit and the nominal speed."""

from collections.abc import Sequence

from bench.analyse.all_reduce import Sample
from bench.core.text import size_text
from bench.report.tables import Cell, Table, figure, tabulate


def bandwidth_table(measured: Sequence[Sample]) -> Table | None:
    """A row for each number of ranks and size; None without any."""
    columns = (
        figure("ranks", lambda one: f"{one.ranks}"),
        figure("size", lambda one: size_text(one.bytes)),
        figure("time ms", lambda one: Cell(text=_ms(one.time_ms), small=f"{_ms(one.low_ms)} to {_ms(one.high_ms)}")),
        figure("bus GB/s", lambda one: f"{one.bus_gb_s:,.3f}"),
    )
    notes = (
        "time: the median of several samples of one launch, of the slowest rank; below it the fastest and the slowest "
        "sample. bus GB/s: 2 (N - 1) / N times the size over the time, which is what each link of a ring carries.",
    )
    return tabulate(columns, measured, notes) if measured else None


def _ms(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"
