"""The launches that are left of a run that was interrupted or had failures, and whether it can be done here and now."""

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable
from dataclasses import MISSING, fields, replace
from itertools import product
from pathlib import Path

from bench import machine
from bench.core.codec import Damaged, decode, encode
from bench.core.errors import RequestError
from bench.core.files import sha256, sha256_of_names
from bench.core.job import Task
from bench.experiments.plan import Request
from bench.machine import VISIBLE, redact
from bench.runs.document import EngineRecord, Resumed, RunDocument, WorkloadRecord, launches_of
from bench.runs.experiments import CeilingsLaunch, Tuning
from bench.runs.launches import LaunchRecord, Record
from bench.runs.names import run_ids
from bench.runs.reader import verified
from bench.runs.writer import RunWriter
from bench.seams import discover, switching
from bench.seams.code import code_sha256
from bench.seams.discover import SCENARIO, SITE, SWITCH, WORKLOAD, Found
from bench.seams.execute import Kind
from bench.seams.experiment import experiments
from bench.seams.strategy import LEVELS
from bench.sites.hosts.party import Party

DONE = ("ok", "unsupported")
GONE = "bring them back, or start a new run"
SAME_MACHINE = ("host", "os", "cpu", "cores_usable", "memory_gib")
SAME_GPU = ("name", "driver", "power_limit_w")


def ended(launches: Iterable[Record]) -> set[tuple[str, int]]:
    """Scenario and repeat of those that ended well, or cannot run here anyway. Ceilings are in place of none."""
    repeats = (one for one in launches if isinstance(one, LaunchRecord) and not isinstance(one, CeilingsLaunch))
    return {(one.scenario, one.repeat) for one in repeats if one.status in DONE}


def left(request: Request, scenarios: Iterable[str], launches: Iterable[Record]) -> list[tuple[str, int]]:
    """Scenario and repeat of the planned launches that are still to be measured."""
    done, planned = ended(launches), product(range(request.launches), scenarios)
    return [(name, repeat) for repeat, name in planned if (name, repeat) not in done]


def unfinished(out: str, job: EngineRecord) -> str | None:
    """The newest run under ``out`` that this job of an engine began with the same command and has not finished; None if
    there is none."""
    for name in reversed(run_ids(out, "--out")):
        try:
            document = verified(os.path.join(out, name), allow_incomplete=True)
        except RequestError:
            continue
        if _is_of(document, job) and anything_missing(document, request_of(document)):
            return name
    return None


def _is_of(document: RunDocument, job: EngineRecord) -> bool:
    """Whether a run belongs to this job of an engine. A named job of torchrun or of a TrainJob is one command. For
    other engines it must be a restart: without one it may be a new job."""
    engine = document.engine
    if engine is None or engine.name != job.name or document.command != tuple(redact.command_line(sys.argv[1:])):
        return False
    named, again = job.run is not None and engine.run == job.run, job.attempt > 0
    return (named and (again or engine.name in ("torchrun", "TrainJob"))) or (again and engine.parent == job.parent)


def check_hosts(document: RunDocument, party: Party | None) -> None:
    """Refuse to go on with a run on other hosts or devices than it began on, and give each host its own devices."""
    before, now = len(document.hosts) or 1, 1 if party is None else len(party.hosts)
    if before != now:
        problem = f"that run is on {before} host{'s' * (before > 1)}, and this command on {now}"
        raise RequestError("--resume", problem, "start it with as many hosts")
    if party is not None:
        wanted = document.request.devices
        hosts = [replace(host, devices=tuple(one for one in wanted if one in host.devices)) for host in party.hosts]
        if sum(len(host.devices) for host in hosts) != len(wanted):
            raise RequestError("--resume", "that run is on GPUs that these hosts do not have", "use the same hosts")
        party.hosts = tuple(hosts)


def anything_missing(document: RunDocument, request: Request) -> bool:
    if not document.complete:
        return True
    declared = experiments()
    for one in (declared[name] for name in document.experiments):
        if one.alone and one.missing:
            return bool(one.missing(document, request))
    measured = {launch.scenario: document.strategy_of(launch) for launch in document.good}
    for one in declared.values():
        if one.rounds is not None:
            done = ended(launches_of(document.begun(one.record)))
            counts = {name: one.rounds(request, strategy) for name, strategy in measured.items()}
            if {(name, repeat) for name, rounds in counts.items() for repeat in range(rounds)} - done:
                return True
        if one.missing and not one.alone and one.missing(document, request):
            return True
    return bool(left(request, request.scenarios, document.launches))


