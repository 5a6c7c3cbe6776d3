"""Scripts of ``bench recipe``, each run many times: do they all end as they should?

    python benchmarks/recipe_ends.py [--runs 200] [--scenario single,ddp,fsdp2] [--json]

One run measures the scenarios with a small model on two CPU ranks, and ``bench recipe`` writes a script of each. Each
script is then run for three steps, so that its end is most of it: by forks of a process that has imported torch, which
end as any interpreter does, but that no cycles of torch's own modules are collected, which would take three times as
long. When a script of ``ddp`` let Python end by itself it aborted in 1 of 60 such runs,
after a barrier still in 4 of 84 under torchrun beside two others.

A run counts as wrong if a rank does not exit with 0, does not end, or prints a warning or a line of C++ (``terminate
called``). All must be 0.
"""

import gc
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import paired

SCENARIOS = (
    "single,dp,ddp,ddp_o1,ddp_o2,ddp_o3,apex_ddp,apex_ddp_o1,apex_ddp_o2,apex_ddp_o3,fsdp2,fsdp2_no_reshard,hsdp,zero1,"
    "fsdp2_half,ddp_accumulate,ddp_accumulate_sync,ddp_fp16_hook,ddp_bf16_hook,ddp_powersgd,post_local_sgd,averaging,"
    "replicate"
)
ALONE = ("single", "dp")
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How the runs of a script ended: with 0, otherwise by the first other exit code, and what they printed."""

    scenario: str
    runs: int
    wrong: int
    seconds: float
    why: str


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each script (default: 200)")
    parser.add_argument("--scenario", default=SCENARIOS, help="whose scripts, with commas (default: all)")
    options = parser.parse_args()
    folder, here = tempfile.mkdtemp(prefix="bench-recipes-"), os.getpid()
    try:
        scripts = written(folder, options.scenario.split(","))
        import torch._dynamo
        import torch.distributed.fsdp
        import torch.distributed.optim  # noqa: F401
        import torchvision  # noqa: F401  # these once for all forks

        gc.freeze()
        results = [ended(name, script, options.runs) for name, script in scripts.items()]
        gc.unfreeze()
    finally:
        if os.getpid() == here:  # ranks come by, too, on the way to their end
            shutil.rmtree(folder)
    lines = [f"{one.scenario:<20} {one.runs:>5} runs, {one.wrong} wrong{one.why}" for one in results]
    print("\n".join(lines), file=sys.stderr if options.json else sys.stdout)
    check = paired.Check(f"{sum(one.runs for one in results):,} runs ended well", not any(one.wrong for one in results))
    more = {"measured": [asdict(one) for one in results]}
    return paired.Answer("recipe_ends", [], [check], more=more).finish(options.json)


def written(folder: str, names: list[str]) -> dict[str, str]:
    """The script of each scenario, by its name."""
    small = ["--workload", "fashion_mlp", "--device", "cpu", "--launches", "1", "--warmup", "1", "--iters", "2"]
    bench("run", "--scenario", ",".join(names), *small, "--nproc", "2", "--out", folder)
    (run,) = Path(folder).iterdir()
    scripts = {name: os.path.join(folder, f"{name}.py") for name in names}
    for name, script in scripts.items():
        bench("recipe", str(run), "--scenario", name, "--out", script)
    return scripts


def bench(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=paired.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench {arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")


def ended(name: str, script: str, runs: int) -> Ended:
    begun, wrong = time.monotonic(), Counter[str]()
    for _ in range(runs):
        why = one_run(script, 1 if name in ALONE else 2)
        if why:
            wrong[why] += 1
    paired.progress(f"{name}: {runs} runs, {wrong.total()} wrong")
    most = f", mostly: {wrong.most_common(1)[0][0]}" if wrong else ""
    return Ended(name, runs, wrong.total(), time.monotonic() - begun, most)


def one_run(script: str, ranks: int) -> str:
    """What was wrong with a run of a script; empty if nothing was."""
    with socket.socket() as free, tempfile.TemporaryFile("w+") as said:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        pids = [fork(script, rank, ranks, port, said.fileno()) for rank in range(ranks)]
        codes: dict[int, int] = {}
        limit = time.monotonic() + LIMIT_S
        while len(codes) < len(pids):
            for pid in pids:
                if pid not in codes and (one := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(one[1])
            if time.monotonic() > limit:
                for pid in set(pids) - set(codes):
                    os.kill(pid, 9)
                    os.waitpid(pid, 0)
                return f"no end within {LIMIT_S:g} s"
            time.sleep(0.005)
        said.seek(0)
        text = said.read()
    bad = next((line for line in text.splitlines() if "Warning" in line or "terminate called" in line), "")
    code = next((code for code in codes.values() if code), 0)
    return f"exit code {code}: {(bad or text.strip()[-100:])}" if code else bad


def fork(script: str, rank: int, ranks: int, port: int, output: int) -> int:
    """A rank that runs a script and ends as an interpreter does, by returning from here to ``main``."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(output, 1)
    os.dup2(output, 2)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, LOCAL_WORLD_SIZE=str(ranks))
    sys.argv = [script, "--steps", "3", "--log-every", "1"]
    runpy.run_path(script, run_name="__main__")
    raise SystemExit(0)


if __name__ == "__main__":
    raise SystemExit(main())
