"""Does the account of a step add up, and does what is planted land in its own part?

    python benchmarks/account.py                 # ten launches of each model, and what is planted in an MLP
    python benchmarks/account.py --device cuda --planted --launches 2     # on a GPU, what is planted alone
    sudo python benchmarks/account.py --link     # ddp of two hosts whose link becomes slow, each a network namespace

Allowed: in nine of ten launches at most 5 % of the step is left over. What is planted makes its own part longer by as
much as it makes the step longer, within 10 %, and all others together by less than 10 % of it. In the loader and in the
host (`time.sleep` between two layers) that is 20 ms, which are known; how long the operator takes is measured.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paired
from prediction import LINK, address, network, shape

from bench.analyse.account import ADDS_UP, Account, accounts
from bench.analyse.analysed import Analysed
from bench.runs.reader import read

MODELS = (
    "single --model resnet18 --image-size 32",
    "ddp --model resnet18 --image-size 32 --global-batch 32",
    "single --model resnet101 --image-size 64",
    "ddp --workload gpt",
    "single --workload fashion_mlp",
    "ddp --workload fashion_mlp --global-batch 256",
)
HELD = 0.9
"""Of all launches, those that add up."""
PLANTED, PLANTED_MS, WITHIN = Path(__file__).with_name("planted.py"), 20.0, 0.10
PLANTS = {"loader": "data", "host": "host", "operator": "memory"}
"""What is planted, and the part where it belongs."""
SPEEDS_MBIT = (1000, 200)
PORT = "29410"


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--launches", type=int, default=10, metavar="N", help="of each model (default: 10)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument("--planted", action="store_true", help="only what is planted")
    parser.add_argument("--link", action="store_true", help="plant a slow link; needs root")
    options = parser.parse_args()
    if options.link and os.geteuid() != 0:
        print("network namespaces need root: sudo python benchmarks/account.py --link", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *about: sys.exit(1))  # so that namespaces go, too
    with tempfile.TemporaryDirectory(prefix="bench-account-") as folder:
        if options.link:
            fast, slow = slow_link(folder, options.launches)
            checks = [landed(f"a link of {SPEEDS_MBIT[1]} Mbit/s", "communication", fast, slow, None)]
        else:
            models = () if options.planted else MODELS
            checks = [*add_up(folder, options, models), *plants(folder, options)]
    return paired.Answer("account", [], checks).finish(options.json)


def limits(folder: str, options: argparse.Namespace, scenario: str, *arguments: str) -> list[Account]:
    """The accounts of `bench limits` of a scenario with these arguments."""
    how = ["--device", options.device, "--launches", str(options.launches)]
    how += ["--ranks", "1"] if options.device == "cpu" and scenario == "single" else []
    command = [sys.executable, "-m", "bench", "limits", "--scenario", scenario, *arguments, *how]
    command += ["--out", folder, "--json"]
    done = subprocess.run(command, cwd=paired.ROOT, env=paired.COMPILED, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return last(folder)


def last(folder: str) -> list[Account]:
    newest = max(Path(folder).iterdir(), key=lambda path: path.stat().st_ctime_ns)
    return accounts(Analysed.of(read(str(newest))))


def add_up(folder: str, options: argparse.Namespace, models: Sequence[str]) -> list[paired.Check]:
    of_all: list[Account] = []
    for model in models:
        own = limits(folder, options, *model.split())
        left = sorted(one.unexplained_ms / one.step_ms for one in own)
        shown = " ".join(f"{100 * share:+.1f}" for share in left)
        paired.progress(f"{model}: {sum(one.adds_up for one in own)} of {len(own)} add up; left over, in %: {shown}")
        of_all += own
    count = sum(one.adds_up for one in of_all)
    held = f"{count} of {len(of_all)} launches add up within {ADDS_UP:.0%} (wanted: {HELD:.0%})"
    return [paired.Check(text=held, passed=count >= HELD * len(of_all))] if of_all else []


def plants(folder: str, options: argparse.Namespace) -> list[paired.Check]:
    with tempfile.TemporaryDirectory(prefix="bench-account-data-") as data:
        Path(data, "one").touch()
        asked = ["single", "--workload", str(PLANTED), "--data", data, "--workers", "0"]
        without = limits(folder, options, *asked)
        return [
            landed(f"{what} ({part})", part, without, planted, PLANTED_MS if what != "operator" else None)
            for what, part in PLANTS.items()
            for planted in [limits(folder, options, *asked, "--setting", f"plant={what}")]
        ]


def landed(
    what: str, part: str, without: list[Account], planted: list[Account], known_ms: float | None
) -> paired.Check:
    """Whether the step became longer in this part, by ``known_ms`` or else by as much as the step did."""
    names = dict.fromkeys(name for one in (*without, *planted) for name in one.parts)
    longer = {name: mean(planted, name) - mean(without, name) for name in (*names, "unexplained", "step")}
    of = longer["step"] if known_ms is None else known_ms
    own, others = longer[part], sum(abs(longer[name]) for name in names if name != part)
    shown = ", ".join(f"{name} {ms:+.2f}" for name, ms in longer.items() if abs(ms) >= 0.02 * of)
    paired.progress(f"{what}: {shown} ms")
    text = f"{what}: its part is {own:.1f} of {of:.1f} ms longer, all others together {others:.1f}"
    return paired.Check(text=text, passed=abs(own / of - 1.0) <= WITHIN and others <= WITHIN * of)


def mean(of_all: list[Account], name: str) -> float:
    return sum(one.values.get(name) or 0.0 for one in of_all) / len(of_all)


def slow_link(folder: str, launches: int) -> list[list[Account]]:
    """Of ddp on two hosts, at each of :data:`SPEEDS_MBIT`."""
    asked = ("limits", "--workload", str(PLANTED), "--scenario", "ddp", "--launches", str(launches), "--device", "cpu")
    found, secret = [], os.urandom(16).hex()
    with network(2) as names:
        for mbit in SPEEDS_MBIT:
            shape(names, mbit)
            with ExitStack() as stack:
                hosts: list[Any] = []
                for number, name in enumerate(names):
                    own = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
                    own |= {"MASTER_ADDR": address(0), "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": LINK}
                    own |= {"BENCH_LOCK_DIR": f"{folder}.locks-{number}", "BENCH_SECRET": secret}
                    command = ["ip", "netns", "exec", name, sys.executable, "-m", "bench", *asked, "--out", folder]
                    log = stack.enter_context(open(Path(folder).with_suffix(f".{number}.log"), "w"))
                    about: dict[str, Any] = {"cwd": paired.ROOT, "env": paired.COMPILED | own}
                    hosts.append(subprocess.Popen(command, stdout=log, stderr=log, **about))
                if sum(host.wait() for host in hosts):
                    logs = [Path(folder).with_suffix(f".{number}.log").read_text()[-1500:] for number in range(2)]
                    raise SystemExit("\n".join(logs))
            found.append(last(folder))
    return found


if __name__ == "__main__":
    sys.exit(main())
