"""The table of what the loss of a rank costs."""

from bench.analyse.restarts import restarts
from bench.report.tables import Table, figure, ranged, tabulate, text
from bench.runs.reader import Run


def restart_table(run: Run) -> Table | None:
    """How long training stands still, by what it waits for; None if no rank was killed."""
    table = restarts(run.document)
    if table.empty:
        return None
    parts = (("torch is imported", "up_s"), ("ranks meet", "joined_s"), ("checkpoint is loaded", "loaded_s"))
    columns = (
        text("scenario", "scenario"),
        figure("launches", "launches", "d"),
        figure("checkpoint every steps", "every", ",d"),
        ranged("next step is over (s)", ("next_step_s", "next_step_low_s", "next_step_high_s"), ",.2f"),
        *(figure(heading, name, ",.2f", group="of that, seconds until") for heading, name in parts),
        figure("step is over", "step_s", ",.2f", group="of that, seconds until"),
        figure("caught up (s)", "caught_up_s", ",.2f"),
        figure("step before (ms)", "plain_step_ms", ",.1f"),
        figure("loss differs by", "loss_error", ".1e"),
    )
    notes = [
        "From launches under torchrun --max-restarts 1, in which the last rank is killed (SIGKILL) between two "
        "checkpoints. Times run from the kill until the last rank is there; below, the 95 % interval over launches. "
        "torch is imported: torchrun has noticed, ended the other ranks and started new interpreters. caught up: the "
        "first step is over that had not been trained before. loss differs by: of steps that were trained twice, "
        "relative; 0 if training went on as if nothing had happened.",
    ]
    return tabulate(columns, table.to_dict("records"), notes)
