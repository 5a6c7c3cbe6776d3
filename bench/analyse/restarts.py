"""What the loss of a rank costs: how long training stands still until the next step is over, over launches."""

import statistics
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.intervals import mean_interval
from bench.runs.document import RunDocument
from bench.runs.experiments import RestartLook, Restarts

PARTS = ("up_s", "joined_s", "loaded_s", "step_s")
COLUMNS = (
    *("scenario", "launches", "every", "killed_step", "resumed_step", "next_step_s", "next_step_low_s"),
    *("next_step_high_s", *PARTS, "caught_up_s", "plain_step_ms", "loss_error"),
)


def restarts(document: RunDocument) -> pd.DataFrame:
    """One row per scenario with an ``ok`` launch in which a rank was killed: :data:`COLUMNS`.

    ``next_step_s``: from the kill until the next step is over on all ranks, mean over launches with its 95 % interval
    (Student's t, null below two). It is the sum of ``up_s`` (the engine notices, new interpreters import torch),
    ``joined_s`` (they meet), ``loaded_s`` (each builds the model and loads the checkpoint) and ``step_s``.
    ``caught_up_s``: until the first step is over that had not been trained before. ``loss_error``: the largest.
    """
    rows, launches = [], document.begun(Restarts).launches
    for scenario in dict.fromkeys(one.scenario for one in launches):
        mine = [one for one in launches if one.scenario == scenario and one.restart and one.status == "ok"]
        looks = [one.restart for one in mine if one.restart is not None]
        if looks:
            rows.append({"scenario": scenario, "launches": len(looks), "every": mine[0].every, **_row(looks)})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(looks: list[RestartLook]) -> dict[str, Any]:
    mean, low, high = mean_interval(np.array([one.next_step_ms / 1e3 for one in looks]))
    parts = [
        (one.up_ms, one.joined_ms - one.up_ms, one.loaded_ms - one.joined_ms, one.next_step_ms - one.loaded_ms)
        for one in looks
    ]
    plain = [one.step_ms for one in looks if one.step_ms is not None]
    return {
        "killed_step": looks[0].killed_step,
        "resumed_step": looks[0].resumed_step,
        "next_step_s": mean,
        "next_step_low_s": low,
        "next_step_high_s": high,
        **{name: statistics.mean(ms) / 1e3 for name, ms in zip(PARTS, zip(*parts, strict=True), strict=True)},
        "caught_up_s": statistics.mean(one.caught_up_ms for one in looks) / 1e3,
        "plain_step_ms": statistics.median(plain) if plain else None,
        "loss_error": max((one.loss_error for one in looks if one.loss_error is not None), default=None),
    }


def in_words(document: RunDocument) -> list[str]:
    """A sentence for each scenario, and why there is none for one whose launches failed."""
    table = restarts(document)
    said = []
    for row in table.to_dict("records"):
        bounds = (
            ""
            if pd.isna(row["next_step_low_s"])
            else f" ({row['next_step_low_s']:.1f} to {row['next_step_high_s']:.1f})"
        )
        lost = row["killed_step"] - row["resumed_step"]
        said.append(
            f"When a rank of {row['scenario']} is killed, the next step is over {row['next_step_s']:.1f} s{bounds} "
            f"later: {row['up_s']:.1f} s until new interpreters have torch, {row['joined_s']:.1f} s to meet, "
            f"{row['loaded_s']:.1f} s to build the model and load the checkpoint, {row['step_s']:.1f} s for the step. "
            f"{lost} step{'s' if lost != 1 else ''} trained again, caught up after {row['caught_up_s']:.1f} s."
        )
    known = set(table["scenario"])
    failed = {one.scenario: one.reason for one in document.begun(Restarts).launches if one.scenario not in known}
    return said + [f"{scenario} was not restarted: {reason}." for scenario, reason in failed.items()]
