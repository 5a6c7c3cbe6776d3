"""The surroundings of every experiment, opened and closed together: locked devices, a site, a sampler, a run folder."""

import errno
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Self, cast

import bench
from bench import machine
from bench.console import RunProgress, passing, say
from bench.core.channel import adopt_orphans
from bench.core.children import children, end_children
from bench.core.codec import decode, encode
from bench.core.errors import BenchError, HostError, Interrupted, RequestError, described, remedy_of
from bench.core.files import refuse_bytes, sha256
from bench.experiments import interrupts, obstacles, resume
from bench.experiments.plan import Request, check_examples, check_memory, worker_counts
from bench.machine import foreign, redact
from bench.machine.lock import acquire
from bench.machine.sample import Sampler
from bench.runs import document as stored
from bench.runs.files import check_writable
from bench.runs.reader import Run, read
from bench.runs.writer import RunWriter
from bench.seams import discover, execute
from bench.seams.discover import Files, Found
from bench.seams.experiment import experiments, name_of, verb_of
from bench.seams.site import Connected, Event, Options, interpreter_of
from bench.sites._interpreters import Interpreters
from bench.sites.hosts.leader import Hosts
from bench.sites.hosts.party import Party
from bench.sites.local import WorkerHost

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed

NOT_PLANNED = ("that run was imported or attached, and not planned by bench", "start a run of its workload")
"""Why a run that bench only recorded cannot be resumed, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The surroundings that the launches of a run share. ``obstacles``: by scenario why it cannot run here, or None."""

    request: Request
    scenarios: tuple[Found, ...]
    obstacles: dict[str, str | None]
    site: Connected
    sampler: Sampler
    writer: RunWriter
    progress: RunProgress
    began_s: float
    """Since when the devices are held, by ``time.monotonic``: what a budget counts from."""

    @property
    def runnable(self) -> list[Found]:
        return [found for found in self.scenarios if self.obstacles[found.name] is None]

    def next_launch(self) -> int:
        return self.writer.document.next_launch

    def sealed(self) -> "Analysed":
        """The run as it is on disk once the lab is closed, with the tables that its verdicts were made of."""
        from bench.analyse.analysed import Analysed

        return Analysed.of(self.writer.judged).with_document(self.writer.document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that is on disk. ``spent``: the seconds of its launches by what they did, until ``ended_s`` (monotonic)."""

    run: "Analysed"
    spent: Mapping[str, float] = field(default_factory=dict)
    ended_s: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, path: str) -> Self:
        """A run that another command made."""
        from bench.analyse.analysed import Analysed

        return cls(run=Analysed.of(read(path)))

    @property
    def failed(self) -> int:
        """Launches of any kind that should have run and did not end well."""
        document = self.run.document
        total = len([launch for launch in document.launches if launch.status not in resume.DONE])
        for name, record in document.experiments.items():
            count = experiments()[name].failed
            ended = [launch.status in resume.DONE for launch in stored.launches_of(record)]
            total += ended.count(False) if count is None else count(record)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a run is started. ``out``: where its folder goes. ``wait``: queue for GPUs or CPU that another run has.
    ``resumed``: the folder of the run to be continued. ``party``: the hosts, where there are several."""

    out: str
    wait: bool = False
    resumed: str | None = None
    party: Party | None = None


@contextmanager
def opened(
    request: Request, scenarios: tuple[Found, ...], start: Start, *, also: Files = (), begun: object = None
) -> Iterator[Lab]:
    """Everything that the experiments of one run need; sealed and closed on leaving.

    ``also``: what ranks may execute besides, which is to be the same on all hosts. ``begun``: the record of an
    experiment that a new run is of from its first moment, so that whatever kills it, it can be resumed. Raises
    :class:`RequestError` before anything is written, and :class:`Interrupted` once an interrupted run is sealed.
    """
    party = start.party
    check_memory(request, scenarios, machine.available_memory_bytes())
    check_writable(start.out)
    paths = {"--out": os.path.abspath(start.out), "--data": request.task.data, "--apex": request.apex_path}
    for option, path in (paths | {"bench": __file__}).items():
        refuse_bytes(option, path or "")
    machine.refuse_missing_directory()
    machine.refuse_missing_libraries()
    machine.refuse_few_files(request.replicas if party is None else len(party.hosts[0].devices) or party.hosts[0].cores)
    machine.refuse_debugging(request.device)
    machine.refuse_slices(request.devices if party is None else party.hosts[0].devices)
    obstacles.refuse_unreachable_loopback(scenarios, request.device)
    obstacles.refuse_if_nothing_runs(obstacles.of_each(scenarios, request))
    with (
        _alone(request, start) as (locks, here),
        _site(request, locks, [*discover.files_of(scenarios, request.task), *also], party) as site,
    ):
        began_s = time.monotonic()
        with passing("importing torch, once for all launches"):
            site.wait_until_ready()
            site.prepare(request.workload)
        chosen = [gpu for gpu in here.gpus if gpu.uuid in request.devices]
        for interpreter in (interpreter_of(site.description, one) for one in request.pythons or (None,)):
            if request.device == "cuda" and interpreter["cuda_built"]:
                machine.refuse_unfit_torch(interpreter, chosen)
        request = replace(request, task=replace(request.task, examples=site.description.get("examples")))
        if site.description["fresh"] and not request.fresh:
            threads = site.description["threads"] - 1
            why = f"what ranks import started {threads} thread{'s' * (threads > 1)}, which a fork would not have"
            why = why if threads else "what the workload imports asks torch for CUDA, which forks could not use then"
            say(f"ranks are started as with --fresh: {why}")
        most = (max(worker_counts(request, scenarios[0], site.hosts)),) if request.input_sweep else ()
        for workers in (request.workers, *most):
            size, free = site.description["example_bytes"], machine.available_memory_bytes()
            check_examples(replace(request, workers=workers), size, free)
        reasons = obstacles.of_each(scenarios, request, site.description, site.hosts)
        obstacles.refuse_if_nothing_runs(reasons)
        now = _circumstances(request, scenarios, here, site.description, party)
        if begun is not None:
            now = replace(now, experiments={name_of(type(begun)): begun})
        if start.resumed is None:
            writer = RunWriter(start.out, now)
        else:
            writer = resume.reopened(start.resumed, now, force=request.force)
        host = site.hosts[0]
        with (
            _sealed(writer, site),
            Sampler(device=request.device, gpus=host.devices, spool=writer.scratch, host=host.name) as sampler,
        ):
            yield Lab(
                request=request,
                scenarios=scenarios,
                obstacles=reasons,
                site=site,
                sampler=sampler,
                writer=writer,
                began_s=began_s,
                progress=RunProgress(
                    steps=request.warmup + request.iters, units=request.workload.units, unit=request.task.unit_short
                ),
            )


@contextmanager
def _alone(request: Request, start: Start) -> Iterator[tuple[tuple[int, ...], stored.Machine]]:
    """The locks of this host's devices, and what this machine is while they are held."""
    devices = request.devices if start.party is None else start.party.hosts[0].devices
    with acquire(devices, wait=start.wait, say=say) as locks:
        _, gpus, left_out = machine.choose_device(request.device)
        for drawing in foreign.refuse(gpus, devices, force=request.force):
            remedy = "its share skews the results: measure on a GPU without a screen if there is one"
            say(f"warning: something draws on {drawing}; {remedy}")
        if left_out is not None:
            say(f"warning: {left_out}")
        yield locks, machine.describe(gpus, left_out)


@contextmanager
def _site(
    request: Request, locks: tuple[int, ...], files: Files = (), party: Party | None = None
) -> Iterator[Connected]:
    """The site with its log in memory, since there is not a run folder yet: nothing is left of it, whatever happens.

    ``files``: what ranks may execute, as :class:`Hosts` takes it.
    """
    name, file = discover.resolve(request.site, discover.SITE)
    descriptor = os.memfd_create("site.log")
    options = Options(
        device=request.device,
        hosts=machine.here(request.devices) if party is None else party.hosts[:1],
        python=request.python,
        fresh=request.fresh,
        apex_path=request.apex_path,
        log=f"/proc/{os.getpid()}/fd/{descriptor}",
        locks=locks,
    )
    adopt_orphans()
    others = children()
    try:
        with interrupts.bounded(execute.IMPORT_LIMIT_S):
            module = execute.load_file(name, file, discover.SITE)
            several = {
                environment: _connected(module, file, replace(options, python=python))
                for environment, python in request.pythons.items()
            }
            connected = Interpreters(several) if several else _connected(module, file, options)
        if party is not None:
            connected = Hosts(cast(WorkerHost, connected), party, files)  # any other site is refused on several hosts
        with connected as site:
            yield site
    finally:
        os.close(descriptor)
        end_children(but=others)


def _connected(site: ModuleType, file: str, options: Options) -> Connected:
    try:
        connected: Connected = site.connect(options)
    except (BenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the user's function raises is the finding
        what = f"{file}:{execute.line_in(file, error)} fails to connect: {described(error)}"
        raise RequestError("--site", what, "fix the file") from error
    if not hasattr(connected, "perform"):
        problem = f"connect(options) of {file} returned {type(connected).__name__}"
        raise RequestError("--site", problem, "return what performs launches, such as WorkerHost(options)")
    return connected


def _circumstances(
    request: Request, scenarios: tuple[Found, ...], here: stored.Machine, description: Event, party: Party | None
) -> stored.RunDocument:
    asked, work = recorded(request)
    sources = {found.name: found.file for found in scenarios}
    sources |= {f"+{one.name}": one.file for found in scenarios for one in found.switches}
    if os.sep in request.site:  # which is no scenario's name
        sources[request.site] = request.site
    return stored.RunDocument(
        bench=bench.__version__,
        command=tuple(redact.command_line(sys.argv[1:])),
        request=asked,
        workload=work,
        machine=here,
        hosts=() if party is None else _hosts(party, description),
        engine=None if party is None else party.job(),
        versions=_versions(description),
        environments={name: _versions(one) for name, one in description.get("environments", {}).items()},
        fresh=description["fresh"],
        apex=decode(stored.Apex, description["apex"]),
        sources={name: stored.Source(file=file, sha256=sha256(file)) for name, file in sources.items()},
        strategies={
            name: stored.StrategyRecord(hue=one.hue, dash=one.dash, differs=one.differs, restarts=one.restarts)
            for name, one in ((found.strategy_name, found.strategy) for found in scenarios)
        },
        start=machine.state(),
        probe_seed=secrets.randbits(31),
    )


def _versions(description: Event) -> dict[str, str | None]:
    versions: dict[str, str | None] = {name: description[name] for name in ("python", "executable", "torch")}
    versions |= description["imports"]
    others = [_versions(one) for one in description.get("environments", {}).values()]
    return {name: one if all(other.get(name) == one for other in others) else None for name, one in versions.items()}


def _hosts(party: Party, description: Event) -> tuple[stored.HostRecord, ...]:
    assert party.hello is not None
    own = (party.name, party.hello, description, machine.state())
    others = (
        (one.name, one.hello, one.ready["description"], stored.State(**one.ready["state"])) for one in party.members
    )
    return tuple(
        stored.HostRecord(name=name, machine=hello.machine, versions=_versions(description), start=start)
        for name, hello, description, start in (own, *others)
    )


def recorded(request: Request) -> tuple[stored.Asked, stored.WorkloadRecord]:
    """A request as run.json has it."""
    work = request.workload
    return decode(stored.Asked, encode(request)), decode(stored.WorkloadRecord, encode(work) | {"hash": work.hash()})


@contextmanager
def _sealed(writer: RunWriter, site: Connected) -> Iterator[None]:
    """Seal the run folder on leaving: incomplete after an interruption or the end of the host."""
    try:
        try:
            yield
            _keep_log(site, writer)
            from bench.analyse.digest import of_run

            run = judged(writer)
            digest = None if writer.document.instead else of_run(run)
            writer.finish(complete=True, digest=digest, end=machine.state())
        except (KeyboardInterrupt, HostError) as error:
            with interrupts.held():
                _keep_log(site, writer)
                judged(writer)
                writer.finish(complete=False, end=machine.state())
                if isinstance(error, HostError):
                    raise
                raise Interrupted(f"interrupted; what was done is in {writer.path}{_go_on(writer)}") from error
    except OSError as error:
        problem = f"{error.filename or writer.path} cannot be written: {error.strerror or error}"
        if error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            problem = f"{writer.path} is unfinished: {error.strerror}"
        remedy = remedy_of(problem) or "make room"
        raise BenchError(f"{problem}; {remedy} and go on with --resume {writer.id}") from error


def _go_on(writer: RunWriter) -> str:
    """The command that goes on with an interrupted run; empty for one that cannot be resumed."""
    verb, out = verb_of(writer.document.experiments), os.path.dirname(writer.path)
    if verb is None:
        return ""
    where = "" if out == os.path.abspath("results") else f" --out {shlex.quote(out)}"
    return f"; go on with: python -m bench {verb} --resume {writer.id}{where}"


def _keep_log(site: Connected, writer: RunWriter) -> None:
    """Append what the site printed to its log in the run folder."""
    with open(site.log, "rb") as log, open(os.path.join(writer.logs, "worker-site.log"), "ab") as kept:
        shutil.copyfileobj(log, kept)


def judged(writer: RunWriter) -> Run:
    """The run as it is now, with its validity, parity and recommendation."""
    from bench.analyse import verdicts

    run = verdicts.judged(writer.frames())
    writer.judge(run)
    return run
