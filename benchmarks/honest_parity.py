"""Honest ways to train keep their verdicts, whatever the weights and the data: on many seeds, image sizes and batches.

    python benchmarks/honest_parity.py --seeds 10 --image-size 32,64 --global-batch 8,16

Each seed, size and batch is one run of bench on two ranks of the CPU, with the steps of the profile ``quick``. One
process, DataParallel, torch DDP, flat buckets, FSDP2 and ZeRO-1 compute in fp32 and must be ``same``; O1, O2 with
masters and O3 must be ``within half precision``. Passes if at most one launch in a hundred has another verdict. Ten
seeds of one size and batch take some ten minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import paired

from bench.core.records import PARITIES

SAME, WITHIN_HALF, *_ = PARITIES
WRONG_AT_MOST = 0.01

EXPECTED = dict.fromkeys(("single", "dp", "ddp", "apex_ddp", "fsdp2", "zero1"), SAME) | dict.fromkeys(
    ("ddp_o1", "ddp_o2", "ddp_o3"), WITHIN_HALF
)

Verdict = tuple[str, str, str]
"""Scenario, verdict (or the status of a launch that failed), and the reason."""

Case = tuple[int, int]
"""Image size (px) and global batch."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="how many (default: 10)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first one (default: 0)")
    parser.add_argument("--image-size", default="32,64", metavar="PX[,PX...]", help="default: 32,64")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--global-batch", default="8,16", metavar="N[,N...]", help="default: 8,16")
    parser.add_argument("--iters", type=int, default=10, metavar="N", help="measured steps after two (default: 10)")
    parser.add_argument("--scenario", default=",".join(EXPECTED), help="some of these (default: all)")
    options = parser.parse_args(arguments)
    names = options.scenario.split(",")
    if not set(names) <= set(EXPECTED):
        parser.error(f"--scenario: choose from {', '.join(EXPECTED)}")
    sizes, batches = (list(map(int, of.split(","))) for of in (options.image_size, options.global_batch))
    found: dict[Case, list[Verdict]] = {case: [] for case in product(sizes, batches)}
    with tempfile.TemporaryDirectory(prefix="bench-parity-") as folder:
        for size, batch in found:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                found[size, batch] += verdicts(options, names, (size, batch), seed, Path(folder))
                print(f"{size} px, batch {batch}, seed {seed}: done", file=sys.stderr, flush=True)
    print("\n".join(table(found, names)))
    wrong = [one for of_case in found.values() for one in of_case if one[1] != EXPECTED[one[0]]]
    launches = sum(map(len, found.values()))
    passed = len(wrong) <= WRONG_AT_MOST * launches
    print(f"{'PASS' if passed else 'FAIL'}: {len(wrong)} of {launches} launches have another verdict than they should")
    for scenario, verdict, reason in wrong:
        print(f"  {scenario}: {verdict} ({reason})")
    return 0 if passed else 1


def verdicts(options: argparse.Namespace, names: Sequence[str], case: Case, seed: int, folder: Path) -> list[Verdict]:
    """Those of one run."""
    size, batch = map(str, case)
    what = ["--scenario", ",".join(names), "--device", "cpu", "--ranks", "2"]
    how = ["--model", options.model, "--image-size", size, "--global-batch", batch]
    counts = ["--warmup", "2", "--iters", str(options.iters)]
    steps = ["--seed", str(seed), *counts, "--out", str(folder / "results"), "--wait", "--json"]
    command = [sys.executable, "-m", "bench", "run", *what, *how, *steps]
    done = subprocess.run(command, capture_output=True, text=True, cwd=paired.ROOT)
    document = json.loads(done.stdout or "{}")
    if "parity" not in document:
        raise SystemExit(done.stderr)
    failed = [one for one in document["launches"] if one["status"] != "ok"]
    return [
        *((one["scenario"], one["verdict"] or "none", one["reason"] or "") for one in document["parity"]),
        *((one["scenario"], one["status"], one["reason"] or "") for one in failed),
    ]


def table(found: dict[Case, list[Verdict]], names: Sequence[str]) -> Iterator[str]:
    yield f"{'scenario':<12}{'px':>5}{'batch':>7}  {'expected':<24}found"
    for (size, batch), of_case in found.items():
        for name in names:
            counts = Counter(verdict for scenario, verdict, _ in of_case if scenario == name)
            said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            yield f"{name:<12}{size:>5}{batch:>7}  {EXPECTED[name]:<24}{said}"


if __name__ == "__main__":
    sys.exit(main())
