"""``python -m bench bisect``: which version or commit made it slower, or changed what it trains?"""

import argparse
import os
import shlex
import sys

from bench.console import COMMAND, tell
from bench.core.codec import encode
from bench.core.errors import INCONCLUSIVE, INTERRUPTED, OK, RequestError
from bench.experiments import candidates
from bench.experiments.attaching import Wanted
from bench.experiments.bisecting import MEMORY, NUMERICS, STEP_TIME, Asked, bisect
from bench.machine.redact import foreign
from bench.runs.experiments import Bisected
from bench.runs.names import find
from bench.verbs.attach import add_launched, words
from bench.verbs.options import Parser, called, place, reply, span
from bench.words.bisected import in_words

DESCRIPTION = """\
Find the version of a package, or the commit of a repository, that made a training command slower. A binary search, of
which each step launches the candidate in turns with both ends, as bench attach does, until a test says to which it
belongs. Noise makes it take more launches, and it never guesses: at most 5 % of such searches are wrong, and one that
its budget ends says what is left. Ends less than 1 % apart end it. A candidate that does not build or run is skipped.
"""
EPILOG = """\
examples:
  python -m bench bisect --git . --good v1.0 --bad main -- python train.py
  python -m bench bisect --git . --good v1.0 --bad main --build 'pip install -e .' -- python train.py
  python -m bench bisect --git . --good v1.0 --bad main --numerics -- python train.py
  python -m bench bisect --package torch --good 2.9 --bad 2.11 -- python train.py
  python -m bench bisect --package torch --pythons old/bin/python,mid/bin/python,new/bin/python -- python train.py

A commit is checked out into a work tree of its own, in which the command runs, and which comes first on PYTHONPATH.
--package has uv make environments, and keeps them in ~/.cache/bench/environments; 'python' in the command is theirs.
Without a command a small convolutional network is trained. --numerics asks what changed the loss at the end, or the
gradients and weights of the first three steps: seed the command.

Exit codes: 0 found; 1 a launch of an end failed; 2 the request is wrong; 11 undecided within the budget, or
the ends are alike; 130 interrupted: give the same options and --resume RUN to go on.
"""
DEFAULT_BUDGET_S = 3600.0
USUAL = os.path.join(os.path.dirname(os.path.dirname(__file__)), "worker", "attached", "usual.py")


def main(arguments: list[str]) -> int:
    options, command = _parser().parse_command(arguments)
    if not command and options.package is None:
        raise RequestError("COMMAND", "there is no command", "write 'bench bisect [OPTIONS] -- python train.py'")
    command = command or ("python", USUAL)
    of, in_order, prepare = _searched(options, command)
    if len(in_order) < 2:
        raise RequestError("--bad", "there is one candidate only", "give two that differ")
    names = ("out", "label", "warmup", "wait", "force", "record_command")
    asked = Asked(
        of=f"{of}: {' '.join(foreign(command))}",
        candidates=in_order,
        prepare=prepare,
        metric=NUMERICS if options.numerics else MEMORY if options.memory else STEP_TIME,
        budget_s=options.budget,
        wanted=Wanted(quiet=options.json, **{name: getattr(options, name) for name in names}),
        path=None if options.resume is None else find(options.resume, options.out, "--resume"),
    )
    tell(f"bench: {len(in_order)} candidates, from {in_order[0].name} to {in_order[-1].name}", file=sys.stderr)
    run, interrupted = bisect(asked)
    answer, *rest = in_words(run.document)
    run_is, bisected = called(run.path), run.document.begun(Bisected)
    own = iter(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    anew = ("--resume",) if interrupted else ("--resume", "--budget")
    again = [one for one in own if one.partition("=")[0] not in anew or not ("=" in one or next(own))]
    again += [] if interrupted else ["--budget", f"{2 * options.budget:.0f}s"]
    line = f"{COMMAND}bisect --resume {run_is} {shlex.join([*again, '--', *command])}"
    if interrupted:
        tell(f"bench: interrupted; go on with: {line}", file=sys.stderr)
        return INTERRUPTED
    if not (bisected.decided or bisected.ends_alike):
        rest.append(f"bench: with twice the budget: {line}")
    tell(*rest, f"bench: run folder: {place(run.path)}", f"bench: next: {COMMAND}report {run_is}", file=sys.stderr)
    reply(options, answer, document=lambda: {"path": run.path, "answer": answer, **encode(bisected)})
    return OK if bisected.decided else INCONCLUSIVE


def _searched(
    options: argparse.Namespace, command: tuple[str, ...]
) -> tuple[str, tuple[candidates.Candidate, ...], candidates.Prepare]:
    if (options.git is None) is (options.package is None):
        raise RequestError("--git", "give either --git or --package", "as in --git . --good v1.0 --bad main")
    if options.pythons is None and (options.good is None or options.bad is None):
        missing = "--good" if options.good is None else "--bad"
        raise RequestError(missing, "it is missing", "give the last one known to be good, and one known to be bad")
    if options.git is not None:
        if options.pythons is not None or options.also_install:
            option = "--pythons" if options.pythons else "--also-install"
            raise RequestError(option, "it goes with --package", "leave it out")
        build = words(options.build, "--build") if options.build else ()
        in_order = candidates.commits(options.git, options.good, options.bad)
        return f"commits of {options.git}", in_order, candidates.work_tree(options.git, command, build)
    if options.build is not None:
        raise RequestError("--build", "it is for commits", "leave it out, or search --git")
    if options.pythons is not None and options.also_install:
        raise RequestError("--also-install", "nothing is installed into --pythons", "leave it out")
    if options.pythons is None:
        in_order = candidates.versions(options.package, options.good, options.bad)
        prepare = candidates.environment(options.package, command, tuple(options.also_install))
        return f"versions of {options.package}", in_order, prepare
    in_order = candidates.interpreters(options.package, [python for python in options.pythons.split(",") if python])
    if len(in_order) > 1:
        names = [one.name for one in in_order]
        kept = candidates.between(names, options.good or names[0], options.bad or names[-1])
        in_order = tuple(one for one in in_order if one.name in kept)
    return f"interpreters with {options.package}", in_order, candidates.interpreter(command)


def _parser() -> Parser:
    parser = Parser("bisect", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s (--package NAME | --git REPO) --good A --bad B [OPTIONS] [-- COMMAND...]"
    parser.add_argument("--git", metavar="REPO", help="search the commits of this repository")
    parser.add_argument("--package", metavar="NAME", help="search the versions of this package")
    parser.add_argument("--good", metavar="A", help="the last that is known to be good")
    parser.add_argument("--bad", metavar="B", help="one that is known to be bad")
    by = parser.add_mutually_exclusive_group()
    by.add_argument("--numerics", action="store_true", help="by loss, gradients and weights, not by the step time")
    by.add_argument("--memory", action="store_true", help="by the peak of memory, not by the step time")
    parser.add_argument("--build", metavar="'COMMAND'", help="run this once in the work tree of each commit")
    parser.add_argument("--pythons", metavar="A,B,C", help="interpreters that have the package, in order; no network")
    what = "install this in each environment, too (may be repeated)"
    parser.add_argument("--also-install", metavar="PACKAGE", action="append", default=[], help=what)
    parser.add_argument("--budget", type=span, default=DEFAULT_BUDGET_S, metavar="1h", help="time for it (default: 1h)")
    parser.add_argument("--resume", metavar="RUN", help="go on with an interrupted search, or with a larger budget")
    add_launched(parser)
    return parser
