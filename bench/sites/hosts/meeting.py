"""How the hosts of a run meet: the first listens, the others call, and both prove that they have the secret.

Whoever does not prove it is dropped and remembered: it may be a stranger, or a bench with another secret. A host that
has proved it and cannot take part reports why, and all hosts end with one line each.
"""

import errno
import hmac
import json
import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bench.core.errors import FAILED, INTERRUPTED, USAGE, BenchError, HostError, RequestError
from bench.seams.engine import SECRET
from bench.seams.site import Readable
from bench.sites.hosts.address import AgentStore, addresses_here, resolved, to_listen_on
from bench.sites.hosts.engine import SAME_SECRET, Started
from bench.sites.hosts.line import Gone, Line, Message, is_hex, proof, session_key

JOIN_S = 600.0  # for all hosts to join: pods pull images, and queues start hosts one by one
GONE_S = 20.0  # for a first host to listen again that has stopped: its engine may restart it
SAY_WAITING_S = 10.0
SHAKE_S = 10.0  # for a caller to prove that it has the secret
CALL_S = 3.0
AGAIN_S = 0.5
MOST_CALLERS = 256
"""Without the secret, at one time. The next one takes the place of the first."""
MOST_REMEMBERED = 8
NONCE_LETTERS, PROOF_LETTERS = 32, 64


@dataclass(slots=True)
class Caller:
    """Whoever has connected. ``index``: the number of its host, once it has proved that it has the secret."""

    line: Line
    nonce: str
    since_s: float
    index: int | None = None


def refusal(message: Message, who: str = "") -> RequestError:
    """The error that another host refuses by; ``who``: that host, if it is to be named."""
    option, problem, remedy = (str(message.get(part)) for part in ("option", "problem", "remedy"))
    return RequestError(option, f"on {who}: {problem}" if who else problem, remedy)


def told(error: BaseException, event: str) -> Message:
    """An error as another host hears of it: a refusal, or an ``event`` with the exit code and the reason."""
    why: str | None
    match error:
        case RequestError():
            about = {"option": error.option, "problem": error.problem, "remedy": error.remedy}
            return {"event": "refused", **about}
        case BenchError():
            code, why = error.exit_code, str(error)
        case SystemExit():
            code = error.code if isinstance(error.code, int) else 0
            why = None if event == "end" else "it ended before the run did"
        case KeyboardInterrupt():
            code, why = INTERRUPTED, "it was interrupted"
        case _:
            code, why = FAILED, f"bench failed ({type(error).__name__})"
    return {"event": event, "code": code, "why": why}


def relayed(who: str, message: Message) -> BenchError:
    """The error of another host, as this one reports it."""
    if message["event"] == "refused":
        return refusal(message, who)
    error = HostError(f"on {who}: {message.get('why')}")
    if message.get("code") == USAGE:
        error.exit_code = USAGE
    return error


