"""The instrumented step against a bare loop of the same scenario.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --scenario ddp_o2 --device cuda

A: load, forward, backward, optimize, and nothing else. B: what ``bench.worker.loop.run_window`` times around the same
four: marks between them, the losses kept, a look at the clock. C: the same with a progress message to the worker host,
which passes it on to the command line; a run sends four a second. All three by the same ranks of one launch, with one
session, in short blocks in turn (see ``blocks.py``); a block takes as long as on its slowest rank.

With two gloo ranks on two cores a step varies by a tenth, because each rank's threads wait for each other and for a
core, and marks take microseconds: a plain comparison (``--times 1``) needs a quarter of an hour for its bound. So B and
C are instrumented 100 times over, by steps that do nothing but have all the instruments, before each step; A has as
many bare steps that do nothing. With w the share of blocks in which a run has a message, the logarithm of the ratio is

    log(B / A) / times + w log(C / B)

and its upper 95 % bound may be 1.005.
"""

import statistics

import launching
import paired

from bench.core.job import Job

ALLOWED = 1.005
DEFAULTS = {"cpu": ("mobilenet_v3_small", 32, 1, 100), "cuda": ("resnet101", 224, 10, 1)}
"""Model and image size whose step takes 20 to 100 ms; steps of a block; how many times over they are instrumented.

On a GPU steps are steady enough for the plain comparison, and a block is long enough for the host to run ahead of the
device, as it does in a run.
"""
MESSAGE_INTERVAL_S = 0.25
"""Of ``bench.worker.loop.PROGRESS_INTERVAL_NS``, which cannot be imported here without torch."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=12)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    launching.gpu_options(parser)
    parser.add_argument("--seconds", type=float, default=100.0, metavar="S", help="how long to measure (default: 100)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a block (default: 1; on a GPU 10)")
    parser.add_argument("--times", type=int, metavar="N", help="instrumented so many times (default: 100; on a GPU 1)")
    launching.size_options(parser)
    options = parser.parse_args()
    model, image_size, steps, times = DEFAULTS[options.device]
    steps, times = options.steps or steps, options.times or times
    job = launching.planned(options, model, image_size)
    asked = measure(steps, options.seconds, times)
    (done,) = launching.blocks(job, asked)
    return judged(done, job, asked, options.pairs).finish(options.json)


def measure(steps: int, seconds: float, times: int) -> launching.Measure:
    """What the launch is asked for."""
    return launching.Measure(what="overhead", steps=steps, seconds=seconds, times=times)


def judged(done: launching.Blocks, job: Job, asked: launching.Measure, pairs: int) -> paired.Answer:
    """What came of it."""
    steps, times = asked.steps, asked.times
    bare_s = statistics.median(taken for one in done.rounds for taken in one["A"])
    share = min(1.0, bare_s / MESSAGE_INTERVAL_S)
    marks = [one / times for one in paired.pairs(done.quiet, pairs, "B", "A")]
    messages = paired.pairs(done.quiet, pairs, "C", "B")
    comparison = paired.Comparison(
        name=f"blocks of {paired.count(steps, 'step')} ({launching.describe(job)})",
        a="bare",
        b=f"instrumented {paired.count(times, 'time')}",
        log_ratios=[mark + share * message for mark, message in zip(marks, messages, strict=True)],
        a_s=[taken for one in done.quiet for taken in one["A"]],
        b_s=[taken for one in done.quiet for taken in one["B"]],
        allowed=ALLOWED,
    )
    notes = done.said()
    if len(comparison.log_ratios) > 1:
        step_us = statistics.median(comparison.a_s) / steps * 1e6
        notes.append(
            f"overhead a step of {step_us / 1e3:.1f} ms: {step_us * (comparison.ratio - 1):.0f} us, at most "
            f"{step_us * (comparison.upper - 1):.0f} us (95 %): marks {step_us * statistics.fmean(marks):.1f} us, and "
            f"in {share:.0%} of the blocks a message of {step_us * steps * statistics.fmean(messages):.0f} us"
        )
    notes.append(
        f"around steps that do nothing and nothing else, marks take {done.results[0]['alone_us']:.1f} us a step"
    )
    more = {"torch": done.torch, "ranks": done.results}
    return paired.Answer("overhead", [comparison], [launching.enough(done, pairs)], notes, more)


if __name__ == "__main__":
    raise SystemExit(main())
