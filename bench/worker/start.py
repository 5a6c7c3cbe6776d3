"""What a new interpreter becomes: the worker host, or (with ``--fresh``) a rank. See ``bench.bootstrap``."""

import json

from bench.channel import Channel, die_with_parent
from bench.records import job_from_json


def main(arguments: list[str]) -> int:
    """``host FD PARENT_PID MODE [APEX_PATH]`` or ``rank FD PARENT_PID JOB.json``."""
    role, fd, parent, *rest = arguments
    die_with_parent(int(parent))
    channel = Channel.from_fd(int(fd))
    if role == "host":
        from bench.worker.host import serve

        return serve(channel, fresh=rest[0] == "fresh", apex_path=rest[1] if rest[1:] else None)
    with open(rest[0], encoding="utf-8") as file:
        job = job_from_json(json.load(file))
    from bench.worker.__main__ import run

    return run(job, channel)
