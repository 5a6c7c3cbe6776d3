"""A report of runs: one page that holds everything, and its plots and tables as files for elsewhere.

    python -m bench report latest --out reports

``index.html`` opens from a disk, without network. Beside it lie ``summary.csv``, ``summary.md``, the other tables that
have a row as CSV, and each plot as SVG and PNG, prefixed with the run's id if there are several runs.
"""

import os
from collections.abc import Sequence

from bench.analyse.analysed import Analysed
from bench.core.errors import RequestError
from bench.report import chapters, markdown, page, plots, values
from bench.report.drawing import Plot, device, model_and_batch
from bench.report.launch_tables import start_date
from bench.report.loader import loader_words
from bench.runs.document import Attached
from bench.runs.experiments import Bisected
from bench.runs.files import check_writable, utf8
from bench.runs.reader import Run
from bench.words import tuned
from bench.words.advice import Training, advice, is_clear, time_to_train
from bench.words.caveats import caveats
from bench.words.questions import fastest

HEADING = "Data-parallel and mixed-precision benchmark"


def write(runs: Sequence[Run], out: str, training: Training | None = None) -> list[str]:
    """Write the report of ``runs`` into the folder ``out``; returns the paths of its files, the page first.

    ``training``: one whose duration the page says. Files of the same names are replaced and nothing is deleted. Raises
    :class:`RequestError` for a run given twice and for a folder that cannot be written.
    """
    ids = [run.id for run in runs]
    for run in ids:
        if ids.count(run) > 1:
            raise RequestError("RUN", f"{run} is named twice", "name each run once")
    check_writable(out)
    return page.put(render(runs, out, training), out)


def render(runs: Sequence[Run], out: str = ".", training: Training | None = None) -> dict[str, bytes]:
    analysed = [Analysed.of(run) for run in runs]
    sections: list[page.Section] = []
    files: dict[str, bytes] = {}
    for number, run in enumerate(analysed, start=1):
        prefix = f"{run.id}-" if len(runs) > 1 else ""
        placed, own = page.placed(plots.of_run(run, f"run-{number}-"), files=prefix)
        files |= own
        sections.append(_section(run, placed, out, training))
    beside = {
        "summary.csv": utf8(values.csv([values.of_run(run, run.overview) for run in analysed])),
        "summary.md": utf8(markdown.render(HEADING, sections)),
        **{name: utf8(text) for name, text in values.as_csv(analysed).items()},
    }
    title = f"bench report: {', '.join(run.id for run in runs)}"
    whole = page.render(sections, title=title, heading=HEADING, files=list(beside))
    return {"index.html": utf8(whole), **beside, **files}


def answer(run: Analysed) -> str:
    """The answer of a run in whole sentences. The leanest of a search is not in it: the advice beside it says more."""
    compared = fastest(run) if run.document.of(Attached) and not run.document.of(Bisected) else None
    first = [f"Fastest: {compared[1]}"] if compared else loader_words(run)[:1]
    return " ".join(f"{line.rstrip('.')}." for line in (*first, *tuned.answer(run, run.overview, leanest=False)))


def _section(run: Analysed, plots: dict[str, Plot], out: str, training: Training | None = None) -> page.Section:
    """The section of a run for a page in the folder ``out``."""
    table = run.overview
    return page.Section(
        name=f"run {run.id}",
        label=run.document.request.label,
        about=f"{model_and_batch(run.document)} · {device(run.document)} · {start_date(run.document)}",
        folder=os.path.relpath(run.path, out).replace(os.sep, "/"),
        answer=answer(run),
        training="" if training is None else time_to_train(run.document, table, training),
        clear=is_clear(run.document, table),
        advice=advice(run.document, table),
        caveats=list(caveats(run.document, table)),
        chart=plots.get("speed"),
        chapters=chapters.of_run(chapters.Material(run=run, plots=plots)),
    )
