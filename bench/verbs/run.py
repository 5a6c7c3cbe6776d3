"""``python -m bench run``: measure scenarios and write a run folder."""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from bench import machine
from bench.console import align, columns, count, duration, say
from bench.core.codec import encode
from bench.core.errors import FAILED, OK, RequestError
from bench.experiments import pipeline, resume
from bench.experiments.batch_search import find_batches
from bench.experiments.lab import Finished, Start
from bench.experiments.plan import PROFILES, Request
from bench.experiments.plan.interval_target import FEWEST_LAUNCHES, FIRST_STAGE, MOST_LAUNCHES
from bench.machine import environments
from bench.runs.document import RunDocument
from bench.runs.experiments import BatchSearch, IntervalTargetRecord
from bench.seams.discover import Found
from bench.seams.experiment import experiments, with_options
from bench.sites.hosts.party import Party
from bench.verbs.asked import DEFAULT_BUDGET_S, Options, add_result, add_steps, add_work, begun, request_of
from bench.verbs.options import Parser, called, people, percentage, place, reply, span, whole_number
from bench.verbs.sets import LADDER, PUBLISHED, scenarios_of, with_untuned
from bench.verbs.show import answered, batches, for_programs
from bench.verbs.together import on_all_hosts

DESCRIPTION = """\
Measure the training step of every scenario and write a run folder: every step of every rank, the memory of every
process, and what really ran. Prints the table at the end.
"""
EPILOG = """\
examples:
  python -m bench run                                        all ten scenarios, quickly
  python -m bench run --scenario ddp_o2 --gpus 0,1,3         one scenario on three of four GPUs
  python -m bench run --profile standard --label 'new NCCL'  repeated launches, with a note for the report
  python -m bench run --scenario ./mine.py                   a scenario of your own
  python -m bench run --workload ./mine.py                   a model, data and loss of your own
  python -m bench run --workload imagefolder --data JPEGS --input-sweep   is it the loader?
  python -m bench run --python OLD --python NEW --launches 5   two versions of torch, in turns
  python -m bench run --resume latest                        what is missing of a run or failed in it
  python -m bench run --resume latest --launches 11          more launches of each scenario, in the same run

Profiles, as launches of each scenario x (warm-up + measured steps):
{profiles}

Exit codes: 0 all launches were done; 1 a launch failed, and the others are in the run; 2 the request is wrong, and
nothing was run; 130 interrupted, and what was done is in the run.
"""

EXPERIMENTS = {
    "find_batch": (
        "has short launches of its own, which it decides on",
        ("launches", "until_precision", "iters", "warmup", "profile", "diagnose", "trace", "input_sweep"),
    ),
    "input_sweep": (
        "measures the loader, training, and both together, and chooses the workers",
        ("workers", "until_precision", "diagnose", "trace", "set"),
    ),
}
"""By option of an experiment what it does in place of what other options ask for, and those options."""

ON_ONE_HOST = {"find_batch": "memory differs between hosts", "input_sweep": "cores and disks differ between hosts"}
"""By option why it is not for several hosts."""

PRECISION = "the precision is part of a scenario, such as --scenario ddp_o2 (python -m bench list has them)"
ELSEWHERE = {"--precision": PRECISION, "--amp": PRECISION, "--strategy": PRECISION.replace("precision", "strategy")}


def main(arguments: list[str]) -> int:
    return on_all_hosts(arguments, run_parser(), _run)


def _run(options: Options, parser: Parser, party: Party | None) -> int:
    if options.resume is not None:
        return resumed(options, parser, party)
    check_experiment(options)
    if party is not None:
        refuse_one_host(options)
    asked = ["ddp"] if options.input_sweep and not options.scenario else options.scenario
    scenarios = scenarios_of(asked, options.set, options.switches, options.device)
    if asked is None and options.set is None and party is None:
        scenarios = with_untuned(scenarios, options)
    if options.input_sweep and len(scenarios) > 1:
        raise RequestError("--scenario", "--input-sweep is about one scenario", "name one, such as ddp")
    pythons = _environments(options)
    scenarios = tuple(replace(found, environment=name) for found in scenarios for name in pythons) or scenarios
    request = request_of(options, scenarios, party, pythons)
    if options.find_batch:
        return _find_batch(request, scenarios, options)
    finished = pipeline.run(request, scenarios, Start(out=options.out, wait=options.wait, party=party))
    return _show(finished, request.launches, options)


