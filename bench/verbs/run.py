"""``python -m bench run``: measure scenarios and write a run folder."""

import argparse
import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from bench import machine
from bench.console import Console, align, columns, count, duration, tell
from bench.core.codec import encode
from bench.core.errors import FAILED, OK, RequestError
from bench.core.records import Setting, Task
from bench.experiments import resume
from bench.machine import nvml
from bench.machine.redact import HIDDEN, without_secrets
from bench.plan import PROFILES, Request, check_memory, global_batch
from bench.plan.interval_target import FEWEST_LAUNCHES
from bench.runs.document import IntervalTargetRecord
from bench.runs.names import find
from bench.runs.reader import read, verified
from bench.seams import discover
from bench.seams.discover import DEFAULT_WORKLOAD, WORKLOAD, Found, FoundWorkload
from bench.seams.workload import setting_from
from bench.verbs.options import (
    DEFAULT_OUT,
    Parser,
    called,
    check_apex,
    check_python,
    checkpoint,
    device_count,
    percentage,
    place,
    print_json,
    seconds,
    seed,
    span,
    whole_number,
    worker_count,
)
from bench.verbs.sets import scenarios_of
from bench.verbs.show import answered, for_programs

if TYPE_CHECKING:
    from bench.experiments.lab import Finished

DEFAULT_BUDGET_S = 1200.0
DEFAULT_RANKS = 2
MOST_DEFAULT_WORKERS = 4

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
  python -m bench run --resume latest                        what is missing of a run or failed in it
  python -m bench run --resume latest --launches 11          more launches of each scenario, in the same run

Profiles, as launches of each scenario x (warm-up + measured steps):
{profiles}

