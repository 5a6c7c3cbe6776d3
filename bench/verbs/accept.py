"""``python -m bench accept``: a person says that a run is as it should be, although the gate does not."""

import os
import time

from bench.analyse.history import nights
from bench.core.errors import OK, RequestError
from bench.machine.redact import without_secrets
from bench.runs.names import find
from bench.verbs.options import DEFAULT_OUT, Parser, reply

DESCRIPTION = """\
Record that a run is accepted although it is slower, needs more memory, or ran something else. From then on the gate
passes it, and the base of every scenario of it that was worse (or better) starts anew with it; a scenario that it does
not have is no longer expected. It is written to DIR/accepted/RUN.json; the run itself, which is sealed, is not touched.
Take it back by removing that file.
"""
EPILOG = """\
examples:
  python -m bench accept latest --reason "checks for NaN in every step since #123"
  python -m bench accept RUN --history nights --reason "new driver 580, agreed with the team"
"""


def main(arguments: list[str]) -> int:
    parser = Parser("accept", DESCRIPTION, EPILOG)
    parser.add_run()
    why = "why, for whoever asks later"
    parser.add_argument("--reason", required=True, type=without_secrets, metavar="TEXT", help=why)
    parser.add_argument("--history", metavar="DIR", help="the folder of the nights (default: the one that holds RUN)")
    parser.set_defaults(results=None)  # which is given, or not
    options = parser.parse_args(arguments)
    reason = " ".join(options.reason.split())
    if not reason:
        raise RequestError("--reason", "it is empty", "say why this run is as it should be")
    if options.history == "":
        raise RequestError("--history", "it is empty", "give the folder of the nights, or leave it out")
    if options.history is not None and options.results is not None:
        raise RequestError("--results", "with --history, run ids are looked up there", "leave one of the two out")
    path = os.path.abspath(find(options.run, options.history or options.results or DEFAULT_OUT))
    history = options.history or os.path.dirname(path)
    if os.path.realpath(os.path.dirname(path)) != os.path.realpath(history):
        raise RequestError("RUN", f"{path} is not in {history}", "copy it there first, or give its folder as --history")
    utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    file = nights.accept(history, path, reason, utc)
    run, recorded = os.path.basename(path), f"Recorded in {os.path.relpath(file)}; keep it with the runs."
    document = {"run": run, "reason": reason, "utc": utc, "file": file}
    reply(options, f"Accepted {run}: {reason}", recorded, document=lambda: document)
    return OK
