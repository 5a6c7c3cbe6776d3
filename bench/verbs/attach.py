"""``python -m bench attach``: run training scripts that bench did not write, unchanged, and measure their steps."""

import argparse
import os
import shlex
import sys
from dataclasses import replace

from bench.analyse.history import nights
from bench.console import COMMAND, columns, count, tell
from bench.core.codec import encode
from bench.core.errors import INTERRUPTED, NOT_COMPARABLE, OK, RequestError
from bench.experiments.attached_command import Commanded, Side
from bench.experiments.attaching import Wanted, attach
from bench.experiments.plan.interval_target import FIRST_STAGE
from bench.machine.redact import RECORD, without_secrets
from bench.runs.document import Attached
from bench.runs.reader import Run
from bench.verbs import options as kinds
from bench.verbs.asked import DEFAULT_BUDGET_S
from bench.verbs.options import Parser, called, people, place, print_json, reply
from bench.verbs.run import how_precise

DESCRIPTION = """\
Run a training command unchanged and record the steps of every rank, the memory of every process, and what trains, as a
run to report, compare and gate. What counts is which processes step an optimizer of torch.optim: the command may be
python, python -m, torchrun, or a shell script that calls them.

With --base, two commands run in turns, in rounds whose order alternates, and are compared: the time of a step, peak
memory, the mean wait for data, start-up, the whole command, and the loss at the end.

A step lasts from one call of the first optimizer that steps in a process to the next. With gradient accumulation it has
several forward passes; a call that a loss scaler skips makes the step longer. The wait for a DataLoader and the loss at
the end are recorded, other phases are not. Nothing is synchronised: on a GPU, steps are timed by CUDA events.
"""
EPILOG = """\
examples:
  python -m bench attach -- python train.py --epochs 1
  python -m bench attach --global-batch 512 -- torchrun --nproc-per-node 8 train.py
  python -m bench attach --launches 5 --label 'new loader' -- python -m package.train     for a verdict on differences
  python -m bench attach --base 'python old.py' -- python new.py                          old against new, in turns
  python -m bench attach --base '/envs/2.9/bin/python train.py' -- /envs/2.11/bin/python train.py

The command keeps its standard streams, signals and exit code: bench exits with the command's, or with 128 and the
signal's number as a shell does, and prints its own lines on standard error after the end. Ctrl-C or SIGTERM ends the
command; the steps until then count. --json prints the document on standard output after all that the command prints
there. bench itself exits with 2 if the request is wrong, or if the command ended well and nothing was recorded. Python
started with -I, -E or -S, or with another PYTHONPATH (write PYTHONPATH=src:$PYTHONPATH), and optimizers that are not
torch.optim.Optimizer, are not seen. The command needs Python 3.8 and torch 2.0 or newer.

With --base the exit codes are those of compare: 0 compared, whatever was found; 2 the request is wrong; 12 a command
failed, or nothing could be compared; 130 interrupted. With --json, what the commands print goes to standard error.
"""
BASE = "--base"


def main(arguments: list[str]) -> int:
    how = "write 'bench attach [OPTIONS] -- python train.py'"
    missing = RequestError("COMMAND", "there is no '--' before the command", how)
    options, command = _parser().parse_command(arguments, missing)
    if not command:
        raise RequestError("COMMAND", "there is no command", how)
    if options.budget is not None and options.until_precision is None:
        raise RequestError("--budget", "it has no effect without --until-precision", "add --until-precision 2%")
    sides = _sides(options, command)
    several = len(sides) > 1
    names = ("out", "label", "global_batch", "warmup", "until_precision", "wait", "force", "record_command")
    wanted = Wanted(
        launches=options.launches or (FIRST_STAGE if several or options.until_precision is not None else 1),
        budget_s=options.budget or DEFAULT_BUDGET_S,
        quiet=several and options.json,
        **{name: getattr(options, name) for name in names},
    )
    last, run = attach(wanted, sides)
    if run is None:
        of = f" of {last.name}" if several else ""
        if not last.code:
            raise RequestError("COMMAND", f"nothing was recorded{of}: {last.why}", "see 'bench attach --help'")
        line = f"nothing was recorded{of}, and the command ended with exit code {last.code}"
        code = NOT_COMPARABLE if several else last.code
        tell(f"bench: {line}", file=sys.stderr)
        if options.json:
            print_json({"error": line, "exit_code": code})
        return code
    if several:
        return _compared(last, run, [side.name or "" for side in sides], options)
    tell(*_lines(last, run), file=sys.stderr)
    if options.json:
        print_json({"path": run.path, **encode(run.document)})
    return last.code


