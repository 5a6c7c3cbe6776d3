"""``python -m bench runs``: what runs there are, each with its answer."""

import os
import sys

from bench.console import align, columns, count, tell
from bench.core.errors import OK, RequestError
from bench.runs.document import Attached, RunDocument
from bench.runs.experiments import Scaling
from bench.runs.launches import REPLICATES_WANTED
from bench.runs.names import run_ids
from bench.runs.reader import verified
from bench.verbs.options import Parser, print_json

DESCRIPTION = """\
List the latest runs of a folder, the last one first: what was trained, and which scenario was fastest.
"""
EPILOG = """\
examples:
  python -m bench runs                     the latest in results/
  python -m bench runs --all --json        all of them, for programs
  python -m bench runs --results nights    those of another folder

Exit codes: 0 done; 2 there is no such folder, or no run in it.
"""
LATEST = 20
HEADINGS = ("run", "label", "trained", "scenarios", "launches", "fastest")


def main(arguments: list[str]) -> int:
    parser = Parser("runs", DESCRIPTION, EPILOG)
    parser.add_results()
    parser.add_argument("--all", action="store_true", help=f"not only the latest {LATEST}")
    options = parser.parse_args(arguments)
    names = run_ids(options.results, "--results")[::-1]
    listed = names if options.all else names[:LATEST]
    if not listed:
        raise RequestError("--results", f"there is no run in {options.results}", "make one with 'python -m bench run'")
    rows = [_about(os.path.join(options.results, name)) for name in listed]
    if options.json:
        print_json({"runs": rows})
        return OK
    lines = [HEADINGS, *([str(row[name]) for name in HEADINGS] for row in rows)]
    tell(align(lines, left=("run", "label", "trained", "fastest"), width=columns(sys.stdout)), file=sys.stdout)
    if len(listed) < len(names):
        tell(f"and {count(len(names) - len(listed), 'earlier run')}: --all lists them", file=sys.stdout)
    return OK


def _about(path: str) -> dict[str, object]:
    """A row; of a run that cannot be read the reason stands in the place of its answer."""
    name = os.path.basename(path)
    try:
        document = verified(path, allow_incomplete=True)
    except RequestError as error:
        return {**dict.fromkeys(HEADINGS, "-"), "run": name, "fastest": error.problem}
    scaling = document.of(Scaling)
    beside = [one for one in scaling.launches if one.status == "ok"] if scaling else []
    return {
        "run": name,
        "label": document.request.label or "-",
        "trained": document.workload.title or document.workload.name or "unknown",
        "scenarios": len(document.request.scenarios),
        "launches": len(document.good) + len(beside),
        "fastest": _fastest(document),
    }


def _fastest(document: RunDocument) -> str:
    advice, scaling = document.recommendation, document.of(Scaling)
    if document.instead:
        return document.instead
    unfinished = "" if document.complete else " (incomplete)"
    if scaling and scaling.by_itself:
        return f"{scaling.counts[0]} devices, each by itself{unfinished}"
    if scaling:
        return f"how {document.request.scenarios[0]} scales to {max(scaling.counts)} devices{unfinished}"
    if attached := document.of(Attached):
        return count(len(attached.commands), "attached command") + unfinished
    if advice is None or advice.fastest is None:
        known = "no valid result" if document.workload.units else "no speed is known"
        return known if document.complete else "incomplete"
    launches = sum(launch.scenario == advice.fastest for launch in document.good)
    others = len(advice.not_told_apart)
    doubts = ["incomplete"] * (not document.complete)
    doubts += ["untested"] if launches < REPLICATES_WANTED else [f"not told apart from {others}"] * (others > 0)
    return advice.fastest + (f" ({', '.join(doubts)})" if doubts else "")
