"""``python -m bench history``: nightly history of each scenario, and where it shifted."""

import os
import sys

from bench.analyse.history import nights
from bench.console import columns, count, passing, tell
from bench.core.errors import OK, RequestError, closest
from bench.core.text import plain
from bench.runs.files import check_writable
from bench.verbs.gate import LISTED, add_thresholds, import_what_judges, rule_from
from bench.verbs.options import DEFAULT_OUT, Parser, people, print_json, scenario_names

DESCRIPTION = """\
Every run of a folder in the order of time: what each scenario took, how that changed, and the nights on which it
shifted to another level, with the commits between them and what else changed on that night (driver, torch, clocks).
Writes one page with plots (it opens from a disk, without network), and the plots as SVG and PNG beside it.

Runs are compared with those of the same work on the same hardware; each kind has a section of its own. A level lasts
three nights or more and differs by 1% or more from the one before it: a bad night or two are outliers, and a shift
shows on its third night. The first night is the gate's business: 'bench gate'.
"""
EPILOG = """\
examples:
  python -m bench history                                    the runs in results, the page in reports/history.html
  python -m bench history /srv/bench-history --out public    another folder of runs
  python -m bench history --scenario ddp,ddp_o2              some scenarios
  python -m bench history --json > history.json              every value, level and shift, for programs

The nights that the gate stops are marked by the same rule, with the same thresholds: give those that the gate is given.
Runs that are incomplete, lack a file or have a damaged digest, and copies of a run under another name, are left out and
named. Of the other files it is not verified that they are as they were sealed: 'bench check' does that.

Exit codes: 0 done, whatever was found; 2 the request is wrong, or the folder has no finished run.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("history", DESCRIPTION, EPILOG)
    where = "the folder that holds the runs (default: results)"
    parser.add_argument("folder", nargs="?", default=DEFAULT_OUT, metavar="DIR", help=where)
    parser.add_argument("--scenario", metavar="NAME[,NAME...]", help="only these (default: all)")
    parser.add_argument("--out", default="reports", metavar="DIR", help="where the page goes (default: reports)")
    add_thresholds(parser)
    options = parser.parse_args(arguments)
    rule, wanted = rule_from(options), scenario_names(options.scenario) or []
    check_writable(options.out)
    with passing(f"reading the nights in {options.folder}"):
        history = nights.read(options.folder, "DIR", meanwhile=import_what_judges)
    if not history.nights:
        problem = f"there is no finished run in {options.folder!r}"
        if history.left_out:
            problem += f" ({history.left_out[0].why}{', and others' if len(history.left_out) > 1 else ''})"
        raise RequestError("DIR", problem, "make one with 'python -m bench run', or give another folder")
    digests = [night.digest for night in history.nights]

    from bench.analyse.history import trends

    scenarios = trends.scenarios_of(digests)
    for name in wanted:
        if name not in scenarios:
            remedy = closest(name, scenarios, n=3, cutoff=0.4)
            raise RequestError("--scenario", f"no run in there has a scenario {name!r}", remedy)
    accepted = {run: one.reason for run, one in history.accepted.items()}
    with passing(f"looking for shifts in {count(len(digests), 'night')}"):
        tracks = trends.tracks(digests, rule, scenarios=wanted, accepted=accepted)

    from bench.report import history as report

    with passing("drawing the plots and writing the page"):
        files = report.write(tracks, history.left_out, options.out)
    to, page = people(options), f"Page: {os.path.relpath(files[0])} (open it in a browser)"
    tell(report.as_text(tracks, columns(to)), "", page, file=to)
    reasons = [plain(f"left out: {one.why}") for one in history.left_out[:LISTED]]
    if len(history.left_out) > LISTED:
        reasons.append(f"left out: {len(history.left_out) - LISTED} more, see the page or --json")
    if reasons:
        tell(*reasons, file=sys.stderr)
    if options.json:
        whole = report.for_programs(tracks, history.left_out)
        print_json({"page": files[0], "files": files, "folder": history.folder, **whole})
    return OK
