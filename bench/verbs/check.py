"""``python -m bench check``: is a run what it says?"""

import os
import sys
from glob import escape, glob

from bench.analyse.history.nights import may_be_run
from bench.console import tell
from bench.core.errors import FAILED, OK, RequestError
from bench.runs.check import findings
from bench.runs.names import find
from bench.verbs.options import Parser, print_json

DESCRIPTION = """\
Verify runs: the checksum and the rows of every file, launches numbered without gaps, as many steps of every rank as its
record says, phases that add up to steps and steps that add up to launches, memory of known processes only.
"""
EPILOG = """\
examples:
  python -m bench check                          the latest run
  python -m bench check results/*                all of them; a folder that is no run stands for the runs in it

Exit codes: 0 all are sound; 1 something was found; 2 there is no such run.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("check", DESCRIPTION, EPILOG)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a folder, a run id or 'latest' (default: latest)")
    parser.add_argument("--results", default="results", metavar="DIR", help="where run ids are (default: results)")
    options = parser.parse_args(arguments)
    paths = [find(name, options.results) for name in options.runs or ["latest"]]
    runs = [run for path in paths for run in _runs_in(path)]
    if not runs:
        remedy = "make one with 'python -m bench run', or give the folder of one"
        raise RequestError("RUN", f"there is no run in {' or '.join(paths)}", remedy)
    found = {path: findings(path) for path in runs}
    if options.json:
        print_json({"runs": [{"path": path, "sound": not lines, "findings": lines} for path, lines in found.items()]})
    else:
        for path, lines in found.items():
            name = os.path.basename(os.path.abspath(path))
            tell(*(f"{name}: {line}" for line in lines or ["sound"]), file=sys.stdout)
    return FAILED if any(found.values()) else OK


def _runs_in(path: str) -> list[str]:
    """The run itself; of another folder those up to two folders below, as in ``results/reference/<gpu>-<date>/``."""
    if may_be_run(path):
        return [path]
    below = [found for depth in ("*", os.path.join("*", "*")) for found in glob(os.path.join(escape(path), depth))]
    return sorted(found for found in below if os.path.isdir(found) and may_be_run(found))
