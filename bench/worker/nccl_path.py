"""Which way NCCL took between the ranks of a launch, from its own log: it falls back to TCP or to the host silently."""

import os
import re
from collections import Counter

VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
CHANNEL = re.compile(r"NCCL INFO Channel .* via (\S+)")
"""Such as ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM`` or ``... [send] via NET/IB/0/GDRDMA``."""

CHOICE = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
"""The tuner's choice for a collective of this size."""


def listen() -> int | None:
    """Have NCCL write its log to a file in memory, of which nothing is left however the rank ends; its descriptor is
    returned. Before the group is formed. None where the user's own settings say where the log goes."""
    if any(name in os.environ for name in VARIABLES):
        return None
    descriptor = os.memfd_create("bench-nccl")
    file = f"/proc/self/fd/{descriptor}"
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM,NET,TUNING", NCCL_DEBUG_FILE=file)
    return descriptor


def read(descriptor: int | None) -> dict[str, object]:
    """``transports``: channels by what they go through; ``algorithms``: by collective, algorithm and protocol the bytes
    of the smallest and of the largest, such as ``{"AllReduce RING/LL": [4, 1048576]}``; ``reason``: why there is none.
    """
    if descriptor is None:
        return {"transports": {}, "algorithms": {}, "reason": "NCCL_DEBUG is set, so NCCL's log is where that says"}
    with open(descriptor, encoding="utf-8", errors="replace") as log:
        text = log.read()
    transports = Counter(match[1].rstrip(",") for match in CHANNEL.finditer(text))
    sizes: dict[str, list[int]] = {}
    for collective, size, algorithm, protocol in CHOICE.findall(text):
        sizes.setdefault(f"{collective} {algorithm}/{protocol}", []).append(int(size))
    algorithms = {name: [min(of), max(of)] for name, of in sizes.items()}
    reason = None if transports else "NCCL's log names no channel between two ranks"
    return {"transports": dict(transports), "algorithms": algorithms, "reason": reason}
