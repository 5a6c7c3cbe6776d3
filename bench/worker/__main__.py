"""A rank under a foreign launcher: ``torchrun --standalone --nproc-per-node 2 -m bench.worker JOB.json``."""

import json
import os
import sys
import time

from bench.core.channel import Channel
from bench.core.records import Job, job_from_json


def run(job: Job, channel: Channel | None) -> int:
    """Execute ``job`` as the rank that the environment names."""
    from bench.worker.rank import Identity, execute

    born_ns = int(os.environ.get("BENCH_BORN_NS", STARTED_NS))
    execute(job, Identity.from_environment(os.environ), channel, born_ns)
    return 0


def main(arguments: list[str]) -> int:
    """Read the job's file and run it."""
    if len(arguments) != 1:
        print("usage: torchrun [OPTIONS] -m bench.worker JOB.json", file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        job = job_from_json(json.load(file))
    return run(job, None)


STARTED_NS = time.perf_counter_ns()

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