def refuse_one_host(options: Options) -> None:
    """Refuse what cannot be measured on several hosts."""
    why = ON_ONE_HOST | {name: one.one_host for name, one in experiments().items() if one.one_host}
    if alone := next((name for name in why if getattr(options, name)), None):
        option, what = f"--{alone.replace('_', '-')}", f"it is measured on one host ({why[alone]})"
        raise RequestError(option, what, "start bench on one host for it")
    if len(options.pythons) > 1:
        raise RequestError("--python", "on several hosts each has one interpreter", "name one")


def _environments(options: Options) -> dict[str, str]:
    """The paths of several interpreters by their names; empty where there is one."""
    if len(options.pythons) < 2:
        return {}
    given = {"--find-batch": options.find_batch, "--input-sweep": options.input_sweep}
    for option in [name for name, is_given in (given | {"--set ladder": options.set == LADDER}).items() if is_given]:
        raise RequestError("--python", f"{option} is for one interpreter", "leave one of the two out")
    return environments.named(options.pythons)


def _find_batch(request: Request, scenarios: tuple[Found, ...], options: Options) -> int:
    finished = find_batches(request, scenarios, Start(out=options.out, wait=options.wait))
    run = finished.run
    lines = ["", *batches(run.document, columns(people(options))), "", f"Run folder: {place(run.path)}"]
    if known := [one.largest for one in run.document.begun(BatchSearch).scenarios.values() if one.largest]:
        given = {"--budget": options.budget, "--batch-per-rank": options.batch_per_rank}
        instead = " and ".join(["--find-batch", *(name for name, value in given.items() if value is not None)])
        lines.append(f"Next, measured: the same command with --global-batch {min(known)} in place of {instead}")
    reply(options, *lines, document=lambda: {"path": run.path, **encode(run.document)})
    return FAILED if finished.failed else OK


def resumed(options: Options, parser: Parser, party: Party | None) -> int:
    """Go on with a run, whichever verb began it."""
    path, document, request = begun(options, parser, "run", also=("launches",))
    if options.launches is not None and options.launches < request.launches:
        planned = f"{options.launches} is fewer than the {request.launches} that this run was asked for"
        raise RequestError("--launches", planned, "name how many of each scenario there shall be in all")
    launches = options.launches or request.launches
    if not resume.anything_missing(document, replace(request, launches=launches)):
        finished = Finished.read(path)
        say(f"{os.path.basename(path)} has all that was asked for: there is nothing to resume")
        return _show(finished, launches, options)
    request, scenarios = resume.continued(path, document, party, force=options.force)
    start = Start(out=options.out, wait=options.wait, resumed=path, party=party)
    return _show(pipeline.run(replace(request, launches=launches), scenarios, start), launches, options)


def _show(finished: Finished, launches: int, options: Options) -> int:
    """Print the answer, the table and what to do next. ``launches``: of each scenario."""
    from bench.words.advice import more_wanted

    run = finished.run
    believed = bool(run.overview["validity"].isin(("valid", "warning")).any())
    lines = [
        *answered(run, width=columns(people(options)), verbose=options.verbose),
        *how_precise(run.document),
        *(_where_time_went(finished) if options.verbose and finished.spent else ()),
        "",
        _next_steps(run.path, finished.failed, launches, more_wanted(run.document, run.overview), believed),
    ]
    reply(options, "", *lines, document=lambda: for_programs(run))
    return FAILED if finished.failed else OK


def _where_time_went(finished: Finished) -> Iterator[str]:
    """A table of the time of this command, from its start until now."""
    after_s, whole_s = time.monotonic() - finished.ended_s, machine.age_s()
    before_s = whole_s - after_s - sum(finished.spent.values())
    parts = {"before the first launch": before_s, **finished.spent, "answer": after_s}
    yield from ("", f"Where the {duration(whole_s)} of this run went:")
    rows = [(what, f"{seconds:,.1f}", f"{seconds / whole_s:.0%}") for what, seconds in parts.items()]
    yield align([("what", "s", "share"), *rows], left=("what",))


