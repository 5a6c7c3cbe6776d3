"""``python -m bench check``: is a run what it says?"""

import os
from glob import escape, glob

from bench.analyse.history.nights import may_be_run
from bench.core.errors import FAILED, OK, RequestError
from bench.runs.check import findings
from bench.runs.names import find
from bench.verbs.options import Parser, reply

DESCRIPTION = """\
Verify runs: the checksum and the number of rows of every file, launches numbered without gaps. With --rows, and of an
unfinished run always: as many steps of every rank as its record says, phases that add up to steps and steps that follow
one another, memory of known processes only.
"""
EPILOG = """\
examples:
  python -m bench check                          the latest run
  python -m bench check --rows latest            also its rows
  python -m bench check results                  all of them: a folder that is no run stands for the runs in it

Exit codes: 0 nothing was found; 1 something was found; 2 there is no such run.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("check", DESCRIPTION, EPILOG)
    parser.add_run(nargs="*")
    whole = "also read every row, as for a run that somebody else sent you"
    parser.add_argument("--rows", action="store_true", help=whole)
    options = parser.parse_args(arguments)
    paths = [find(name, options.results) for name in options.runs]
    runs = [run for path in paths for run in _runs_in(path)]
    if not runs:
        remedy = "make one with 'python -m bench run', or give the folder of one"
        raise RequestError("RUN", f"there is no run in {' or '.join(paths)}", remedy)
    by_run = {path: findings(path, rows=options.rows) for path in runs}
    as_found = "sound" if options.rows else "as it was sealed"
    named = [(os.path.basename(os.path.abspath(path)), lines or [as_found]) for path, lines in by_run.items()]
    rows = [{"path": path, "sound": not lines, "findings": lines} for path, lines in by_run.items()]
    reply(options, *(f"{name}: {line}" for name, lines in named for line in lines), document=lambda: {"runs": rows})
    return FAILED if any(by_run.values()) else OK


def _runs_in(path: str) -> list[str]:
    """The run itself; of another folder those up to two folders below, as in ``results/reference/<gpu>-<date>/``."""
    if may_be_run(path):
        return [path]
    below = [folder for depth in ("*", os.path.join("*", "*")) for folder in glob(os.path.join(escape(path), depth))]
    return sorted(folder for folder in below if os.path.isdir(folder) and may_be_run(folder))