def _parser() -> Parser:
    parser = Parser("attach", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s [OPTIONS] -- COMMAND..."
    what = "what tables call it (default: by what trains: ddp, dp, fsdp, single)"
    parser.add_argument("--scenario", type=kinds.scenario_name, metavar="NAME", help=what)
    parser.add_argument("--global-batch", type=kinds.whole_number, metavar="N", help="examples per step over all ranks")
    what = "run each command R times (default: 1, with --base 5; a verdict needs 3)"
    parser.add_argument("--launches", type=kinds.whole_number, metavar="R", help=what)
    what = "more launches until the 95 %% interval of each step time is that narrow"
    parser.add_argument("--until-precision", type=kinds.percentage, metavar="2%", help=what)
    parser.add_argument("--budget", type=kinds.span, metavar="20m", help="time for --until-precision (default: 20m)")
    add_launched(parser)
    turns = parser.add_argument_group("two commands in turns")
    turns.add_argument(BASE, metavar="'COMMAND'", help="what the command is compared with, in one argument")
    what = "one more command, likewise (may be repeated)"
    turns.add_argument("--also", metavar="'COMMAND'", action="append", default=[], help=what)
    turns.add_argument("--names", metavar="A,B", help="what tables call base, new and those of --also, in this order")
    turns.add_argument("--base-cwd", metavar="DIR", help="the folder that the base runs in (default: this one)")
    what = "a variable of the base's environment (may be repeated)"
    turns.add_argument("--base-env", metavar="NAME=VALUE", action="append", default=[], help=what)
    return parser


def add_launched(parser: Parser) -> None:
    parser.add_argument("--label", type=without_secrets, metavar="TEXT", help="a few words to find it by")
    first = "leave the first N steps of a launch out (default: 10, or a fifth of few)"
    parser.add_argument("--warmup", type=kinds.whole_number, metavar="N", help=first)
    parser.add_argument("--wait", action="store_true", help="queue until no other run of bench uses these devices")
    parser.add_argument("--force", action="store_true", help="measure also on GPUs that others use")
    whole = "record all of the command (default: its program, its script, and a checksum: the rest may have secrets)"
    parser.add_argument(RECORD, action="store_true", help=whole)
    parser.add_out()


def _sides(options: argparse.Namespace, command: tuple[str, ...]) -> tuple[Side, ...]:
    if options.base is None:
        for name in ("also", "names", "base_cwd", "base_env"):
            if getattr(options, name):
                remedy = "give what the command is compared with, as in --base 'python old.py'"
                raise RequestError(f"--{name.replace('_', '-')}", "there is no --base", remedy)
        return (Side(command=command, name=options.scenario),)
    if options.scenario is not None:
        raise RequestError("--scenario", "it is for one command", "name several with --names A,B")
    if options.base_cwd is not None and not os.path.isdir(options.base_cwd):
        raise RequestError("--base-cwd", f"{options.base_cwd!r} is no folder", "give one that exists")
    environment = dict(assignment(text, "--base-env") for text in options.base_env)
    base = Side(command=words(options.base, BASE), cwd=options.base_cwd, environment=environment)
    sides = (base, Side(command=command), *(Side(command=words(text, "--also")) for text in options.also))
    usual = ["base", "new", *(f"also{number}" for number in range(1, len(options.also) + 1))]
    names = kinds.scenario_names(options.names, "--names") or usual
    if len(names) != len(sides):
        problem = f"{options.names!r} has {count(len(names), 'different name')} for {count(len(sides), 'command')}"
        raise RequestError("--names", problem, f"give {len(sides)}, such as {','.join(usual)}")
    try:
        return tuple(replace(side, name=kinds.scenario_name(name)) for side, name in zip(sides, names, strict=True))
    except argparse.ArgumentTypeError as error:
        raise RequestError("--names", str(error), f"give others, such as {','.join(usual)}") from error


def words(text: str, option: str) -> tuple[str, ...]:
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise RequestError(option, f"{text!r}: {str(error).lower()}", "quote it as for a shell") from error
    if not command:
        raise RequestError(option, "it is empty", f"give a command in one argument: {option} 'python train.py'")
    return command


def assignment(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise RequestError(option, f"{text!r} is not NAME=VALUE", f"write {option} OMP_NUM_THREADS=4")
    return name, value


def _compared(last: Commanded, run: Run, names: list[str], options: argparse.Namespace) -> int:
    """The answer of ``bench compare`` on the scenarios of the run."""
    from bench.analyse import between_runs
    from bench.report import comparison

    if last.why:
        ended = f" (exit code {last.code})" if last.code else ""
        tell(f"bench: nothing was recorded of {last.name}: {last.why}{ended}", file=sys.stderr)
    compared = between_runs.scenarios(nights.with_findings(run.path), names[1:], names[0])
    answers = [f"bench: {text}" for text in (*comparison.step_times(compared), *how_precise(run.document))]
    text = comparison.as_text(compared, columns(people(options)))
    reply(options, "", *answers, "", text, document=lambda: {"path": run.path, **comparison.for_programs(compared)})
    name, scenarios, base = called(run.path), shlex.quote(",".join(names[1:])), shlex.quote(names[0])
    more = f"{COMMAND}compare {name} --scenario {scenarios} --against {base} --plot"
    tell(*_where(run.path, more), file=sys.stderr)
    if last.interrupted:
        return INTERRUPTED
    return OK if compared.comparable else NOT_COMPARABLE


def _lines(last: Commanded, run: Run) -> list[str]:
    from bench.analyse.analysed import Analysed
    from bench.words.advice import answer

    run = Analysed.of(run)
    document, attached = run.document, run.document.begun(Attached)
    steps = count(int(run.stats.frame["measured"].sum()), "measured step")
    lines = [f"bench: {answer(document, run.overview)} {steps}."]
    lines += [f"bench: {text}" for text in how_precise(document)]
    for launch, record in zip(document.launches, attached.launches, strict=True):
        if launch.status != "ok":
            lines.append(f"bench: {launch.scenario}: {launch.status}, {launch.reason}; the steps until then are kept")
        lines += [f"bench: left out: {one}" for one in record.left_out]
    if last.why:
        lines.append(f"bench: nothing was recorded of launch {len(document.launches) + 1}: {last.why}")
    return [*lines, *_where(run.path, f"{COMMAND}compare {called(run.path)} OTHER-RUN")]


def _where(path: str, more: str) -> list[str]:
    return [f"bench: run folder: {place(path)}", f"bench: next: {COMMAND}report {called(path)}", f"bench: or: {more}"]
