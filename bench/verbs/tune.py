"""``python -m bench tune``: search for the fastest way to train something that still trains it."""

from contextlib import suppress
from dataclasses import replace

from bench.console import COMMAND, columns
from bench.core.codec import encode
from bench.core.errors import FAILED, OK, RequestError
from bench.experiments import resume
from bench.experiments.batch_tuning import tune_batches
from bench.experiments.lab import Finished, Start
from bench.experiments.plan.tuning import FINAL_LAUNCHES
from bench.experiments.tuning import needed_gib, tune
from bench.runs.experiments import Tuning
from bench.seams import discover, switching
from bench.seams.discover import SWITCH, Found
from bench.seams.strategy import LEVELS
from bench.sites.hosts.party import Party
from bench.verbs.asked import DEFAULT_BUDGET_S, Options, add_result, add_steps, add_work, begun, request_of
from bench.verbs.options import Parser, called, gibibytes, next_steps, people, place, reply, span
from bench.verbs.sets import scenarios_of
from bench.verbs.show import answered
from bench.verbs.together import on_all_hosts

BASELINE = "ddp"
USUAL_SET = "scenarios"

DESCRIPTION = """\
Search for the fastest way to train this that still trains it. All candidates race: each round is one launch of those
that are still in, and those that are beaten drop out. The best are tried with switches. What trains another model, runs
out of memory or exceeds the limit is out, with its reason. The finalists are measured by fresh launches at the end.
"""
EPILOG = """\
examples:
  python -m bench tune                                   every scenario, in 20 minutes
  python -m bench tune --workload ./mine.py --budget 10m   your own model
  python -m bench tune --memory-limit 40                 what fits into 40 GiB of each GPU
  python -m bench tune --precision-floor same            fp32 only
  python -m bench tune --tune-batch                      the batch per rank, too
  python -m bench tune --resume latest                   go on after an interruption

Exit codes: 0 done; 1 a finalist failed; 2 the request is wrong, or nothing can be used; 130 interrupted, and what was
done is in the run.
"""


def main(arguments: list[str]) -> int:
    return on_all_hosts(arguments, _parser(), _asked)


def _asked(options: Options, parser: Parser, party: Party | None) -> int:
    if options.resume is not None:
        return _resume(options, parser, party)
    if options.tune_batch and party is not None:
        what = "each batch is a separate run, and several hosts are for one"
        raise RequestError("--tune-batch", what, "leave it out, or start bench on one host for it")
    set_ = options.set or (None if options.scenario else USUAL_SET)
    by_name = {found.name: found for found in scenarios_of(options.scenario, set_, options.switches, options.device)}
    baseline = by_name.pop(BASELINE, None) or switching.scenario(BASELINE)
    candidates = (baseline, *by_name.values())  # a budget that is too short is known after one launch of the baseline
    request = replace(request_of(options, candidates, party), launches=FINAL_LAUNCHES)
    if not options.scenario:  # whose order stands
        candidates = tuple(sorted(candidates, key=lambda found: _promise(found, request.device)))
        request = replace(request, scenarios=tuple(found.name for found in candidates))
    search = Tuning(
        asked=request.scenarios,
        budget_s=options.search_budget,
        memory_limit_mib=options.memory_limit and 1024 * options.memory_limit,
        floor=options.precision_floor,
        allow=_allowed(options.allow, request.device, options.precision_floor),
        baseline=BASELINE,
    )
    start = Start(out=options.out, wait=options.wait, party=party)
    if not options.tune_batch:
        return _show(tune(request, candidates, search, start), options)
    best, tried = tune_batches(request, candidates, search, start)
    return _show(best, options, tried)


def _resume(options: Options, parser: Parser, party: Party | None) -> int:
    path, document, request = begun(options, parser, "tune")
    if not resume.anything_missing(document, request):
        return _show(Finished.read(path), options)
    request, candidates = resume.continued(path, document, party, force=options.force)
    tuning = document.begun(Tuning)
    request = replace(request, scenarios=tuning.asked, launches=FINAL_LAUNCHES)
    start = Start(out=options.out, wait=options.wait, resumed=path, party=party)
    return _show(tune(request, candidates, tuning, start), options)


