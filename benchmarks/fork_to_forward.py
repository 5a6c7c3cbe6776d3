"""From the start of a launch to its first forward pass: the worker host against torchrun, with the very same job.

    python benchmarks/fork_to_forward.py

The worker host has torch imported and forks; torchrun starts an interpreter, which starts one for each rank, and all of
them import torch. Counted is the time until the slowest rank has finished its first forward pass: from the fork of the
first rank, or from the start of the torchrun process. BENCH_BORN_NS hands that moment to the ranks of both (the
monotonic clock is one for all processes of a machine), so that the same lines of ``bench.worker.rank`` take the time.
The host starts once for a whole run; its own start is printed, and no part of the comparison.

The host's launch may take a tenth of torchrun's.
"""

import os

import launching
import paired

from bench.core.job import Job

ALLOWED = 0.1


def main() -> int:
    options = paired.parser(__doc__, pairs=6).parse_args()
    job = launching.plan("ddp", model="resnet18", image_size=32, global_batch=8, warmup=1, iters=1)
    os.environ["PYTHONPATH"] = paired.ROOT  # where torchrun's ranks find bench
    with (
        launching.folder() as where,
        launching.host(where) as host,
        launching.host(where, command=torchrun) as foreign,
    ):
        hosts = {"A": foreign, "B": host}
        for kind in hosts:
            launching.launch(hosts[kind], job, where)  # the first one finds files uncached

        def measure(kind: str) -> float:
            of_ranks = launching.launch(hosts[kind], job, where).results
            return float(max(rank["first_forward_s"] for rank in of_ranks))

        measured = paired.rounds(
            options.pairs, measure, paired.SHORT, lambda done: paired.progress(f"{done}/{options.pairs} pairs")
        )
        version, ready_s = host.description["torch"], host.description["ready_s"]
    comparison = paired.Comparison.of_rounds(
        measured,
        options.pairs,
        name="start of a launch to its first forward pass (ddp, 2 ranks, gloo, resnet18)",
        a="torchrun --standalone --nproc-per-node 2 -m bench.worker",
        b="worker host",
        allowed=ALLOWED,
    )
    note = f"the worker host itself was ready after {ready_s:.1f} s, once for all launches"
    return paired.Answer("fork_to_forward", [comparison], (), [note], {"torch": version}).finish(options.json)


def torchrun(job: Job, python: str) -> list[str]:
    """The command of a launch by torchrun."""
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.processes)]
    return [*command, "-m", "bench.worker"]


if __name__ == "__main__":
    raise SystemExit(main())
