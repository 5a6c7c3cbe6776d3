"""``python -m bench report``: turn runs into a page with tables and plots."""

import json
import os
import sys
from typing import TYPE_CHECKING

from bench.errors import OK, RequestError
from bench.store import find, read
from bench.verbs.options import Parser, print_json

if TYPE_CHECKING:
    from bench.store import Run

DESCRIPTION = """\
Turn runs into one page that holds everything (it opens from a disk, without network), with the plots as PNG and SVG and
the summary as CSV and Markdown beside it. Files of the same names are replaced; nothing is deleted.
"""
EPILOG = """\
examples:
  python -m bench report                                     the latest run, in reports/index.html
  python -m bench report RUN OTHER-RUN                       two runs on one page
  python -m bench report RUN --allow-incomplete              what an interrupted run has
"""


def main(arguments: list[str]) -> int:
    """Write the report; returns the exit code."""
    parser = Parser("report", DESCRIPTION, EPILOG)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a folder, a run id or 'latest' (default: latest)")
    parser.add_argument("--out", default="reports", metavar="DIR", help="where the page goes (default: reports)")
    parser.add_argument("--results", default="results", metavar="DIR", help="where run ids are (default: results)")
    parser.add_argument("--allow-incomplete", action="store_true", help="take what an interrupted run has")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    options = parser.parse_args(arguments)
    runs = [
        read(find(name, options.results), allow_incomplete=options.allow_incomplete)
        for name in options.runs or ["latest"]
    ]
    for run in runs:
        if run.document["batch_search"]:
            raise RequestError("RUN", f"{run.path} looked for the largest batch and measured nothing", "choose another")
    from bench import report

    files = report.write(runs, options.out)
    print(_what_to_look_at(runs, files), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print_json({"page": files[0], "files": files, "summary": _records(runs)})
    return OK


def _what_to_look_at(runs: "list[Run]", files: list[str]) -> str:
    """The answer of each run with what limits it, and where the page is."""
    from bench.analyse.answer import answer, caveats
    from bench.report.tables import summary_of

    lines = []
    for run in runs:
        table = summary_of(run)
        lines += [f"{run.id}: {answer(run.document, table)}"]
        lines += [f"  - {text}" for text in caveats(run.document, table)]
    names = [os.path.relpath(path) for path in files]
    plots = sum(name.endswith(".svg") for name in names)
    return "\n".join(
        [
            *lines,
            "",
            f"Page: {names[0]} (open it in a browser)",
            f"Beside it: {', '.join(map(os.path.basename, names[1:3]))} and {plots} plots as SVG and PNG",
        ]
    )


def _records(runs: "list[Run]") -> list[dict[str, object]]:
    """The rows of the summaries as JSON values: what is unknown is null."""
    from bench.report.tables import summary_of

    return [row for run in runs for row in json.loads(summary_of(run).to_json(orient="records"))]