def _allowed(asked: str | None, device: str, floor: str) -> tuple[str, ...]:
    """The precision levels and the switches to try. Raises :class:`RequestError` for an unknown name."""
    if asked is None:
        switches = {name: switching.load_switch(name, file) for name, file in discover.names(SWITCH).items()}
        gain = (name for name, one in switches.items() if device in one.searched_on and one.device in (None, device))
        return (*(LEVELS if floor == "half" else ()), *gain)
    names = () if asked.strip() == "none" else tuple(part.strip() for part in asked.split(",") if part.strip())
    for name in set(names).difference(LEVELS):
        switching.switch_on(name, "--allow")
    return names


def _promise(found: Found, device: str) -> tuple[bool, ...]:
    """Where a candidate stands in line, in case the budget ends before its turn: behind the baseline the same strategy
    at other levels, on a GPU those in half before those in fp32, where a CPU gains nothing by half."""
    half = found.scenario.precision != "O0"
    return found.name != BASELINE, found.strategy_name != BASELINE, half is (device == "cpu")


def _show(finished: Finished, options: Options, batches: dict[int, str] | None = None) -> int:
    """``batches``: what came of each global batch that was tried."""
    from bench.analyse.verdicts import records
    from bench.report.recipe import script
    from bench.words.tuned import nothing_usable

    run, path = finished.run, finished.run.path
    tuning = run.document.begun(Tuning)
    if not tuning.finalists:
        least = min((one.peak_mib for one in tuning.candidates.values() if one.peak_mib is not None), default=None)
        if tuning.memory_limit_mib is not None and least is not None and least > tuning.memory_limit_mib:
            what = f"nothing fits into {tuning.memory_limit_mib / 1024:,.2f} GiB ({place(path)} has what was tried)"
            raise RequestError("--memory-limit", what, f"the least that trains is {needed_gib(least):,.2f} GiB")
        raise RequestError("--scenario", nothing_usable(tuning), f"{place(path)} has the logs")
    chosen = run.document.workload.global_batch
    tried = [f"Global batch {one}: {text}{' (chosen)' * (one == chosen)}" for one, text in (batches or {}).items()]
    after = next_steps(path)
    with suppress(RequestError):  # not every scenario can be written as a script
        script(run, None)
        after += f"\nAs a script: {COMMAND}recipe {called(path)} --out train.py"
    answer = answered(run, width=columns(people(options)), verbose=options.verbose)
    document = {"path": path, **encode(run.document), "summary": records(run.overview), "batches": batches}
    reply(options, "", *answer, *(["", *tried] if tried else []), "", after, document=lambda: document)
    return FAILED if finished.failed else OK


def _parser() -> Parser:
    parser = Parser("tune", DESCRIPTION, EPILOG)
    add_work(parser, usual_set=USUAL_SET)
    what = parser.add_argument_group("what is searched")
    limit = "for all of it, the finalists included (default: 20m)"
    what.add_argument("--budget", dest="search_budget", type=span, metavar="20m", default=DEFAULT_BUDGET_S, help=limit)
    limit = "of each device, for all processes on it (default: what it has)"
    what.add_argument("--memory-limit", type=gibibytes, metavar="GiB", help=limit)
    floor = "the numerics that are good enough: as in fp32, or within half precision (default: half)"
    what.add_argument("--precision-floor", choices=("same", "half"), default="half", help=floor)
    larger = "search again at twice the batch, as long as an example then takes clearly less time"
    what.add_argument("--tune-batch", action="store_true", help=larger)
    which = "switches and levels to try on the best, or 'none' (default: o1, o2, o3 and what may gain speed here)"
    what.add_argument("--allow", metavar="SWITCH[,SWITCH...]", help=which)
    add_steps(parser, "each launch", "warm-up and measured steps, see 'bench run --help' (default: quick)")
    add_result(parser)
    return parser
