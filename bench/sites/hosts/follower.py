"""A host that takes launches from the first one: with locks, a worker host and a sampler, and without a run folder.

It ends with the first host, with the same exit code, and when that one is gone.
"""

import base64
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from bench import machine
from bench.core.codec import decode, encode
from bench.core.errors import HostError, RequestError
from bench.core.files import scratch_folder, sha256, sha256_of_names
from bench.core.job import Job, Meet, Training
from bench.machine.lock import acquire
from bench.machine.sample import Sampler
from bench.runs.files import shorten
from bench.seams import site
from bench.seams.discover import STRATEGY, SWITCH, WORKLOAD, names
from bench.seams.execute import Kind
from bench.seams.site import Elsewhere, Event, LaunchInterrupted, Readable
from bench.sites.hosts.address import addresses_here
from bench.sites.hosts.engine import Started, secret_of
from bench.sites.hosts.hello import Hello, placed
from bench.sites.hosts.line import HURRIED, Gone, Line, Message
from bench.sites.hosts.meeting import call, refusal, told
from bench.sites.local import WorkerHost

FILE_LIMIT_BYTES = 64 << 20
ALIKE = "have the same files at the same place on all hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of this host's command line about this host. ``check``: refuses devices that others use."""

    python: str | None
    fresh: bool
    apex_path: str | None
    wait: bool
    check: Callable[[], object]


@contextmanager
def following(engine: Started, environment: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Line]:
    """The connection to the first host. If this host cannot go on, it sends the reason."""
    line = call(engine, secret_of(environment), say)
    try:
        yield line
    except Gone as error:
        raise HostError(f"the first host is gone: {error}; see its output") from error
    except _Ended:
        raise
    except BaseException as error:
        with suppress(Gone):
            line.send(**told(error, "failed"))
        raise
    finally:
        line.close()


class _Ended(Exception):
    """The first host has ended, with this exit code."""

    def __init__(self, code: int, why: str | None) -> None:
        super().__init__(why)
        self.code, self.why = code, why


def follow(line: Line, hello: Hello, options: Options, say: Callable[[str], None]) -> int:
    """Take part in the run of the first host until it ends. Returns its exit code.

    Raises :class:`RequestError` if this host or its request does not fit the others.
    """
    try:
        line.send(event="hello", **encode(hello))
        opening = _next(line, "open")
        say(f"{opening['name']} takes launches from {opening['leader']} ({line.peer})")
        check_files(opening["files"])
        with ExitStack() as stack:
            _Follower(line, hello, options, opening["name"], stack).serve()
    except _Ended as end:
        if end.why:
            say(f"the first host has ended: {end.why}")
        return end.code
    raise AssertionError("serve() returns by an exception")


def _next(line: Line, *events: str) -> Message:
    """The next of these events from the first host. Raises :class:`_Ended` if it ended, :class:`RequestError` if it
    refused this host."""
    while True:
        for message in line.receive():
            match message:
                case {"event": "end", "code": int(code)}:
                    raise _Ended(code, message.get("why"))
                case {"event": "refused"}:
                    raise refusal(message)
                case {"event": event} if event in events:
                    return message
                case _:
                    raise Gone("it sent an invalid message")


def here(kind: Kind, name: str, file: str) -> str:
    """Where a file of the first host is on this host: built-in ones may be installed elsewhere."""
    return file if os.path.isfile(file) else names(kind).get(name, file)


def check_files(files: list[tuple[str, str, str, str]]) -> None:
    """Raises :class:`RequestError` if a file that ranks will execute differs on this host."""
    kinds = {kind.word: kind for kind in (STRATEGY, SWITCH, WORKLOAD)}
    for word, name, file, checksum in files:
        own = here(kinds[word], name, file)
        if not os.path.isfile(own) or sha256(own) != checksum:
            problem = f"{file} is {'not what it is' if os.path.isfile(own) else 'missing, and is'} on the first host"
            raise RequestError(kinds[word].option, problem, ALIKE)


class _Follower:
    """Everything that this host needs for launches, closed with ``stack``."""

    def __init__(self, line: Line, hello: Hello, options: Options, name: str, stack: ExitStack) -> None:
        self.line, self.name = line, name
        self.folder = stack.enter_context(scratch_folder("bench-host-"))
        machine.refuse_few_files(len(hello.devices) or hello.cores)
        machine.refuse_slices(hello.devices)
        queues = acquire(hello.devices, wait=options.wait, say=lambda text: line.send(event="waiting", text=text))
        locks = stack.enter_context(queues)
        options.check()
        own = site.Options(
            python=options.python,
            fresh=options.fresh,
            apex_path=options.apex_path,
            log=os.path.join(self.folder, "site.log"),
            device=hello.device,
            locks=locks,
            hosts=(placed(hello, name),),
        )
        self.site = stack.enter_context(WorkerHost(own))
        sampler = Sampler(device=hello.device, gpus=hello.devices, spool=self.folder, host=name)
        self.sampler = stack.enter_context(sampler)
        line.send(event="ready", description=self.site.wait_until_ready(), state=encode(machine.state()))

    def serve(self) -> None:
        """Perform what the first host asks for, until it ends."""
        while True:
            message = _next(self.line, "prepare", "launch")
            match message["event"]:
                case "prepare":
                    self._prepare(Training(**message["workload"]))
                    description = {name: self.site.description.get(name) for name in ("imports", "examples")}
                    self.line.send(event="prepared", description=description)
                case "launch":
                    _Launch(self, decode(Job, message["job"]), Meet(**message["meet"])).perform()

    def _prepare(self, workload: Training) -> None:
        own = replace(workload, file=here(WORKLOAD, workload.name, workload.file))
        if own.data is not None:
            try:
                same = sha256_of_names(own.data) == own.data_sha256
            except OSError as error:
                what = f"{error.filename} cannot be read: {error.strerror}"
                raise RequestError("--data", what, ALIKE) from error
            if not same:
                raise RequestError("--data", f"{own.data} has other files than on the first host", ALIKE)
        self.site.prepare(own)


