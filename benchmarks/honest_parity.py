"""Verdicts on numerics: honest ways to train keep theirs on any kernels, and planted mistakes are found.

    python benchmarks/honest_parity.py --launches 2000
    python benchmarks/honest_parity.py --planted

Each run of bench draws a workload, a size, a batch, a seed and what the CPU's kernels may use (``ONEDNN_MAX_CPU_ISA``,
``ATEN_CPU_CAPABILITY``), and trains sixteen of the honest scenarios on it (three of a large model), on two ranks with
one thread each, or one rank with two. Passes if none is diverged and at most 2 % cannot be told. ``--planted`` plants
each mistake of frauds.py and more_frauds.py in runs of ResNet-18: passes if none is as good as an honest one and 95 %
are diverged, or refused since what ran contradicts its label.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import frauds
import paired
from more_frauds import MORE_FRAUDS

from bench.core.records import PARITIES

SAME, WITHIN_HALF, _, CANNOT_TELL, DIVERGED, NOT_FINITE = PARITIES
MOST_UNTOLD, FEWEST_FOUND = 0.02, 0.95

PLAIN = ("single", "dp", "ddp", "apex_ddp", "fsdp2", "zero1", "replicate", "ddp_accumulate")
HALF = ("ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")
SWITCHED = ("ddp+static_graph", "ddp+bucket_view", "ddp_o2+bucket_view", "ddp_o1+static_graph")
IMAGES = ("resnet18", "resnet50", "resnet101", "shufflenet_v2_x0_5", "mobilenet_v3_small", "vit_b_16")
WEIGHTS = {"resnet18": 6.0, "shufflenet_v2_x0_5": 6.0, "mobilenet_v3_small": 6.0, "fashion_mlp": 4.0, "gpt": 3.0}
WEIGHTS |= {"resnet50": 0.5, "resnet101": 0.5, "vit_b_16": 0.2}
"""How often each is drawn: the small ones, where conditioning is worst, most. A run of a large one takes minutes."""
LARGE = ("resnet50", "resnet101", "vit_b_16")
ISA = ("SSE41", "AVX2", "AVX512_CORE", None)
CAPABILITY = ("default", "avx2", None)
COMPILED = 0.03
"""The part of the runs that have a compiled scenario, which takes a minute."""


@dataclass
class Run:
    """``options`` of ``bench run`` in an ``environment``, and the verdicts: scenario, verdict or status, reason."""

    options: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    verdicts: list[tuple[str, str, str]] = field(default_factory=list)
    wall_s: float = 0.0
    judging_s: float = 0.0

    def measure(self, folder: str) -> None:
        command = [sys.executable, "-m", "bench", "run", *self.options, "--out", folder, "--wait", "--force", "--json"]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, capture_output=True, text=True, cwd=paired.ROOT, env=environment)
        document = json.loads(done.stdout or "{}")
        if "parity" not in document:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        failed = [one for one in document["launches"] if one["status"] not in ("ok", "unsupported")]
        self.verdicts = [(one["scenario"], one["verdict"] or "none", one["reason"] or "") for one in document["parity"]]
        self.verdicts += [(one["scenario"], one["status"], one["reason"] or "") for one in failed]
        numerics = document["experiments"]["numerics"]
        judging = [*numerics["doubles"], *numerics["references"]]
        self.judging_s = sum(one["wall_s"] or 0.0 for one in judging)
        self.wall_s = self.judging_s + sum(one["wall_s"] or 0.0 for one in document["launches"])

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), *self.options])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=200, metavar="N", help="honest ones (default: 200)")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="N", help="stop after so many")
    parser.add_argument("--seed", type=int, default=0, help="what the runs are drawn from (default: 0)")
    parser.add_argument("--planted", action="store_true", help="planted mistakes in place of honest launches")
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="bench-parity-") as folder:
        if options.planted:
            return planted(options, Path(folder), until)
        return honest(options, folder, until)


def honest(options: argparse.Namespace, folder: str, until: float) -> int:
    drawn, runs, launches = random.Random(options.seed), list[Run](), 0
    while launches < options.launches and time.monotonic() < until:
        runs.append(one := draw(drawn))
        one.measure(folder)
        launches += len(one.verdicts)
        counts = Counter(verdict for run in runs for _, verdict, _ in run.verdicts)
        paired.progress(f"{launches} launches: {dict(counts)}")
    print(f"{'verdict':<24}launches")
    for verdict, count in counts.most_common():
        print(f"{verdict:<24}{count}")
    share = sum(one.judging_s for one in runs) / sum(one.wall_s for one in runs)
    print(f"judging took {100 * share:.0f} % of the time of all launches")
    wrong = [(one, *row) for one in runs for row in one.verdicts if row[1] not in (SAME, WITHIN_HALF)]
    for one, scenario, verdict, reason in wrong:
        print(f"  {scenario}: {verdict} ({reason}) in bench run {one}")
    untold = counts[CANNOT_TELL] / launches
    passed = untold <= MOST_UNTOLD and not set(counts) - {SAME, WITHIN_HALF, CANNOT_TELL}
    verdict = "PASS" if passed else "FAIL"
    print(f"{verdict}: {launches} honest launches, {counts[DIVERGED]} diverged, {100 * untold:.1f} % cannot tell")
    return 0 if passed else 1


def draw(drawn: random.Random) -> Run:
    """A run of honest scenarios."""
    (model,) = drawn.choices(list(WEIGHTS), list(WEIGHTS.values()))
    batch, ranks = drawn.choice((4, 8)), drawn.choice(("2", "2", "2", "1"))
    pool = [*PLAIN, *HALF, *SWITCHED]
    if model in IMAGES:
        pool += [f"{name}+channels_last" for name in (*PLAIN, *HALF) if name != "fsdp2"]  # which it does not go with
    if batch == 4:
        pool = [name for name in pool if not name.startswith("ddp_accumulate")]
    names = drawn.sample(pool, 3 if model in LARGE else 16)
    if drawn.random() < COMPILED and model in ("resnet18", "fashion_mlp"):
        names[0] = "ddp+compile"
    size = {"vit_b_16": 224, "mobilenet_v3_small": drawn.choice((32, 64))}.get(model, drawn.choice((32, 48, 64)))
    work = ["--model", model, "--image-size", str(size)] if model in IMAGES else ["--workload", model]
    options = ["--scenario", ",".join(names), *work, "--global-batch", str(batch), "--ranks", ranks, "--device", "cpu"]
    options += ["--seed", str(drawn.randrange(10**6)), "--warmup", "1", "--iters", "2"]
    chosen = {"ONEDNN_MAX_CPU_ISA": drawn.choice(ISA), "ATEN_CPU_CAPABILITY": drawn.choice(CAPABILITY)}
    return Run(options, {name: value for name, value in chosen.items() if value is not None})


def planted(options: argparse.Namespace, folder: Path, until: float) -> int:
    mistakes = frauds.FRAUDS | MORE_FRAUDS
    cases = list(every_case(mistakes, folder))
    random.Random(options.seed).shuffle(cases)
    runs = []
    for start in range(0, len(cases), 12):
        if time.monotonic() > until:
            break
        files = [str(file) for file in cases[start : start + 12]]
        size, batch = random.Random(start).choice((("32", "8"), ("64", "8"), ("32", "16")))
        what = ["--scenario", ",".join(files), "--model", "resnet18", "--image-size", size, "--global-batch", batch]
        runs.append(one := Run([*what, "--ranks", "2", "--device", "cpu", "--warmup", "2", "--iters", "6"]))
        one.measure(str(folder / "results"))
        paired.progress(f"{start + len(files)} of {len(cases)}")
    rows = [row for one in runs for row in one.verdicts]
    print(f"{'mistake':<28}verdict")
    for scenario, verdict, reason in sorted(rows):
        print(f"{scenario:<28}{verdict}: {reason[:80]}")
    good = [row for row in rows if row[1] in (SAME, WITHIN_HALF)]
    found = sum(row[1] in (DIVERGED, NOT_FINITE, "error") for row in rows) / len(rows)
    passed = not good and found >= FEWEST_FOUND
    verdict, these = "PASS" if passed else "FAIL", f"{len(rows)} launches of {len(mistakes)} mistakes"
    print(f"{verdict}: {these}, {100 * found:.0f} % found, {len(good)} as good as honest")
    return 0 if passed else 1


def every_case(mistakes: dict[str, dict[str, str]], folder: Path) -> Iterator[Path]:
    """The file of each mistake at its own level, and of one in fp32 at O1 and O2 as well."""
    for name, changes in mistakes.items():
        for level in (changes["precision"],) if "precision" in changes else ("O0", "O1", "O2"):
            file = folder / f"{name}_{level.lower()}.py"
            file.write_text(frauds.SOURCE.format(**(frauds.HONEST | changes | {"precision": level})))
            yield file


if __name__ == "__main__":
    sys.exit(main())