class Listener:
    """The first host's end of the meeting. ``turned_away``: how many benches called without the secret.

    ``dropped``: who was dropped and why, in words, of the first :data:`MOST_REMEMBERED`.
    """

    def __init__(self, engine: Started, environment: Mapping[str, str], secret: bytes | None) -> None:
        self.engine, self.secret = engine, secret
        self.callers: list[Caller] = []
        self.turned_away = 0
        self.dropped: list[str] = []
        address = to_listen_on(engine.address, environment)
        family = socket.AF_INET6 if ":" in (address or (resolved(engine.address) or [""])[0]) else socket.AF_INET
        port = 0 if engine.agent_store else engine.port
        if address == "" and addresses_here().keys().isdisjoint(resolved(engine.address)):
            self.refuse_second_leader()
        try:
            self.socket = socket.create_server((address, port), family=family, backlog=MOST_CALLERS)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                self.refuse_second_leader()
            problem = f"{address or 'this host'}:{port} cannot be listened on: {error.strerror}"
            raise RequestError("MASTER_PORT", problem, "set another port, the same on all hosts") from error
        if engine.agent_store:
            here = [address] if address else [one for one in addresses_here() if one not in ("127.0.0.1", "::1")]
            where = {"addresses": [engine.address, *here], "port": self.socket.getsockname()[1]}
            store = AgentStore(engine.address, engine.port)
            store.ask(json.dumps(where))
            store.close()

    def refuse_second_leader(self) -> None:
        """Raises :class:`RequestError` if another bench already listens where this one should."""
        for address in [] if self.engine.agent_store else resolved(self.engine.address):
            with suppress(OSError, Gone), socket.create_connection((address, self.engine.port), timeout=CALL_S) as call:
                _prove(Line(call, leads=False), self.engine.index, self.secret)
                problem = f"another bench leads at {address}:{self.engine.port}, and this host has number 0, too"
                raise RequestError("RANK", problem, "number hosts from 0, each once")

    def next_members(self, limit_s: float) -> list[tuple[Caller, Message]]:
        """Messages of callers with the secret, after waiting once. Raises :class:`RequestError` if one of them is a
        second leader, and :class:`HostError` if one has left."""
        deadline_s = time.monotonic() - SHAKE_S
        for caller in [one for one in self.callers if one.index is None and one.since_s < deadline_s]:
            self._drop(caller, f"it did not prove within {SHAKE_S:.0f} s that it has the secret")
        messages: list[tuple[Caller, Message]] = []
        sockets: list[Readable] = [self.socket, *(one.line for one in self.callers)]
        readable, _, _ = select.select(sockets, [], [], limit_s)
        if self.socket in readable:
            self._greet()
        for caller in [one for one in self.callers if one.line in readable]:
            try:
                for message in caller.line.receive():
                    if caller.index is not None:
                        messages.append((caller, message))
                    else:
                        self._shake(caller, message)
            except Gone as error:
                self._drop(caller, str(error))
                if caller.index is not None:
                    raise HostError(f"host {caller.index} ({caller.line.peer}) left before the run: {error}") from error
        return messages

    def _greet(self) -> None:
        strangers, connected = [one for one in self.callers if one.index is None], None
        with suppress(OSError):  # such as no more open files
            connected = self.socket.accept()[0]
        if strangers and (connected is None or len(strangers) >= MOST_CALLERS):
            self._drop(strangers[0], "too many others called before it proved that it has the secret")
        if connected is None:
            return
        try:
            caller = Caller(Line(connected, leads=True), secrets.token_hex(NONCE_LETTERS // 2), time.monotonic())
            caller.line.send(event="challenge", nonce=caller.nonce)
        except (Gone, OSError):
            connected.close()
        else:
            self.callers.append(caller)

    def _shake(self, caller: Caller, message: Message) -> None:
        """Admit a caller that has the secret. Raises :class:`Gone` for any other."""
        match message:
            case {"event": "secretless"}:
                self.turned_away += 1
                raise Gone(f"{SECRET} is not set there; {SAME_SECRET}")
            case {"event": "proof", "nonce": nonce, "proof": shown, "index": int(index)} if is_hex(
                nonce, NONCE_LETTERS
            ) and is_hex(shown, PROOF_LETTERS):
                nonces = (caller.nonce, nonce)
                role = f"follower {index}"
                if self.secret is None or not hmac.compare_digest(shown, proof(self.secret, role, nonces)):
                    what = "is not set on the leader" if self.secret is None else "differs from that of the leader"
                    self.turned_away += 1
                    caller.line.send(event="refused", option=SECRET, problem=f"it {what}", remedy=SAME_SECRET)
                    raise Gone(f"it has another {SECRET}; {SAME_SECRET}")
                if index == self.engine.index:
                    problem = f"the bench on {caller.line.peer} has number {index}, too"
                    raise RequestError("RANK", problem, "number hosts from 0, each once")
                caller.line.send(event="proof", proof=proof(self.secret, "leader", nonces))
                caller.line.key = session_key(self.secret, nonces)
                caller.index = index
            case _:
                raise Gone("it sent an invalid message")

    def _drop(self, caller: Caller, why: str) -> None:
        caller.line.close()
        self.callers.remove(caller)
        words = f"{caller.line.peer} called and was dropped: {why}"
        if caller.index is None and words not in self.dropped and len(self.dropped) < MOST_REMEMBERED:
            self.dropped.append(words)

    def close(self) -> None:
        """Admit nobody any more; those already admitted stay."""
        self.socket.close()
        for caller in [one for one in self.callers if one.index is None]:
            self._drop(caller, "all hosts had come")


def call(engine: Started, secret: bytes | RequestError, say: Callable[[str], None] = lambda text: None) -> Line:
    """Connect to the first host once it listens, and prove the secret to each other. Says so if that takes long.

    Raises :class:`RequestError` if that fails, and :class:`HostError` if nobody answers within :data:`JOIN_S`, or
    within :data:`GONE_S` after the first host was last seen to listen.
    """
    where, store = f"{engine.address}:{engine.port}", None
    last_s = until_s = time.monotonic() + JOIN_S
    announced = False
    how, why = f"was not found at {where} within {JOIN_S:.0f} s", "it has not come yet"
    try:
        store = AgentStore(engine.address, engine.port) if engine.agent_store else None
        while time.monotonic() < until_s:
            addresses, port = (resolved(engine.address), engine.port) if store is None else store.get() or ([], 0)
            for address in addresses:
                try:
                    connected = socket.create_connection((address, port), timeout=CALL_S)
                except OSError as error:
                    why = str(error)
                    continue
                how, until_s = f"listened at {where} and is gone", min(last_s, time.monotonic() + GONE_S)
                try:
                    return _called(connected, engine, secret)
                except (OSError, Gone) as error:
                    why = str(error)
            late = time.monotonic() > last_s - JOIN_S + SAY_WAITING_S
            if not announced and (late or isinstance(secret, RequestError)):  # without one it is never let in
                announced = True
                say(f"waiting for the first host at {where} ({secret if isinstance(secret, RequestError) else why})")
            time.sleep(AGAIN_S)
    finally:
        if store is not None:
            store.close()
    raise HostError(f"the first host {how} ({why}); see whether it runs there")


def _called(connected: socket.socket, engine: Started, secret: bytes | RequestError) -> Line:
    line = Line(connected, leads=False)
    try:
        nonces = _prove(line, engine.index, None if isinstance(secret, RequestError) else secret)
        if isinstance(secret, RequestError):
            raise secret
        answer = line.wait_for("proof", "refused", limit_s=SHAKE_S)
        if answer["event"] == "refused":
            raise refusal(answer)
        shown = answer.get("proof")
        if not is_hex(shown, PROOF_LETTERS) or not hmac.compare_digest(str(shown), proof(secret, "leader", nonces)):
            raise RequestError(SECRET, f"it differs from that of the bench at {line.peer}", SAME_SECRET)
        line.key = session_key(secret, nonces)
    except BaseException:
        line.close()
        raise
    return line


def _prove(line: Line, index: int, secret: bytes | None) -> tuple[str, str]:
    """Answer the challenge of the first host, as the host with this number. Returns both nonces."""
    theirs, ours = line.wait_for("challenge", limit_s=SHAKE_S).get("nonce"), secrets.token_hex(NONCE_LETTERS // 2)
    if not is_hex(theirs, NONCE_LETTERS):
        raise Gone("it sent an invalid message")
    nonces = (str(theirs), ours)
    if secret is None:
        line.send(event="secretless", index=index)
    else:
        line.send(event="proof", index=index, nonce=ours, proof=proof(secret, f"follower {index}", nonces))
    return nonces
