"""``python -m bench doctor``: what this machine can measure, and what would spoil it."""

import argparse
import sys

from bench.console import columns, tell
from bench.core.errors import OK, RequestError
from bench.runs.experiments import BandwidthRecord
from bench.verbs.options import Parser, check_apex, interpreter, print_json

DESCRIPTION = """\
What this machine can measure, and what would spoil it: GPUs, driver, topology, torch, apex module by module, CPU and
container, on one page. Each finding says what it means for a measurement and what to do about it.
"""
EPILOG = """\
Nothing is measured without --bandwidth, and nothing is changed. The exit code is 0 whatever is found (a script reads
--json), and 2 where the request is wrong.

examples:
  python -m bench doctor                    what there is
  python -m bench doctor --bandwidth        and how fast all GPUs exchange gradients (without GPUs: two ranks)
"""


def main(arguments: list[str]) -> int:
    parser = Parser("doctor", DESCRIPTION, EPILOG)
    parser.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05 or older")
    whose = "the interpreter whose torch is looked at (default: this one)"
    parser.add_argument("--python", type=interpreter, metavar="PATH", help=whose)
    fast = "also measure all-reduces of 1 KiB to 64 MiB over all GPUs (without GPUs: over two ranks of the CPU)"
    parser.add_argument("--bandwidth", action="store_true", help=fast)
    options = parser.parse_args(arguments)
    check_apex(options.apex)
    from bench.machine.doctor import examine

    report = examine(apex_path=options.apex, python=options.python)
    records = [_all_reduces(options)] if options.bandwidth else []
    if options.json:
        from bench.analyse.all_reduce import for_programs

        print_json({**report, "bandwidth": for_programs(records)} if records else report)
        return OK
    from bench.machine.doctor.page import page

    tell(page(report), file=sys.stdout)
    if records:
        from bench.analyse.all_reduce import samples, sentences
        from bench.report.all_reduce import bandwidth_table
        from bench.report.tables import in_text

        table = in_text(bandwidth_table(samples(records)), width=columns(sys.stdout))
        tell("", f"All-reduces over {records[0].processes} ranks", *table, "", *sentences(records), file=sys.stdout)
    return OK


def _all_reduces(options: argparse.Namespace) -> BandwidthRecord:
    """A launch over all GPUs, or over two ranks on the CPU. Raises :class:`RequestError` for a single GPU."""
    from bench.experiments.bandwidth import of_this_machine
    from bench.seams import switching
    from bench.verbs.asked import Options, request_of

    ddp = switching.scenario("ddp")
    request = request_of(Options(pythons=[options.python] if options.python else [], apex=options.apex), (ddp,))
    if request.replicas < 2:
        raise RequestError("--bandwidth", "there is one GPU, and nothing to exchange with", "leave it out")
    return of_this_machine(request, ddp)
