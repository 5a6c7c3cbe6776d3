"""Puts a line into the store of torchrun's agents, or looks it up: for the command line, which imports no torch."""

import sys
from datetime import timedelta

from bench.core.channel import die_with_parent

KEY = "bench/leader"
TIMEOUT_S = 100.0


def main(arguments: list[str]) -> int:
    """``ADDRESS PORT PARENT_PID``. Answers each line of standard input: an empty one with what is there, ``null`` for
    nothing; another one by putting it there.
    """
    address, port, parent = arguments
    die_with_parent(int(parent))
    from torch.distributed import DistError, TCPStore

    limit = timedelta(seconds=TIMEOUT_S)
    try:
        store = TCPStore(address, int(port), is_master=False, timeout=limit, wait_for_workers=False)
        for line in sys.stdin:
            if text := line.strip():
                store.set(KEY, text)
            print(store.get(KEY).decode() if store.check([KEY]) else "null", flush=True)
    except DistError as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    return 0
