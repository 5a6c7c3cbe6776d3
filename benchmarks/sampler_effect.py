"""The step while the sampler process samples, against the step while it sleeps; and what the sampler itself takes.

    python benchmarks/sampler_effect.py

The ranks of one launch do short blocks in turn, instrumented as ever (see ``blocks.py``): A with a sampler that
sleeps; B with one that is told to watch every rank as the block starts, and samples them all at once. In a run it
samples memory every 250 ms, and on a GPU the device every 100 ms, so that only some steps meet a sample: with w their
share, the logarithm of the ratio is w log(B / A). B errs on the dear side: on being told, the sampler also reads the
messages, opens a file and writes it once for each rank. On the CPU the ranks occupy all cores, so its time is taken
from them.

The upper 95 % bound of the ratio may be 1.005, and the sampler, at its own pace, may take 1 % of a core (requirement
"NVML 2").
"""

import math
import statistics

import launching
import paired

ALLOWED = 1.005
CPU_SHARE = 0.01
DEFAULTS = {"cpu": ("mobilenet_v3_small", 32, 1), "cuda": ("resnet101", 224, 1)}
"""Model, image size, steps a block."""
INTERVAL_S = {"cpu": 0.25, "cuda": 0.1}
"""Between samples; on a GPU every one is counted as one of both kinds."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=12)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    launching.gpu_options(parser)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long to measure (default: 60)")
    parser.add_argument(
        "--peace", type=float, default=20.0, metavar="S", help="then, sampling at its own pace (default: 20)"
    )
    parser.add_argument("--model", help="a classification model of torchvision")
    parser.add_argument("--image-size", type=int, metavar="PX")
    parser.add_argument("--global-batch", type=int, metavar="N")
    options = parser.parse_args()
    model, image_size, steps = DEFAULTS[options.device]
    job = launching.plan(
        options.scenario,
        device=options.device,
        gpus=options.gpus,
        model=options.model or model,
        image_size=options.image_size or image_size,
        global_batch=options.global_batch,
        warmup=20,
        iters=1,
    )
    done = launching.blocks(job, "sampler", steps=steps, seconds=options.seconds, peace_s=options.peace)
    asleep_s = statistics.median(taken for one in done.rounds for taken in one["A"])
    share = min(1.0, asleep_s / INTERVAL_S[options.device])
    raw = paired.pairs(done.quiet, options.pairs)
    comparison = paired.Comparison(
        name=f"blocks of {paired.count(steps, 'step')} ({launching.describe(job)})",
        a="sampler asleep",
        b="a sample in the block",
        log_ratios=[share * one for one in raw],
        a_s=[taken for one in done.quiet for taken in one["A"]],
        b_s=[taken for one in done.quiet for taken in one["B"]],
        allowed=ALLOWED,
    )
    mine = done.results[0]
    used = mine["sampler_cpu_s"] / mine["sampled_s"]
    notes = done.said()
    if raw:
        notes.append(
            f"the ratio is that of a run, in which {share:.0%} of the blocks meet a sample; "
            f"a block that meets one: {math.exp(statistics.fmean(raw)):.4f}"
        )
    cost = mine["sampler_cost"]["memory"]
    notes.append(f"a sample of memory took {cost['total_ms'] / cost['calls']:.2f} ms, at most {cost['max_ms']:.2f} ms")
    checks = [
        launching.enough(done, options.pairs),
        paired.Check(
            f"over {mine['sampled_s']:.0f} s at its own pace the sampler took {used:.2%} of a core, "
            f"allowed {CPU_SHARE:.0%}",
            used <= CPU_SHARE,
        ),
    ]
    return paired.finish(
        "sampler_effect",
        [comparison],
        checks,
        notes=notes,
        as_json=options.json,
        torch=done.torch,
        ranks=done.results,
    )


if __name__ == "__main__":
    raise SystemExit(main())
