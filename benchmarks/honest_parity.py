"""Honest ways to train keep their verdicts, whatever the weights and the data: on many seeds and image sizes.

    python benchmarks/honest_parity.py --seeds 10 --image-size 32,64

Each seed and size is one run of bench on two ranks of the CPU. Torch DDP, flat buckets, FSDP2 and ZeRO-1 compute in
fp32 and must be ``same``; O1, O2 with masters and O3 must be ``within half precision``. Passes if at most one launch in
a hundred has another verdict. Ten seeds of one size take some ten minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import paired

from bench.core.records import PARITIES

SAME, WITHIN_HALF, *_ = PARITIES
WRONG_AT_MOST = 0.01

EXPECTED = dict.fromkeys(("ddp", "apex_ddp", "fsdp2", "zero1"), SAME) | dict.fromkeys(
    ("ddp_o1", "ddp_o2", "ddp_o3"), WITHIN_HALF
)

Verdict = tuple[str, str, str]
"""Scenario, verdict (or the status of a launch that failed), and the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="how many (default: 10)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first one (default: 0)")
    parser.add_argument("--image-size", default="32,64", metavar="PX[,PX...]", help="default: 32,64")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--global-batch", type=int, default=16, metavar="N")
    parser.add_argument("--scenario", default=",".join(EXPECTED), help="some of these (default: all)")
    options = parser.parse_args(arguments)
    names = options.scenario.split(",")
    if not set(names) <= set(EXPECTED):
        parser.error(f"--scenario: choose from {', '.join(EXPECTED)}")
    sizes = [int(size) for size in options.image_size.split(",")]
    found: dict[int, list[Verdict]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="bench-parity-") as folder:
        for size in sizes:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                found[size] += verdicts(options, names, size, seed, Path(folder))
                print(f"{size} px, seed {seed}: done", file=sys.stderr, flush=True)
    print("\n".join(table(found, names)))
    wrong = [one for of_size in found.values() for one in of_size if one[1] != EXPECTED[one[0]]]
    launches = sum(map(len, found.values()))
    passed = len(wrong) <= WRONG_AT_MOST * launches
    print(f"{'PASS' if passed else 'FAIL'}: {len(wrong)} of {launches} launches have another verdict than they should")
    for scenario, verdict, reason in wrong:
        print(f"  {scenario}: {verdict} ({reason})")
    return 0 if passed else 1


def verdicts(options: argparse.Namespace, names: Sequence[str], size: int, seed: int, folder: Path) -> list[Verdict]:
    """Those of one run."""
    what = ["--scenario", ",".join(names), "--device", "cpu", "--nproc", "2"]
    how = ["--model", options.model, "--image-size", str(size), "--global-batch", str(options.global_batch)]
    steps = ["--seed", str(seed), "--warmup", "1", "--iters", "2", "--out", str(folder / "results"), "--wait", "--json"]
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


def table(found: dict[int, list[Verdict]], names: Sequence[str]) -> Iterator[str]:
    yield f"{'scenario':<12}{'px':>5}  {'expected':<24}found"
    for size, of_size in found.items():
        for name in names:
            counts = Counter(verdict for scenario, verdict, _ in of_size if scenario == name)
            said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            yield f"{name:<12}{size:>5}  {EXPECTED[name]:<24}{said}"


if __name__ == "__main__":
    sys.exit(main())
