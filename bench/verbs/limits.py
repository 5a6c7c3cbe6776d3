"""``python -m bench limits``: what this machine could do on this model, and where the rest of the step goes."""

from dataclasses import replace

from bench.core.errors import RequestError
from bench.experiments import pipeline
from bench.experiments.lab import Start
from bench.experiments.obstacles import drives_several_gpus
from bench.sites.hosts.party import Party
from bench.verbs.asked import Options, add_result, add_steps, add_work, request_of
from bench.verbs.options import Parser, whole_number
from bench.verbs.run import resumed
from bench.verbs.sets import scenarios_of
from bench.verbs.show import finished, for_programs
from bench.verbs.together import on_all_hosts

USUAL = "ddp"
DESCRIPTION = """\
How far is the fastest from the possible? Measures what the devices of this machine hold for seconds (matrix products
and convolutions in each type, memory, copies, a kernel's launch), takes a step of this model apart, and accounts for
all of it: arithmetic at the ceiling, kernels below it, memory-bound operators, communication, data, Python. What is
left over is shown as unexplained.
"""
EPILOG = """\
How to read it:
  limit        what no kernels can beat here: FLOPs and bytes of each operator over the measured ceilings
  own limit    what the step cannot beat with these kernels: each operator with its own shapes, alone and warm
  MFU          model FLOPs over the dense nominal peak; data sheets often show twice as much, with sparsity

Ceilings take a minute. They are kept under ~/.cache/bench by device, driver, torch version and number of ranks, and a
later run on this machine uses them. On a busy CPU they are measured and not kept.

examples:
  python -m bench limits                                  ddp on ResNet-101
  python -m bench limits --workload gpt --scenario single
  python -m bench limits --scenario ddp_o2 --launches 5   with intervals over five launches

Exit codes: 0 done; 1 a launch failed, and the others are in the run; 2 the request is wrong, and nothing was run; 130
interrupted, and what was done is in the run.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("limits", DESCRIPTION, EPILOG)
    add_work(parser, usual=USUAL)
    much = add_steps(parser, "how much", "see 'bench run --help' (default: quick)")
    many = "launches of the scenario, and as many that take a step apart"
    much.add_argument("--launches", type=whole_number, metavar="R", help=many)
    add_result(parser)
    return on_all_hosts(arguments, parser, _limits)


def _limits(options: Options, parser: Parser, party: Party | None) -> int:
    if options.resume is not None:
        return resumed(options, parser, party)
    chosen = scenarios_of(options.scenario or [USUAL], None, options.switches, options.device)
    request = request_of(options, chosen, party)
    request = replace(request, parity=False, experiments={"limits": True})
    if drives_several_gpus(request, chosen[0].strategy):
        problem = f"each process of {chosen[0].name} drives several GPUs at once: their times add up to no step"
        raise RequestError("--scenario", problem, "choose another, such as ddp, or one GPU")
    done = pipeline.run(request, chosen, Start(out=options.out, wait=options.wait, party=party))
    from bench.report.limits import on_terminal

    return finished(done, options, on_terminal, for_programs)
