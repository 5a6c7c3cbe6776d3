"""A rank under a foreign launcher: ``torchrun --nproc-per-node 2 -m bench.worker``, started for a site.

It connects to the worker host that its environment names, and answers as a rank does that the worker host forks.
"""

import os
import time

from bench.core.channel import Channel, call_home
from bench.core.children import die_with_launcher
from bench.core.codec import decode
from bench.core.job import Job

STARTED_NS = time.perf_counter_ns()


def run(channel: Channel, *, own_log: bool = False) -> int:
    """Receive the job, and execute it as the rank that the environment names. ``own_log``: print into its log."""
    job = decode(Job, channel.wait_for("job")["job"])
    from bench.worker.rank import execute

    rank = int(os.environ["RANK"])
    if own_log:
        log = os.open(os.path.join(job.logs, job.log_name(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    execute(job, rank, channel, int(os.environ.get("BENCH_BORN_NS", STARTED_NS)))
    return 0


if __name__ == "__main__":
    die_with_launcher()
    raise SystemExit(run(call_home(int(os.environ["RANK"])), own_log=True))