def job_here(job: Job, logs: str) -> Job:
    """The job with the files of this host."""
    work = job.workload
    return replace(
        job,
        workload=replace(work, file=here(WORKLOAD, work.name, work.file)),
        strategy_file=here(STRATEGY, job.strategy, job.strategy_file),
        switches=tuple(replace(one, file=here(SWITCH, one.name, one.file)) for one in job.switches),
        logs=logs,
        trace=os.path.join(logs, "trace-{rank}.json.gz") if job.trace else "",
    )


class _Launch:
    """This host's part of a launch."""

    def __init__(self, host: _Follower, job: Job, meet: Meet) -> None:
        self.host, self.line = host, host.line
        logs = os.path.join(host.folder, "logs")
        shutil.rmtree(logs, ignore_errors=True)
        os.makedirs(logs)
        problems = host.site.description["apex"]["problems"]
        probe = not host.sampler.knows_pids
        self.job = replace(job_here(job, logs), memory_probe=probe, apex_problems=problems)
        address = host.line.peer  # by which this host has reached the first one
        self.meet = replace(meet, address=address, interface=addresses_here().get(host.line.here))
        self.gone: Gone | None = None
        self.end: BaseException | None = None

    def watched(self) -> list[Line]:
        return [] if self.gone or self.end else [self.line]

    def slow(self) -> None:
        """Something is wrong: check whether the first host is still there."""
        self.line.probe(HURRIED)

    def listening(self, port: int) -> None:
        raise AssertionError("rank 0 is on the first host")

    def heed(self, readable: Sequence[Readable]) -> Message | None:
        try:
            for message in self.line.receive(0.0) if self.watched() else []:  # some may have come with the launch
                match message:
                    case {"event": "abort", "reason": str(reason), "collateral": bool(), "stalled": bool(stalled)}:
                        return {"reason": reason, "collateral": True, "stalled": stalled}
                    case {"event": "end", "code": int(code)}:
                        self.end = _Ended(code, message.get("why"))
                    case {"event": "refused"}:
                        self.end = refusal(message)
                    case _:
                        raise Gone("it sent an invalid message")
        except Gone as error:
            self.gone = error
        if self.gone or self.end:
            return {"reason": "the first host is gone", "collateral": True, "stalled": False}
        return None

    def perform(self) -> None:
        """Perform it and send the outcome. Raises what ends this host (such as :class:`Gone`) after its ranks ended."""
        host, job, sampled = self.host, self.job, self.job.purpose == "measure"
        self.line.probe(silent=True)
        busy_s, started_s = machine.busy_s() - time.process_time(), time.monotonic()
        if sampled:
            host.sampler.begin(job.launch)

        def hear(event: Event) -> None:
            if sampled:
                host.sampler.hear(job, event)

        try:
            outcome = host.site.perform(job, hear, beside=self)
        except LaunchInterrupted as error:
            outcome, self.end = error.outcome, KeyboardInterrupt()
        busy_s = machine.busy_s() - time.process_time() - busy_s - outcome.cpu_s
        wall_s = time.monotonic() - started_s
        memory, device = host.sampler.finish(job.launch) if sampled else ([], [])
        if self.gone:
            raise self.gone
        if isinstance(self.end, _Ended | RequestError):
            raise self.end
        self._send_files()
        elsewhere = Elsewhere(
            host=host.name,
            memory=memory,
            device=device,
            cost=host.sampler.cost if sampled else None,
            findings=host.sampler.findings if sampled else None,
            foreign_cores=machine.foreign_cores(busy_s, wall_s),
        )
        own = {name: value for name, value in asdict(outcome).items() if name not in ("elsewhere", "lost")}
        self.line.send(event="over", outcome=own, elsewhere=asdict(elsewhere))
        self.line.probe()
        if self.end:
            raise self.end

    def _send_files(self) -> None:
        for number, rank in enumerate(self.job.ranks):
            if rank.host != self.host.name:
                continue
            log, trace = os.path.join(self.job.logs, self.job.log_name(number)), self.job.trace.format(rank=number)
            shorten(log)
            for kind, path in (("log", log), ("trace", trace)):
                if os.path.isfile(path) and os.path.getsize(path) <= FILE_LIMIT_BYTES:
                    with open(path, "rb") as file:
                        self.line.send(event=kind, rank=number, base64=base64.b64encode(file.read()).decode())
