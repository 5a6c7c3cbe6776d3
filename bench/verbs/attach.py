"""``python -m bench attach``: run a training script that bench did not write, unchanged, and measure its steps."""

import sys

from bench.console import count, tell
from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.experiments.attaching import Outcome, Wanted, attach
from bench.machine.redact import RECORD, without_secrets
from bench.runs.document import Attached
from bench.verbs.options import Parser, called, place, print_json, scenario_name, whole_number

DESCRIPTION = """\
Run a training command unchanged and record the steps of every rank, the memory of every process, and what trains, as a
run to report, compare and gate. What counts is which processes step an optimizer of torch.optim: the command may be
python, python -m, torchrun, or a shell script that calls them.

A step lasts from one call of the first optimizer that steps in a process to the next. With gradient accumulation it has
several forward passes; a call that a loss scaler skips makes the step longer. The wait for a DataLoader is recorded,
other phases and the loss are not. Nothing is synchronised: on a GPU, steps are timed by CUDA events.
"""
EPILOG = """\
examples:
  python -m bench attach -- python train.py --epochs 1
  python -m bench attach --global-batch 512 -- torchrun --nproc-per-node 8 train.py
  python -m bench attach --launches 5 --label 'new loader' -- python -m package.train     for a verdict on differences
  python -m bench compare RUN-OF-A RUN-OF-B                                               script A against script B

The command keeps its standard streams, signals and exit code: bench exits with the command's, or with 128 and the
signal's number as a shell does, and prints its own lines on standard error after the end. Ctrl-C ends the command; the
steps until then count. --json prints the document on standard output after all that the command prints there.
bench itself exits with 2 if the request is wrong, or if the command ended well and nothing was recorded. Python
started with -I, -E or -S, and optimizers that are not torch.optim.Optimizer, are not seen.
"""


def main(arguments: list[str]) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = tuple(arguments[len(own) + 1 :])
    parser = Parser("attach", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s [OPTIONS] -- COMMAND..."
    parser.add_argument("--label", type=without_secrets, metavar="TEXT", help="a few words to find it by")
    what = "what tables call it (default: by what trains: ddp, dp, fsdp, single)"
    parser.add_argument("--scenario", type=scenario_name, metavar="NAME", help=what)
    parser.add_argument("--global-batch", type=whole_number, metavar="N", help="examples per step over all ranks")
    what = "leave the first N steps out (default: 10, or a fifth of few)"
    parser.add_argument("--warmup", type=whole_number, metavar="N", help=what)
    what = "run the command R times (default: 1; a verdict needs 3)"
    parser.add_argument("--launches", type=whole_number, default=1, metavar="R", help=what)
    parser.add_argument("--wait", action="store_true", help="queue until no other run of bench uses these devices")
    parser.add_argument("--force", action="store_true", help="measure also on GPUs that others use")
    what = "record all of the command (default: its program, its script, and a checksum: the rest may have secrets)"
    parser.add_argument(RECORD, action="store_true", help=what)
    parser.add_argument("--out", default="results", metavar="DIR", help="where run folders are (default: results)")
    options, rest = parser.parse_known_args(own)
    if rest and command:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if not command:
        problem = "there is no command" if "--" in arguments else "there is no '--' before the command"
        raise RequestError("COMMAND", problem, "write 'bench attach [OPTIONS] -- python train.py'")
    about = {name: value for name, value in vars(options).items() if name != "json"}
    outcome = attach(Wanted(command=command, **about), lambda text: tell(text, file=sys.stderr))
    if outcome.run is None:
        if not outcome.code:
            raise RequestError("COMMAND", f"nothing was recorded: {outcome.why}", "see 'bench attach --help'")
        tell(f"bench: nothing was recorded, and the command ended with exit code {outcome.code}", file=sys.stderr)
        return outcome.code
    tell(*_lines(outcome), file=sys.stderr)
    if options.json:
        print_json({"path": outcome.run.path, **encode(outcome.run.document)})
    return outcome.code


def _lines(outcome: Outcome) -> list[str]:
    """What was measured, in a few lines for people."""
    from bench.analyse.analysed import Analysed
    from bench.analyse.labels import what_ran

    assert outcome.run is not None
    run = Analysed.of(outcome.run)
    document, attached = run.document, run.document.of(Attached)
    assert attached is not None
    unit, known = document.workload.unit_short, document.workload.units
    peaks = dict(zip(run.peaks["launch"], run.peaks["peak_total_mib"], strict=True))
    lines = []
    for launch, about in zip(document.launches, attached.launches, strict=True):
        name = f"{launch.scenario} ({what_ran(launch.effective)})"
        ranks = f" of {count(launch.processes, 'rank')}" if launch.processes > 1 else ""
        if launch.status != "ok":
            lines.append(f"bench: {name}: {launch.status}, {launch.reason}; the steps until then are kept")
        else:
            (row,) = run.figures.frame[run.figures.frame["launch"] == launch.launch].to_dict("records")
            times = f"median {row['median_ms']:.4g} ms, mean {row['mean_ms']:.4g}, p95 {row['p95_ms']:.4g}"
            rate = f", {1000 * known / row['mean_ms']:,.1f} {unit}/s" if known else ""
            peak = peaks.get(launch.launch)
            memory = f", {peak:,.0f} MiB at most" if peak is not None and peak == peak else ""
            lines.append(f"bench: {name}: {count(row['measured'], 'step')}{ranks}, {times}{rate}{memory}")
        lines += [f"bench: left out: {one}" for one in about.left_out]
    if outcome.why:
        lines.append(f"bench: nothing was recorded of launch {len(document.launches)}: {outcome.why}")
    run_is = called(run.path)
    return [
        *lines,
        f"bench: run folder: {place(run.path)}",
        f"bench: next: python -m bench report {run_is}, or python -m bench compare {run_is} OTHER-RUN",
    ]
