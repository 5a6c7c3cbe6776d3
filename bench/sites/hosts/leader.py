"""A site of several hosts, on the first of them: a launch runs on all hosts that have ranks in it and is merged here.

Hosts exchange nothing while ranks run: each host's worker host ends a launch that stalls or fails there, and the host
then reports it. Only then does this host ask the others, and name one that does not answer.
"""

import base64
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from bench.core.errors import HostError, RequestError
from bench.core.files import sha256
from bench.core.job import Job, Meet, Training
from bench.core.records import Host
from bench.seams.discover import Files
from bench.seams.site import Elsewhere, Event, LaunchInterrupted, Outcome, Readable
from bench.sites.hosts.address import addresses_here
from bench.sites.hosts.line import HURRIED, Gone, Line, Message
from bench.sites.hosts.meeting import relayed
from bench.sites.hosts.party import Member, Party
from bench.sites.local import START_TIMEOUT_S, WorkerHost

QUEUE_S = 30 * 86400.0  # for a host to get its devices, and to be ready, once it has said that it queues for them
ANSWER_S = 10.0  # for a host to report its part of a launch, once it was asked to end it
FINISH_S = 60.0
"""On top of the stall timeout: for a host whose ranks ended well to read its samples and send its results."""


class Hosts:
    """Performs launches on all hosts of ``party``. ``own``: performs them on this one. ``files``: those that ranks will
    execute; they must be the same on all hosts.

    Raises :class:`RequestError` and :class:`HostError` if another host cannot take part, or no longer.
    """

    def __init__(self, own: WorkerHost, party: Party, files: Files) -> None:
        self.own, self.party, self.log = own, party, own.log
        self.hosts: tuple[Host, ...] = party.hosts
        self.description: dict[str, object] = {}
        checksums = [(kind.word, name, file, sha256(file)) for kind, name, file in files]
        for member in party.members:
            self._send(member, event="open", name=member.name, leader=party.name, files=checksums)

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *exception: object) -> None:
        self.own.close()

    def wait_until_ready(self) -> dict[str, object]:
        """The description of this host's interpreter, when all hosts are ready and have the same torch."""
        self.description = self.own.wait_until_ready()
        for member in self.party.members:
            member.ready = self._answer(member, "ready")
            torch = member.ready["description"]["torch"]
            if torch != self.description["torch"]:
                problem = f"{member.name} has torch {torch}, and {self.party.name} {self.description['torch']}"
                raise RequestError("--python", problem, "install the same version on all hosts")
        return self.description

    def prepare(self, workload: Training) -> None:
        for member in self.party.members:
            self._send(member, event="prepare", workload=asdict(workload))
        self.own.prepare(workload)
        self.description = self.own.description
        for member in self.party.members:
            member.ready["description"] |= self._answer(member, "prepared")["description"]

    def perform(self, job: Job, on_event: Callable[[Event], None]) -> Outcome:
        """As in :class:`bench.seams.site.Connected`. After an :class:`Outcome` with ``lost`` there is no other."""
        taking_part = [member for member in self.party.members if job.on_host(member.name)]
        if not taking_part:
            return self.own.perform(job, on_event)
        return _Launch(self, job, taking_part).perform(on_event)

    def _send(self, member: Member, **message: object) -> None:
        with _there(member):
            member.line.send(**message)

    def _answer(self, member: Member, event: str) -> Message:
        """A host's answer. Raises :class:`HostError` or :class:`RequestError` if it cannot take part."""
        limit_s, events = START_TIMEOUT_S, (event, "waiting", "refused", "failed")
        with _there(member):
            while (answer := member.line.wait_for(*events, limit_s=limit_s))["event"] == "waiting":
                self.party.say(f"{member.name}: {answer.get('text')}")
                limit_s = QUEUE_S
        if answer["event"] != event:
            raise relayed(member.name, answer)
        return answer


@contextmanager
def _there(member: Member) -> Iterator[None]:
    try:
        yield
    except Gone as error:
        raise HostError(f"{member.name} is gone: {error}") from error


