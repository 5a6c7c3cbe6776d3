"""A report of runs: one page that holds everything, and its plots and tables as files for elsewhere.

    python -m bench report latest --out reports

``index.html`` opens from a disk, without network. Beside it lie ``summary.csv``, ``summary.md``, the other tables that
have a row as CSV, and each plot as SVG and PNG, prefixed with the run's id if there are several runs.
"""

import os
from collections.abc import Sequence

from bench.analyse.analysed import Analysed
from bench.core.errors import RequestError
from bench.report import markdown, page, plots, tables, values
from bench.runs.files import check_writable, replace_all, unwritable, utf8
from bench.runs.reader import Run
from bench.words.advice import Training


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
    return put(render(runs, out, training), out)


def render(runs: Sequence[Run], out: str = ".", training: Training | None = None) -> dict[str, bytes]:
    analysed = [Analysed.of(run) for run in runs]
    sections: list[page.Section] = []
    files: dict[str, bytes] = {}
    for number, run in enumerate(analysed, start=1):
        prefix = f"{run.id}-" if len(runs) > 1 else ""
        placed, own = page.placed(plots.of_run(run, f"run-{number}-"), files=prefix)
        files |= own
        sections.append(page.section(run, placed, out, training))
    beside = {
        "summary.csv": utf8(tables.csv([tables.of_run(run, run.overview) for run in analysed])),
        "summary.md": utf8(markdown.render(sections)),
        **{name: utf8(text) for name, text in values.as_csv(analysed).items()},
    }
    title = f"bench report: {', '.join(run.id for run in runs)}"
    whole = page.render(sections, title=title, heading=page.HEADING, files=list(beside))
    return {"index.html": utf8(whole), **beside, **files}


def put(files: dict[str, bytes], out: str) -> list[str]:
    targets = {os.path.join(out, name): content for name, content in files.items()}
    for target in targets:
        if os.path.isdir(target):
            raise RequestError("--out", f"{target} is a folder", "move it away, or give another folder")
    try:
        os.makedirs(out, exist_ok=True)
        replace_all(targets)
    except OSError as error:
        raise unwritable("--out", error.filename or out, error, "give another folder") from error
    return list(targets)