def reopened(path: str, circumstances: RunDocument, *, force: bool) -> RunWriter:
    """The run in this folder, to be continued. ``circumstances``: of now, which must be the same. Launches that will be
    done again are taken out of what tables show."""
    check_same(verified(path, allow_incomplete=True), circumstances)
    writer = RunWriter.reopen(path)
    document = writer.document
    again: list[Record] = [launch for launch in document.launches if launch.status not in DONE]
    for name, record in document.experiments.items():
        own = experiments()[name].again
        again += [one for one in launches_of(record) if one.status not in DONE] if own is None else own(document)
    for launch in again:
        writer.supersede(launch)
    now = Resumed(launch=writer.document.next_launch, force=force, **encode(machine.state()))
    writer.note_resumed(now, circumstances)
    return writer


def request_of(document: RunDocument) -> Request:
    """The request of a run. Raises :class:`RequestError` for one of a bench that took other options."""
    for name in document.experiments:
        if (why := experiments()[name].no_resume) is not None:
            raise RequestError("--resume", *why)
    usual = {one.name: one.default for one in fields(Request) if one.default is not MISSING}
    try:
        request = decode(Request, usual | encode(document.request), "request")
        decode(WorkloadRecord, encode(WorkloadRecord()) | encode(request.task), "request.task")
    except Damaged as error:
        problem = f"its request is of another version of bench ({error})"
        raise RequestError("--resume", problem, "start a new run") from error
    return request


def continued(path: str, document: RunDocument, party: Party | None, force: bool) -> tuple[Request, tuple[Found, ...]]:
    """The request and the scenarios of a run that is continued here and now. Raises :class:`RequestError` where it may
    not be, or cannot: for somebody else's code, other hosts, other data, or code that has changed."""
    refuse_what_is_foreign(path, document)
    request = request_of(document)
    check_hosts(document, party)
    refuse_other_data(request.task)
    request = replace(request, force=request.force or force)
    name, file = discover.resolve(request.site, SITE)
    _refuse_changed(document, request.site, file)
    discover.try_site(name, file)
    return request, scenarios_of(document)


def refuse_other_data(task: Task) -> None:
    """Refuse data of which the folder has other files today."""
    try:
        now = task.data and sha256_of_names(task.data)
    except OSError as error:
        raise RequestError("--resume", f"its data {error.filename} cannot be read: {error.strerror}", GONE) from error
    if now != task.data_sha256:
        raise RequestError("--resume", f"{task.data} has other files than when the run began", GONE)


