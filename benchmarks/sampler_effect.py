"""The step while the sampler process samples, against the step while it sleeps; and what the sampler itself takes.

    python benchmarks/sampler_effect.py

The ranks of one launch do short blocks in turn, instrumented as ever (see ``blocks.py``): A with a sampler that
sleeps; B with one that is told to watch every rank as the block starts, and samples them all at once. In a run it
samples memory every 250 ms, and on a GPU the device every 100 ms, so that only some steps meet a sample: with w their
share, the logarithm of the ratio is w log(B / A). B errs on the dear side: on being told, the sampler also reads the
messages, opens a file and writes it once for each rank. On the CPU the ranks occupy all cores, so its time is taken
from them.

The upper 95 % bound of the ratio may be 1.005, and the sampler, at its own pace, may take 1 % of a core.

How many pairs that takes depends on how quiet the machine is, so it goes on until it is decided. A *look* is a launch
of its own of ``--seconds``, made into ``--pairs`` pairs that join those before; there are as many looks as fit into
``--budget``, at most :data:`LOOKS_AT_MOST`, which is known before the first. After each: an upper bound within 1.005
ends it well, a lower bound beyond 1.005 ends it badly. To look K times gives chance K opportunities, so every bound is
at 1 - 5 % / K (Bonferroni): all looks together say "within" wrongly in at most 5 of 100 cases, and "beyond" too.
Undecided when the looks are spent is a failure, and is called undecided.
"""

import math
import statistics
from collections.abc import Sequence

import launching
import paired

from bench.core.job import Job

ALLOWED = 1.005
CPU_SHARE = 0.01
LOOKS_AT_MOST = 10
WITHIN, BEYOND, UNDECIDED = "within what is allowed", "beyond what is allowed", "undecided"
DEFAULTS = {"cpu": ("mobilenet_v3_small", 32, 1), "cuda": ("resnet101", 224, 1)}
"""Model, image size, steps a block."""
INTERVAL_S = {"cpu": 0.25, "cuda": 0.1}
"""Between samples; on a GPU every one is counted as one of both kinds."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=12)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    launching.gpu_options(parser)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long a look takes (default: 60)")
    parser.add_argument("--budget", type=float, default=300.0, metavar="S", help="for all looks (default: 300)")
    parser.add_argument(
        "--peace", type=float, default=20.0, metavar="S", help="then, sampling at its own pace (default: 20)"
    )
    launching.size_options(parser)
    options = parser.parse_args()
    model, image_size, steps = DEFAULTS[options.device]
    job = launching.planned(options, model, image_size)
    looks = max(1, min(LOOKS_AT_MOST, int(options.budget // options.seconds)))
    asked = measure(steps, options.seconds, options.peace)
    done: list[launching.Blocks] = []
    while True:
        done += launching.blocks(job, asked)
        answer = judged(done, job, asked, options.pairs, looks)
        pairs, verdict = len(answer.comparisons[0].log_ratios), answer.more["verdict"]
        paired.progress(f"look {len(done)} of at most {looks}: {paired.count(pairs, 'pair')}, {verdict}")
        if verdict != UNDECIDED or len(done) == looks:
            return answer.finish(options.json)


def measure(steps: int, seconds: float, peace_s: float) -> launching.Measure:
    """What the launch of a look is asked for."""
    return launching.Measure(what="sampler", steps=steps, seconds=seconds, peace_s=peace_s)


def judged(
    done: Sequence[launching.Blocks], job: Job, asked: launching.Measure, pairs: int, looks: int
) -> paired.Answer:
    """What the looks so far, of at most so many, say together."""
    share, raw = of_a_run(done, pairs, INTERVAL_S[job.workload.device])
    level = 1.0 - 0.05 / looks
    comparison = paired.Comparison(
        name=f"blocks of {paired.count(asked.steps, 'step')} ({launching.describe(job)})",
        a="sampler asleep",
        b="a sample in the block",
        log_ratios=[share * one for one in raw],
        a_s=[taken for look in done for one in look.quiet for taken in one["A"]],
        b_s=[taken for look in done for one in look.quiet for taken in one["B"]],
        allowed=ALLOWED,
        level=level,
    )
    verdict = decision(comparison)
    mine = [look.results[0] for look in done]
    sampled_s = sum(one["sampled_s"] for one in mine)
    used = sum(one["sampler_cpu_s"] for one in mine) / sampled_s
    notes = [line for look in done for line in look.said()]
    if raw:
        notes.append(
            f"the ratio is that of a run, in which {share:.0%} of the blocks meet a sample; "
            f"a block that meets one: {math.exp(statistics.fmean(raw)):.4f}"
        )
    costs = [one["sampler_cost"]["memory"] for one in mine]
    mean_ms = sum(cost["total_ms"] for cost in costs) / sum(cost["calls"] for cost in costs)
    notes.append(f"a sample of memory took {mean_ms:.2f} ms, at most {max(cost['max_ms'] for cost in costs):.2f} ms")
    checks = [
        paired.Check(
            f"{verdict} after {paired.count(len(done), 'look')} of at most {looks}, bounds at {100 * level:g} % each",
            verdict == WITHIN,
            by_noise=verdict == UNDECIDED,
        ),
        paired.Check(
            f"over {sampled_s:.0f} s at its own pace the sampler took {used:.2%} of a core, allowed {CPU_SHARE:.0%}",
            used <= CPU_SHARE,
        ),
    ]
    more = {"torch": done[0].torch, "verdict": verdict, "looks": len(done), "looks_planned": looks}
    more["ranks"] = [rank for look in done for rank in look.results]
    return paired.Answer("sampler_effect", [comparison], checks, notes, more)


def of_a_run(done: Sequence[launching.Blocks], pairs: int, interval_s: float) -> tuple[float, list[float]]:
    """The share of a run's blocks that meet a sample, and the log ratios of the pairs of all looks.

    A pair is of one look, and on the CPU of two rounds at least: of a look with fewer that count there are fewer pairs.
    """
    asleep_s = statistics.median(taken for look in done for one in look.rounds for taken in one["A"])
    each = 1 if done[0].device == "cuda" else 2
    raw = [one for look in done for one in paired.pairs(look.quiet, min(pairs, len(look.quiet) // each))]
    return min(1.0, asleep_s / interval_s), raw


def decision(comparison: paired.Comparison) -> str:
    """What a look says."""
    if len(comparison.log_ratios) < 2:
        return UNDECIDED
    if comparison.upper <= ALLOWED:
        return WITHIN
    return BEYOND if comparison.lower > ALLOWED else UNDECIDED


if __name__ == "__main__":
    raise SystemExit(main())
