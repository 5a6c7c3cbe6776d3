"""How long a person waits for the first answer, and what share of it goes into judging the numerics.

    python benchmarks/first_answer.py
    python benchmarks/first_answer.py --repeats 3

The README's first command, and the first look that it advises, on two cores, with and without the CPU's instructions
for bf16 (oneDNN held to AVX2 computes half by way of fp32). The machine must be quiet. Each row passes if the median
of its repeats, the start of Python included, is within the goal, and judging takes at most a fifth of the ten
scenarios. Of the first look it takes more: five launches more, of which starting is most, beside ten as short ones.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import paired

CORES = 2
ALL, LOOK = (), ("--model", "resnet18", "--image-size", "32")
ROWS = (
    ("ten scenarios", ALL, True, 90.0),
    ("ten scenarios", ALL, False, 120.0),
    ("first look", LOOK, True, 30.0),
    ("first look", LOOK, False, 30.0),
)
"""What is run, its options, whether with bf16 instructions, and the goal (s)."""
MOST_JUDGING = 0.2


def measure(options: Sequence[str], bf16: bool, folder: str) -> tuple[float, float]:
    """Seconds of one command, and of its launches that judge."""
    command = [sys.executable, "-m", "bench", "run", *options, "--device", "cpu", "--out", folder, "--json"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:CORES]))
    began_s = time.monotonic()
    environment = os.environ | ({} if bf16 else {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    done = subprocess.run(
        ["taskset", "-c", cores, *command], capture_output=True, text=True, cwd=paired.ROOT, env=environment
    )
    took_s = time.monotonic() - began_s
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    numerics = json.loads(done.stdout)["experiments"]["numerics"]
    return took_s, sum(one["wall_s"] for one in (*numerics["doubles"], *numerics["references"]))


def has_bf16() -> bool:
    """Whether this CPU computes bf16 by instructions: only then is there a row with them."""
    code = "from bench.worker.live import bf16_instructions; print(bf16_instructions())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=paired.ROOT, check=True)
    return done.stdout.split() == ["True"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="of each row, in turns (default: 1)")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if has_bf16() or not row[2]]
    measured: dict[int, list[tuple[float, float]]] = {number: [] for number in range(len(rows))}
    with tempfile.TemporaryDirectory(prefix="bench-first-") as folder:
        for _ in range(options.repeats):
            for number, (what, words, bf16, _) in enumerate(rows):
                measured[number].append(measure(words, bf16, folder))
                paired.progress(f"{what}: {measured[number][-1][0]:.0f} s")
    print(f"{'command':<16}{'bf16':<16}{'s':>6}{'goal s':>8}{'judging':>9}{'goal':>6}")
    passed = True
    for number, (what, words, bf16, goal_s) in enumerate(rows):
        took_s = statistics.median(whole for whole, _ in measured[number])
        judging = statistics.median(judged / whole for whole, judged in measured[number])
        most = MOST_JUDGING if words == ALL else 1.0
        passed &= took_s <= goal_s and judging <= most
        how = "instructions" if bf16 else "by way of fp32"
        goal = f"{most:.0%}" if most < 1.0 else "-"
        print(f"{what:<16}{how:<16}{took_s:>6.0f}{goal_s:>8.0f}{judging:>9.0%}{goal:>6}")
    print("PASS" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
