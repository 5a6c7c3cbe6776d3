"""Where the ranks that a foreign launcher starts come in: they inherit no socket from the worker host."""

import hmac
import json
import secrets
import socket

from bench.core.channel import ADDRESS, TOKEN, Channel


class Door:
    """A listening socket on loopback, and the secret without which nobody is let in."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=max(128, ranks))
        self.token = secrets.token_hex(16)
        self.callers: list[Channel] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which ranks find it (see :func:`bench.core.channel.call_home`)."""
        host, port = self.listener.getsockname()
        return {ADDRESS: f"{host}:{port}", TOKEN: self.token}

    def admit(self, readable: list[object]) -> list[tuple[int, int, Channel]]:
        """Number, PID and channel of each rank that has shown the token. ``readable``: what ``select`` found."""
        if self.listener in readable:
            self.callers.append(Channel(self.listener.accept()[0]))
        admitted = []
        for caller in [caller for caller in self.callers if caller in readable]:
            try:
                said = caller.receive()
            except json.JSONDecodeError:
                said, caller.closed = [], True
            match said:
                case [{"event": "hello", "rank": int(rank), "pid": int(pid), "token": str(token)}] if (
                    hmac.compare_digest(token.encode(), self.token.encode()) and 0 <= rank < self.ranks
                ):
                    admitted.append((rank, pid, caller))
                case [] if not caller.closed:
                    continue  # the rest of the message is on its way
                case _:
                    caller.close()
            self.callers.remove(caller)
        return admitted

    def close(self) -> None:
        """Let nobody in any more."""
        self.listener.close()
        for caller in self.callers:
            caller.close()
