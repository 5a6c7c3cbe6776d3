"""The step of a script that ``bench recipe`` writes, under torchrun, against the launches that it was written from.

    python benchmarks/recipe_ratio.py --scenario single,ddp,ddp_o1,ddp_o2,fsdp2,ddp_accumulate

A run measures the scenarios once, and ``bench recipe`` writes a script of each. First a script prints its first ten
losses, which must be those on record within the bounds of the run's reference. Then A, a launch of bench, and B, the
script under torchrun, live at the same time and take turns, blocks of a few steps in the order ``ABBA``, ``BAAB``. The
script has two lines more: it imports a gate, and waits at it before each block. The ranks of both are bound to the same
cores, since one core of a shared machine is not as fast as another, and glibc keeps the memory that they free
(``launching.KEEP_FREED``). A block takes as long as on its slowest rank.

This is a test of equivalence: it passes when the whole 95 % interval of B / A lies within 1 +- 3 %.
"""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import launching
import paired

from bench.analyse.analysed import Analysed
from bench.analyse.parity import loss_curves
from bench.core.job import Job
from bench.report.recipe import script
from bench.runs.reader import read

MARGIN = 0.03
LOSSES = 10
LOSS_MARGIN = 1e-3
"""Of a loss, relatively: the script computes in the same way, and adds up in another order at most."""
SCENARIOS = "single,ddp,ddp_o1,ddp_o2,fsdp2,ddp_accumulate"
LOOP = "    for step in range(first + 1, args.steps + 1):\n"
GATE = """\
import os, socket, time

channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["GATE"])
channel.sendall(f"{os.environ.get('RANK', 0)} {os.getpid()}\\n".encode())
began = None


def wait():
    global began
    if began is not None:
        channel.sendall(f"{time.perf_counter() - began}\\n".encode())
    if not channel.recv(1):
        os._exit(0)
    began = time.perf_counter()
"""


def main() -> int:
    parser = paired.parser(__doc__, pairs=6)
    parser.add_argument("--scenario", default=SCENARIOS, metavar="NAME[,NAME...]", help="default: all six")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of turns, each (default: 20)")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="of a block (default: 2)")
    launching.size_options(parser)
    options = parser.parse_args()
    size: dict[str, Any] = {"model": options.model or "resnet18", "image_size": options.image_size or 64}
    batch = options.global_batch or 16
    names = options.scenario.split(",")
    os.environ.update(launching.KEEP_FREED)
    comparisons, checks = [], []
    with launching.folder() as where, launching.host(where) as host:
        run = measured(names, where, **size, global_batch=batch)
        for name in names:
            job = launching.plan(name, **size, global_batch=batch, warmup=launching.WARMUP, iters=1)
            file = os.path.join(where, f"{name}.py")
            Path(file).write_text(script(run, name), encoding="utf-8")
            losses = losses_of(file, job.processes)
            worst = worst_loss(run, name, losses)
            same = len(losses) == LOSSES and worst <= 1.0
            checks.append(paired.Check(f"{name}: the first {LOSSES} losses within their bounds ({worst:.2g})", same))
            comparisons.append(compared(host, job, file, where, options.seconds, options.steps, options.pairs))
            paired.progress("\n".join(comparisons[-1].lines()))
        version = host.description["torch"]
    return paired.Answer("recipe_ratio", comparisons, checks, more={"torch": version}).finish(options.json)


def measured(names: list[str], where: str, *, model: str, image_size: int, global_batch: int) -> Analysed:
    """A run of these scenarios by the command line, with its reference."""
    size = ["--model", model, "--image-size", str(image_size), "--global-batch", str(global_batch)]
    once = ["--launches", "1", "--warmup", str(launching.WARMUP), "--iters", "5", "--device", "cpu", "--wait"]
    done = paired.bench("run", "--scenario", ",".join(names), *size, *once, "--json", "--out", where)
    return Analysed.of(read(done["path"]))


