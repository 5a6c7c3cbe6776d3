"""Is what ``bench tune`` finds as fast as the best of the published comparison?

    python benchmarks/tune_acceptance.py --budget 10m

``bench tune`` searches all scenarios of ResNet-101 at 64 px on the CPU. Then one run launches the winner and the three
fastest of ``--set published``, by what the search saw of them, five times each in turn, and ``bench compare`` holds
them against the winner. It passes when the search kept its budget and none of the three is faster than the winner.
"""

import time

import launching
import paired

from bench.seams.discover import DEFAULT

LAUNCHES, RIVALS = 5, 3
OVER = 1.1
"""How much longer than its budget a search may take, for its start, its reference and its last launch."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=LAUNCHES)
    parser.add_argument("--budget", default="10m", help="of the search (default: 10m)")
    launching.size_options(parser)
    options = parser.parse_args()
    size = ["--model", options.model or "resnet101", "--image-size", str(options.image_size or 64), "--device", "cpu"]
    size += ["--global-batch", str(options.global_batch)] if options.global_batch else []
    with launching.folder() as where:
        began = time.monotonic()
        search = paired.bench("tune", *size, "--budget", options.budget, "--wait", "--out", where, "--json")
        took_s = time.monotonic() - began
        tuning = search["experiments"]["tuning"]
        winner = tuning["finalists"][0]
        seen = {name: one["step_ms"] for name, one in tuning["candidates"].items() if one["step_ms"] is not None}
        rivals = sorted((name for name in DEFAULT if name in seen and name != winner), key=seen.__getitem__)[:RIVALS]
        paired.progress(f"the search found {winner} in {took_s:.0f} s; against {', '.join(rivals)}")
        again = ["--scenario", ",".join((winner, *rivals)), "--launches", str(options.pairs)]
        run = paired.bench("run", *size, *again, "--no-parity", "--wait", "--out", where, "--json")
        named = ["--scenario", ",".join(rivals), "--against", winner]
        compared = paired.bench("compare", run["path"], *named, "--json")
    rows = [row for row in compared["comparisons"] if row["metric"] == "step_time"]
    checks = [
        paired.Check(
            f"{row['scenario']} against {winner}: {row['verdict']}, step time times {row['ratio']} "
            f"({row['low']} to {row['high']})",
            row["verdict"] != "faster",
        )
        for row in rows
    ]
    checks.append(paired.Check(f"all {len(rivals)} rivals were compared", len(rows) == len(rivals), by_noise=True))
    limit_s = OVER * tuning["budget_s"]
    checks.append(paired.Check(f"the search took {took_s:.0f} s of {limit_s:.0f} s", took_s <= limit_s))
    more = {"winner": winner, "candidates": tuning["candidates"], "stopped_by": tuning["stopped_by"]}
    return paired.Answer("tune_acceptance", [], checks, more=more).finish(options.json)


if __name__ == "__main__":
    raise SystemExit(main())
