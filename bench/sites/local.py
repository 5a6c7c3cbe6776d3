"""This host: ranks are forked from a worker host. The command line's end of it, which starts it and hands it jobs."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from bench.core.bootstrap import program
from bench.core.channel import Channel, adopt_orphans
from bench.core.children import children, end_children
from bench.core.errors import BenchError, HostError, RequestError, remedy_of
from bench.core.files import Json, log_end
from bench.core.job import Job, Training
from bench.core.records import Host
from bench.seams.site import Beside, Connected, Event, LaunchInterrupted, Options, Outcome, Site

START_TIMEOUT_S = 300.0
Command = Callable[[Job, str], list[str]]
ABORT_PATIENCE_S = 5.0
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
HOST_SILENCE_S = 30.0  # by how much longer than a rank the host may be silent


SITE = Site(summary="this host, with ranks forked from a worker host that has torch imported")


def connect(options: Options) -> Connected:
    """Start a worker host."""
    return WorkerHost(options)


class WorkerHost:
    """A running worker host. Leaving the context ends it and every rank that it has.

    ``command(job, python)``: that of a launcher which starts the ranks, ``python -m bench.worker`` each; without, the
    worker host forks them itself. ``description``: of its interpreter (see ``bench.worker.host``), and after
    :meth:`prepare` of the workload.
    """

    def __init__(self, options: Options, command: Command | None = None) -> None:
        self.options, self.command, self.log = options, command, options.log
        self.hosts: tuple[Host, ...] = options.hosts
        self.description: Event = {}
        self.interpreter = options.python or sys.executable
        self._workload: Training | None = None
        self._start()

    def _start(self) -> None:
        adopt_orphans()
        self._others: list[int] | None = children()
        ours, theirs = socket.socketpair()
        options = self.options
        mode, kept = "fresh" if options.fresh else "fork", ",".join(map(str, options.locks))
        arguments = ["host", str(theirs.fileno()), str(os.getpid()), mode, kept]
        arguments += [options.apex_path] if options.apex_path else []
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {})
        with open(self.log, "ab") as output:
            try:
                self.process = subprocess.Popen(
                    [self.interpreter, "-c", program("bench.worker.start"), *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(), *options.locks),
                    start_new_session=True,
                )
            except OSError as error:
                raise self._unfit(f"cannot be started: {error.strerror}", "give an interpreter's path") from error
        theirs.close()
        self.channel = Channel(ours)

    def __enter__(self) -> "WorkerHost":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_until_ready(self) -> Event:
        """As the protocol says. Raises :class:`HostError` when it takes too long."""
        answer = self.channel.first("ready", "failed", limit_s=START_TIMEOUT_S)
        if answer is None and not self.channel.closed:
            what = f"the worker host did not import torch within {START_TIMEOUT_S:.0f} s"
            raise HostError(f"{what}; see how long {self.interpreter} -c 'import torch' takes")
        if answer is None:
            words = self._last_words()
            if self.process.returncode < 0:
                raise self._ended(f"while it imported torch ({words})")
            raise self._unfit(f"cannot host the workers: {words}", "name another one")
        if answer["event"] == "failed":
            what = f"cannot host the workers: {answer['reason']}"
            raise self._unfit(what, "install torch>=2.6 there, or name another interpreter")
        if answer["bound"]:
            names = " ".join(name for name in BINDING if name in os.environ) or "OpenMP"
            what = "importing torch bound the process to some of its cores, which all ranks would share"
            raise RequestError(names, what, f"unset {names}")
        self.description = answer
        return answer

    def _ended(self, how: str) -> HostError:
        what = f"{signal.Signals(-self.process.returncode).name} ended the worker host {how}"
        return HostError(f"{what}; if nobody sent it, free memory or raise the limits ('ulimit -a')")

    def _unfit(self, what: str, remedy: str) -> BenchError:
        """Why the host did not come up: this machine has no more of something, or it is the wrong interpreter."""
        limit = remedy_of(what)
        if limit is not None:
            return HostError(f"{self.interpreter} {what}; {limit}")
        return RequestError("--python", f"{self.interpreter} {what}", remedy)

    def prepare(self, workload: Training) -> None:
        """As the protocol says. Raises :class:`RequestError` also when the host dies of it, or is not done in time."""
        self._workload = workload
        self.channel.send(event="prepare", workload=asdict(workload))
        answer = self.channel.first("prepared", limit_s=START_TIMEOUT_S)
        if answer is not None:
            if answer["refused"]:
                raise RequestError(*answer["refused"])
            self.description |= answer
            return
        slow = f"was still being imported after {START_TIMEOUT_S:g} s"
        how = f"ended the worker host: {self._last_words()}" if self.channel.closed else slow
        if self.channel.closed and -self.process.returncode in (signal.SIGKILL, signal.SIGTERM):
            raise self._ended(f"while it imported {workload.file}")
        raise RequestError("--workload", f"{workload.file} {how}", "fix the file")

    def perform(self, job: Job, on_event: Callable[[Event], None], beside: Beside | None = None) -> Outcome:
        """As the protocol says; ``on_event`` receives every message of every rank. ``beside``: of a launch on several
        hosts, of which this one starts its own ranks.

        A host that dies or is silent for longer than a rank may be takes its launch with it: the status is then
        ``killed`` or ``timeout``, and the next call starts another host. Raises :class:`HostError` when that does not
        come up.
        """
        if self.channel.closed:
            self._start_again()
        self._others = children()
        seen: dict[int, Event] = {}
        command = None if self.command is None else self.command(job, self.interpreter)
        meet = None if beside is None else asdict(beside.meet)
        self.channel.send(event="launch", job=asdict(job), command=command, meet=meet)
        try:
            return self._wait_for_end(on_event, seen, job.stall_timeout_s + HOST_SILENCE_S, beside)
        except KeyboardInterrupt as error:
            self.channel.send(event="abort", reason="interrupted", collateral=False, stalled=False)
            try:
                outcome = self._wait_for_end(lambda message: None, seen, ABORT_PATIENCE_S)
            except KeyboardInterrupt:
                outcome = self._gone(seen, "killed", "interrupted twice")
            raise LaunchInterrupted(outcome) from error

    def _wait_for_end(
        self, on_event: Callable[[Event], None], seen: dict[int, Event], patience_s: float, beside: Beside | None = None
    ) -> Outcome:
        """``seen``: gets the pid, phase and step of each rank, by its messages."""
        heard_s, aborted = time.monotonic(), False
        while not self.channel.closed:
            others = beside.watched() if beside is not None else []
            readable, _, _ = select.select([self.channel, *others], [], [], 1.0)
            why = beside.heed([one for one in readable if one is not self.channel]) if beside is not None else None
            if why is not None and not aborted:
                self.channel.send(event="abort", **why)
                aborted = True
            if self.channel in readable:
                heard_s = time.monotonic()  # of a message of several MB each piece is a sign of life
            for message in self.channel.receive() if self.channel in readable else []:
                if message["event"] in ("listening", "slow") and beside is not None:
                    beside.slow() if message["event"] == "slow" else beside.listening(message["port"])
                    continue
                if message["event"] == "over":
                    names = ("status", "reason", "first_failed_rank", "ranks", "cpu_s", "failure", "partial", "blame")
                    results = [_parsed(text) for text in message["results"]]
                    return Outcome(**{name: message[name] for name in names}, results=results)
                if "rank" in message:
                    noted = seen.setdefault(message["rank"], {"rank": message["rank"], "pid": None})
                    noted |= {name: message[name] for name in ("pid", "phase", "step") if name in message}
                on_event(message)
            if time.monotonic() - heard_s > patience_s:
                return self._gone(seen, "timeout", f"the worker host was silent for {patience_s:.0f} s and was ended")
        return self._gone(seen, "killed", f"the worker host ended: {self._last_words()}")

    def _gone(self, seen: dict[int, Event], status: str, reason: str) -> Outcome:
        """The end of a launch whose host is gone, and with it its ranks, by their last messages."""
        self.close()
        self.channel.closed = True
        ranks = [{"phase": "start", "step": 0, **seen[rank]} for rank in sorted(seen)]
        return Outcome(status=status, reason=reason, first_failed_rank=None, ranks=ranks)

    def _start_again(self) -> None:
        self._start()
        try:
            self.wait_until_ready()
            if self._workload is not None:
                self.prepare(self._workload)
        except RequestError as error:
            raise HostError(f"the worker host ended and could not be restarted: {error.problem}") from error

    def _last_words(self) -> str:
        status = self.process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        how += ", as where memory runs out" * (status == -signal.SIGKILL)
        *_, last = [how, *log_end(self.log)]
        return last[:500]

    def close(self) -> None:
        """End the host, gently while no launch is in hand; the kernel ends its ranks with it. What they had started
        comes to this process then, and is ended, too."""
        if self._others is None:
            return
        others = children() if self.process.poll() is None else self._others
        self.channel.close()
        try:
            self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        end_children(but=others)
        self._others = None


def _parsed(result: str) -> Json:
    """A rank's result; None for what is no JSON."""
    try:
        return json.loads(result)
    except (ValueError, RecursionError):
        return None
