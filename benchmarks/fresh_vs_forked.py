"""Forked ranks against fresh interpreters: do both measure the same step?

    python benchmarks/fresh_vs_forked.py

``bench run`` forks its ranks from a worker host that has torch imported; ``--fresh`` starts an interpreter for each.
A fork inherits pages, allocator state and thread settings, so it is to be shown, not assumed, that its step takes as
long. The replicate is a pair of launches of the same job, one of each sort, which live at the same time and take turns:
a step of the one while the ranks of the other are blocked on a socket, ``ABBA``. (Launches that follow one another are
half a minute apart, in which a shared machine changes by more than what is looked for.) Both are bound to the same
cores, since one core of a shared machine is not as fast as another, and the ranks of a pair are forked from a worker
host of its own, since what a fork inherits is the same for all forks of a host. A step is instrumented and takes as
long as on its slowest rank; the value of a pair is the interquartile mean over its rounds.

One rank by default, with one thread, as each of two ranks has on two cores: two of them wait for each other and for a
core, which makes a step vary by a tenth, and what is inherited by a fork is inherited by each rank for itself.

This is a test of equivalence: it passes when the whole 95 % interval of the ratio lies within 1 +- 2 %. "The interval
contains 1" would not do, since a noisy enough measurement always passes that, and a precise enough one fails it over a
difference that matters to nobody. 2 %, because smaller differences between scenarios are not acted upon: the gate over
history calls 3 % a regression.
"""

import math
import time
from dataclasses import replace

import launching
import paired

MARGIN = 0.02


def main() -> int:
    parser = paired.parser(__doc__, pairs=6)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="of each launch (default: 1)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each rank (default: 1)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="turns of a pair (default: 10)")
    options = parser.parse_args()
    job = launching.plan(
        options.scenario,
        ranks=options.ranks,
        model="mobilenet_v3_small",
        image_size=32,
        global_batch=8,
        warmup=20,
        iters=1,
    )
    job = replace(job, ranks=tuple(replace(rank, threads=options.threads) for rank in job.ranks))
    rounds: list[paired.Round] = []
    log_ratios: list[float] = []
    with launching.folder() as where, launching.host(where, fresh=True) as starting:
        for number in range(options.pairs):
            with launching.host(where) as forking:
                measured, quiet = take_turns(
                    launching.Turns(starting, job, where), launching.Turns(forking, job, where), options.seconds
                )
            if len(quiet) > 1:
                log_ratios.append(paired.middle(map(paired.log_ratio, quiet)))
            rounds += quiet
            ratio = math.exp(paired.middle(map(paired.log_ratio, measured)))
            paired.progress(
                f"{number + 1}/{options.pairs} pairs: {len(quiet)} of {len(measured)} rounds count "
                f"(ratio over all of them {ratio:.4f})"
            )
        version = forking.description["torch"]
    comparison = paired.Comparison(
        name=f"a step ({launching.describe(job)})",
        a="fresh interpreters",
        b="forked ranks",
        log_ratios=log_ratios,
        a_s=[taken for one in rounds for taken in one["A"]],
        b_s=[taken for one in rounds for taken in one["B"]],
        margin=MARGIN,
    )
    text = "every pair has rounds while nothing else ran"
    all_count = paired.Check(text, len(log_ratios) == options.pairs, by_noise=True)
    answer = paired.Answer("fresh_vs_forked", [comparison], [all_count], more={"torch": version})
    return answer.finish(options.json)


def take_turns(
    fresh: launching.Turns, forked: launching.Turns, seconds: float
) -> tuple[list[paired.Round], list[paired.Round]]:
    """The rounds of a pair of launches, and those of them that count."""
    for launched in (fresh, forked):
        launched.wait_until_warm()
        launching.stay_on_cores(launched.job, launched.pids)
    end = time.monotonic() + seconds
    own_s = []
    while time.monotonic() < end:
        own_s.append(time.process_time())
        for kind in paired.LONG[(len(own_s) - 1) % 2]:
            (fresh if kind == "A" else forked).step()
    ranks = {"A": fresh.finish(), "B": forked.finish()}
    measured: list[paired.Round] = []
    loads = []
    for number, used_s in enumerate(own_s):
        turns = {kind: [rank[2 * number : 2 * number + 2] for rank in of_kind] for kind, of_kind in ranks.items()}
        measured.append({kind: launching.slowest(of_kind) for kind, of_kind in turns.items()})
        first = [rank[0] for of_kind in turns.values() for rank in of_kind]
        start = min(first, key=lambda turn: turn.t_s)
        loads.append(
            launching.Load(t_s=start.t_s, machine_s=start.machine_s, own_s=used_s + sum(turn.own_s for turn in first))
        )
    return measured, launching.quiet(measured, loads)


if __name__ == "__main__":
    raise SystemExit(main())
