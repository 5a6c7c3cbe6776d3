"""``python -m bench recipe``: a training script of what a run measured."""

from bench.console import count
from bench.core.errors import OK
from bench.verbs.options import Parser, latest_or, reply, write_new

DESCRIPTION = """\
Write a training script that does what a run measured, without bench: model, data, strategy, precision, checkpoint.
"""
EPILOG = """\
examples:
  python -m bench recipe latest                            of the recommended scenario, on standard output
  python -m bench recipe latest --out train.py             in a file
  python -m bench recipe latest --scenario ddp_o2 --out train.py

Exit codes: 0 done; 2 there is no such run, it cannot be written down, or the file is there already.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("recipe", DESCRIPTION, EPILOG)
    parser.add_run()
    parser.add_argument("--scenario", metavar="NAME", help="which one (default: the recommended)")
    parser.add_argument("--out", metavar="FILE", help="where the script goes (default: standard output)")
    options = parser.parse_args(arguments)
    folder = latest_or(options.run, options.results, finished=True)
    from bench.analyse.analysed import Analysed
    from bench.report.recipe import script
    from bench.runs.reader import read

    run = Analysed.of(read(folder, remedy=None))
    text = script(run, options.scenario, file=options.out or "train.py")
    lines: list[str] = []
    if options.out is not None:
        write_new(options.out, text)
        lines = [f"{options.out}: {count(len(text.splitlines()), 'line')}; its first lines say how to start it"]
    elif not options.json:
        print(text, end="")
        return OK
    reply(options, *lines, document=lambda: {"run": run.id, "file": options.out, "script": text})
    return OK
