"""A sweep of the input: the rate of the loader by its workers, beside training alone and both together."""

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Estimate
from bench.analyse.loader import Swept, found_by, rates, remarks, sentence, together, why_open
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import UNKNOWN, Table, bounded, numeric, tabulate, text

NAMES = {"loader": "the loader alone", "training": "training alone", "both": "both together"}


def loader_words(run: Analysed) -> list[str]:
    """The answer in a sentence, or why there is none, and what to know about it; nothing of a run without a sweep."""
    swept, both = _found(run)
    if swept is None:
        return [text for text in (why_open(run.document),) if text]
    return [sentence(swept, both), *remarks(swept, both, run.document.machine.cores_usable)]


def loader_table(run: Analysed) -> Table | None:
    swept, both = _found(run)
    if swept is None:
        return None
    unit = run.document.workload.unit_short
    columns = (
        text("", lambda row: NAMES[row["what"]]),
        numeric("workers of each rank", "workers", "d"),
        bounded(f"{unit}/s", "throughput_per_s", ",.1f"),
        numeric(f"{unit}/s that training can reach", "bound_per_s", ",.1f"),
        text("enough", lambda row: {True: "yes", False: "no"}.get(row["enough"], UNKNOWN)),
        numeric("launches", "launches"),
    )
    return tabulate(columns, rates(swept, both).to_dict("records"))


def loader_plot(run: Analysed) -> Plot | None:
    """The rate of the loader alone by the number of its workers, with a line for training alone."""
    swept, both = _found(run)
    if swept is None:
        return None
    figure, (axes,) = drawing.sheet(3.4)
    places = list(range(len(swept.loader)))
    values = [rate.value for rate in swept.loader.values()]
    drawing.marks(axes, places, values, "line-0", linestyle="-", gid="loader", label="the loader alone")
    for place, rate in zip(places, swept.loader.values(), strict=True):
        drawing.error_bar(axes, place, rate.value or 0.0, rate.low, rate.high, "line-0")
    training = {"color": light("line-1"), "label": "training alone", "gid": "training"}
    axes.axhline(swept.training.value, linestyle="--", **training)
    if swept.training.low is not None:
        axes.axhspan(swept.training.low, swept.training.high, color=light("line-1"), alpha=0.15, linewidth=0)
    if both.value is not None:
        place = list(swept.loader).index(swept.workers)
        look: drawing.Look = {"markersize": 7, "clip_on": False, "label": f"both together, --workers {swept.workers}"}
        drawing.marks(axes, [place], [both.value], "ink", "D", hollow=True, gid="both", **look)
        drawing.error_bar(axes, place, both.value, both.low, both.high, "ink")
    axes.set_xticks(places, [str(workers) for workers in swept.loader])
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set(xlim=(-0.3, max(places[-1], 1) + 0.3), xlabel="workers of each rank's DataLoader")
    axes.set(ylim=(0, None), ylabel=f"{run.document.workload.unit} a second, over all ranks")
    caption = "Without workers a rank loads and trains in turn; with workers the lower of the two lines is the bound."
    if swept.training.low is not None:
        caption += " Bars and band: 95 % intervals over launches."
    return drawing.finished(run, figure, "loader", "Is it the loader?", caption)


def _found(run: Analysed) -> tuple[Swept | None, Estimate]:
    return found_by(run.document), together(run.document, run.good_stats)
