"""Memory of each process over the time of its launch, on one clock with the steps of its host."""

import pandas as pd

from bench.runs.frames import Iterations
from bench.runs.launches import LaunchRecord

LINE = ["rank", "pid", "device"]  # makes a line: a DataParallel process is on every GPU


def start(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> tuple[int, str | None]:
    """When the launch's processes came to life (ns, monotonic clock), for a launch that has samples or steps; and the
    host whose clock that is, None where it has one host or no steps.

    That is ``first_forward_s`` before the end of the first forward pass, or the first sample if that is older.
    """
    samples, rows = memory[memory["launch"] == launch.launch], steps.of(launch.launch).frame
    host = str(rows["host"].iloc[0]) if len(rows) and samples["host"].nunique() > 1 else None
    sampled_ns = samples.loc[samples["host"] == host, "t_ns"] if host else samples["t_ns"]
    first = rows[rows["step"] == 0]
    starts_ns = [int(sampled_ns.min())] if len(sampled_ns) else []
    if len(first) and launch.first_forward_s is not None:
        starts_ns.append(int(first["forward_end_ns"].iloc[0] - launch.first_forward_s * 1e9))
    return min(starts_ns), host


def timeline(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> pd.DataFrame:
    """The known samples of a launch that has some: ``rank, pid, device, seconds, used_mib, source``.

    Ordered by line and time. ``seconds``: since :func:`start`; on the clock of another host, since its first sample.
    """
    samples = memory[(memory["launch"] == launch.launch) & memory["used_mib"].notna()]
    origin, host = start(launch, memory, steps)
    first = samples.groupby("host", observed=True)["t_ns"].transform("min")
    seconds = (samples["t_ns"] - (origin if host is None else first.where(samples["host"] != host, origin))) / 1e9
    ordered: pd.DataFrame = samples.assign(seconds=seconds).sort_values([*LINE, "seconds"]).reset_index(drop=True)
    return ordered[[*LINE, "seconds", "used_mib", "source"]]


def windows(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> tuple[float, float, float] | None:
    """Seconds since :func:`start` of the first step, the first measured step and the end of the last one, if any."""
    rows = steps.of(launch.launch).frame
    measured = rows[~rows["warmup"]]
    if measured.empty:
        return None
    marks = (rows["begin_ns"].min(), measured["begin_ns"].min(), measured["end_ns"].max())
    origin, _ = start(launch, memory, steps)
    first, middle, last = ((float(mark) - origin) / 1e9 for mark in marks)
    return first, middle, last


def unknown(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario with samples that are unknown: ``scenario, reason``, the different reasons joined."""
    missing = memory[memory["used_mib"].isna()]
    joined = missing.groupby("scenario", observed=True)["reason"].agg(
        lambda reasons: "; ".join(dict.fromkeys(reasons.dropna()))
    )
    return joined.reset_index()
