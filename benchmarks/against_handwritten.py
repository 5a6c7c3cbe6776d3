"""The step that bench measures against a hand-written script with the same model, batch and precision.

    python benchmarks/against_handwritten.py --scenario ddp_o1 --device cuda

A: ``handwritten.py``, a process of its own with nothing of bench in it. B: a launch of bench, its rank forked by the
worker host and instrumented as in a run, progress messages included. Both live at the same time and take turns, blocks
of a few steps in the order ``ABBA``, ``BAAB``; one waits on a socket while the other computes, so they need twice the
memory. One device: on several, a launch would have ranks to wait for. Both take the algorithms that cuDNN chooses by
its rules: by timing them, as a run does, two processes may choose differently, whoever wrote them, and could not get
warm side by side as these do. On the CPU glibc keeps the memory that either frees (``launching.KEEP_FREED``).

This is a test of equivalence: it passes when the whole 95 % interval of B / A lies within 1 +- 1 %, of FSDP2,
accumulation and compile within 1 +- 2 %.
"""

import os
import subprocess
import sys
from pathlib import Path

import launching
import paired

from bench.core.job import Job

MARGIN, WIDER = 0.01, 0.02
DEFAULTS = {"cpu": ("resnet18", 64, 16, 1), "cuda": ("resnet101", 224, 128, 5)}
"""Model, image size, batch, steps of a block."""

NARROW = ("single", "ddp", "ddp_o1")
"""The scenarios that are held to :data:`MARGIN`; the others to :data:`WIDER`."""

WRITTEN = {
    "single": [],
    "ddp": ["--strategy", "ddp"],
    "ddp_o1": ["--strategy", "ddp"],
    "ddp+compile": ["--strategy", "ddp", "--compile"],
    "ddp_accumulate": ["--strategy", "accumulate"],
    "fsdp2": ["--strategy", "fsdp2"],
}
"""The scenarios that are written by hand, and the options of ``handwritten.py`` for each."""


def main() -> int:
    parser = paired.parser(__doc__, pairs=6)
    parser.add_argument("--scenario", choices=tuple(WRITTEN), default="single", help="which one (default: single)")
    launching.gpu_options(parser)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="how long to measure (default: 20)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a block (default: 1; on a GPU 5)")
    launching.size_options(parser)
    options = parser.parse_args()
    model, image_size, batch, steps = DEFAULTS[options.device]
    steps = options.steps or steps
    job = launching.planned(options, model, image_size, batch, ranks=1)
    if job.processes > 1:
        parser.error(f"--gpus: {job.processes} GPUs are chosen and one is compared; name one")
    os.environ.update(launching.KEEP_FREED)
    with (
        launching.folder() as where,
        Handwritten(job, where) as script,
        launching.host(where, device=options.device) as host,
    ):
        launched = launching.Turns(host, job, where, steps=steps)
        launched.wait_until_warm()
        script.wait_until_warm()
        rounds = launching.in_turns(launched, "B", lambda: script.train(steps), options.seconds, 2)
        version = host.description["torch"]
    comparison = paired.Comparison.of_rounds(
        rounds,
        options.pairs,
        name=f"blocks of {paired.count(steps, 'step')} ({launching.describe(job)})",
        a="hand-written",
        b="bench",
        margin=MARGIN if options.scenario in NARROW else WIDER,
    )
    enough = paired.Check(f"at least {options.pairs} rounds", len(rounds) >= options.pairs, by_noise=True)
    more = {"torch": version, "steps": steps}
    return paired.Answer("against_handwritten", [comparison], [enough], more=more).finish(options.json)


class Handwritten:
    """``handwritten.py`` as a process that does steps when it is asked for them."""

    def __init__(self, job: Job, where: str) -> None:
        self.log = os.path.join(where, "handwritten.log")
        workload, settings = job.workload, job.workload.settings
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "handwritten.py")
        command = [sys.executable, script, "--turns", "--device", workload.device, "--model", str(settings["model"])]
        command += ["--image-size", str(settings["image_size"]), "--batch", str(workload.global_batch)]
        command += ["--precision", job.precision, "--threads", str(job.ranks[0].threads)]
        command += ["--warmup", str(workload.warmup), *WRITTEN[job.scenario]]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(job.ranks[0].threads),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(job.ranks[0].devices),
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def __enter__(self) -> "Handwritten":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_until_warm(self) -> None:
        """Raises ``RuntimeError`` with the end of its log when it ended."""
        self._line()

    def train(self, steps: int) -> float:
        """The seconds that so many steps took."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        return float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = str(self.process.stdout.readline())
        if not line:
            said = Path(self.log).read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the hand-written script ended: {said[-2000:]}")
        return line


if __name__ == "__main__":
    raise SystemExit(main())
