"""Runs whose processes are killed at random times: is anything left, torn or lost, and do they go on?

    python benchmarks/kills.py [--kills 30] [--verbs limits,bisect] [--seed 0] [--minutes 20] [--json]

Each kill takes one of run, tune, scale, limits, attach and bisect on the CPU, waits for a random part of the time that
it took undisturbed, and ends one of its processes by SIGKILL: the command itself, the worker host, a rank, the sampler,
or a script that it runs. Then within 20 seconds no process of it may be left, but for a script whose bench was killed;
its lock must be free; the folder must be readable; and ``--resume`` must complete it. A run of attach is not resumed.

All counts of what went wrong must be 0: what was left, locked, torn, not resumed, or did not end.
"""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import paired

from bench.runs.check import findings

ROOT = Path(paired.ROOT)
SCRIPTS = ROOT / "tests" / "standin"
SCRIPT = SCRIPTS / "training.py"
KILLED = (" is incomplete: ", " has no steps: no launch was done")
"""What is found in a run that was killed, the latter before its first launch was written."""
GONE_S = 20.0
RELEASED_S = 5.0
"""For the kernel to take a large process down, whose environment can no longer be read."""
LIMIT_S = 900.0
WORK = ["--workload", "fashion_mlp", "--device", "cpu", "--warmup", "1", "--iters", "3"]
NOTING = ["--", sys.executable, str(SCRIPTS / "noting.py")]
VERBS = {
    "run": [*WORK, "--scenario", "ddp,single", "--launches", "2", "--no-parity"],
    "tune": [*WORK, "--scenario", "ddp", "--allow", "foreach", "--budget", "6m"],
    "scale": [*WORK, "--scenario", "ddp", "--counts", "2", "--launches", "2"],
    "limits": [*WORK, "--scenario", "single", "--launches", "2"],
    "attach": ["--", sys.executable, str(SCRIPT), "--load-ms", "300"],
    "bisect": ["--git", "repo", "--good", "HEAD~3", "--bad", "HEAD", *NOTING],
}
STEPS_MS = (100, 100, 120, 120)
"""Of the commits that bisect searches."""


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--verbs", default=",".join(VERBS), help="of which one is drawn for each (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no kill after this time (default: 20)")
    options = parser.parse_args()
    wrong: Counter[str] = Counter({"left": 0, "locked": 0, "torn": 0, "not resumed": 0, "no end": 0})
    killed: Counter[str] = Counter()
    until_s = time.monotonic() + 60 * options.minutes
    latest_s = {verb: undisturbed_s(verb) for verb in options.verbs.split(",")}
    for number in range(options.kills):
        if time.monotonic() < until_s:
            mark = f"{options.seed}-{number}"
            try:
                killed[one(random.Random(mark), mark, latest_s, wrong)] += 1
            except subprocess.TimeoutExpired as error:
                note(wrong, "no end", True, mark, error, [words(pid) for pid in marked(mark)])
                end(lambda one: True, mark)
    passed = not any(wrong.values()) and sum(killed.values()) > 0
    print(json.dumps({"killed": killed, "wrong": wrong, "passed": passed}) if options.json else f"{killed}: {wrong}")
    return 0 if passed else 1


def undisturbed_s(verb: str) -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        about = about_a_run(folder, "none")
        began_s = time.monotonic()
        bench([verb, *VERBS[verb]], about).check_returncode()
        return time.monotonic() - began_s


def about_a_run(folder: str, mark: str) -> dict[str, Any]:
    git = ["git", "-C", f"{folder}/repo", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", "init", "-q", f"{folder}/repo"], check=True)
    for step_ms in STEPS_MS:
        Path(folder, "repo", "settings.json").write_text(json.dumps({"step_ms": step_ms, "sleep": 0.2}))
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "change"], check=True)
    places = {"BENCH_LOCK_DIR": f"{folder}/locks", "BENCH_CACHE_DIR": f"{folder}/cache"}
    return {
        "cwd": folder,
        "env": {**os.environ, "KILLS": mark, "PYTHONPATH": str(ROOT), **places},
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def one(chance: random.Random, mark: str, latest_s: dict[str, float], wrong: Counter[str]) -> str:
    """One run and its kill; what it killed of which verb."""
    verb = chance.choice(list(latest_s))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        about = about_a_run(folder, mark)
        with subprocess.Popen([sys.executable, "-m", "bench", verb, *VERBS[verb]], **about) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, latest_s[verb]))
            pids = [process.pid, *marked(mark, but=process.pid)] if process.poll() is None else []
            # the command itself as often as all others together
            pid = chance.choice(pids[:1] if chance.random() < 0.5 else pids) if pids else None
            what = f"{verb}: {'nothing' if pid is None else 'bench' if pid == process.pid else 'one of its processes'}"
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if verb == "attach":  # a script whose bench is gone goes on by intent
                process.wait(LIMIT_S)
                end(lambda one: str(SCRIPT) in words(one), mark)
            elif pid == process.pid:
                process.wait()
            try:
                said = process.communicate(timeout=LIMIT_S)[1] if verb != "attach" else ""
            except subprocess.TimeoutExpired:
                end(lambda one: True, mark)
                raise
        deadline_s = time.monotonic() + GONE_S
        while (left := marked(mark)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        note(wrong, "left", bool(left), mark, what, [words(one) for one in left])
        end(lambda one: True, mark)
        note(wrong, "locked", is_locked(home / "locks" / "cpu.lock"), mark, what)
        paths = [run.parent for run in home.glob("results/*/run.json")]
        what += ", with a run" if paths else ""
        for path in paths:
            found = [one for one in findings(str(path)) if not any(words in one for words in KILLED)]
            note(wrong, "torn", bool(found), mark, what, found)
            if verb != "attach":
                again = bench([verb, "--resume", path.name, *(VERBS[verb] if verb == "bisect" else ())], about)
                whole = json.loads((path / "run.json").read_text())["complete"]
                note(wrong, "not resumed", again.returncode != 0 or not whole, mark, what, said, again.stderr)
    print(f"{mark}: {what}", file=sys.stderr)
    return what


def bench(arguments: list[str], about: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "bench", *arguments], **about, timeout=LIMIT_S)


def marked(mark: str, but: int = 0) -> list[int]:
    """Processes of a run, by their environment; those that have ended and are not waited for are none."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if f"KILLS={mark}".encode() in environment and int(entry) != but:
                found.append(int(entry))
    return found


def words(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[-120:]
    return "gone"


def end(which: Any, mark: str) -> None:
    for pid in filter(which, marked(mark)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    deadline_s = time.monotonic() + RELEASED_S
    with open(path) as file:
        while time.monotonic() < deadline_s:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            time.sleep(0.1)
    return True


def note(wrong: Counter[str], kind: str, happened: bool, *about: object) -> None:
    if happened:
        wrong[kind] += 1
        print(kind, *about, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
