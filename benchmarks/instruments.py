"""``overhead.py`` and ``sampler_effect.py`` in one launch, where time is short.

    python benchmarks/instruments.py --device cuda --seconds 30 --peace 6

What the marks cost a step is measured first, and then, by the same ranks, what the sampler does to one, in one look;
the time is shared so that both get as many rounds. Both are judged as those scripts judge them; ``--json`` prints both
documents, by their names.
"""

import json

import launching
import overhead
import paired
import sampler_effect


def main() -> int:
    parser = paired.parser(__doc__, pairs=10)
    parser.add_argument("--scenario", default="ddp", help="which one (default: ddp)")
    launching.gpu_options(parser)
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="for both of them (default: 120)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a block for the overhead (default: 1; GPU 10)")
    parser.add_argument("--peace", type=float, default=20.0, metavar="S", help="sampling at its own pace (default: 20)")
    launching.size_options(parser)
    options = parser.parse_args()
    model, image_size, steps, times = overhead.DEFAULTS[options.device]
    job = launching.planned(options, model, image_size)
    steps, steps_sampled = options.steps or steps, sampler_effect.DEFAULTS[options.device][2]
    round_of_marks, round_of_samples = 6 * steps, 4 * steps_sampled
    share = round_of_marks / (round_of_marks + round_of_samples)
    marks = overhead.measure(steps, share * options.seconds, times)
    samples = sampler_effect.measure(steps_sampled, (1 - share) * options.seconds, options.peace)
    with_marks, with_samples = launching.blocks(job, marks, samples)
    answers = {
        "overhead": overhead.judged(with_marks, job, marks, options.pairs),
        "sampler": sampler_effect.judged([with_samples], job, samples, options.pairs, looks=1),
    }
    if options.json:
        print(json.dumps({name: answer.document() for name, answer in answers.items()}, indent=1, allow_nan=False))
    else:
        print("\n".join(line for answer in answers.values() for line in answer.lines()))
    return 0 if all(answer.passed for answer in answers.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
