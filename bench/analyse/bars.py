"""Error bars in words: the ± behind a value in a table, and why there is none."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.analyse.intervals import half_width_percent
from bench.runs.frames import TableRow

if TYPE_CHECKING:
    import pandas as pd

ENDS = {"step_median_ms": "step_{}_ms", "relative_to_ddp": "relative_{}"}
"""The columns of the ends of an interval, where they do not simply stand before the unit."""
RSS = "rss"


def plus_minus(row: TableRow, name: str) -> str:
    """``±1.3%``: how far the farther end of its interval is from the value ``name`` of such a row; may be empty."""
    ends = ENDS.get(name) or re.sub(r"(_per_s|_ms|_j|_w)?$", r"_{}\1", name, count=1)
    values = (row[name], *(row[ends.format(end)] for end in ("low", "high")))
    return bar(half_width_percent(*(None if one is None or math.isnan(one) else one for one in values)))


def with_bar(row: TableRow, name: str, form: str) -> str:
    """``236.2 ±1.3%``."""
    return f"{row[name]:{form}} {plus_minus(row, name)}".rstrip()


def bar(percent: float | None) -> str:
    if percent is None or math.isnan(percent):
        return ""
    return f"±{percent:.{1 if percent < 9.95 else 0}f}%" if percent < 99.5 else "±>99%"


def all_mib(row: Mapping[object, object]) -> str:
    """The unit of the memory of all processes: on the CPU their resident sizes are added up."""
    return "MiB in total (sum of RSS)" if RSS in str(row["memory_source"]) else "MiB in total"


def about_memory(summary: "pd.DataFrame") -> list[str]:
    """A note below a summary where the memory of all processes is more than they take of the host."""
    added = any(RSS in str(source) for source in summary["memory_source"])
    return ["MiB total: sum of RSS, in which memory that ranks share counts once for each rank"] if added else []


def about_intervals(summary: "pd.DataFrame") -> list[str]:
    """A note below a summary: the meaning of ±, where a scenario has it."""
    return ["±: the wider side of the 95 % interval over launches"] if (summary["launches_ok"] > 1).any() else []
