"""The roles of a new interpreter: the worker host, or (with ``--fresh``) a rank. See ``bench.core.bootstrap``."""

import os
import sys

from bench.core.channel import Channel, die_with_parent


def main(arguments: list[str]) -> int:
    """``host FD PARENT_PID MODE LOCKS [APEX_PATH]`` or ``rank FD PARENT_PID``; LOCKS: descriptors."""
    role, fd, parent, *rest = arguments
    die_with_parent(int(parent))
    channel = Channel.from_fd(int(fd))
    if role == "host":
        from bench.worker.host import serve

        mode, locks, *apex = rest
        kept = tuple(int(lock) for lock in locks.split(",") if lock)
        status = serve(channel, fresh=mode == "fresh", apex_path=apex[0] if apex else None, locks=kept)
    else:
        from bench.worker.__main__ import run

        status = run(channel)
    sys.stdout.flush()
    os._exit(status)  # to clean up after torch takes half a second
