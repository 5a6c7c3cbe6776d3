"""The instrumented step against a bare loop of the same scenario.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --scenario ddp_o2 --device cuda

A: load, forward, backward, optimize, and nothing else. B: what ``bench.worker.loop.run_window`` times around the same
four: marks between them, the losses kept, and about four times a second a progress message to the worker host, which
passes it on to the command line. Both by the same ranks of one launch, with one session, in short blocks in turn (see
``blocks.py``); a block counts as long as its slowest rank, and sends at least as many messages a second as a run does.

The upper 95 % bound of the ratio may be 1.005 (requirement "Timing 3").
"""

import statistics

import launching
import paired

ALLOWED = 1.005
BLOCK_MS = 250.0
"""One progress message a block, and so the four a second that a run sends."""

MODELS = {"cpu": ("mobilenet_v3_small", 32), "cuda": ("resnet101", 224)}
"""Model and image size whose step takes 20 to 100 ms: far longer, and chance hides what is looked for."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=12)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu, 2 gloo ranks")
    parser.add_argument("--seconds", type=float, default=90.0, metavar="S", help="how long to measure (default: 90)")
    parser.add_argument("--model", help="a classification model of torchvision")
    parser.add_argument("--image-size", type=int, metavar="PX")
    parser.add_argument("--global-batch", type=int, metavar="N")
    options = parser.parse_args()
    model, image_size = MODELS[options.device]
    job = launching.plan(
        options.scenario,
        device=options.device,
        model=options.model or model,
        image_size=options.image_size or image_size,
        global_batch=options.global_batch,
        warmup=20,
        iters=1,
    )
    done = launching.blocks(job, "overhead", seconds=options.seconds, block_ms=BLOCK_MS)
    comparison = paired.Comparison.of_rounds(
        done.quiet,
        options.pairs,
        name=f"blocks of {done.steps} steps ({options.scenario}, {job.processes} ranks, {options.device}, "
        f"{job.workload.model}, {job.workload.image_size} px, global batch {job.workload.global_batch})",
        a="bare loop",
        b="instrumented loop",
        allowed=ALLOWED,
    )
    alone_us, report_us = done.results[0]["alone_us"], done.results[0]["report_us"]
    notes = [
        *done.said(),
        f"around a step that does nothing, instrumenting takes {alone_us:.1f} us a step; "
        f"a progress message takes {report_us:.0f} us of a rank",
    ]
    if comparison.a_s:
        step_us = statistics.median(comparison.a_s) / done.steps * 1e6
        if len(comparison.log_ratios) > 1:
            notes.append(
                f"overhead a step of {step_us / 1e3:.1f} ms: {step_us * (comparison.ratio - 1):.0f} us, "
                f"at most {step_us * (comparison.upper - 1):.0f} us (95 %)"
            )
    enough = paired.Check(
        f"at least {options.pairs} rounds on a machine that does nothing else", len(done.quiet) >= options.pairs
    )
    return paired.finish(
        "overhead",
        [comparison],
        [enough],
        notes=notes,
        as_json=options.json,
        torch=done.torch,
        ranks=done.results,
    )


if __name__ == "__main__":
    raise SystemExit(main())
