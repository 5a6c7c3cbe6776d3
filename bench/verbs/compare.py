"""``python -m bench compare``: is one run, or one scenario, different from another, and by how much?"""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from bench.analyse.comparable import refuse_unlike
from bench.analyse.history import nights
from bench.console import columns, tell
from bench.core.errors import NOT_COMPARABLE, OK, NotComparable, RequestError
from bench.runs.files import check_writable, utf8
from bench.verbs.options import Parser, latest_or, people, reply, scenario_names

if TYPE_CHECKING:
    from bench.analyse.between_runs import Compared

DESCRIPTION = """\
Compare two runs of the same workload scenario by scenario, or scenarios of one run with each other: step time,
throughput, peak memory, energy and numerics. For each the ratio of new to base, its 95 % interval over launches, a
p-value that is adjusted for how many scenarios are compared and for launches added later, and a verdict:

  faster, slower         step time and throughput; less, more of memory and energy; better, worse of numerics
  no difference found    could well be noise; not the same as equal: see how wide the interval is, and how many more
                         launches would show a difference of 2 %
  too few launches       a side has fewer than three: measure with --launches 5 or --profile standard
  not comparable         with the reason: missing, failed, something else ran under that name (apex and native are
                         never compared under one), or the results are invalid
"""
EPILOG = """\
examples:
  python -m bench compare BASE NEW                               two runs: a folder, a run id or 'latest' each
  python -m bench compare BASE latest --scenario ddp,ddp_o2      some scenarios of them
  python -m bench compare RUN --scenario ddp_o1,ddp_o2           scenarios of one run against its ddp
  python -m bench compare RUN --scenario ddp --against dp        or against another one
  python -m bench compare BASE NEW --plot                        and reports/comparison.svg, .png and .md

Another workload, world size, or model of GPU is refused. Another driver, torch, CUDA, cuDNN, NCCL, clock, power limit,
host and the like is a warning. An interval is over launches within each run, with the machine's drift taken out: what
changes from one run to the next is not in it. Scenarios of one run share that.

Exit codes: 0 compared, whatever was found; 2 the request is wrong, or a run is damaged or incomplete; 12 another
workload, or nothing that could be compared.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("compare", DESCRIPTION, EPILOG)
    each = "BASE and NEW: a folder, a run id or 'latest'; or one RUN"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=each)
    parser.add_argument("--scenario", metavar="NAME[,NAME...]", help="only these (needed where one run is given)")
    parser.add_argument("--against", metavar="NAME", help="the base among the scenarios of one run (default: ddp)")
    parser.add_results()
    parser.add_argument("--allow-incomplete", action="store_true", help="take what an interrupted run has")
    parser.add_argument("--plot", action="store_true", help="draw it: comparison.svg, .png and .md in --out")
    parser.add_argument("--out", metavar="DIR", help="where --plot writes (default: reports); implies --plot")
    options = parser.parse_args(arguments)
    if options.plot and options.out is None:
        options.out = "reports"
    _check(options)
    compared = _compare(options, scenario_names(options.scenario))
    from bench.report import comparison

    files = [] if options.out is None else _written(compared, options.out)
    text = comparison.as_text(compared, columns(people(options)))
    reply(options, text, document=lambda: {**comparison.for_programs(compared), "files": files})
    if files:
        tell("", *(f"Wrote {os.path.relpath(file)}" for file in files), file=sys.stderr)
    return OK if compared.comparable else NOT_COMPARABLE


def _check(options: argparse.Namespace) -> None:
    given = len(options.runs)
    if given > 2:
        raise RequestError("RUN", f"{given} runs were given", "give BASE and NEW, or one RUN with --scenario")
    if given == 1 and not options.scenario:
        remedy = "give BASE and NEW, or --scenario ddp --against dp"
        raise RequestError("RUN", "one run has nothing to be compared with", remedy)
    if given == 2 and options.against is not None:
        raise RequestError("--against", "it is for scenarios of one run", "leave it out, or give one RUN")
    if options.out is not None:
        check_writable(options.out)


def _compare(options: argparse.Namespace, names: list[str] | None) -> "Compared":
    from bench.analyse import between_runs
    from bench.analyse.steps import BASE

    paths = [latest_or(name, options.results, finished=not options.allow_incomplete) for name in options.runs]
    digests = [nights.with_findings(path, allow_incomplete=options.allow_incomplete) for path in paths]
    scenarios = list(dict.fromkeys(one["scenario"] for digest in digests for one in digest["scenarios"]))
    against = options.against or BASE
    for name in (*(names or ()), *((against,) if len(digests) == 1 else ())):
        if name not in scenarios:
            option = "--against" if name == against and name not in (names or ()) else "--scenario"
            raise NotComparable(f"{option}: there is no scenario {name!r} here; choose from {', '.join(scenarios)}")
    if len(digests) == 1:
        assert names is not None  # refused above
        if against in names:
            remedy = "name another one, or another --against"
            raise RequestError("--scenario", f"{against} would be compared with itself", remedy)
        return between_runs.scenarios(digests[0], names, against)
    base, new = digests
    if os.path.realpath(paths[0]) == os.path.realpath(paths[1]):
        raise RequestError("RUN", f"{paths[0]} is both BASE and NEW", "give two runs, or one RUN with --scenario")
    refuse_unlike(base, new)
    return between_runs.runs(base, new, names)


def _written(compared: "Compared", out: str) -> list[str]:
    from bench.report import comparison, drawing
    from bench.report.page import put

    with drawing.styled():
        plot = comparison.forest(compared)
    files = {} if plot is None else {"comparison.svg": plot.svg.encode(), "comparison.png": plot.png}
    return put({**files, "comparison.md": utf8(comparison.as_markdown(compared))}, out)
