"""The hosts of a run as the first one sees them: which have joined, what they are, and how all of them end.

with leading(engine, os.environ, console.say) as party:
    party.gather(hello, console.say)
    ...
    party.end(code)
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from bench.core.children import born
from bench.core.codec import Damaged, decode
from bench.core.errors import HostError, RequestError
from bench.core.records import Host
from bench.runs.document import EngineRecord
from bench.sites.hosts.engine import Started, secret_of
from bench.sites.hosts.hello import Hello, named, placed, refuse_unlike
from bench.sites.hosts.line import Gone, Line, Message
from bench.sites.hosts.meeting import JOIN_S, SAY_WAITING_S, Caller, Listener, relayed, told

LINGER_S = 20.0  # how long a run that failed early waits for hosts that are still to come, to send them the reason


@dataclass(slots=True)
class Member:
    """Another host. ``ready``: its message once it was ready."""

    line: Line
    hello: Hello
    name: str = ""
    ready: Message = field(default_factory=dict)


class Party:
    """``hosts``: this one first. ``members``: the others, in the order of their numbers."""

    def __init__(self, engine: Started, environment: Mapping[str, str], secret: bytes | None) -> None:
        self.engine = engine
        self.hello: Hello | None = None
        self.say: Callable[[str], None] = lambda text: None
        self.hosts: tuple[Host, ...] = ()
        self.members: list[Member] = []
        self._came: dict[int, Member] = {}
        self._ended = False
        self._listener = Listener(engine, environment, secret)

    def job(self) -> EngineRecord:
        """By which the job is known when the engine restarts it."""
        engine, parent = self.engine, os.getppid()
        started_by = f"{parent}-{born(parent)}"
        return EngineRecord(name=engine.name, run=engine.run, parent=started_by, attempt=engine.attempt)

    @property
    def name(self) -> str:
        """Of this host."""
        return self.hosts[0].name

    def gather(self, hello: Hello, say: Callable[[str], None]) -> None:
        """Wait until all hosts have joined. Raises :class:`RequestError` if one cannot take part, and
        :class:`HostError` if one does not join within :data:`JOIN_S`."""
        began_s, announced, reported, dropped = time.monotonic(), False, 0, self._listener.dropped
        self.hello, self.say = hello, say
        while missing := self.engine.count - 1 - len(self._came):
            for caller, message in self._listener.next_members(1.0):
                self._admit(caller, message, hello)
            for words in dropped[reported:]:
                say(words)
            reported = len(dropped)
            waited_s = time.monotonic() - began_s
            if missing and waited_s > JOIN_S:
                here = f"{self.engine.address}:{self.engine.port}"
                absent = ", ".join(str(n) for n in range(1, self.engine.count) if n not in self._came)
                what = f"of {self.engine.count} hosts, number {absent} did not come within {JOIN_S:.0f} s"
                remedy = f"start the same command there, and see whether it reaches {here}"
                raise HostError("; ".join([what, remedy, *dropped]))
            if waited_s > SAY_WAITING_S and not announced:
                say(f"waiting for {missing} of {self.engine.count} hosts")
                announced = True
        self._listener.close()
        self.members = [self._came[index] for index in sorted(self._came)]
        names = named([hello.machine, *(member.hello.machine for member in self.members)])
        self.hosts = (placed(hello, names[0]),)
        for name, member in zip(names[1:], self.members, strict=True):
            member.name = name
            self.hosts += (placed(member.hello, name),)

    def _admit(self, caller: Caller, message: Message, hello: Hello) -> None:
        who, index = caller.line.peer, caller.index or 0
        if message["event"] in ("refused", "failed"):
            raise relayed(f"host {index} ({who})", message)
        if index in self._came or not 0 < index < self.engine.count:
            problem = f"{who} has number {index}, as another host or as none of {self.engine.count}"
            raise RequestError("RANK", problem, "number hosts from 0, each once")
        try:
            theirs = decode(Hello, {name: value for name, value in message.items() if name != "event"})
        except Damaged as error:
            problem = f"host {index} ({who}) says what this version does not understand ({error})"
            raise RequestError("bench", problem, "install the same version on all hosts") from error
        refuse_unlike(hello, theirs, f"{theirs.machine.host} (host {index})")
        self._came[index] = Member(caller.line, theirs)

    def end(self, code: int) -> int:
        """Let all hosts end with this exit code."""
        self._tell(event="end", code=code, why=None)
        return code

    def fail(self, error: BaseException) -> None:
        """End all hosts for this reason, also those that are still to come."""
        message = told(error, "end")
        if message["event"] == "refused":
            message["problem"] += f" on {self.name}" if self.hosts else " on the first host"
        self._tell(**message)

    def _tell(self, **message: object) -> None:
        """Send this to every host once. Before the run, wait for those that have not joined yet."""
        if self._ended:
            return
        self._ended = True
        sent: set[int] = set()
        until_s = time.monotonic() + LINGER_S
        while True:
            for caller in self._listener.callers:
                if caller.index is not None and caller.index not in sent:
                    sent.add(caller.index)
                    with suppress(Gone):
                        caller.line.send(**message)
            informed = len(sent) + self._listener.turned_away
            if self.members or informed >= self.engine.count - 1 or time.monotonic() > until_s:
                return
            with suppress(RequestError, HostError):  # another one that cannot take part
                self._listener.next_members(1.0)

    def close(self) -> None:
        self._listener.close()
        for caller in self._listener.callers:
            caller.line.close()


@contextmanager
def leading(engine: Started, environment: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Party]:
    """The hosts that this one leads. However this context ends, all of them end; what is wrong with the request is said
    before that, as it may take :data:`LINGER_S`.

    Raises :class:`RequestError` without a secret.
    """
    secret = secret_of(environment)
    party = Party(engine, environment, None if isinstance(secret, RequestError) else secret)
    try:
        if isinstance(secret, RequestError):
            raise secret
        yield party
    except BaseException as error:
        if isinstance(error, RequestError):
            say(f"bench: error: {' '.join(str(error).split())}")
            error.said = True
        party.fail(error)
        raise
    finally:
        party.close()
