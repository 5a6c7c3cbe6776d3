"""Forked ranks against fresh interpreters: do both measure the same step?

    python benchmarks/fresh_vs_forked.py

``bench run`` forks its ranks from a worker host that has torch imported; ``--fresh`` starts an interpreter for each.
A fork inherits pages, allocator state and thread settings, so it is to be shown, not assumed, that its step takes as
long. Both hosts stay up; launches of the same job alternate, forked and fresh, fresh and forked. The value of a launch
is the one that the report shows: the median over its steps of the slowest rank; a pair is one launch of each.

This is a test of equivalence: it passes when the whole 95 % interval of the ratio lies within 1 +- 2 %. "The interval
contains 1" would not do, since a noisy enough measurement always passes that, and a precise enough one fails it over a
difference that matters to nobody. 2 %, because smaller differences between scenarios are not acted upon: the gate over
history calls 3 % a regression.
"""

import statistics

import launching
import paired

from bench.launch.local import WorkerHost
from bench.records import Job

MARGIN = 0.02


def main() -> int:
    parser = paired.parser(__doc__, pairs=7)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp, 2 gloo ranks)")
    parser.add_argument("--iters", type=int, default=60, metavar="N", help="measured steps a launch (default: 60)")
    options = parser.parse_args()
    job = launching.plan(
        options.scenario, model="mobilenet_v3_small", image_size=32, global_batch=8, warmup=10, iters=options.iters
    )
    with (
        launching.folder() as where,
        launching.host(where) as forking,
        launching.host(where, fresh=True) as starting,
    ):
        hosts = {"A": starting, "B": forking}
        measured = paired.rounds(
            options.pairs,
            lambda kind: median_step_s(hosts[kind], job, where),
            paired.SHORT,
            lambda done: paired.progress(f"{done}/{options.pairs} pairs"),
        )
        version = launching.torch_version(forking)
    comparison = paired.Comparison.of_rounds(
        measured,
        options.pairs,
        name=f"median step of a launch ({options.scenario}, {job.processes} ranks, cpu, {job.workload.model}, "
        f"{job.workload.image_size} px, global batch {job.workload.global_batch})",
        a="fresh interpreters",
        b="forked ranks",
        margin=MARGIN,
    )
    return paired.finish("fresh_vs_forked", [comparison], as_json=options.json, torch=version)


def median_step_s(host: WorkerHost, job: Job, where: str) -> float:
    """Seconds of a step of one launch: the median over its measured steps of the slowest rank."""
    results = launching.read(launching.launch(host, job, where), job.processes)
    slowest_ms: list[float] = [
        max(ranks) for ranks in zip(*(result["measured"]["step_ms"] for result in results), strict=True)
    ]
    return statistics.median(slowest_ms) / 1e3


if __name__ == "__main__":
    raise SystemExit(main())