def run_parser() -> Parser:
    texts = {key: f"{one.launches} x ({one.warmup} + {one.iters})" for key, one in PROFILES.items()}
    names = dict.fromkeys(name for name, _ in PROFILES)
    rows = [f"  {name:<10} GPU {texts[name, 'cuda']:<16} CPU {texts[name, 'cpu']}" for name in names]
    parser = Parser("run", DESCRIPTION, EPILOG.format(profiles="\n".join(rows)), ELSEWHERE)
    add_work(parser, usual_set=PUBLISHED)
    much = add_steps(parser, "how much", "launches, warm-up and steps, see below (default: quick)")
    many = "launches of each scenario (with --resume: in total)"
    much.add_argument("--launches", type=whole_number, metavar="R", help=many)
    search = "instead: the largest global batch of each scenario that trains and leaves 5%% of the memory free; "
    begin = "on GPUs the search begins at --global-batch"
    much.add_argument("--find-batch", action="store_true", help=search + begin)
    sweep = "first how fast the loader alone is with 0, 1, 2, 4, ... workers of each rank, and training alone; then "
    both = "both together with as many as are enough (default: ddp, and at least 3 launches of each)"
    much.add_argument("--input-sweep", action="store_true", help=sweep + both)
    until = "add launches until every step time is known within this (half-width of its 95%% interval)"
    much.add_argument("--until-precision", type=percentage, metavar="1%", help=until)
    limit = f"the most that --until-precision (default: {DEFAULT_BUDGET_S / 60:.0f}m) or --find-batch may take in all"
    much.add_argument("--budget", type=span, metavar="20m", help=limit)
    why = parser.add_argument_group("why")
    yes_or_no = argparse.BooleanOptionalAction
    default = "a launch of each scenario that shows where the time goes (default: with standard and nightly)"
    why.add_argument("--diagnose", action=yes_or_no, help=default)
    trace = "keep a profile of each rank for Perfetto or Chrome (implies --diagnose)"
    why.add_argument("--trace", action="store_true", help=trace)
    default = "compare losses and gradients with an fp32 reference (default: yes)"
    why.add_argument("--parity", action=yes_or_no, default=True, help=default)
    for name, one in with_options().items():
        why.add_argument(f"--{name.replace('_', '-')}", **one)
    add_result(parser)
    return parser


def check_experiment(options: Options) -> None:
    """Refuse what would be ignored: by a search for the largest batch, by a sweep of the input, or beside others."""
    if options.budget is not None and options.until_precision is None and not options.find_batch:
        what = "it has no effect without --until-precision or --find-batch"
        raise RequestError("--budget", what, "add one of them, such as --until-precision 1%")
    if options.until_precision is not None and options.launches is not None and options.launches < FIRST_STAGE:
        what = f"--until-precision begins with {FIRST_STAGE} launches of each scenario"
        raise RequestError("--launches", what, f"leave it out, or give at least {FIRST_STAGE}")
    if options.trace and options.diagnose is False:
        raise RequestError("--trace", "the profile is taken in the launch that --no-diagnose leaves out", "choose one")
    asked = next((name for name in EXPERIMENTS if getattr(options, name)), None)
    if asked is None:
        return
    why, ignored = EXPERIMENTS[asked][0], (*EXPERIMENTS[asked][1], *with_options())
    values = {name: getattr(options, name) for name in ignored}  # of which --workers 0 is given, and equal to False
    given = [name for name, value in values.items() if value is not None and value is not False and value != "quick"]
    if given:
        option, experiment = (f"--{name.replace('_', '-')}" for name in (given[0], asked))
        raise RequestError(option, f"{experiment} {why}", "leave one out")


def how_precise(document: RunDocument) -> list[str]:
    """What came of ``--until-precision``, in a line."""
    asked = document.of(IntervalTargetRecord)
    if asked is None:
        return []
    wanted = f"±{100 * asked.target:g} %"
    outcomes = {
        "precision": f"Every step time is known within {wanted}, after {duration(asked.spent_s)}",
        "budget": f"The budget of {duration(asked.budget_s)} was spent before {wanted} was reached",
        "failures": f"{wanted} was not reached: no scenario could be measured",
        "launches": f"{wanted} was not reached with the most launches that a scenario may have",
    }
    return [outcomes[asked.stopped_by]]


def _next_steps(path: str, failed: int, launches: int, more: int | None, believed: bool) -> str:
    """``launches``: of each scenario; ``more``: how many more would show a small difference, about. ``believed``: true
    if any result is valid."""
    lines = [f"Run folder: {place(path)}"]
    if failed:
        lines.append(f"{count(failed, 'launch', 'launches')} failed: what was printed is in {place(path)}/logs")
    lines.append(f"Next, as a page with plots: python -m bench report {called(path)}")
    add = f"python -m bench run --resume {called(path)} --launches"
    if believed and launches < FEWEST_LAUNCHES:
        few = f"{launches} launches show little of" if launches > 1 else "One launch cannot show"
        lines.append(f"{few} run-to-run variation; for reliable numbers: {add} {FIRST_STAGE}")
    elif believed and more and launches + more <= MOST_LAUNCHES:
        lines.append(f"To add {count(more, 'launch', 'launches')} of each scenario: {add} {launches + more}")
    return "\n".join(lines)
