"""What a new interpreter becomes: the worker host, or (with ``--fresh``) a rank. See ``bench.core.bootstrap``."""

import json

from bench.core.channel import Channel, die_with_parent
from bench.core.records import job_from_json


def main(arguments: list[str]) -> int:
    """``host FD PARENT_PID MODE LOCKS [APEX_PATH]`` or ``rank FD PARENT_PID JOB.json``; LOCKS: descriptors."""
    role, fd, parent, *rest = arguments
    die_with_parent(int(parent))
    channel = Channel.from_fd(int(fd))
    if role == "host":
        from bench.worker.host import serve

        mode, locks, *apex = rest
        kept = tuple(int(lock) for lock in locks.split(",") if lock)
        return serve(channel, fresh=mode == "fresh", apex_path=apex[0] if apex else None, locks=kept)
    with open(rest[0], encoding="utf-8") as file:
        job = job_from_json(json.load(file))
    from bench.worker.__main__ import run

    return run(job, channel)
