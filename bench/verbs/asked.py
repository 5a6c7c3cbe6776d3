"""From the options that measuring verbs share to a request, and from a request back to options."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench import machine
from bench.console import say
from bench.core.errors import RequestError
from bench.core.job import Task
from bench.core.records import Setting
from bench.experiments import resume
from bench.experiments.plan import MANY_GPUS, PROFILES, RANKS, Request, global_batch
from bench.experiments.plan.interval_target import FEWEST_LAUNCHES, FIRST_STAGE
from bench.machine.redact import HIDDEN, without_secrets
from bench.runs.document import RunDocument
from bench.runs.names import find
from bench.runs.reader import verified
from bench.seams import discover
from bench.seams.discover import DEFAULT_WORKLOAD, WORKLOAD, Found, FoundWorkload
from bench.seams.experiment import verb_of, with_options
from bench.seams.workload import setting_from
from bench.sites.hosts.party import Party
from bench.verbs import options as kinds
from bench.verbs.options import DEFAULT_OUT, Parser, called, check_apex, whole_number

DEFAULT_BUDGET_S = 1200.0
DEFAULT_RANKS = 2
MOST_DEFAULT_WORKERS = 4
SAME = ("set", "profile", "impl", "seed", "fresh", "label", "input_sweep", "until_precision", "trace", "force")
"""Options that stand in a request under the same name and as they are given."""


@dataclass(kw_only=True)
class Options(argparse.Namespace):
    """The options of the verbs that measure. A verb that lacks one has its default."""

    scenario: list[str] | None = None
    set: str | None = None
    switches: list[str] | None = None
    impl: str = "auto"
    apex: str | None = None
    workload: str = DEFAULT_WORKLOAD
    model: str | None = None
    image_size: int | None = None
    setting: list[str] = field(default_factory=list)
    data: str | None = None
    workers: int | None = None
    global_batch: int | None = None
    batch_per_rank: int | None = None
    seed: int = 0
    device: str = "auto"
    gpus: str | None = None
    ranks: int | None = None
    pythons: list[str] = field(default_factory=list)
    site: str = "local"
    force: bool = False
    fresh: bool = False
    stall_timeout: float = 30.0
    profile: str = "quick"
    warmup: int | None = None
    iters: int | None = None
    launches: int | None = None
    find_batch: bool = False
    input_sweep: bool = False
    until_precision: float | None = None
    budget: float | None = None
    diagnose: bool | None = None
    trace: bool = False
    parity: bool = True
    label: str | None = None

    @property
    def experiments(self) -> dict[str, object]:
        """By name the options of those that have one of their own (:mod:`bench.seams.experiment`)."""
        return {name: value for name in with_options() if (value := getattr(self, name, None))}


def add_work(parser: Parser, *, usual_set: str | None = None, usual: str | None = None) -> None:
    """The options of scenarios, workload and place. The default is ``usual_set`` of scenarios, or ``usual``, a single
    one."""
    what = parser.add_argument_group("what is measured")
    which, names = f"a scenario or file, optionally with switches: ddp+channels_last (default: {usual})", "NAME"
    if usual_set is not None:
        which, names = "scenarios or files, each optionally with switches: ddp+channels_last", "NAME[,NAME...]"
    what.add_argument("--scenario", action="append", metavar=names, help=which)
    if usual_set is not None:
        sets = f"published, strategies, frameworks, ladder, scenarios or all (default: {usual_set})"
        what.add_argument("--set", metavar="NAME", help=sets)
    switches = "switches to turn on, such as channels_last,bucket_mb=50 ('bench list' shows all)"
    what.add_argument("--with", action="append", dest="switches", metavar="NAME[=VALUE][,...]", help=switches)
    what.add_argument("--impl", choices=("auto", "native", "apex"), help="whose O1-O3 and apex DDP run")
    what.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05 or older")
    default = f"what every scenario trains (default: {DEFAULT_WORKLOAD})"
    what.add_argument("--workload", metavar="NAME|FILE", help=default)
    what.add_argument("--model", metavar="NAME", help="of resnet101: any classification model of torchvision")
    what.add_argument("--image-size", type=whole_number, metavar="PX", help="of resnet101: the edge of an image")
    which = "any setting of the workload ('bench list --json' has them)"
    what.add_argument("--setting", action="append", metavar="NAME=VALUE", help=which)
    real = "a folder of real data for the workload (default: made-up data, ready in memory)"
    what.add_argument("--data", metavar="DIR", help=real)
    many = "processes of each rank that load its data, 0: the rank itself (default with --data: its cores, at most 4)"
    what.add_argument("--workers", type=kinds.worker_count, metavar="N", help=many)
    batch = what.add_mutually_exclusive_group()
    default = "examples per step, all devices together (default: the workload's own; of resnet101 128, on the CPU 8)"
    batch.add_argument("--global-batch", type=whole_number, metavar="N", help=default)
    batch.add_argument("--batch-per-rank", type=whole_number, metavar="N", help="examples per step for each device")
    what.add_argument("--seed", type=kinds.seed, help="of weights and data (default: 0)")
    where = parser.add_argument_group("where")
    where.add_argument("--device", choices=("auto", "cpu", "cuda"), help="default: GPUs if there are any")
    where.add_argument("--gpus", metavar="0,1,3", help="GPUs by index in PCI order or by UUID (default: all)")
    ranks = f"ranks on the CPU (default: {DEFAULT_RANKS})"
    where.add_argument("--ranks", "--nproc", type=kinds.device_count, metavar="N", help=ranks)
    whose = "the interpreter whose torch is measured (default: this one; of bench run also several, in turns)"
    where.add_argument("--python", action="append", type=kinds.interpreter, dest="pythons", metavar="PATH", help=whose)
    where.add_argument("--site", metavar="NAME|FILE", help="what starts the ranks (default: local)")
    where.add_argument("--force", action="store_true", help="also on GPUs that others are using")
    where.add_argument("--wait", action="store_true", help="queue while another run has the GPUs or the CPU")
    where.add_argument("--fresh", action="store_true", help="a new interpreter for every rank instead of forks")
    limit = "end a launch that makes no step for S seconds, or no first step for 4 times that and at least 30"
    where.add_argument("--stall-timeout", type=kinds.seconds, metavar="S", help=limit)


def add_steps(parser: Parser, title: str, profile: str) -> argparse._ArgumentGroup:
    """The options of a launch, as a group with this title. ``profile``: the help of ``--profile``."""
    much = parser.add_argument_group(title)
    much.add_argument("--profile", choices=list(dict.fromkeys(name for name, _ in PROFILES)), help=profile)
    much.add_argument("--warmup", type=whole_number, metavar="N", help="warm-up steps, left out of every statistic")
    much.add_argument("--iters", type=whole_number, metavar="N", help="measured steps of each launch")
    return much


def add_result(parser: Parser) -> None:
    result = parser.add_argument_group("result")
    default = f"where the run folder goes (default: {DEFAULT_OUT})"
    result.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help=default)
    result.add_argument("--resume", metavar="RUN", help="redo what is missing or failed in a run")
    result.add_argument("-v", "--verbose", action="store_true", help="also show what ran, and every warning by itself")
    result.add_argument("--label", type=without_secrets, metavar="TEXT", help="note shown in the report")


def begun(options: Options, parser: Parser, verb: str, also: tuple[str, ...] = ()) -> tuple[str, RunDocument, Request]:
    """Folder, document and request of the run of ``--resume``, which is of this verb. ``also``: options that may
    change; the others are in its request, and refused."""
    usual, allowed = parser.parse_args([], Options()), ("resume", "out", "wait", "force", "json", "verbose", *also)
    for action in parser._actions:
        name = action.dest
        if name not in (*allowed, "help") and getattr(options, name) != getattr(usual, name):
            option = action.option_strings[-1 if getattr(options, name) is False else 0]  # --parity, --no-parity
            raise RequestError(option, "a run is resumed with the options that it was started with", "leave it out")
    path = find(options.resume, options.out, "--resume")
    document = verified(path, allow_incomplete=True, option="--resume")
    other = verb_of(document.experiments)
    if other not in (verb, None):
        problem = f"that run is of bench {other}" if verb == "run" else f"that run is not of bench {verb}"
        raise RequestError("--resume", problem, f"go on with bench {other} --resume {called(path)}")
    return path, document, resume.request_of(document)


def request_of(
    options: Options, scenarios: tuple[Found, ...], party: Party | None = None, pythons: Mapping[str, str] | None = None
) -> Request:
    """Every default filled in, and every option checked that needs no torch. ``party``: all hosts, of several.
    ``pythons``: the paths of several interpreters by their names."""
    device, gpus, _ = machine.choose_device(options.device)
    if device == "cpu" and options.gpus is not None:
        why = "--device cpu was asked for" if options.device == "cpu" else "there is no GPU here"
        raise RequestError("--gpus", why, "leave it out")
    if device == "cuda" and options.ranks is not None:
        raise RequestError(RANKS, "on GPUs the number of processes follows from --gpus", "leave it out")
    hosts = machine.here(machine.choose_gpus(options.gpus, gpus)) if party is None else party.hosts
    devices = tuple(uuid for host in hosts for uuid in host.devices)
    replicas = len(devices) if device == "cuda" else options.ranks or max(DEFAULT_RANKS, len(hosts))
    if replicas < len(hosts):
        raise RequestError(RANKS, f"{len(hosts)} hosts have a rank each at least", f"use {len(hosts)} or more")
    if len(options.pythons) > 1 and not pythons:
        raise RequestError("--python", "only bench run takes several interpreters", "name one")
    check_apex(options.apex)
    site, site_file = discover.resolve(options.site, discover.SITE)
    discover.try_site(site, site_file)
    trained = discover.load_workload(*discover.resolve(options.workload, WORKLOAD))
    if options.input_sweep and options.data is None and trained.workload.reads:
        made_up = "made-up data lies ready in memory, and nothing is loaded"
        raise RequestError("--input-sweep", made_up, f"give --data DIR with {trained.workload.reads}")
    if options.input_sweep and options.data is None and trained.name in discover.names(WORKLOAD):
        what = f"the workload {trained.name} reads no data"
        raise RequestError("--input-sweep", what, "choose another, such as --workload imagefolder --data DIR")
    profile = PROFILES[options.profile, device]
    fewest = FIRST_STAGE if options.until_precision else 1
    if options.input_sweep and options.launches is None:
        fewest = FEWEST_LAUNCHES
    workers = options.workers
    if workers is None and options.data is not None and not options.input_sweep:
        workers = min(MOST_DEFAULT_WORKERS, machine.cores() // replicas)
    batch = (options.global_batch, options.batch_per_rank, trained.workload, device, scenarios, replicas)
    sizes = [gpu.memory_total_mib for gpu in gpus if gpu.uuid in devices]
    gpu_mib = min((mib for mib in sizes if mib is not None), default=None)
    usual = global_batch(*batch)
    fitting = global_batch(*batch, gpu_mib)
    own, given = trained.workload.batch_on(device), options.global_batch or options.batch_per_rank
    if device == "cuda" and replicas >= MANY_GPUS and usual > own and given is None:
        shared = f"--global-batch {own} shares that among them, and Python may set the pace then"
        say(f"the default batch is {usual // replicas} on each of the {replicas} GPUs; {shared}")
    if gpu_mib is not None and fitting < usual:
        why = f"the smallest chosen GPU has {gpu_mib / 1024:.0f} GiB; --global-batch {usual} asks for more all the same"
        say(f"the default global batch is {fitting}, not {usual}: {why}")
    return Request(
        scenarios=tuple(found.name for found in scenarios),
        device=device,
        devices=devices,
        replicas=replicas,
        task=_task(options, trained, device),
        global_batch=fitting,
        **{name: getattr(options, name) for name in SAME},
        warmup=options.warmup or profile.warmup,
        iters=options.iters or profile.iters,
        launches=max(options.launches or profile.launches, fewest),
        apex_path=options.apex and os.path.abspath(options.apex),
        stall_timeout_s=options.stall_timeout,
        budget_s=options.budget or (DEFAULT_BUDGET_S if options.until_precision else None),
        diagnose=options.trace or (options.profile != "quick" if options.diagnose is None else options.diagnose),
        parity=options.parity and not options.input_sweep,
        per_rank=options.batch_per_rank is not None,
        site=site if options.site == site else site_file,
        workers=workers,
        python=None if pythons or not options.pythons else options.pythons[0],
        pythons=pythons or {},
        experiments=options.experiments,
    )


def _task(options: Options, trained: FoundWorkload, device: str) -> Task:
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


def _settings(options: Options, trained: FoundWorkload, device: str) -> dict[str, Setting]:
    settings = trained.workload.settings_on(device)
    own = (("--model", options.model), ("--image-size", options.image_size))
    given = [(option, option[2:].replace("-", "_"), str(value)) for option, value in own if value is not None]
    for text in options.setting:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError("--setting", f"{text!r} has no value", "write NAME=VALUE")
        given.append(("--setting", name, value))
    for option, name, value in given:
        if name not in settings:
            remedy = f"choose from {', '.join(settings)}" if settings else "leave it out"
            raise RequestError(option, f"the workload {trained.name} has no setting {name!r}", remedy)
        try:
            settings[name] = setting_from(value, settings[name])
        except ValueError as error:
            raise RequestError(option, f"{name}: {error}", f"give one, such as {settings[name]}") from error
        if isinstance(settings[name], str) and HIDDEN in without_secrets(f"{name}={value}"):
            what = f"{name} looks like a credential, and would stand in run.json"
            raise RequestError(option, what, "have the workload read it from a file or a variable")
    return settings
