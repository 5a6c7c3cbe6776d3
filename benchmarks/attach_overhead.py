"""A step of an attached script, with the hooks of ``bench attach`` against without them.

    python benchmarks/attach_overhead.py

A script is run under ``bench attach`` as any would be. It trains in short blocks, in turn: A with the hook on
optimizers, the timer of data loaders and what keeps the loss taken out again; B with them, which note every step and
write once a second.
The upper 95 % bound of the ratio may be 1.01, by the clock and in processor time, which neighbours disturb less. Steps
are small, so that a hook weighs more than in earnest. What one hook takes in a loop of its own is stated beside.

Meanwhile ``bench attach`` waits, and looks for processes, in A and B alike: it may take 2 % of a core (its sampler: see
``sampler_effect.py``).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import paired
import psutil

ALLOWED = 1.01
CPU_SHARE = 0.02
CLOCKS = {"wall": "by the clock", "cpu": "processor time"}
CALLS = 20_000
SCRIPT = "--script"
"""The option that makes this file the script that is attached to."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=20)
    parser.add_argument("--rounds", type=int, default=1600, metavar="N", help="of ABBA blocks (default: 1600)")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="steps a block (default: 10)")
    parser.add_argument(SCRIPT, metavar="FILE", help="be the script, and write what it measures to FILE")
    options = parser.parse_args()
    if options.script:
        Path(options.script).write_text(json.dumps(train(options.rounds, options.steps)))
        return 0
    with tempfile.TemporaryDirectory(prefix="attach-overhead-") as folder:
        answer = os.path.join(folder, "measured.json")
        sizes = ["--rounds", str(options.rounds), "--steps", str(options.steps)]
        attach = [sys.executable, "-m", "bench", "attach", "--wait", "--out", folder, "--"]
        subprocess.run(
            [*attach, sys.executable, os.path.abspath(__file__), *sizes, SCRIPT, answer], cwd=paired.ROOT, check=True
        )
        found: dict[str, Any] = json.loads(Path(answer).read_text())
    comparisons = [
        paired.Comparison.of_rounds(
            found[clock],
            options.pairs,
            name=f"{options.steps} steps of a small network, {text}",
            a="without hooks",
            b="with hooks",
            allowed=ALLOWED,
        )
        for clock, text in CLOCKS.items()
    ]
    share = found["bench_cpu_s"] / found["wall_s"]
    check = paired.Check(
        f"bench itself takes {100 * share:.2f} % of a core, allowed {100 * CPU_SHARE:g} %", share <= CPU_SHARE
    )
    notes, more = [f"a hook by itself: {paired.seconds(found['hook_s'])}"], {"bench_cpu_share": share}
    return paired.Answer("attach_overhead", comparisons, [check], notes, more).finish(options.json)


def cpu_s(pid: int) -> float:
    """What a process has used."""
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def train(rounds: int, steps: int) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.optim import optimizer as optimizers
    from torch.utils.data import DataLoader, TensorDataset, dataloader

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(32 * steps, 256), torch.randint(10, (32 * steps,)))
    hooks = optimizers._global_optimizer_post_hooks
    iterator = dataloader._BaseDataLoaderIter
    assert len(hooks) == 1, "run it under bench attach"
    optimizer.step()  # from which on backward passes are noted, too
    ours = dict(hooks), DataLoader.__iter__, iterator.__next__, torch.autograd.backward
    plain: Any = {}, *(function.__wrapped__ for function in ours[1:])

    def block(kind: str) -> tuple[float, float]:
        hooks.clear()
        of, DataLoader.__iter__, iterator.__next__, torch.autograd.backward = ours if kind == "B" else plain
        hooks.update(of)
        begin = time.perf_counter(), time.process_time()
        for x, y in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return time.perf_counter() - begin[0], time.process_time() - begin[1]

    for kind in "ABBABAAB":  # the first hook reads off what trains, which takes long
        block(kind)
    begin_s, bench_s = time.perf_counter(), cpu_s(os.getppid())
    measured: dict[str, list[paired.Round]] = {clock: [] for clock in CLOCKS}
    for number in range(rounds):
        done = [(kind, block(kind)) for kind in paired.LONG[number % 2]]
        for place, clock in enumerate(CLOCKS):
            measured[clock].append(paired.round_of((kind, taken[place]) for kind, taken in done))
    wall_s = time.perf_counter() - begin_s
    (hook,) = ours[0].values()
    begin = time.process_time()
    for _ in range(CALLS):
        hook(optimizer, (), {})
    hook_s = (time.process_time() - begin) / CALLS
    return {**measured, "hook_s": hook_s, "wall_s": wall_s, "bench_cpu_s": cpu_s(os.getppid()) - bench_s}


if __name__ == "__main__":
    raise SystemExit(main())
