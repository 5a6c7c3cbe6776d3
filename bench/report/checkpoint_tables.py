"""The table of what checkpoints cost."""

from bench.analyse.checkpoints import checkpoints
from bench.core.records import MOST_CHECKPOINT_STEPS
from bench.report.tables import Table, figure, ranged, tabulate, text
from bench.runs.reader import Run

HOW = {
    "torch": "torch: rank 0 saves everything, whole, by torch.save, and the others wait",
    "dcp": "dcp: each rank writes its part by torch.distributed.checkpoint, and waits until it is on the disk",
    "dcp_async": "dcp_async: the same in the background, after a copy to the host's memory",
}


def checkpoint_table(run: Run) -> Table | None:
    """Cost, size, and the time to resume; None if no launch saved."""
    table = checkpoints(run.document)
    if table.empty:
        return None
    columns = (
        text("scenario", "scenario"),
        text("how", "how"),
        figure("every steps", "every", ",d"),
        figure("launches", "launches", "d"),
        figure("size MiB", "size_mib", ",.1f"),
        figure("training stands still (ms)", "save_ms", ",.1f"),
        ranged("ms", ("cost_ms", "cost_low_ms", "cost_high_ms"), ",.2f", group="cost per step"),
        figure("%", "cost_percent", "+.2f", group="cost per step"),
        figure("load (s)", "load_s", ",.2f"),
        figure("load and next step (s)", "resume_s", ",.2f"),
    )
    notes = [
        "From launches of their own, in which cycles of steps with one save and without take turns (ABBA). cost per "
        "step: what saving adds to a cycle, over the steps between two saves; below it the 95 % interval over "
        "launches. The files go through the system's page cache. Processes run already when they load.",
        f"{'; '.join(HOW[how] for how in dict.fromkeys(table['how']))}.",
    ]
    if (table["every"] > MOST_CHECKPOINT_STEPS).any():
        notes.append(f"A cycle has at most {MOST_CHECKPOINT_STEPS} steps; the cost is that of a save over all steps.")
    return tabulate(columns, table.to_dict("records"), notes)
