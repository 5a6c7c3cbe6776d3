"""``python -m bench recipe``: a training script of what a run measured."""

import os
import sys
from typing import TYPE_CHECKING

from bench.console import count, tell
from bench.core.errors import FAILED, INCONCLUSIVE, OK, REGRESSED, RequestError
from bench.runs.names import find
from bench.verbs.options import Parser, print_json, refuse_existing, whole_number, write_new

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed

PAIRS = 5
DESCRIPTION = """\
Write a training script that does what a run measured, without bench: model, data, strategy, precision, checkpoint.
"""
EPILOG = """\
examples:
  python -m bench recipe latest                            of the recommended scenario, on standard output
  python -m bench recipe latest --out train.py             in a file
  python -m bench recipe latest --scenario ddp_o2 --out train.py
  python -m bench recipe latest --check                    is it as fast as measured, and does it train the same?

Exit codes: 0 done; 1 with --check other losses; 10 slower by 3 %; 11 too noisy to
tell; 2 there is no such run, it cannot be written down, or the file is there already.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("recipe", DESCRIPTION, EPILOG)
    parser.add_argument("run", metavar="RUN", help="a folder, a run id or 'latest'")
    parser.add_argument("--scenario", metavar="NAME", help="which one (default: the recommended)")
    parser.add_argument("--out", metavar="FILE", help="where the script goes (default: standard output)")
    parser.add_argument("--results", default="results", metavar="DIR", help="where run ids are (default: results)")
    parser.add_argument(
        "--check", action="store_true", help="run it by turns with bench: as fast, and the same losses?"
    )
    parser.add_argument("--pairs", type=whole_number, metavar="N", help="with --check, launches of each (default: 5)")
    options = parser.parse_args(arguments)
    if options.pairs and not options.check:
        raise RequestError("--pairs", "it has no effect without --check", "add --check, or leave it out")
    refuse_existing(options.out)
    folder = find(options.run, options.results)
    from bench.analyse.analysed import Analysed
    from bench.report.recipe import script
    from bench.runs.reader import read

    run = Analysed.of(read(folder))
    text = script(run, options.scenario, file=options.out or "train.py")
    if options.check:
        return _check(run, options.scenario, text, options.pairs or PAIRS, as_json=options.json)
    if options.out is None and not options.json:
        print(text, end="")
        return OK
    if options.out is not None:
        write_new(options.out, text)
        said = f"{options.out}: {count(len(text.splitlines()), 'line')}; its first lines say how to start it"
        tell(said, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print_json({"run": run.id, "file": options.out, "script": text})
    return OK


def _check(run: "Analysed", scenario: str | None, text: str, pairs: int, *, as_json: bool) -> int:
    """Run the script by turns with launches of bench, in a folder that is removed, and say what came of it."""
    from tempfile import TemporaryDirectory

    from bench.experiments.recipe_check import check
    from bench.experiments.resume import refuse_what_is_foreign, request_of, scenario_of
    from bench.verbs.asked import same_work

    advised = run.document.recommendation
    name = scenario or (advised and advised.fastest) or ""
    try:
        refuse_what_is_foreign(run.path, run.document)
        request, found = request_of(run.document), scenario_of(run.document, name)
    except RequestError as error:
        raise RequestError("--check", error.problem, "check a run of your own on this machine") from error
    once = ["--launches", "1", "--warmup", str(request.warmup), "--iters", str(request.iters), "--no-parity", "--wait"]
    again = [*same_work(request, (found,)), *once]
    with TemporaryDirectory(prefix="bench-recipe-") as folder:
        file = os.path.join(folder, "train.py")
        write_new(file, text)
        checked = check(run, name, file, again, pairs, folder)
    ratio = checked.ratio
    within = "" if ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f}, 95 %)"
    said = [
        f"{name}: a step of the script takes {ratio.value:.3f} times that of bench{within}, {count(pairs, 'pair')}: "
        f"{checked.speed}",
        f"{name}: the first {checked.losses} losses are {'within' if checked.same else 'beyond'} their bounds "
        f"(at most {checked.worst:.2g} of one)",
    ]
    tell(*said, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        of_ratio = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
        print_json({"run": run.id, "scenario": name, **of_ratio, "speed": checked.speed, "same": checked.same})
    if not checked.same:
        return FAILED
    return {"slower": REGRESSED, "unclear": INCONCLUSIVE}.get(checked.speed, OK)
