"""``python -m bench scale``: what more devices bring, what is lost on the way, and how it goes on."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from bench import machine
from bench.analyse.algorithms import Algorithms
from bench.console import count as quantity
from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.experiments import resume
from bench.experiments.lab import Finished, Start
from bench.experiments.plan import PROFILES, RANKS, Request
from bench.experiments.plan.interval_target import FEWEST_LAUNCHES
from bench.experiments.plan.scaling import EACH, MODES, default_counts
from bench.experiments.scaling import scale
from bench.runs.experiments import Scaling
from bench.seams.discover import Found
from bench.sites.hosts.party import Party
from bench.verbs.asked import DEFAULT_RANKS, Options, add_result, add_steps, add_work, begun, request_of
from bench.verbs.options import Parser, what_if, whole_number, whole_numbers
from bench.verbs.sets import scenarios_of
from bench.verbs.show import finished
from bench.verbs.together import on_all_hosts

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed
USUAL = "ddp"

DESCRIPTION = """\
Train on 1, 2, 4, ... devices, and show what is left of the speed of each: with the same batch on each device (weak
scaling) and with the same batch in all (strong scaling). Diagnostic launches tell what the rest is spent on, and
launches of all-reduces alone how fast the link is. From these and one rank by itself, more devices are predicted.
"""
EPILOG = """\
examples:
  python -m bench scale                                  ddp on 1, 2, 4, ... up to all GPUs
  python -m bench scale --scenario ddp_o2 --counts 1,4   these numbers of devices (1 is always measured)
  python -m bench scale --weak                           only with the same batch on each device
  python -m bench scale --predict 16,64,1024             what to expect of more devices
  python -m bench scale --resume latest --what-if bandwidth=100Gbit   a run that is done, on a faster link
  python -m bench scale --each                           is one of the GPUs slow?
  python -m bench scale --resume latest                  go on after an interruption