def refuse_what_is_foreign(path: str, document: RunDocument) -> None:
    """Refuse a run that would have somebody else's code executed. Raises :class:`RequestError`.

    A seal is no proof: whoever writes a run can seal it. What is installed is executed anyway.
    """
    request, copy = request_of(document), f"go on with a copy of your own: cp -r {shlex.quote(path)} ."
    for folder, folders, files in os.walk(os.path.realpath(path)):
        for entry in (folder, *(os.path.join(folder, name) for name in (*folders, *files))):
            if stat.S_IFMT(os.lstat(entry).st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
                raise RequestError("--resume", f"{entry} is neither a file nor a folder", copy)
            _refuse_other_owner(entry, copy)
    asked = [pair for name in _all_of(document) for pair in _asked(document, name)] + [(SITE, request.site)]
    named = [name for kind, name in asked if name not in discover.names(kind) and (os.sep in name or ".py" in name)]
    named += [request.task.file] if request.task.file not in discover.names(WORKLOAD).values() else []
    pythons = [*filter(None, [request.python]), *request.pythons.values()]
    named += [*(shutil.which(python) or python for python in pythons), *filter(None, [request.apex_path])]
    own = "look at it, and start a new run with a copy of your own"
    for name in named:
        if not os.path.isabs(name):  # which bench does not write
            raise RequestError("--resume", f"it would execute {name}, whichever that is here", own)
        try:
            for way in (os.path.abspath(name), os.path.realpath(name)):
                for place in (way, *map(str, Path(way).parents)):
                    if os.path.isfile(os.path.join(place, "run.json")):
                        raise RequestError("--resume", f"it would execute {way}, which is in a run folder", own)
                    if os.path.lexists(place):
                        _refuse_other_owner(place, own, f"it would execute {way}, and ")
        except (OSError, ValueError) as error:
            raise RequestError("--resume", f"it would execute {name!r}, which cannot be looked at", own) from error


def _refuse_other_owner(path: str, remedy: str, why: str = "") -> None:
    owner = os.lstat(path).st_uid
    if owner not in (0, os.geteuid()):
        raise RequestError("--resume", f"{why}{path} belongs to another user (UID {owner})", remedy)


def _asked(document: RunDocument, scenario: str) -> list[tuple[Kind, str]]:
    """The request for a scenario and for the switches behind it, each by its name where that is known, else its file.

    The value of a switch is left out: it is in the scenario's name.
    """
    base, *specs = _without_environment(document, scenario)[0].split("+")
    named = [(SCENARIO, base, document.sources.get(scenario) or document.sources.get(base))]
    for name in (spec.partition("=")[0] for spec in specs if spec not in LEVELS):
        named.append((SWITCH, name, document.sources.get(f"+{name}")))
    return [
        (kind, source.file if source and name not in discover.names(kind) else name) for kind, name, source in named
    ]


def _all_of(document: RunDocument) -> tuple[str, ...]:
    """The scenarios that a run was asked for; of a search the candidates that it began with."""
    tuning = document.of(Tuning)
    return tuning.asked if tuning else document.request.scenarios


def scenarios_of(document: RunDocument) -> tuple[Found, ...]:
    """The scenarios of a run, loaded from where they were. Raises :class:`RequestError` where one of them, or the code
    of a built-in workload, has changed."""
    work = document.workload
    if work.code_sha256 and work.file and os.path.isfile(work.file) and code_sha256(work.file) != work.code_sha256:
        raise RequestError("--resume", f"{work.file} is not what it was when the run was started", "start a new run")
    return tuple(scenario_of(document, name) for name in _all_of(document))


def scenario_of(document: RunDocument, name: str) -> Found:
    """As :func:`scenarios_of`, of one that the run has a launch of."""
    parts = []
    plain, environment = _without_environment(document, name)
    others = (part for part in plain.split("+") if part not in LEVELS)
    for (kind, asked), part in zip(_asked(document, name), others, strict=True):
        own_name, file = discover.resolve(asked, kind)
        _refuse_changed(document, name if kind is SCENARIO else f"+{own_name}", file)
        parts.append(asked + part[len(part.partition("=")[0]) :])
    found = switching.scenario("+".join((*parts, *(part for part in plain.split("+") if part in LEVELS))))
    return replace(found, environment=environment) if environment else found


def _without_environment(document: RunDocument, name: str) -> tuple[str, str | None]:
    """The name of a scenario and its environment, of a run in several interpreters."""
    scenario, _, environment = name.partition("@") if document.environments else (name, "", "")
    return scenario, environment or None


def _refuse_changed(document: RunDocument, name: str, file: str) -> None:
    source = document.sources.get(name)
    if source and sha256(file) != source.sha256:
        raise RequestError("--resume", f"{file} is not what it was when the run was started", "start a new run")


def check_same(document: RunDocument, now: RunDocument) -> None:
    """Raise :class:`RequestError` that names every circumstance that differs. ``now``: a run that is started now."""
    before, after = _circumstances(document), _circumstances(now)
    differ = [
        f"{name} was {before.get(name, 'absent')} and is {after.get(name, 'absent')}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
    gits = (document.machine.git, now.machine.git)
    commits = [git and f"{git.commit}{' with changes' * git.dirty}" for git in gits]
    if None not in commits and commits[0] != commits[1]:
        differ.append(f"bench was at commit {commits[0]} and is at {commits[1]}")
    if document.workload.hash != now.workload.hash:
        differ.append("the workload of this request is another one in this version of bench")
    if differ:
        raise RequestError("--resume", "; ".join(differ), "start a new run")


def _circumstances(document: RunDocument) -> dict[str, object]:
    """Circumstances that must be the same in all of a run, by name. GPUs go by their UUIDs, whatever ``VISIBLE`` is."""
    request, here, versions = document.request, document.machine, document.versions
    gpus = [gpu for gpu in here.gpus if gpu.uuid in request.devices]
    modules = [
        f"no {module}" if problem else f"{module} {document.apex.version or ''}".rstrip()
        for module, problem in document.apex.problems.items()
    ]
    may_use_apex = document.workload.device == "cuda" and request.impl != "native"
    return {
        "bench": document.bench,
        **{name: getattr(here, name) for name in SAME_MACHINE},
        **{
            f"{name} of host {number}": getattr(host.machine, name)
            for number, host in enumerate(document.hosts)
            for name in SAME_MACHINE
        },
        **{name: version for name, version in versions.items() if name != "executable"},
        **{
            f"{name} of {environment}": version
            for environment, of_environment in document.environments.items()
            for name, version in of_environment.items()
        },
        **{f"{name} of {gpu.uuid}": getattr(gpu, name) for gpu in gpus for name in SAME_GPU},
        **{name: value for name, value in here.environment.items() if name != VISIBLE},
        **({"apex": ", ".join(modules)} if may_use_apex else {}),
    }
