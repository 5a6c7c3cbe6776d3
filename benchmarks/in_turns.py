"""`bench attach --base` and `bench bisect` on real training, where the answer is known because it was planted.

    python benchmarks/in_turns.py --example mnist/main.py [--runs 20]
    python benchmarks/in_turns.py [--searches 3]

With ``--example``, the MNIST example of github.com/pytorch/examples, on made-up digits: two copies that are alike, of
which at least 19 of 20 runs must find no difference in step time; and a copy that computes 5 % longer in each step,
which must be found where launches are added until a step is known within 2 %. Without it, searches of a repository with
16 commits: one of them adds 10 % of real work to a network, or gives a layer's gradients another factor, which takes no
time (``--numerics``).
"""

import argparse
import json
import os
import random
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import paired

SEED = 20261125
PICTURES, BATCH = 640, 32
LONGER = 0.05
PRECISELY = ("--until-precision", "2%")
COMMITS, UNDECIDED = 16, 11
OPTIMIZED = "        optimizer.step()\n"
SPIN = """\
        end = time.perf_counter() + {seconds}
        while time.perf_counter() < end:
            pass
"""

TRAIN = """\
import torch
from torch import nn
from settings import BLOCKS, FACTOR

torch.manual_seed(0)
net = nn.Sequential(*(layer for _ in range(BLOCKS) for layer in (nn.Linear(128, 128), nn.Tanh())), nn.Linear(128, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
random = torch.Generator().manual_seed(1)
for _ in range(60):
    inputs, labels = torch.randn(512, 128, generator=random), torch.randint(10, (512,), generator=random)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(inputs), labels).backward()
    net[-1].weight.grad *= FACTOR
    optimizer.step()
"""
PLAIN = {"BLOCKS": 20, "FACTOR": 1.0}
PLANTED: dict[str, dict[str, float]] = {"slower": {"BLOCKS": 22}, "different": {"FACTOR": 1.02}}


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--example", type=Path, help="mnist/main.py of a checkout of github.com/pytorch/examples")
    parser.add_argument("--runs", type=int, default=20, help="of two copies that are alike (default: 20)")
    parser.add_argument("--longer", type=int, default=3, help="runs of a copy that computes longer (default: 3)")
    parser.add_argument("--searches", type=int, default=3, help="of each kind (default: 3)")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs: the first one also says how long 5 % of a step are; give at least 1")
    with tempfile.TemporaryDirectory() as folder:
        values = compared(options, Path(folder)) if options.example else searched(options.searches, Path(folder))
    if options.json:
        print(json.dumps(values, indent=2))
    return 0 if all(one["as_it_should"] for one in values) else 1


def compared(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    text = options.example.read_text()
    if text.count(OPTIMIZED) != 1:
        raise SystemExit(f"{options.example} is not the example: it has not one optimizer.step() in its loop")
    for name in ("a", "b", "longer"):
        (folder / name).mkdir()
        (folder / name / "main.py").write_text(text)
    digits(folder / "data" / "MNIST" / "raw")
    kinds: dict[str, list[dict[str, Any]]] = {"alike": [], "5 % longer": []}
    for number in range(options.runs + options.longer):
        kind, new, more = ("alike", "b", ()) if number < options.runs else ("5 % longer", "longer", PRECISELY)
        answer = attached(folder, new, *more)
        ended = next(one for one in answer["comparisons"] if one["metric"] == "step_time")
        kinds[kind].append({name: ended[name] for name in ("ratio", "low", "high", "p", "verdict")})
        interval = "{ratio:.3f} ({low:.3f} to {high:.3f}), {verdict}".format_map(ended)
        paired.progress(f"[{number + 1}/{options.runs + options.longer}] {kind}: {interval}")
        if number == 0:
            spin = SPIN.format(seconds=LONGER * ended["base"] / 1e3)
            (folder / "longer" / "main.py").write_text("import time\n" + text.replace(OPTIMIZED, OPTIMIZED + spin))
    told_apart = sum(one["verdict"] != "no difference found" for one in kinds["alike"])
    found = sum(one["verdict"] == "slower" for one in kinds["5 % longer"])
    paired.progress(f"told apart {told_apart} of {options.runs} that are alike, found {found} of {options.longer}")
    right = {"alike": told_apart <= options.runs / 20, "5 % longer": found == options.longer}
    return [{"kind": kind, "runs": runs, "as_it_should": right[kind]} for kind, runs in kinds.items()]


def attached(folder: Path, new: str, *more: str) -> dict[str, Any]:
    """The document of a run of copy ``a`` beside another one."""
    command = f"{sys.executable} {{}}/main.py --epochs 1 --batch-size {BATCH} --no-accel --test-batch-size 32"
    words = ("attach", "--json", "--out", str(folder / "out"), *more, "--base", command.format(folder / "a"), "--")
    return bench(folder / "a", *words, *shlex.split(command.format(folder / new)))


def bench(cwd: Path, *words: str) -> dict[str, Any]:
    """The document that a verb prints. One thread: two that share a core at times scatter launches by 14 %."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paired.ROOT},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, UNDECIDED):
        raise SystemExit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def digits(folder: Path) -> None:
    """Made-up data in the form of MNIST's, for ``raw`` of the folder where its example looks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", PICTURES), ("t10k", 32)):
        labels = bytes(number % 10 for number in range(count))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 2051, count, 28, 28) + os.urandom(count * 784)
        )
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)


def searched(searches: int, folder: Path) -> list[dict[str, Any]]:
    chance, values = random.Random(SEED), []
    for number in range(searches):
        for kind in PLANTED:
            first_bad, place = chance.randrange(1, COMMITS), folder / f"{kind}-{number}"
            commits = repository(place, kind, first_bad)
            words = ("bisect", "--json", "--out", str(place / "out"), "--git", ".", "--good", commits[0])
            more = ("--numerics",) if kind == "different" else ()
            begin = time.monotonic()
            answer = bench(place, *words, "--bad", commits[-1], *more, "--", sys.executable, "train.py")
            right = answer["high"] == commits[first_bad] and answer["low"] == commits[first_bad - 1]
            values.append({"kind": kind, "first_bad": first_bad, "answer": answer["answer"], "as_it_should": right})
            took = f"{(time.monotonic() - begin) / 60:.1f} min"
            paired.progress(f"{kind}, change {first_bad} of {COMMITS}: {answer['answer']} ({took})")
    return values


def repository(place: Path, kind: str, first_bad: int) -> list[str]:
    """Its commits, oldest first."""
    place.mkdir()
    git(place, "init", "-q")
    (place / "train.py").write_text(TRAIN)
    for number in range(COMMITS):
        values = PLAIN | (PLANTED[kind] if number >= first_bad else {})
        lines = [f"# change {number}", *(f"{name} = {value}" for name, value in values.items())]
        (place / "settings.py").write_text("\n".join(lines) + "\n")
        git(place, "add", "train.py", "settings.py")
        git(place, "commit", "-q", "-m", f"change {number}")
    return git(place, "log", "--reverse", "--format=%h", "--abbrev=10").split()


def git(place: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *words]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