class _Launch:
    """One launch on several hosts. ``begun``: whether the others know of it. ``over``: the final message of each other
    host. ``lost``: why one sent none."""

    def __init__(self, site: Hosts, job: Job, members: list[Member]) -> None:
        self.site, self.job, self.members = site, job, members
        self.begun = False
        self.over: dict[str, Message] = {}
        self.lost: dict[str, str] = {}
        here = sorted({member.line.here for member in members})
        address = here[0] if len(here) == 1 else "::" if ":" in here[0] else "0.0.0.0"
        interface = addresses_here().get(here[0])
        self.meet = Meet(host=site.party.name, address=address, port=None, interface=interface)

    def perform(self, on_event: Callable[[Event], None]) -> Outcome:
        interrupted = False
        for member in self.members:
            member.line.probe(silent=True)
        try:
            own = self.site.own.perform(self.job, on_event, beside=self)
        except LaunchInterrupted as error:
            own, interrupted = error.outcome, True
        self._collect(own)
        for member in self.members:
            if member.name not in self.lost:
                member.line.probe()
        whole = self._merged(own)
        if interrupted:
            raise LaunchInterrupted(whole)
        return whole

    def watched(self) -> list[Line]:
        return [one.line for one in self.members if self.begun and one.name not in self.over.keys() | self.lost.keys()]

    def slow(self) -> None:
        """Something is wrong: check which hosts are still there."""
        for member in self.members:
            if member.line in self.watched():
                member.line.probe(HURRIED)

    def listening(self, port: int) -> None:
        """Start the others: their ranks meet at this port, at the address by which they reached this host."""
        self.begun = True
        for member in self.members:
            meet = Meet(host=member.name, address=member.line.here, port=port, interface=None)
            try:
                member.line.send(event="launch", job=asdict(self.job), meet=asdict(meet))
            except Gone as error:
                self.lost[member.name] = str(error)

    def heed(self, readable: Sequence[Readable]) -> Message | None:
        """Read how other hosts ended. Returns why the ranks here must end if one failed or is lost."""
        for member in self.members:
            if member.line not in readable:
                continue
            try:
                for message in member.line.receive():
                    self._hear(member, message)
            except Gone as error:
                self.lost[member.name] = str(error)
        failed = [name for name, message in self.over.items() if message["outcome"]["status"] != "ok"]
        if not failed and not self.lost:
            return None
        name = [*self.lost, *failed][0]
        return {"reason": f"the launch failed on {name}", "collateral": True, "stalled": False}

    def _hear(self, member: Member, message: Message) -> None:
        match message:
            case {"event": "log" | "trace" as kind, "rank": int(rank), "base64": str(b64)} if self._is_on(member, rank):
                log, trace = os.path.join(self.job.logs, self.job.log_name(rank)), self.job.trace.format(rank=rank)
                file = Path(log if kind == "log" else trace)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(b64))
            case {"event": "over", "outcome": {"status": str()}, "elsewhere": dict()}:
                self.over[member.name] = message
            case {"event": "failed", "why": str(why)}:
                raise Gone(why)
            case _:
                raise Gone("it sent an invalid message")

    def _is_on(self, member: Member, rank: int) -> bool:
        return 0 <= rank < self.job.processes and self.job.ranks[rank].host == member.name

    def _collect(self, own: Outcome) -> None:
        """Wait until every other host has reported how its part ended. If ours failed, have them end theirs."""
        patience_s = FINISH_S + self.job.stall_timeout_s if own.status == "ok" else ANSWER_S
        if own.status != "ok":
            stalled, reason = own.status == "timeout", f"the launch failed on {self.site.party.name}"
            if stalled and own.reason:
                reason = own.reason.partition(":")[0]
            for member in self.members:
                if member.line in self.watched():
                    with suppress(Gone):
                        member.line.send(event="abort", reason=reason, collateral=True, stalled=stalled)
        heard_s = time.monotonic()
        while waiting := self.watched():
            readable, _, _ = select.select(waiting, [], [], 1.0)
            if readable:
                heard_s = time.monotonic()
            self.heed(readable)
            if time.monotonic() - heard_s > patience_s:
                for member in self.members:
                    if member.line in waiting:
                        self.lost[member.name] = f"it did not answer within {patience_s:.0f} s"
            elif own.status == "ok" and (
                self.lost or any(one["outcome"]["status"] != "ok" for one in self.over.values())
            ):
                patience_s = min(patience_s, ANSWER_S)

    def _merged(self, own: Outcome) -> Outcome:
        """One outcome from those of all hosts. The cause of a failure is a lost host, or else the failure that did not
        follow from another; if ranks hang, the rank for which the others wait."""
        every = [(self.site.party.name, own)]
        elsewhere = []
        for name, message in self.over.items():
            try:
                every.append((name, Outcome(**message["outcome"])))
                elsewhere.append(Elsewhere(**message["elsewhere"]))
            except TypeError as error:
                self.lost[name] = f"it sent an invalid message ({error})"
        failed = [(name, one) for name, one in every if one.status != "ok"]
        host, cause = min(failed, key=lambda pair: pair[1].blame or [0.0, 0.5], default=("", own))
        reason = cause.reason if not failed or host == self.site.party.name else f"on {host}: {cause.reason}"
        whole = replace(
            cause,
            reason=reason,
            ranks=sorted((rank for _, one in every for rank in one.ranks), key=lambda rank: rank["rank"]),
            results=sorted((result for _, one in every for result in one.results), key=_rank_of),
            partial=[of for _, one in every for of in one.partial],
            cpu_s=own.cpu_s,
            elsewhere=tuple(elsewhere),
        )
        if not self.lost:
            return whole
        name, why = next(iter(self.lost.items()))
        lost = f"{name} is gone: {why}"
        first = min((number for number, rank in enumerate(self.job.ranks) if rank.host == name), default=None)
        status = "timeout" if own.status == "timeout" else "killed"
        return replace(whole, status=status, reason=lost, first_failed_rank=first, failure=None, lost=lost)


def _rank_of(result: object) -> int:
    rank = result.get("rank") if isinstance(result, dict) else None
    return rank if isinstance(rank, int) else -1
