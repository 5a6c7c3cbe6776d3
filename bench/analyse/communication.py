"""The cost of synchronisation, from diagnostic launches: exposed, overlapped, and what it slows down.

Two methods that see different things. The *paired difference* is the backward pass with synchronisation less that
without, of the slowest rank: all that synchronisation costs. torch DDP's *logger* gives the time from the end of the
last gradient's computation to the end of the communication: what is exposed of it. The first is larger by as much as
communication slows down the computation that it overlaps, which the logger shows too.
"""

import pandas as pd

from bench.analyse.intervals import mean_interval
from bench.runs.document import RunDocument
from bench.runs.experiments import Diagnosis
from bench.runs.frames import TableRow

PARTS = ("scatter", "replicate", "parallel_apply", "gather")

COLUMNS = (
    *("scenario", "method", "exposed_ms", "exposed_low_ms", "exposed_high_ms"),
    *("cost_ms", "cost_low_ms", "cost_high_ms", "without_ms", "comm_ms", "overlap_ms"),
    *("slowed_ms", "slowed_low_ms", "slowed_high_ms", "agree", "pairs", "reason"),
)


def communication(document: RunDocument, diagnostics: pd.DataFrame) -> pd.DataFrame:
    """One row per diagnosed scenario. Means over the steps of one launch, with 95 % intervals of these (Student's t).

    ``cost_ms``: the paired difference; ``without_ms``: the backward pass without synchronisation. ``exposed_ms``: by
    the logger for torch DDP (on the rank that computed longest: the others wait for it), else by the paired difference,
    as ``method`` says; null with a ``reason`` without either. ``comm_ms, overlap_ms``: communication and the part of it
    that overlaps (logger). ``slowed_ms``: by how much the computation of the backward pass is longer with
    synchronisation. ``agree``: whether the intervals of exposed and cost overlap; null by one method alone.
    """
    rows = []
    for launch in document.begun(Diagnosis).launches:
        rows_of = diagnostics[diagnostics["launch"] == launch.launch]  # not those of one that it took the place of
        row: TableRow = dict.fromkeys(COLUMNS) | {"scenario": launch.scenario}
        if launch.status != "ok":
            row["reason"] = f"{launch.status}: {launch.reason}"
        else:
            row |= _paired(rows_of[rows_of["look"] == "pairs"])
            row |= _logged(rows_of[rows_of["look"] == "logger"], row)
            if row["method"] is None:
                row["reason"] = launch.looks[0].reasons.get("pairs")
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def slowest_of_pairs(rows: pd.DataFrame, times_ms: pd.Series) -> pd.DataFrame:
    """The time of the slowest rank in each pair of steps: a row a pair, columns False and True (``synchronised``)."""
    return times_ms.groupby([rows["pair"], rows["synchronised"]]).max().unstack()


def _paired(rows: pd.DataFrame) -> dict[str, object]:
    if rows.empty:
        return {}
    slowest = slowest_of_pairs(rows, rows["backward_ms"])
    cost = mean_interval((slowest[True] - slowest[False]).to_numpy())
    about = {"method": "paired difference", "without_ms": float(slowest[False].mean()), "pairs": len(slowest)}
    return {**about, **_columns("exposed", cost), **_columns("cost", cost)}


def _columns(name: str, interval: tuple[float, float | None, float | None]) -> dict[str, float | None]:
    return dict(zip((f"{name}_ms", f"{name}_low_ms", f"{name}_high_ms"), interval, strict=True))


def _logged(rows: pd.DataFrame, paired: TableRow) -> TableRow:
    if rows.empty:
        return {}
    exposed = mean_interval((rows["comm_ms"] - rows["overlap_ms"]).groupby(rows["step"]).min().to_numpy())
    steps = rows.groupby("step")[["compute_ms", "comm_ms", "overlap_ms"]].max()
    values: TableRow = {"method": "DDP's logger", **_columns("exposed", exposed)}
    values |= {name: float(steps[name].mean()) for name in ("comm_ms", "overlap_ms")}
    if paired["cost_ms"] is not None:
        values |= _columns("slowed", mean_interval((steps["compute_ms"] - paired["without_ms"]).to_numpy()))
        _, low, high = exposed
        if None not in (low, high, paired["cost_low_ms"]):
            values["agree"] = bool(low <= paired["cost_high_ms"] and paired["cost_low_ms"] <= high)
    return values


def data_parallel(diagnostics: pd.DataFrame) -> pd.DataFrame:
    """Medians over diagnosed steps: ``scenario, scatter_ms, replicate_ms, parallel_apply_ms, gather_ms``."""
    rows = diagnostics[diagnostics["look"] == "data_parallel"]
    return rows.groupby("scenario", sort=False)[[f"{part}_ms" for part in PARTS]].median().reset_index()


def spent(document: RunDocument) -> pd.DataFrame:
    """The time of profiled steps by category: ``scenario``, a column per category and ``step_ms`` (ms a step, rank 0).

    Self times of operators under the profiler, which makes every operator longer: for shares, not for speeds.
    """
    rows = [
        {"scenario": launch.scenario, **profile.categories, "step_ms": profile.step_ms}
        for launch in document.begun(Diagnosis).launches
        if launch.looks
        for profile in (launch.looks[0].profile,)
        if any(profile.categories.values())
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["scenario", "step_ms"])
