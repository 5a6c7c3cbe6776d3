"""The control channel between two hosts: JSON lines of bounded size over TCP, between holders of one secret.

Each side proves that it has the secret with an HMAC (RFC 2104, SHA-256) of random numbers from both sides. From then on
every line carries an HMAC with a key of this connection and the number of the line. Nothing is unpickled. Lines are not
encrypted: they hold no secrets, but whoever can read the network's traffic can read the measurements.
"""

import hmac
import json
import re
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping

from bench.core.channel import Message as Message

MOST_BYTES = 1 << 28  # the longest line between hosts that know each other: the results of a rank take a few MB
MOST_FROM_STRANGERS = 1 << 12
PIECE_BYTES = 1 << 18
UNANSWERED_MS = 10_000  # how long data may stay unacknowledged by the peer
STEADY = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: UNANSWERED_MS,
}
HURRIED = dict.fromkeys(STEADY, 1) | {socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 3000}
"""How the kernel finds out whether the peer is there: usually, and within a few seconds."""
MAC_LETTERS = 32


class Gone(Exception):
    """The other host is gone: it left, cannot be reached, or sent something that bench does not send."""


class Line:
    """One end of a connection. :meth:`send` and :meth:`receive` raise :class:`Gone`."""

    def __init__(self, connected: socket.socket, *, leads: bool) -> None:
        self.socket = connected
        self.peer: str = connected.getpeername()[0]
        self.here: str = connected.getsockname()[0]
        self.key: bytes | None = None
        self._directions = (b"leader", b"follower") if leads else (b"follower", b"leader")
        self._sent = self._heard = 0
        self._pending: list[bytes] = []
        self._size = 0
        self._lines: deque[bytes] = deque()  # complete and not opened
        connected.settimeout(UNANSWERED_MS / 1000)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.probe()

    def fileno(self) -> int:
        return self.socket.fileno()

    def probe(self, how: Mapping[int, int] = STEADY, *, silent: bool = False) -> None:
        """Have the kernel probe the peer when nothing came for a while. ``silent``: never, since probes would be
        traffic while steps are measured."""
        for option, value in how.items():
            self.socket.setsockopt(socket.IPPROTO_TCP, option, value)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(not silent))

    def send(self, **message: object) -> None:
        text = json.dumps(message).encode()
        if self.key is not None:
            text = self._mac(self._directions[0], self._sent, text) + text
            self._sent += 1
        left = memoryview(text + b"\n")
        try:
            while left:
                left = left[self.socket.send(left) :]  # the time limit is for each part: a slow link is not a lost host
        except OSError as error:
            raise Gone(f"what was sent did not arrive ({error.strerror or error})") from error

    def receive(self, limit_s: float | None = None) -> Iterator[Message]:
        """The messages that are complete after one read from the socket, if that is needed; none where it has nothing
        within ``limit_s`` (None: wait forever). Each is opened when it is asked for: the key may be set after the one
        before."""
        if not self._lines and select.select([self], [], [], limit_s)[0]:
            self._read()
        return self._opened()

    def wait_for(self, *events: str, limit_s: float) -> Message:
        """The first message with one of these events; those before it are dropped. Raises :class:`Gone` after
        ``limit_s``. What follows is left unopened."""
        deadline_s = time.monotonic() + limit_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            for message in self.receive(left_s):
                if message["event"] in events:
                    return message
        raise Gone(f"it did not answer within {limit_s:.0f} s")

    def _read(self) -> None:
        try:
            data = self.socket.recv(PIECE_BYTES)
        except OSError as error:
            raise Gone(error.strerror or str(error)) from error
        if not data:
            raise Gone("it closed the connection")
        self._pending.append(data)
        self._size += len(data)
        most = MOST_FROM_STRANGERS if self.key is None else MOST_BYTES
        if self._size > most + PIECE_BYTES:
            raise Gone(f"it sent a line of more than {most} bytes")
        if b"\n" in data:
            *lines, rest = b"".join(self._pending).split(b"\n")
            self._pending, self._size = [rest], len(rest)
            self._lines += lines

    def _opened(self) -> Iterator[Message]:
        while self._lines:
            yield self._open(self._lines.popleft())

    def close(self) -> None:
        self.socket.close()

    def _open(self, line: bytes) -> Message:
        if self.key is not None:
            mac, line = line[:MAC_LETTERS], line[MAC_LETTERS:]
            if not hmac.compare_digest(mac, self._mac(self._directions[1], self._heard, line)):
                raise Gone("it sent a line that is not from bench")
            self._heard += 1
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("event"), str):
            raise Gone("it sent a line that is not from bench")
        return message

    def _mac(self, direction: bytes, number: int, text: bytes) -> bytes:
        assert self.key is not None
        whole = hmac.new(self.key, direction + number.to_bytes(8) + text, "sha256").hexdigest()
        return whole[:MAC_LETTERS].encode()


def is_hex(value: object, letters: int) -> bool:
    return isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{letters}}}", value) is not None


def proof(secret: bytes, role: str, nonces: tuple[str, str]) -> str:
    """Proves that ``role`` has the secret. ``nonces``: random numbers of the leader and of the follower."""
    return hmac.new(secret, "|".join((role, *nonces)).encode(), "sha256").hexdigest()


def session_key(secret: bytes, nonces: tuple[str, str]) -> bytes:
    return bytes.fromhex(proof(secret, "session", nonces))
