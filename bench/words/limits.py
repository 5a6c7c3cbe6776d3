"""How far a step is from what this machine can do, in sentences."""

from typing import Any

import pandas as pd

from bench.analyse.account import ADDS_UP, PARTS, accounts, limits
from bench.analyse.analysed import Analysed

NAMES = {
    "arithmetic": "arithmetic at the ceiling",
    "kernels": "kernels below the ceiling",
    "memory": "memory-bound operators",
    "optimizer": "the optimizer",
    "contention": "operators slower than alone",
    "communication": "exposed communication",
    "stragglers": "stragglers",
    "data": "waiting for data",
    "host": "the host",
    "unexplained": "unexplained",
}


def by_scenario(run: Analysed) -> dict[str, dict[str, Any]]:
    """By scenario and part the rows of :func:`bench.analyse.account.limits`."""
    table = limits(run)
    return {
        str(scenario): {row["part"]: row for row in rows.to_dict("records")}
        for scenario, rows in table.groupby("scenario", sort=False)
    }


def percent(row: dict[str, Any]) -> str:
    """A share with half of its interval: ``14 % ± 3``."""
    half = "" if pd.isna(row["share_low"]) else f" ± {100 * (row['share_high'] - row['share_low']) / 2:.0f}"
    return f"{100 * row['share']:.0f} %{half}"


def sentences(run: Analysed) -> list[str]:
    """For each scenario how far it is from the limit, and what is largest beside arithmetic."""
    lines = []
    for scenario, parts in by_scenario(run).items():
        if "limit" not in parts:
            continue
        reached = f"{scenario} reaches {percent(parts['limit'])} of what this machine can do on this model"
        largest = max(
            (name for name in PARTS if name in parts and name != "arithmetic"), key=lambda name: parts[name]["ms"]
        )
        lines.append(f"{reached}; the largest other part is {NAMES[largest]}: {percent(parts[largest])} of the step.")
    off = [one for one in accounts(run) if not one.adds_up]
    if off:
        which = ", ".join(f"{one.scenario} ({100 * one.unexplained_ms / one.step_ms:+.0f} %)" for one in off)
        lines.append(f"The account does not add up within {100 * ADDS_UP:.0f} % of the step in: {which}.")
    return lines
