"""What a history of thousands of nights takes to be read: `bench history`, `bench gate --history` and `bench runs`.

    python benchmarks/history_scaling.py

Run folders of 500, 1,000 and 2,000 nights are made up in a temporary folder (some 230 MB): ten scenarios in five
launches each, every night with a commit, a run.json and a digest of its own, sealed as a real run is; on the way the
driver changes, a scenario becomes slower and another faster, and a night is slow by chance. Then each command is run as
a person runs it, from the start of its interpreter to its exit, in turns over the sizes; the fastest of the rounds is
taken, because other work on the machine only ever adds to it. A round before them looks at memory, which takes time.

Allowed at 2,000 nights: 10 s and 1 GiB each, and 1 s for `bench runs`, which lists the latest alone. Growth is linear
where a night costs the same in a long history as in a short one. What a night costs is CPU time above that of a history
of a few nights, which is what starting, importing and drawing take; a command that goes through all nights for each of
them would take four times as much for each of 2,000 as for each of 500.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import paired
import psutil

ROOT = Path(paired.ROOT)
sys.path.insert(0, str(ROOT / "tests"))

from standin import gated  # noqa: E402  # the made-up nights of the tests

SIZES = (500, 1000, 2000)
FEW = 12
"""Nights of the history that the others are held against: all is done that is done once."""

ROUNDS = 3

SECONDS_ALLOWED = {"history": 10.0, "gate": 10.0, "runs": 1.0}
MIB_ALLOWED = 1024.0
GROWTH_ALLOWED = 2.0
"""What a night costs in the longest history over what it costs in the shortest; 4 were quadratic."""

EXITS = {"history": (0,), "gate": (0, 10, 11), "runs": (0,)}
"""A night that is made up may regress by chance; what a history takes is no matter of the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one command took over one history. ``peak_mib``: resident memory of it and its children together, 0 where
    nobody looked at it: to look takes time from what is looked at."""

    command: str
    nights: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--nights", type=int, nargs=3, default=SIZES, metavar="N", help="(default: 500 1000 2000)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of every size (default: {ROUNDS})")
    parser.add_argument("--scratch", metavar="DIR", help="where the nights are made up (default: that of the system)")
    options = parser.parse_args()
    sizes = [FEW, *sorted(options.nights)]
    with tempfile.TemporaryDirectory(prefix="bench-history-", dir=options.scratch) as scratch:
        histories = {}
        for size in sizes:
            paired.progress(f"making up {size:,} nights")
            histories[size] = made_up(Path(scratch) / str(size), size)
        taken = []
        for number in range(options.rounds + 1):
            for size in sizes:
                for command in EXITS:
                    taken.append(measure(command, histories[size], size, Path(scratch) / "out", look=number == 0))
            paired.progress(f"round {number} of {options.rounds}" if number else "looked at memory")
    best = fastest(taken)
    print("\n".join(table(best)), file=sys.stderr if options.json else sys.stdout)
    notes = [f"10 scenarios of 5 launches; the fastest of {paired.count(options.rounds, 'round')}"]
    more = {"taken": [asdict(one) for one in taken], "fastest": [asdict(one) for one in best]}
    return paired.Answer("history_scaling", [], checks(best, sizes), notes, more).finish(options.json)


def made_up(folder: Path, count: int) -> Path:
    """A history with what histories have: shifts, a changed driver, a slow night, nights that failed."""
    folder.mkdir()
    changed, slower, faster, spike = count // 3, count // 2, 2 * count // 3, count // 4

    def planted(night: int, scenario: str) -> float:
        factor = 0.96 if night >= changed else 1.0
        factor *= 1.03 if scenario == "ddp_o2" and night >= slower else 1.0
        factor *= 0.95 if scenario == "apex_ddp" and night >= faster else 1.0
        return factor * (1.3 if scenario == "dp" and night == spike else 1.0)

    def also(night: int, digest: dict[str, Any]) -> None:
        if night >= changed:
            digest["conditions"]["driver"] = "560.28.03"
        if night % 97 == 96:
            none: dict[str, list[float]] = {name: [] for name in digest["scenarios"][3]["launches"]}
            digest["scenarios"][3] |= {"status": "oom", "reason": "RuntimeError: CUDA out of memory", "launches": none}

    gated.nights(folder, count, gated.TEN, slower=planted, also=also, energy=True)
    return folder


def measure(command: str, history: Path, nights: int, out: Path, *, look: bool) -> Taken:
    """Run a command over a history, as its own process, with a look at its memory or not. RuntimeError if it fails."""
    latest = max(path.name for path in history.iterdir() if path.is_dir())
    asked = {
        "history": [str(history), "--out", str(out)],
        "runs": ["--results", str(history)],
        "gate": [str(history / latest), "--history", str(history)],
    }
    arguments = [command, *asked[command]]
    before = os.times()
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments, "--json"],
        cwd=ROOT,
        env=paired.COMPILED,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    peaks_mib: list[float] = []
    watch = threading.Thread(target=held_mib, args=(process.pid, peaks_mib), daemon=True)
    if look:
        watch.start()
    said, complained = process.communicate()
    wall_s = time.monotonic() - started
    if look:
        watch.join()
    after = os.times()
    if process.returncode not in EXITS[command]:
        raise RuntimeError(f"bench {' '.join(arguments)}: exit code {process.returncode}: {complained.decode()[-500:]}")
    seen = json.loads(said)
    if command == "history" and len(seen["tracks"][0]["nights"]) != nights:
        raise RuntimeError(f"bench history saw {len(seen['tracks'][0]['nights'])} of {nights} nights")
    return Taken(
        command=command,
        nights=nights,
        wall_s=wall_s,
        cpu_s=after.children_user + after.children_system - before.children_user - before.children_system,
        peak_mib=max(peaks_mib, default=0.0),
    )


def held_mib(pid: int, found: list[float]) -> None:
    """The resident memory of a process and its children together, every 5 ms until the process is gone."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            family = [process, *process.children(recursive=True)]
            found.append(sum(one.memory_info().rss for one in family) / 2**20)
            time.sleep(0.005)


