"""``python -m bench report``: turn runs into a page with tables and plots."""

import os
import shlex
from functools import partial
from typing import TYPE_CHECKING

from bench.console import count, passing
from bench.core.children import beside
from bench.core.codec import encode
from bench.core.errors import OK, RequestError
from bench.runs.document import Imported
from bench.runs.reader import read, verified
from bench.verbs.options import Parser, latest_or, reply, whole_number

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed
    from bench.words.advice import Training

DESCRIPTION = """\
Turn runs into one page that holds everything (it opens from a disk, without network), with the plots as PNG and SVG and
the summary as CSV and Markdown beside it. Files of the same names are replaced; nothing is deleted.
"""
EPILOG = """\
examples:
  python -m bench report                                     the latest run, in reports/index.html
  python -m bench report RUN OTHER-RUN                       two runs on one page
  python -m bench report --epochs 90 --dataset-size 1281167  and how long 90 epochs of ImageNet take
  python -m bench report RUN --allow-incomplete              what an interrupted run has
"""

ENDS = (("", ""), ("_low", "high_"), ("_high", "low_"))
"""Of the time of a whole training, and of the speed that it comes from."""


def main(arguments: list[str]) -> int:
    parser = Parser("report", DESCRIPTION, EPILOG)
    parser.add_run(nargs="*")
    parser.add_argument("--out", default="reports", metavar="DIR", help="where the page goes (default: reports)")
    parser.add_argument("--epochs", type=whole_number, metavar="N", help="also say how long N epochs take")
    size = "how many images (or what else is counted) an epoch has"
    parser.add_argument("--dataset-size", type=partial(whole_number, most=10**15), metavar="N", help=size)
    parser.add_argument("--allow-incomplete", action="store_true", help="take what an interrupted run has")
    options = parser.parse_args(arguments)
    if options.epochs is not None and options.dataset_size is None:
        raise RequestError("--epochs", "nothing says how long an epoch is", "give --dataset-size N too")
    whole = not options.allow_incomplete
    folders = [latest_or(name, options.results, finished=whole) for name in options.runs]
    documents = beside(lambda: [verified(folder, allow_incomplete=options.allow_incomplete) for folder in folders])
    from bench.analyse.analysed import CONDENSE, Analysed
    from bench.runs.tables import free_at_once

    free_at_once()
    with passing(f"reading {count(len(folders), 'run')}"):
        how = {"allow_incomplete": options.allow_incomplete, "condense": CONDENSE}
        both = zip(folders, documents(), strict=True)
        runs = [Analysed.of(read(folder, document=document, **how)) for folder, document in both]
    for folder, run in zip(folders, runs, strict=True):
        if run.document.instead:
            raise RequestError("RUN", f"{run.path} {run.document.instead} and measured nothing", "choose another")
        if (imported := run.document.of(Imported)) is not None:
            origin = f"was imported from {imported.file} and has step times alone"
            remedy = f"compare it: python -m bench compare {shlex.quote(folder)} RUN --plot"
            raise RequestError("RUN", f"{run.path} {origin}, too little for a page", remedy)
    from bench.report import runs as report
    from bench.words.advice import Training

    size = options.dataset_size
    training = None if size is None else Training(epochs=options.epochs or 1, dataset_size=size)
    with passing("drawing the plots and writing the page"):
        files = report.write(runs, options.out, training)
    shown = _what_to_look_at(runs, files, training)
    reply(options, shown, document=lambda: {"page": files[0], "files": files, **_for_programs(runs, training)})
    return OK


def _what_to_look_at(runs: "list[Analysed]", files: list[str], training: "Training | None") -> str:
    from bench.report.runs import answer
    from bench.words.advice import time_to_train
    from bench.words.caveats import caveats

    lines = []
    for run in runs:
        table = run.overview
        lines += [f"{run.id}: {answer(run)}"]
        lines += [] if training is None else [f"  {time_to_train(run.document, table, training)}"]
        lines += [f"  - {text}" for text in caveats(run.document, table)]
    names = [os.path.relpath(path) for path in files]
    plots = sum(name.endswith(".svg") for name in names)
    beside = ", ".join(os.path.basename(name) for name in names[1:] if name.endswith((".csv", ".md")))
    lines += ["", f"Page: {names[0]} (open it in a browser)"]
    return "\n".join([*lines, f"Beside it: {beside} and {plots} plots as SVG and PNG"])


def _for_programs(runs: "list[Analysed]", training: "Training | None") -> dict[str, list[dict[str, object]]]:
    """The page as JSON values, each with the id of its run; what is unknown is null."""
    from bench.analyse.recommendation import recommendations
    from bench.report.values import as_json
    from bench.words.advice import training_s
    from bench.words.questions import questions

    rows = [(run.id, row) for run in runs for row in run.overview.to_dict("records")]
    whole: list[dict[str, object]] = [
        {"run": name, "scenario": row["scenario"]}
        | {f"seconds{of}": training_s(row, training, end) for of, end in ENDS}
        for name, row in rows
        if training is not None
    ]
    advised = [{"run": run.id, **encode(recommendations(run.document, run.overview))} for run in runs]
    answers = [{"run": run.id, "question": asked, "answer": text} for run in runs for asked, text in questions(run)]
    return {**as_json(runs), "training": whole, "recommendation": advised, "questions": answers}
