"""Messages between processes: one JSON document a line over a socket of their own, never over standard output."""

import json
import os
import select
import signal
import socket
import time
from typing import Any

ADDRESS, TOKEN = "BENCH_SUPERVISOR", "BENCH_TOKEN"
"""Variables of ranks that inherit no socket, which a site sets: HOST:PORT to connect to, and the secret that
shows there that a rank of this launch has come."""

Message = dict[str, Any]  # JSON values by name; ``event`` says which message it is
PIECE_BYTES = 1 << 18
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Channel:
    """One end of a pair of sockets. A peer that is gone shows as ``closed`` on reading and is ignored on writing."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.closed = False
        self._pending: list[bytes] = []

    @classmethod
    def from_fd(cls, fd: int) -> "Channel":
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, **message: object) -> None:
        """Send one message; dropped when the peer is gone."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def receive(self) -> list[Message]:
        """The messages that are complete, after waiting once for a piece of them. Sets ``closed`` at the end of the
        stream."""
        try:
            data = self.socket.recv(PIECE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
        self._pending.append(data)
        if b"\n" not in data:
            return []
        *lines, rest = b"".join(self._pending).split(b"\n")
        self._pending = [rest]
        return [json.loads(line) for line in lines]

    def wait_for(self, event: str) -> Message:
        """Raises ``ConnectionError`` when the peer closes before it sends a message with this ``event``."""
        message = self.first(event)
        if message is None:
            raise ConnectionError(f"the supervisor went away before it sent {event!r}")
        return message

    def first(self, *events: str, limit_s: float | None = None) -> Message | None:
        """The first message with one of these ``event``; those before it are dropped. None where the peer closes, or
        after ``limit_s``."""
        deadline_s, left_ms = time.monotonic() + (limit_s or 0.0), None
        poll = select.poll()
        poll.register(self, select.POLLIN)
        while not self.closed:
            if limit_s is not None:
                left_ms = 1000 * max(0.0, deadline_s - time.monotonic())
            if not poll.poll(left_ms):
                return None
            for message in self.receive():
                if message.get("event") in events:
                    return message
        return None

    def close(self) -> None:
        self.socket.close()


def call_home(rank: int) -> Channel:
    """Connect to the site that started this rank, and say who has come."""
    host, _, port = os.environ[ADDRESS].rpartition(":")
    channel = Channel(socket.create_connection((host, int(port))))
    channel.send(event="hello", rank=rank, pid=os.getpid(), token=os.environ[TOKEN])
    return channel


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, however it ends (Linux: PR_SET_PDEATHSIG)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def forks_die_with_parent() -> None:
    """The same of every fork of this process, and of theirs. Who the parent is they know from before: a fork whose
    parent has already ended would take whoever adopted it for that."""
    parent = [os.getpid()]
    os.register_at_fork(
        before=lambda: parent.__setitem__(0, os.getpid()), after_in_child=lambda: die_with_parent(parent[0])
    )


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (Linux: PR_SET_CHILD_SUBREAPER)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