Exit codes: 0 all launches were done; 1 a launch failed, and the others are in the run; 2 the request is wrong, and
nothing was run; 130 interrupted, and what was done is in the run.
"""

SAME = (
    "profile",
    "impl",
    "python",
    "seed",
    "fresh",
    "label",
    "until_precision",
    "trace",
    "parity",
    "force",
    "checkpoint",
)
"""Options that stand in a request under the same name and as they are given."""

EXPERIMENTS = {
    "find_batch": (
        "has short launches of its own, which it decides on",
        ("launches", "until_precision", "iters", "warmup", "profile", "diagnose", "trace", "input_sweep", "checkpoint"),
    ),
    "input_sweep": (
        "measures the loader, training, and both together, and chooses the workers",
        ("workers", "until_precision", "diagnose", "trace", "set", "checkpoint"),
    ),
}
"""By option of an experiment what it does in place of what other options ask for, and those options."""


PRECISION = "the precision is part of a scenario, such as --scenario ddp_o2 (python -m bench list has them)"
ELSEWHERE = {"--precision": PRECISION, "--amp": PRECISION, "--strategy": PRECISION.replace("precision", "strategy")}


def main(arguments: list[str]) -> int:
    parser = run_parser()
    options = parser.parse_args(arguments)
    if options.resume is not None:
        return _resume(options, parser)
    if options.trust:
        raise RequestError("--trust", "it has no effect without --resume", "leave it out")
    _check_experiment(options)
    asked = ["ddp"] if options.input_sweep and not options.scenario else options.scenario
    scenarios = scenarios_of(asked, options.set, options.switches, options.device)
    if options.input_sweep and len(scenarios) > 1:
        raise RequestError("--scenario", "--input-sweep is about one scenario", "name one, such as ddp")
    request = request_of(options, scenarios)
    check_memory(request, scenarios, machine.available_memory_bytes())
    if options.find_batch:
        return _find_batch(request, scenarios, options)
    from bench.experiments import pipeline

    finished = pipeline.run(request, scenarios, out=options.out, console=Console(), wait=options.wait)
    if request.input_sweep:
        request = resume.request_of(finished.document)  # which has the workers that were chosen
    return _show(finished, request, scenarios, options)


def _find_batch(request: Request, scenarios: tuple[Found, ...], options: argparse.Namespace) -> int:
    from bench.experiments.batch_search import find_batches

    finished = find_batches(request, scenarios, out=options.out, console=Console(), wait=options.wait)
    search = finished.document.batch_search
    assert search is not None
    rows: list[tuple[str, ...]] = [("scenario", "largest batch", f"{request.task.unit_short}/s", "MiB", "the next one")]
    for name, found in search.scenarios.items():
        figures = (found.largest, found.throughput_per_s, found.peak_mib)
        texts = ["-" if value is None else f"{value:,.0f}" for value in figures]
        over = f"{found.too_large:,}: {found.why_not}" if found.too_large else "-"
        if found.stopped_by == "budget":
            texts[0] = f"at least {texts[0]} (stopped by the budget)" if found.largest else "- (stopped by the budget)"
        rows.append((name, *texts, over))
    people = sys.stderr if options.json else sys.stdout
    table = align(rows, left=("scenario", "the next one"), width=columns(people))
    tell("", table, "", f"Run folder: {place(finished.path)}", file=people)
    if options.json:
        print_json({"path": finished.path, **encode(finished.document)})
    return FAILED if finished.failed else OK


def _resume(options: argparse.Namespace, parser: Parser) -> int:
    """Continue a run under its own request."""
    refuse_other_options(options, parser, ("resume", "trust", "out", "wait", "force", "json", "verbose", "launches"))
    path = find(options.resume, options.out, "--resume")
    document = verified(path, allow_incomplete=True, option="--resume")
    if not options.trust:
        resume.refuse_what_is_foreign(path, document)
    request = resume.request_of(document)
    if options.launches is not None and options.launches < request.launches:
        planned = f"{options.launches} is fewer than the {request.launches} that this run was asked for"
        raise RequestError("--launches", planned, "name how many of each scenario there shall be in all")
    request = replace(request, force=request.force or options.force, launches=options.launches or request.launches)
    request = replace(request, task=resume.as_it_is_now(request.task))
    from bench.experiments import lab, pipeline

    if document.complete and not resume.anything_missing(document, request):
        return _show(lab.Finished(path=path, document=document), request, None, options)
    resume.check_site(document, request.site)
    scenarios = resume.scenarios_of(document)
    finished = pipeline.run(request, scenarios, out=options.out, console=Console(), wait=options.wait, resumed=path)
    return _show(finished, request, scenarios, options)


def refuse_other_options(options: argparse.Namespace, parser: Parser, allowed: tuple[str, ...]) -> None:
    """Refuse what a run that is resumed takes from its own request."""
    for action in parser._actions:
        if action.dest not in (*allowed, "help") and getattr(options, action.dest) != parser.get_default(action.dest):
            option = action.option_strings[-1 if getattr(options, action.dest) is False else 0]  # --parity, --no-parity
            raise RequestError(option, "a run is resumed with the options that it was started with", "leave it out")


def _show(
    finished: "Finished", request: Request, scenarios: tuple[Found, ...] | None, options: argparse.Namespace
) -> int:
    """Print the answer of a run that is on disk, its table, and what to do next. ``scenarios``: None where nothing was
    left to do.
    """
    from bench.analyse.advice import more_wanted
    from bench.analyse.analysed import Analysed
    from bench.analyse.overview import overview

    done = Analysed.of(read(finished.path))
    table = overview(done)
    people = sys.stderr if options.json else sys.stdout
    shown = (
        "",
        *answered(done, table, width=columns(people), verbose=options.verbose),
        *_how_precise(done.document.interval_target),
        "",
        _next_steps(request, scenarios, finished.path, finished.failed, more_wanted(done.document, table)),
    )
    if scenarios is None:
        name = os.path.basename(finished.path)
        tell(f"{name} has all that was asked for: there is nothing to resume", file=sys.stderr)
    tell(*shown, file=people)
    if options.json:
        print_json(for_programs(done, table))
    return FAILED if finished.failed else OK


def add_work(parser: Parser) -> None:
    """The options that say what is measured, and where."""
    what = parser.add_argument_group("what is measured")
    default = "scenarios or files, each with switches behind it: ddp+channels_last (default: the ten of 'bench list')"
    what.add_argument("--scenario", action="append", metavar="NAME[,NAME...]", help=default)
    sets = "scenarios by what they have in common: published (the default), strategies, ladder, all, or a set of yours"
    what.add_argument("--set", metavar="NAME", help=sets)
    switches = "switches for all of these scenarios, such as channels_last,bucket_mb=50 ('bench list' shows all)"
    what.add_argument("--with", action="append", dest="switches", metavar="NAME[=VALUE][,...]", help=switches)
    what.add_argument("--impl", choices=("auto", "native", "apex"), default="auto", help="whose O1-O3 and apex DDP run")
    what.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05 or older")
    default = f"what every scenario trains (default: {DEFAULT_WORKLOAD})"
    what.add_argument("--workload", default=DEFAULT_WORKLOAD, metavar="NAME|FILE", help=default)
    what.add_argument("--model", metavar="NAME", help="of resnet101: any classification model of torchvision")
    what.add_argument("--image-size", type=whole_number, metavar="PX", help="of resnet101: the edge of an image")
    which = "any setting of the workload ('bench list --json' has them)"
    what.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help=which)
    real = "a folder of real data for the workload (default: made-up data, ready in memory)"
    what.add_argument("--data", metavar="DIR", help=real)
    default = (
        "processes of each rank that load its data, 0: the rank itself (default with --data: its cores, at most 4)"
    )
    what.add_argument("--workers", type=worker_count, metavar="N", help=default)
    batch = what.add_mutually_exclusive_group()
    default = "examples a step in all (default: the workload's own; of resnet101 128, on the CPU 8)"
    batch.add_argument("--global-batch", type=whole_number, metavar="N", help=default)
    batch.add_argument("--batch-per-rank", type=whole_number, metavar="N", help="examples a step for each device")
    what.add_argument("--seed", type=seed, default=0, help="of weights and data (default: 0)")
    where = parser.add_argument_group("where")
    devices = ("auto", "cpu", "cuda")
    where.add_argument("--device", choices=devices, default="auto", help="default: GPUs if there are any")
    where.add_argument("--gpus", metavar="0,1,3", help="GPUs by index in PCI order or by UUID (default: all)")
    where.add_argument("--nproc", type=device_count, metavar="N", help=f"ranks on the CPU (default: {DEFAULT_RANKS})")
    where.add_argument("--python", metavar="PATH", help="the interpreter whose torch is measured (default: this one)")
    where.add_argument("--site", metavar="NAME|FILE", default="local", help="what starts the ranks (default: local)")
    where.add_argument("--force", action="store_true", help="also on GPUs that others are using")
    where.add_argument("--wait", action="store_true", help="queue while another run has the GPUs or the CPU")
    where.add_argument("--fresh", action="store_true", help="a new interpreter for every rank instead of forks")
    limit = "end a launch that makes no step for S seconds"
    where.add_argument("--stall-timeout", type=seconds, metavar="S", default=30.0, help=limit)


def run_parser() -> Parser:
    parser = Parser("run", DESCRIPTION, EPILOG.format(profiles=_profiles()), ELSEWHERE)
    add_work(parser)
    much = parser.add_argument_group("how much")
    profiles = sorted({name for name, _ in PROFILES}, key=("quick", "standard", "nightly").index)
    default = "launches, warm-up and steps, see below (default: quick)"
    much.add_argument("--profile", choices=profiles, default="quick", help=default)
    much.add_argument("--warmup", type=whole_number, metavar="N", help="warm-up steps, left out of every statistic")
    much.add_argument("--iters", type=whole_number, metavar="N", help="measured steps of each launch")
    much.add_argument(
        "--launches", type=whole_number, metavar="R", help="launches of each scenario, with --resume in all"
    )
    search = "instead: the largest global batch of each scenario that trains and leaves 5%% of the memory free; "
    begin = "on GPUs the search begins at --global-batch"
    much.add_argument("--find-batch", action="store_true", help=search + begin)
    sweep = "first how fast the loader alone is with 0, 1, 2, 4, ... workers of each rank, and training alone; then "
    both = "both together with as many as are enough (default: ddp, and at least 3 launches of each)"
    much.add_argument("--input-sweep", action="store_true", help=sweep + both)
    default = "between samples of memory (default: 0.25; longer if slow)"
    much.add_argument("--sample-interval", type=seconds, metavar="S", help=default)
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
    saved = "launches that save a checkpoint every N steps: its cost per step, its size, the time to resume; "
    how = "how=torch (default), dcp or dcp_async (torch.distributed.checkpoint)"
    why.add_argument("--checkpoint", type=checkpoint, metavar="every=N[,how=H]", help=saved + how)
    add_result(parser)
    return parser


def add_result(parser: Parser) -> None:
    result = parser.add_argument_group("result")
    default = f"where the run folder goes (default: {DEFAULT_OUT})"
    result.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help=default)
    result.add_argument("--resume", metavar="RUN", help="do what is missing or failed in a run")
    trust = "with --resume: also a run of another user, or one that names code in a run folder"
    result.add_argument("--trust", action="store_true", help=trust)
    result.add_argument("-v", "--verbose", action="store_true", help="also show what ran, and every warning by itself")
    result.add_argument("--label", type=without_secrets, metavar="TEXT", help="note shown in the report")


def _profiles() -> str:
    lines = []
    for name in dict.fromkeys(name for name, _ in PROFILES):
        gpu, cpu = (PROFILES[name, device] for device in ("cuda", "cpu"))
        on_gpus, on_cpu = (f"{one.launches} x ({one.warmup} + {one.iters})" for one in (gpu, cpu))
        lines.append(f"  {name:<10} GPU {on_gpus:<16} CPU {on_cpu}")
    return "\n".join(lines)


def _site(asked: str) -> str:
    name, file = discover.resolve(asked, discover.SITE)
    discover.try_site(name, file)
    return asked if asked == name else file


def request_of(options: argparse.Namespace, scenarios: tuple[Found, ...]) -> Request:
    """Every default filled in, and every option checked that needs no torch."""
    device, gpus, _ = machine.choose_device(options.device)
    if device == "cpu" and options.gpus is not None:
        why = "--device cpu was asked for" if options.device == "cpu" else "there is no GPU here"
        raise RequestError("--gpus", why, "leave it out")
    if device == "cuda" and options.nproc is not None:
        raise RequestError("--nproc", "on GPUs the number of processes follows from --gpus", "leave it out")
    devices = machine.choose_gpus(options.gpus, gpus)
    replicas = len(devices) if device == "cuda" else options.nproc or DEFAULT_RANKS
    if options.budget is not None and options.until_precision is None and not options.find_batch:
        what = "it has no effect without --until-precision or --find-batch"
        raise RequestError("--budget", what, "add one of them, such as --until-precision 1%")
    if options.trace and options.diagnose is False:
        raise RequestError("--trace", "the profile is taken in the launch that --no-diagnose leaves out", "choose one")
    check_python(options.python)
    if os.sep in (options.python or ""):
        options.python = os.path.abspath(options.python)
    check_apex(options.apex)
    trained = discover.load_workload(*discover.resolve(options.workload, WORKLOAD))
    if options.input_sweep and options.data is None:
        _check_loads(trained)
    profile = PROFILES[options.profile, device]
    batch = (options.global_batch, options.batch_per_rank, trained.workload, device, scenarios, replicas)
    usual, gpu_mib = global_batch(*batch), _smallest_mib(devices)
    fitting = global_batch(*batch, gpu_mib)
    if gpu_mib is not None and fitting < usual:
        why = f"the smallest chosen GPU has {gpu_mib / 1024:.0f} GiB; --global-batch {usual} asks for more all the same"
        Console().line(f"the default global batch is {fitting}, not {usual}: {why}")
    return Request(
        scenarios=tuple(found.name for found in scenarios),
        device=device,
        devices=devices,
        replicas=replicas,
        task=_task(options, trained, device),
        global_batch=fitting,
        **{name: getattr(options, name) for name in SAME} | {"parity": options.parity and not options.input_sweep},
        warmup=options.warmup or profile.warmup,
        iters=options.iters or profile.iters,
        launches=_launches(options, profile.launches),
        apex_path=options.apex and os.path.abspath(options.apex),
        stall_timeout_s=options.stall_timeout,
        budget_s=options.budget or (DEFAULT_BUDGET_S if options.until_precision else None),
        diagnose=options.trace or (options.profile != "quick" if options.diagnose is None else options.diagnose),
        sample_interval_s=options.sample_interval,
        per_rank=options.batch_per_rank is not None,
        set=options.set,
        site=_site(options.site),
        workers=min(MOST_DEFAULT_WORKERS, machine.cores() // replicas)
        if options.workers is None and options.data is not None and not options.input_sweep
        else options.workers,
        input_sweep=options.input_sweep,
    )


def _launches(options: argparse.Namespace, usual: int) -> int:
    if options.input_sweep:
        return options.launches or max(usual, FEWEST_LAUNCHES)
    return max(options.launches or usual, FEWEST_LAUNCHES if options.until_precision else 1)


def _task(options: argparse.Namespace, trained: FoundWorkload, device: str) -> Task:
    """What is trained, on the data that was asked for."""
    settings, data = _settings(options, trained, device), options.data
    if data is None:
        return trained.task(device, settings)
    reads, folder = trained.workload.reads, os.path.abspath(data)
    if not reads:
        raise RequestError("--data", f"the workload {trained.name} reads no data", "leave it out, or choose another")
    if not os.path.isdir(folder):
        problem = f"{data} is not a folder" if os.path.exists(folder) else f"there is no folder {data!r}"
        raise RequestError("--data", problem, f"give one with {reads}")
    try:
        if not any(os.scandir(folder)):
            raise RequestError("--data", f"{data} is empty", f"give a folder with {reads}")
        return trained.task(device, settings, folder)
    except OSError as error:
        what = f"{error.filename} cannot be read: {error.strerror}"
        raise RequestError("--data", what, "fix its permissions, or remove it") from error


def _smallest_mib(devices: tuple[str, ...]) -> float | None:
    """The memory of the smallest of these GPUs; None if none is known."""
    gpus = machine.visible_gpus()[0] if devices else []
    sizes = (gpu.memory_total_mib for gpu in gpus if gpu.uuid in devices)
    return min((mib for mib in sizes if mib is not None), default=None)


def _settings(options: argparse.Namespace, trained: FoundWorkload, device: str) -> dict[str, Setting]:
    settings = trained.workload.settings_on(device)
    given = [("--model", "model", options.model), ("--image-size", "image_size", options.image_size)]
    for text in options.setting:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError("--setting", f"{text!r} has no value", "write NAME=VALUE")
        given.append(("--setting", name, value))
    for option, name, value in given:
        if value is None:
            continue
        if name not in settings:
            known = f"choose from {', '.join(settings)}" if settings else "leave it out"
            raise RequestError(option, f"the workload {trained.name} has no setting {name!r}", known)
        try:
            settings[name] = setting_from(str(value), settings[name])
        except ValueError as error:
            raise RequestError(option, f"{name}: {error}", f"give one, such as {settings[name]}") from error
        if isinstance(settings[name], str) and HIDDEN in without_secrets(f"{name}={value}"):
            what = f"{name} looks like a credential, and would stand in run.json"
            raise RequestError(option, what, "have the workload read it from a file or a variable")
    return settings


def _check_experiment(options: argparse.Namespace) -> None:
    """Refuse what a search for the largest batch, or a sweep of the input, would ignore."""
    asked = next((name for name in EXPERIMENTS if getattr(options, name)), None)
    if asked is None:
        return
    why, ignored = EXPERIMENTS[asked]
    values = {name: getattr(options, name) for name in ignored}  # of which --workers 0 is given, and equal to False
    given = [name for name, value in values.items() if value is not None and value is not False and value != "quick"]
    if given:
        option, experiment = (f"--{name.replace('_', '-')}" for name in (given[0], asked))
        raise RequestError(option, f"{experiment} {why}", "leave one out")


def _check_loads(trained: FoundWorkload) -> None:
    """Refuse to sweep an input that there is none of: what lies ready in memory is not loaded."""
    if trained.workload.reads:
        made_up = "made-up data lies ready in memory, and nothing is loaded"
        raise RequestError("--input-sweep", made_up, f"give --data DIR with {trained.workload.reads}")
    if trained.name in discover.names(WORKLOAD):
        what = f"the workload {trained.name} reads no data"
        raise RequestError("--input-sweep", what, "choose another, such as --workload imagefolder --data DIR")


def _how_precise(asked: IntervalTargetRecord | None) -> list[str]:
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


def _next_steps(
    request: Request, scenarios: tuple[Found, ...] | None, path: str, failed: int, more: int | None = None
) -> str:
    """``more``: about how many more launches of each scenario would tell a winner."""
    lines = [f"Run folder: {place(path)}"]
    if failed:
        lines.append(f"{count(failed, 'launch', 'launches')} failed: what was printed is in {place(path)}/logs")
    lines.append(f"Next: python -m bench report {called(path)}")
    if request.launches < FEWEST_LAUNCHES:
        again = None if scenarios is None else _again(request, scenarios, path)
        few = f"{request.launches} launches show little of" if request.launches > 1 else "One launch cannot show"
        how = f"; for reliable numbers: python -m bench run {again}" if again else ""
        lines.append(f"{few} run-to-run variation{how}")
    elif more:
        add = f"--resume {called(path)} --launches {request.launches + more}"
        lines.append(f"To add about {count(more, 'launch', 'launches')} of each scenario: python -m bench run {add}")
    return "\n".join(lines)


def _again(request: Request, scenarios: tuple[Found, ...], path: str) -> str | None:
    """The options that measure the same more often; None where a file that it takes is gone or broken by now."""
    folder = os.path.dirname(os.path.abspath(path))
    out = () if folder == os.path.abspath(DEFAULT_OUT) else ("--out", place(folder))
    try:
        return shlex.join(["--profile", "standard", *same_work(request, scenarios), *out])
    except RequestError:
        return None


def same_work(request: Request, scenarios: tuple[Found, ...]) -> list[str]:
    """The options that ask for the same work in the same place again, without defaults."""
    options = []
    if tuple(found.name for found in scenarios) != discover.DEFAULT:
        options += ["--scenario", ",".join(found.asked(place) for found in scenarios)]
    on_gpus = request.device == "cuda"
    of_gpus = on_gpus and request.devices != tuple(gpu.uuid for gpu in machine.visible_gpus()[0])
    trained = discover.load_workload(request.task.name, request.task.file)
    usual = trained.workload.settings_on(request.device)
    batch = (None, None, trained.workload, request.device, scenarios, request.replicas)
    usual_batch = global_batch(*batch, _smallest_mib(request.devices))
    own = trained.name not in discover.names(WORKLOAD)  # by path where the name alone would not be found
    said = {
        "--impl": (request.impl, "auto"),
        "--apex": (request.apex_path, None),
        "--workload": (place(trained.file) if own else trained.name, DEFAULT_WORKLOAD),
        "--data": (request.task.data and place(request.task.data), None),
        "--workers": (request.workers, None),
        "--global-batch": (request.global_batch, usual_batch),
        "--seed": (request.seed, 0),
        "--device": (request.device, "cuda" if nvml.driver_present() else "cpu"),
        "--gpus": (",".join(request.devices) if of_gpus else None, None),
        "--nproc": (request.replicas if request.device == "cpu" else DEFAULT_RANKS, DEFAULT_RANKS),
        "--python": (request.python, None),
    }
    for option, (value, default) in said.items():
        options += [option, str(value)] if value != default else []
    short = {"model": "--model", "image_size": "--image-size"}
    for name, setting in request.task.settings.items():
        if setting != usual[name]:
            options += [short[name], str(setting)] if name in short else ["--setting", f"{name}={setting}"]
    return [*options, *(["--fresh"] if request.fresh else [])]
