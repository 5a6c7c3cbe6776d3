"""The step while the sampler process samples, against the step while it sleeps; and what the sampler itself takes.

    python benchmarks/sampler_effect.py

Every rank is watched as in a run: memory each 250 ms, on a GPU also the device each 100 ms. The same ranks do blocks of
a second in turn, instrumented as ever, A with a sampler that sleeps and B with one that samples (see ``blocks.py``).
On the CPU the ranks occupy all cores, so the sampler's time is taken from them.

The upper 95 % bound of the ratio may be 1.005, and the sampler may take 1 % of a core (requirement "NVML 2").
"""

import launching
import paired

ALLOWED = 1.005
CPU_SHARE = 0.01
BLOCK_MS = 1000.0
"""Four samples of memory a block, or three: the first one, on being told to watch, lies before it."""

MODELS = {"cpu": ("mobilenet_v3_small", 32), "cuda": ("resnet101", 224)}


def main() -> int:
    parser = paired.parser(__doc__, pairs=12)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu, 2 gloo ranks")
    parser.add_argument("--seconds", type=float, default=100.0, metavar="S", help="how long to measure (default: 100)")
    options = parser.parse_args()
    model, image_size = MODELS[options.device]
    job = launching.plan(
        options.scenario, device=options.device, model=model, image_size=image_size, warmup=20, iters=1
    )
    done = launching.blocks(job, "sampler", seconds=options.seconds, block_ms=BLOCK_MS)
    comparison = paired.Comparison.of_rounds(
        done.quiet,
        options.pairs,
        name=f"blocks of {done.steps} steps ({options.scenario}, {job.processes} ranks, {options.device}, "
        f"{job.workload.model}, {job.workload.image_size} px, global batch {job.workload.global_batch})",
        a="sampler asleep",
        b="sampler on",
        allowed=ALLOWED,
    )
    mine = done.results[0]
    on = [block for one in mine["rounds"] for block in one["blocks"] if block["kind"] == "B"]
    on_s, samples = sum(block["on_s"] for block in on), sum(block["samples"] for block in on)
    share = mine["sampler_cpu_s"] / on_s
    checks = [
        paired.Check(
            f"at least {options.pairs} rounds on a machine that does nothing else", len(done.quiet) >= options.pairs
        ),
        paired.Check(f"the sampler took {share:.2%} of a core while on, allowed {CPU_SHARE:.0%}", share <= CPU_SHARE),
    ]
    notes = [*done.said(), f"memory was sampled {samples / on_s:.1f} times a second for {on_s:.0f} s"]
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
