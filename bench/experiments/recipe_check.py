"""Is a script as fast as the launches of bench that it was written from, and does it train the same?

Launches of both take turns, and the order changes from pair to pair, so that drift of the machine affects both alike. A
pair gives one ratio: the mean step of the script over that of bench. The losses of the first steps are compared with
those in the record.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import Estimate, estimate
from bench.analyse.parity import loss_curves
from bench.core.channel import adopt_orphans
from bench.core.children import children, end_children
from bench.core.errors import BenchError
from bench.runs.reader import read

MARGIN = 0.03
LOSSES = 10
LOSS_MARGIN = 1e-3
"""Of a loss, relatively: the script computes in the same way, and adds up in another order at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``ratio``: step of the script / step of bench. ``worst``: the largest part that a loss has of its margin."""

    ratio: Estimate
    worst: float
    losses: int

    @property
    def same(self) -> bool:
        return self.worst <= 1.0  # NaN is not

    @property
    def speed(self) -> str:
        """``as fast``, ``slower`` or ``faster``; ``unclear`` where the interval reaches beyond the margin."""
        low, high = self.ratio.low, self.ratio.high
        if low is None or high is None:
            return "unclear"
        if low >= 1 - MARGIN and high <= 1 + MARGIN:
            return "as fast"
        return "slower" if low > 1 + MARGIN else "faster" if high < 1 - MARGIN else "unclear"


def check(run: Analysed, scenario: str, script: str, again: Sequence[str], pairs: int, folder: str) -> Checked:
    """``script``: its file. ``again``: the options of a bench run that measures the scenario once. Raises
    :class:`BenchError` where a launch of either fails."""
    launch = next(one for one in run.document.good if one.scenario == scenario)
    iters = run.document.request.iters or 1
    start = started(script, launch.processes)
    ratios = []
    for pair in range(pairs):
        took = {}
        for which in ("bench", "script") if pair % 2 == 0 else ("script", "bench"):
            took[which] = (
                _bench_ms(again, folder) if which == "bench" else steps_of(start, 2 * iters, iters)[-1][1] * 1000
            )
        ratios.append(took["script"] / took["bench"])
    losses = [loss for loss, _ in steps_of(start, LOSSES, 1)]
    return Checked(ratio=estimate(ratios), worst=worst_loss(run, scenario, losses), losses=len(losses))


def worst_loss(run: Analysed, scenario: str, losses: Sequence[float]) -> float:
    """The largest difference of a loss from the record, as a part of its margin."""
    curves = loss_curves(run.document, run.iterations, run.numerics)
    recorded = curves[curves["scenario"] == scenario]["loss"].head(len(losses))
    parts = (recorded - losses[: len(recorded)]).abs() / (LOSS_MARGIN * recorded.abs())
    return float(parts.max(skipna=False))


def started(script: str, processes: int) -> list[str]:
    """The command that starts it: by torchrun where there is more than one process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(launcher if processes > 1 else []), script]


def steps_of(start: Sequence[str], steps: int, every: int) -> list[tuple[float, float]]:
    """The losses, and the seconds of a step, that the script prints."""
    lines = _output([*start, "--steps", str(steps), "--log-every", str(every)]).splitlines()
    found = [line.split("loss ")[1].split() for line in lines if line.startswith("step ")]
    return [(float(words[0].rstrip(",")), float(words[1])) for words in found]


def _bench_ms(again: Sequence[str], folder: str) -> float:
    document = json.loads(_output([sys.executable, "-m", "bench", "run", *again, "--out", folder, "--json"]))
    steps = read(document["path"]).steps
    return float(steps[~steps["warmup"]].groupby("step")["step_ms"].max().mean())


def _output(command: Sequence[str]) -> str:
    """What it prints. Whatever it leaves behind is ended: torchrun starts each rank in a session that no signal to
    torchrun's own group reaches."""
    adopt_orphans()
    others = children()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        end_children(but=others)
    if done.returncode:
        raise BenchError(f"{' '.join(command[:8])} ... ended with {done.returncode}: {_cause(done.stderr)}")
    return done.stdout


def _cause(said: str) -> str:
    """The line that tells it. torchrun's own last ones say only that a rank failed, and elsewhere by which signal: first
    the ranks that it ended with SIGTERM itself."""
    lines = said.strip().splitlines() or ["it printed nothing"]
    errors = [line for line in lines if "Error: " in line and "ChildFailedError" not in line]
    signals = [line.partition(": ")[2] for line in lines if re.match(r"\s*traceback : Signal", line)]
    return next(iter((*errors, *sorted(signals, key=lambda line: "SIGTERM" in line))), lines[-1])
