"""How the hosts of a run find each other: where to listen, what to call, and over which interface."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from bench.core.bootstrap import program
from bench.core.errors import HostError
from bench.core.files import parse_json

STORE_LIMIT_S = 120.0  # for importing torch and for torchrun's store to answer
MOST_BYTES = 1 << 16


def resolved(name: str) -> list[str]:
    """The addresses of a host, IPv4 first; empty while its name does not resolve."""
    try:
        families = {one[4][0]: one[0] for one in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    return [str(address) for address in sorted(families, key=lambda address: families[address] != socket.AF_INET)]


def to_listen_on(master: str, environment: Mapping[str, str]) -> str:
    """The address of the first host if others can reach it there; else empty, for all addresses of this host.

    A host's own name may resolve to 127.0.1.1 (as on Debian), which no interface has, and a pod may call the first host
    localhost.
    """
    here = addresses_here()
    own = next((address for address in resolved(master) if address in here), "")
    return "" if own.startswith("127.") and "KUBERNETES_SERVICE_HOST" in environment else own


def addresses_here() -> dict[str, str]:
    """By address of this host the name of its interface."""
    import psutil

    interfaces = {}
    for interface, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                interfaces[one.address.partition("%")[0]] = interface
    return interfaces


class AgentStore:
    """The store of torchrun's agents, reached through a process that imports torch: this one does not.

    The first host writes there where it listens. The others read it, again if it is from an earlier attempt.
    """

    def __init__(self, address: str, port: int) -> None:
        self._where = f"{address}:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program("bench.worker.agent_store"), address, str(port), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def get(self) -> tuple[list[str], int] | None:
        """The addresses and the port that the first host has written; None if it has not yet."""
        match parse_json(self.ask("")):
            case {"addresses": list(addresses), "port": int(port)}:
                return [str(address) for address in addresses], port
        return None

    def ask(self, text: str) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = b""
        with suppress(BrokenPipeError):
            self._process.stdin.write(text.encode() + b"\n")
        while not answer.endswith(b"\n"):
            readable, _, _ = select.select([self._process.stdout], [], [], STORE_LIMIT_S)
            piece = self._process.stdout.read(MOST_BYTES) if readable else b""
            if not piece or len(answer) > MOST_BYTES:
                what = "does not answer" if not readable else "cannot be asked (see above)"
                raise HostError(f"torchrun's store at {self._where} {what}; see whether this host reaches that one")
            answer += piece
        return answer

    def close(self) -> None:
        with suppress(OSError), self._process:  # which closes its pipes, one perhaps broken, and waits for it
            self._process.kill()
