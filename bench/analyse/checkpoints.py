"""What checkpoints cost: from cycles of steps with and without a save to a cost per step, over launches."""

import statistics
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.intervals import mean_interval
from bench.runs.document import RunDocument
from bench.runs.experiments import CheckpointRecord, Checkpoints

COLUMNS = (
    *("scenario", "how", "every", "launches", "size_mib", "save_ms", "cost_ms", "cost_low_ms", "cost_high_ms"),
    *("cost_percent", "load_s", "resume_s"),
)


def checkpoints(document: RunDocument) -> pd.DataFrame:
    """One row per scenario with an ``ok`` launch that saved: :data:`COLUMNS`.

    ``save_ms``: how long training stands still for a save. ``cost_ms``: what saving every N steps adds to each
    step, mean over launches of the paired differences of cycles with and without, with its 95 % interval (Student's t
    over launches); ``cost_percent`` of a step. ``resume_s``: to load, and to train the first step after that. Of ranks
    the slowest, of launches the mean.
    """
    rows, launches = [], document.begun(Checkpoints).launches
    for scenario in dict.fromkeys(one.scenario for one in launches):
        mine = [one for one in launches if one.scenario == scenario and one.status == "ok" and one.saves]
        if mine:
            rows.append(_row(scenario, mine))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(scenario: str, mine: list[CheckpointRecord]) -> dict[str, Any]:
    saves, extra, plain, load, resume = zip(*map(_of_launch, mine), strict=True)
    cost, low, high = mean_interval(np.array(extra))
    return {
        "scenario": scenario,
        "how": mine[0].how,
        "every": mine[0].every,
        "launches": len(mine),
        "size_mib": max(one.size_mib or 0.0 for one in mine),
        "save_ms": statistics.mean(saves),
        "cost_ms": cost,
        "cost_low_ms": low,
        "cost_high_ms": high,
        "cost_percent": 100 * cost / statistics.mean(plain),
        "load_s": statistics.mean(load) / 1e3,
        "resume_s": statistics.mean(resume) / 1e3,
    }


def _of_launch(one: CheckpointRecord) -> tuple[float, float, float, float, float]:
    """Of a launch (ms): a save; what it adds to each of ``every`` steps; a step without; a load; and until a step."""
    saving = [max(cycle) for cycle in zip(*(rank.saving_ms for rank in one.saves), strict=True)]
    plain = [max(cycle) for cycle in zip(*(rank.plain_ms for rank in one.saves), strict=True)]
    save = [max(times) for times in zip(*(rank.save_ms for rank in one.saves), strict=True)]
    extra = statistics.mean(a - b for a, b in zip(saving, plain, strict=True)) / one.every
    load = max(rank.load_ms for rank in one.saves)
    resume = max(rank.load_ms + rank.next_step_ms for rank in one.saves)
    return statistics.median(save), extra, statistics.mean(plain) / one.steps, load, resume


def in_words(document: RunDocument) -> list[str]:
    """A sentence for each scenario, and why there is none for one whose launches failed."""
    said = []
    table = checkpoints(document)
    for row in table.to_dict("records"):
        bounds = "" if pd.isna(row["cost_low_ms"]) else f" ({row['cost_low_ms']:,.2f} to {row['cost_high_ms']:,.2f})"
        said.append(
            f"A checkpoint of {row['scenario']} every {_steps(row['every'])} ({row['how']}) costs "
            f"{row['cost_ms']:,.2f} ms{bounds} a step, {row['cost_percent']:+.1f} %; it has "
            f"{row['size_mib']:,.1f} MiB, and training goes on {row['resume_s']:.2g} s after loading begins."
        )
    known = set(table["scenario"])
    failed = {one.scenario: one.reason for one in document.begun(Checkpoints).launches if one.scenario not in known}
    return said + [f"{scenario} has no checkpoint: {reason}." for scenario, reason in failed.items()]


def _steps(every: int) -> str:
    return "step" if every == 1 else f"{every:,} steps"
