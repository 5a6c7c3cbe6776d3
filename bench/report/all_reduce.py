"""All-reduces by size and number of ranks: a table, and a plot with the fit and the nominal speed."""

import math
from collections.abc import Sequence

from bench.analyse.algorithms import Algorithms
from bench.analyse.all_reduce import Sample, fitted, samples
from bench.analyse.analysed import Analysed
from bench.core.text import digits as without_exponent
from bench.core.text import size_text
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Cell, Table, digits, numeric, tabulate, text
from bench.runs.experiments import Scaling


def bandwidth_table(measured: Sequence[Sample]) -> Table | None:
    """A row for each number at once, number of ranks and size; None without any."""
    named = any(one.algorithm for one in measured)
    columns = (
        numeric("ranks", lambda one: f"{one.ranks}"),
        numeric("size", lambda one: size_text(one.bytes)),
        numeric("at once", lambda one: f"{one.at_once}"),
        numeric(
            "time ms",
            lambda one: Cell(text=digits(one.time_ms), small=f"{digits(one.low_ms)} to {digits(one.high_ms)}"),
        ),
        numeric("bus GB/s", lambda one: without_exponent(one.bus_gb_s, 3)),
        numeric("of nominal", lambda one: UNKNOWN if one.of_nominal is None else f"{100 * one.of_nominal:,.0f} %"),
        *([text("algorithm", lambda one: one.algorithm or UNKNOWN)] if named else []),
    )
    notes = (
        "time: the median of several samples of one launch, of the slowest rank; below it the fastest and the slowest "
        "sample. With several at once: the time of all over their number. bus GB/s: 2 (N - 1) / N times the size over "
        "the time, which is what each link of a ring carries. of nominal: its share of the link's nominal speed."
        + (" algorithm: what NCCL chose, from its log or from a known rule." if named else ""),
    )
    return tabulate(columns, measured, notes) if measured else None


def bandwidth_plot(run: Analysed) -> Plot | None:
    """Bus bandwidth by size, a line for each number of ranks, with the fit and the nominal speed of the link."""
    scaling = run.document.of(Scaling)
    if scaling is None:
        return None
    measured = [one for one in samples(scaling.bandwidth, Algorithms.of(run.document)) if one.at_once == 1]
    if not measured:
        return None
    figure, (axes,) = drawing.sheet(3.3)
    link = fitted(measured)
    for number, ranks in enumerate(sorted({one.ranks for one in measured})):
        own, look = [one for one in measured if one.ranks == ranks], {"color": light(f"line-{number % 8}")}
        sizes, rates = [one.bytes for one in own], [one.bus_gb_s for one in own]
        axes.plot(sizes, rates, marker="o", markersize=5, gid=f"ranks-{ranks}", label=f"{ranks} ranks", **look)
        if link is not None:
            parts = [link.of(one.algorithm, one.bytes) for one in own]
            fit = [
                one.bus_gb_s * one.time_ms / part.all_reduce_ms(one.bytes, ranks) if part else math.nan
                for one, part in zip(own, parts, strict=True)
            ]
            axes.plot(sizes, fit, "--", linewidth=1.0, **look)
    nominal = next((one.transport.nominal_mbit for one in scaling.bandwidth if one.transport), None)
    if nominal:
        axes.axhline(nominal / 8000, color=light("ink"), linewidth=0.9, label=f"nominal, {nominal:,.0f} Mbit/s")
    ticks = sorted({one.bytes for one in measured})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [size_text(size) for size in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda rate, _: without_exponent(rate, 4))
    axes.set(xlabel="size", ylabel="bus bandwidth (GB/s)")
    caption = "Lines: median of the samples of a launch. Dashed: the fit that predictions are made with."
    return drawing.finished(run, figure, "all-reduces", "How fast is an all-reduce?", caption)