def started(file: str, processes: int) -> list[str]:
    """The command that starts a script: by torchrun where there is more than one process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(launcher if processes > 1 else []), file]


def losses_of(file: str, processes: int) -> list[float]:
    """What a script prints of its first steps."""
    command = [*started(file, processes), "--steps", str(LOSSES), "--log-every", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines() if "loss " in line]


def worst_loss(run: Analysed, scenario: str, losses: list[float]) -> float:
    """The largest difference of a loss from the record, as a part of its margin."""
    curves = loss_curves(run.document, run.iterations, run.numerics)
    recorded = curves[curves["scenario"] == scenario]["loss"].head(len(losses))
    parts = (recorded - losses[: len(recorded)]).abs() / (LOSS_MARGIN * recorded.abs())
    return float(parts.max(skipna=False))


def compared(host: Any, job: Job, file: str, where: str, seconds: float, steps: int, pairs: int) -> paired.Comparison:
    """Turns of a launch of bench and of the script."""
    launched = launching.Turns(host, job, where, steps=steps)
    with Script(file, job, steps) as other:
        launched.wait_until_warm()
        launching.stay_on_cores(job, launched.pids)
        launching.stay_on_cores(job, other.pids)
        for _ in range(launching.WARMUP // steps):
            other.step()
        rounds = launching.in_turns(launched, "A", other.step, seconds, 2 * pairs)
    return paired.Comparison.of_rounds(
        rounds,
        pairs,
        name=f"{job.scenario}, blocks of {paired.count(steps, 'step')} ({launching.describe(job)})",
        a="bench",
        b="script",
        margin=MARGIN,
    )


class Script:
    """The script as processes that do a block of steps when they are asked for one."""

    def __init__(self, file: str, job: Job, steps: int) -> None:
        self.folder, self.job = tempfile.mkdtemp(dir=os.path.dirname(file)), job
        text = Path(file).read_text(encoding="utf-8")
        assert text.count(LOOP) == 1, "the loop of the script is not what this benchmark knows"
        gated = text.replace("\nimport argparse\n", "\nimport argparse\nimport gate\n")
        gated = gated.replace(LOOP, f"{LOOP}        if step % {steps} == {1 % steps}:\n            gate.wait()\n")
        for name, content in (("gate.py", GATE), ("train.py", gated)):
            Path(self.folder, name).write_text(content, encoding="utf-8")

    def __enter__(self) -> "Script":
        address = os.path.join(self.folder, "gate")
        endless = ["--steps", "1000000", "--log-every", "1000000"]
        self.log = os.path.join(self.folder, "log")
        with socket.socket(socket.AF_UNIX) as listener, open(self.log, "wb") as log:
            listener.bind(address)
            listener.listen(self.job.processes)
            listener.settimeout(launching.START_LIMIT_S)
            self.process = subprocess.Popen(
                [*started(os.path.join(self.folder, "train.py"), self.job.processes), *endless],
                stdout=log,
                stderr=log,
                env=os.environ | {"GATE": address},
            )
            try:
                self.ranks = [listener.accept()[0].makefile("rw") for _ in range(self.job.processes)]
            except TimeoutError:
                self.process.kill()
                raise RuntimeError(f"the script did not begin: {self._said()}") from None
        self.pids = {int(rank): int(pid) for rank, pid in (one.readline().split() for one in self.ranks)}
        return self

    def __exit__(self, *exception: object) -> None:
        for rank in self.ranks:
            rank.close()
        self.process.terminate()
        self.process.wait()

    def step(self) -> float:
        """Do one block; its seconds on the slowest rank."""
        for rank in self.ranks:
            rank.write("g")
            rank.flush()
        said = [rank.readline() for rank in self.ranks]
        if not all(said):
            raise RuntimeError(f"the script ended: {self._said()}")
        return max(map(float, said))

    def _said(self) -> str:
        return Path(self.log).read_text(encoding="utf-8", errors="replace")[-2000:]


if __name__ == "__main__":
    raise SystemExit(main())
