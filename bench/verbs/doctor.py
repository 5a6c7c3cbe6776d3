"""``python -m bench doctor``: what this machine can measure, and what would spoil it."""

import sys

from bench.core.errors import OK
from bench.verbs.options import Parser, check_apex, check_python, print_json

DESCRIPTION = """\
What this machine can measure, and what would spoil it: GPUs, driver, topology, torch, apex module by module, CPU and
container, on one page. Each finding says what it means for a measurement and what to do about it.
"""
EPILOG = """\
Nothing is measured and nothing is changed. The exit code is 0 whatever is found (a script reads --json), and 2 where
the request is wrong.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("doctor", DESCRIPTION, EPILOG)
    parser.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05 or older")
    parser.add_argument("--python", metavar="PATH", help="the interpreter whose torch is looked at (default: this one)")
    options = parser.parse_args(arguments)
    check_apex(options.apex)
    check_python(options.python)
    from bench.machine.doctor import examine

    report = examine(apex_path=options.apex, python=options.python)
    if options.json:
        print_json(report)
        return OK
    from bench.console import tell
    from bench.machine.doctor.page import page

    tell(page(report), file=sys.stdout)
    return OK
