"""Starting the command line against starting Python at all.

    python benchmarks/startup.py

``bench --help`` and ``bench list`` are typed often and answer without torch, pandas or matplotlib. What that costs is
only comparable with what an interpreter costs on the same machine at the same moment: ``python -c pass``, alternating
with them. ``--help`` may take twice that, ``list`` five times. Bytecode is cached, as it is on a second call by
anybody: in a folder of this script's, so that neither PYTHONDONTWRITEBYTECODE nor an old cache decides.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

import paired

HEAVY = ("torch", "torchvision", "pandas", "scipy", "matplotlib", "numpy", "pyarrow", "rich")
"""What neither verb may import: the first two by design, the others because each alone costs more than is allowed."""

PASS = ("-c", "pass")
COMMANDS = {"--help": (("-m", "bench", "--help"), 2.0), "list": (("-m", "bench", "list"), 5.0)}
CALLS = 3
"""Calls of which a measurement is the median."""


def main() -> int:
    options = paired.parser(__doc__, pairs=15).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as cache:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": paired.ROOT}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        comparisons = []
        checks = []
        for name, (command, allowed) in COMMANDS.items():
            for arguments in (PASS, command):
                call(arguments, environment)  # fills the bytecode cache
            both = partial(median_call, {"A": PASS, "B": command}, environment)
            comparisons.append(
                paired.Comparison.of_rounds(
                    paired.rounds(options.pairs, both),
                    options.pairs,
                    name=f"start of bench {name}",
                    a="python -c pass",
                    b=f"python -m bench {name}",
                    allowed=allowed,
                )
            )
            heavy = sorted(imported(command, environment) & set(HEAVY))
            said = f"imports {', '.join(heavy)}" if heavy else f"imports none of {', '.join(HEAVY)}"
            checks.append(paired.Check(f"bench {name} {said}", not heavy))
    return paired.Answer("startup", comparisons, checks).finish(options.json)


def call(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    """Seconds from the start of this interpreter with ``arguments`` to its end."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=paired.ROOT, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - start


def median_call(commands: dict[str, tuple[str, ...]], environment: dict[str, str], kind: str) -> float:
    """Seconds of the command of this kind: the median of a few calls."""
    return statistics.median(call(commands[kind], environment) for _ in range(CALLS))


def imported(arguments: tuple[str, ...], environment: dict[str, str]) -> set[str]:
    """The top-level packages that a call imports, from the interpreter's own account of it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env=environment,
        cwd=paired.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


if __name__ == "__main__":
    raise SystemExit(main())