Exit codes: 0 done; 1 a launch failed, and the others are in the run; 2 the request is wrong, and nothing was run; 130
interrupted, and what was done is in the run.
"""


def main(arguments: list[str]) -> int:
    return on_all_hosts(arguments, _parser(), _asked)


def _asked(options: Options, parser: Parser, party: Party | None) -> int:
    if options.resume is not None:
        return _resume(options, parser, party)
    chosen = scenarios_of(options.scenario or [USUAL], None, options.switches, options.device)
    if len(chosen) > 1:
        raise RequestError("--scenario", "bench scale is about one scenario", "name one, such as ddp")
    (found,) = chosen
    request, asked = (_each if options.each else _curves)(found, options, party)
    launches = options.launches or max(PROFILES[options.profile, request.device].launches, FEWEST_LAUNCHES)
    request = replace(request, launches=launches, parity=False, diagnose=False)
    return _show(scale(request, found, asked, Start(out=options.out, wait=options.wait, party=party)), options)


def _curves(found: Found, options: Options, party: Party | None) -> tuple[Request, Scaling]:
    """Several numbers of devices, with a batch that all can share."""
    modes = tuple(mode for mode in MODES if getattr(options, mode)) or MODES
    counts = _counts(options, party)
    _check_scenario(found, counts, machine.choose_device(options.device)[0])
    request = request_of(options, (found,), party)
    request = replace(request, devices=request.devices[: max(counts)], replicas=max(counts))
    share = math.lcm(*counts) if "strong" in modes else max(counts)
    if options.global_batch is None and options.batch_per_rank is None:
        request = replace(request, global_batch=share * max(1, round(request.global_batch / share)))
    batch, predict, mbit = request.global_batch // max(counts), options.predict or (), options.what_if
    return request, Scaling(counts=counts, modes=modes, batch_per_rank=batch, predict=predict, what_if_mbit=mbit)


def _each(found: Found, options: Options, party: Party | None) -> tuple[Request, Scaling]:
    """Every chosen device by itself; on the CPU every part of the cores."""
    for name in ("counts", "weak", "strong", "predict", "what_if"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            raise RequestError(option, "--each measures every device by itself", "leave one of them out")
    device, gpus, _ = machine.choose_device(options.device)
    hosts = machine.here(machine.choose_gpus(options.gpus, gpus)) if party is None else party.hosts
    many = sum(len(host.devices) for host in hosts)
    if device == "cpu":
        cores = min(host.cores for host in hosts) * len(hosts)
        many = options.ranks = options.ranks or cores
        if many > cores:
            what = f"{many} parts of {cores} cores are less than a core each"
            raise RequestError(RANKS, what, f"use at most {cores}")
    if many < 2:
        option = RANKS if device == "cpu" else "--gpus"
        raise RequestError(option, "there is one device, and nothing to compare it with", "give at least 2")
    if options.launches == 1:
        raise RequestError("--launches", "one launch of each shows no scatter to judge by", "give at least 2")
    _check_scenario(found, (1,), device)
    request = request_of(options, (found,), party)
    batch = request.global_batch // request.replicas
    return request, Scaling(counts=(request.replicas,), modes=(EACH,), batch_per_rank=batch)


def _counts(options: Options, party: Party | None) -> tuple[int, ...]:
    """The numbers of devices, of which the largest becomes that of the request."""
    _, gpus, _ = machine.choose_device(options.device)
    hosts = machine.here(machine.choose_gpus(options.gpus, gpus)) if party is None else party.hosts
    chosen = [uuid for host in hosts for uuid in host.devices]
    most = len(chosen) or options.ranks or max(options.counts or (DEFAULT_RANKS, len(hosts)))
    counts: tuple[int, ...] = options.counts or default_counts(most)
    if max(counts) > most:
        what = f"{max(counts)} is more than the {most} {'chosen GPUs' if chosen else 'ranks of --ranks'}"
        raise RequestError("--counts", what, f"use at most {most}" if chosen else "leave --ranks out")
    if max(counts) == 1:
        option = "--counts" if options.counts else "--gpus" if chosen else RANKS
        raise RequestError(option, "there is one device, and nothing to compare it with", "give at least 2")
    if chosen and party is None:
        options.gpus = ",".join(chosen[: max(counts)])
    elif not chosen:
        options.ranks = max(counts)
    return counts


def _check_scenario(found: Found, counts: tuple[int, ...], device: str) -> None:
    for count in (1, *counts):
        ranks = found.strategy.ranks(count)
        replicas = sum(rank.replicas if device != "cpu" or rank.on_cpu is None else rank.on_cpu for rank in ranks)
        if replicas != count:
            has = quantity(replicas, "replica")
            what = f"{found.name} trains {has} on {quantity(count, 'device')}"
            raise RequestError("--scenario", what, "choose one with a replica on each device, such as ddp")


def _resume(options: Options, parser: Parser, party: Party | None) -> int:
    """Go on with a run, or show a finished one again, perhaps with other predictions."""
    path, document, request = begun(options, parser, "scale", also=("predict", "what_if"))
    if not resume.anything_missing(document, request):
        return _show(Finished.read(path), options)
    request, (found,) = resume.continued(path, document, party, force=options.force)
    scaling = document.begun(Scaling)
    predict, mbit = options.predict or scaling.predict, options.what_if or scaling.what_if_mbit
    start = Start(out=options.out, wait=options.wait, resumed=path, party=party)
    return _show(scale(request, found, replace(scaling, predict=predict, what_if_mbit=mbit), start), options)


def _show(done: Finished, options: Options) -> int:
    from bench.report.scaling import on_terminal

    return finished(
        done,
        options,
        lambda run, width: on_terminal(run, width, options.predict or (), options.what_if),
        lambda run: {"path": run.path, **encode(run.document), "scale": for_programs(run, options)},
    )


def for_programs(run: "Analysed", options: Options) -> dict[str, object]:
    from bench.analyse import all_reduce
    from bench.analyse.each import devices, scan_of
    from bench.analyse.predicted import largest_error
    from bench.analyse.scaling import foreseen, scaled
    from bench.report.values import point

    scaling = run.document.begun(Scaling)
    if scaling.by_itself:
        return {"devices": encode(devices(run)), "scan": encode(scan_of(run))}
    checks, asked = foreseen(run, options.predict or (), options.what_if)
    return {
        "points": [point(one) for one in scaled(run)],
        "all_reduces": all_reduce.for_programs(scaling.bandwidth, Algorithms.of(run.document)),
        "checks": encode(checks),
        "largest_error": largest_error(checks),
        "predictions": encode(asked),
    }


def _parser() -> Parser:
    parser = Parser("scale", DESCRIPTION, EPILOG)
    add_work(parser, usual=USUAL)
    what = parser.add_argument_group("how it scales")
    default = "numbers of devices (default: powers of two up to all that are chosen, and all)"
    what.add_argument("--counts", type=whole_numbers, metavar="1,2,4,8", help=default)
    what.add_argument("--weak", action="store_true", help="the same batch on each device (default: both)")
    what.add_argument("--strong", action="store_true", help="the same batch in all (default: both)")
    default = "numbers of devices to predict (default: 2, 4 and 8 times as many as are measured)"
    what.add_argument("--predict", type=whole_numbers, metavar="16,64,1024", help=default)
    faster = "predict for a link of this bandwidth; its latency stays as measured"
    what.add_argument("--what-if", type=what_if, metavar="bandwidth=100Gbit", help=faster)
    alone = "instead: every GPU by itself (on the CPU: every core, or part of --ranks parts), and which one is slow"
    what.add_argument("--each", action="store_true", help=alone)
    much = add_steps(parser, "how much", f"see 'bench run --help' (default: quick, with {FEWEST_LAUNCHES} launches)")
    much.add_argument("--launches", type=whole_number, metavar="R", help="launches of each number of devices")
    add_result(parser)
    return parser
