"""Over what the ranks of this process group talk, as far as it tells, and what that link is nominally capable of."""

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

SIOCGIFADDR = 0x8915
ESTABLISHED = "01"


def transport(environment: Mapping[str, str]) -> dict[str, object]:
    """``backend``; ``library``: whose version; ``interface``: of the sockets between ranks, None where there are none;
    ``nominal_mbit``: what the interface says of itself; ``reason``: why something is unknown.
    """
    backend = str(dist.get_backend())
    known: dict[str, object] = {"backend": backend, "library": None, "interface": None, "nominal_mbit": None}
    if backend.startswith("nccl"):
        version = ".".join(map(str, torch.cuda.nccl.version()))
        why = "NCCL does not report its path; NCCL_DEBUG=INFO writes it to the logs of the ranks"
        return known | {"library": f"NCCL {version}", "reason": why}
    own = {address for address, ports in connections() if environment.get("MASTER_PORT", "") not in ports}
    names = sorted(filter(None, map(interface_of, own)))
    if not names:
        return known | {"reason": "no connection between ranks was found in /proc/self/net"}
    speeds = {name: nominal_mbit(name) for name in names}
    unknown = [name for name, mbit in speeds.items() if mbit is None]
    slowest = None if unknown else min(mbit for mbit in speeds.values() if mbit is not None)
    doubt = f"{', '.join(unknown)} has no nominal speed" if unknown else None
    return known | {"interface": ", ".join(names), "nominal_mbit": slowest, "reason": doubt}


def connections(folder: str = "/proc/self") -> Iterator[tuple[str, tuple[str, str]]]:
    """The address of this end of every TCP connection of this process, and the ports of both ends."""
    inodes = set()
    for name in os.listdir(f"{folder}/fd"):
        try:
            target = os.readlink(f"{folder}/fd/{name}")
        except OSError:
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            inodes.add(match[1])
    for kind in ("tcp", "tcp6"):
        try:
            with open(f"{folder}/net/{kind}") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            here, _, port = row[1].partition(":")
            peer = row[2].partition(":")[2]
            if row[3] == ESTABLISHED and row[9] in inodes:
                yield _address(here), (str(int(port, 16)), str(int(peer, 16)))


def _address(text: str) -> str:
    """An address as the kernel lists it, words in the byte order of the host."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    mapped = packed.startswith(bytes(10) + b"\xff\xff")
    return socket.inet_ntop(*((socket.AF_INET, packed[12:]) if mapped else (socket.AF_INET6, packed)))


def interface_of(address: str) -> str | None:
    """The network interface that has this address."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address).hex()
        with open("/proc/self/net/if_inet6") as file:
            return next((row[-1] for row in map(str.split, file) if row[0] == packed), None)
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def nominal_mbit(interface: str, root: str = "/sys/class/net") -> float | None:
    """The nominal speed of an interface (Mbit/s); None where it has none, as a loopback."""
    try:
        with open(f"{root}/{interface}/speed") as file:
            speed = int(file.read())
    except (OSError, ValueError):
        return None
    return float(speed) if speed > 0 else None