def fastest(taken: Sequence[Taken]) -> list[Taken]:
    """Of each command and size the least times of its rounds, with the peak of the one before them."""
    found = []
    for command, nights in dict.fromkeys((one.command, one.nights) for one in taken):
        looked, *mine = [one for one in taken if (one.command, one.nights) == (command, nights)]
        least = {name: min(getattr(one, name) for one in mine) for name in ("wall_s", "cpu_s")}
        found.append(replace(looked, **least))
    return sorted(found, key=lambda one: (list(EXITS).index(one.command), one.nights))


def table(best: Sequence[Taken]) -> list[str]:
    """For people."""
    lines = [f"{'command':<8} {'nights':>6} {'wall s':>7} {'CPU s':>6} {'peak MiB':>8}"]
    lines += [
        f"{one.command:<8} {one.nights:>6,} {one.wall_s:>7.2f} {one.cpu_s:>6.2f} {one.peak_mib:>8.0f}" for one in best
    ]
    return lines


def checks(best: Sequence[Taken], sizes: Sequence[int]) -> list[paired.Check]:
    """What is allowed at the largest size, and that growth is linear."""
    found = []
    few, small, *_, large = sizes
    for command in EXITS:
        of = {one.nights: one for one in best if one.command == command}
        found.append(
            paired.Check(
                f"{command} over {large:,} nights within {SECONDS_ALLOWED[command]:g} s and {MIB_ALLOWED:g} MiB",
                of[large].wall_s <= SECONDS_ALLOWED[command] and of[large].peak_mib <= MIB_ALLOWED,
            )
        )
        short, long = (1e3 * (of[size].cpu_s - of[few].cpu_s) / (size - few) for size in (small, large))
        found.append(
            paired.Check(
                f"{command}: {short:.2f} ms a night over {small:,}, {long:.2f} ms over {large:,}, at most "
                f"{GROWTH_ALLOWED:g} times as much",
                long <= GROWTH_ALLOWED * max(short, 0.01),
            )
        )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
