"""Memory of each process over the time of its launch, on one clock with the steps of its host."""

import pandas as pd

from bench.runs.frames import Iterations
from bench.runs.launches import LaunchRecord

LINE = ["rank", "pid", "device"]  # makes a line: a DataParallel process is on every GPU


def start_ns(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> int:
    """When the launch's processes came to life (ns, monotonic clock), for a launch that has samples or steps.

    That is ``first_forward_s`` before the end of the first forward pass, or the first sample if that is older.
    """
    host = _clock(launch, memory, steps)
    sampled_ns = memory.loc[
        (memory["launch"] == launch.launch) & (True if host is None else memory["host"] == host), "t_ns"
    ]
    table = steps.of(launch.launch).frame
    first = table[table["step"] == 0]
    starts_ns = [int(sampled_ns.min())] if len(sampled_ns) else []
    if len(first) and launch.first_forward_s is not None:
        starts_ns.append(int(first["forward_end_ns"].iloc[0] - launch.first_forward_s * 1e9))
    return min(starts_ns)


def _clock(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> str | None:
    """The host whose clock the iterations of a launch are on; None where the launch has one host, or no steps."""
    table = steps.of(launch.launch).frame
    several = memory.loc[memory["launch"] == launch.launch, "host"].nunique() > 1
    return str(table["host"].iloc[0]) if several and len(table) else None


def timeline(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> pd.DataFrame:
    """The known samples of a launch that has some: ``rank, pid, device, seconds, used_mib, source``.

    Ordered by line and time. ``seconds``: since :func:`start_ns`; on the clock of another host, since its first sample.
    """
    samples = memory[(memory["launch"] == launch.launch) & memory["used_mib"].notna()]
    origin, host = start_ns(launch, memory, steps), _clock(launch, memory, steps)
    first = samples.groupby("host", observed=True)["t_ns"].transform("min")
    seconds = (samples["t_ns"] - (origin if host is None else first.where(samples["host"] != host, origin))) / 1e9
    ordered: pd.DataFrame = samples.assign(seconds=seconds).sort_values([*LINE, "seconds"]).reset_index(drop=True)
    return ordered[[*LINE, "seconds", "used_mib", "source"]]


def windows(launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations) -> tuple[float, float, float] | None:
    """Seconds since :func:`start_ns` of the first step, the first measured step and the end of the last one, if any."""
    rows = steps.of(launch.launch).frame
    measured = rows[~rows["warmup"]]
    if measured.empty:
        return None
    marks = (rows["begin_ns"].min(), measured["begin_ns"].min(), measured["end_ns"].max())
    origin = start_ns(launch, memory, steps)
    first, middle, last = ((float(mark) - origin) / 1e9 for mark in marks)
    return first, middle, last


def unknown(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per scenario with samples that are unknown: ``scenario, reason``, the different reasons joined."""
    missing = memory[memory["used_mib"].isna()]
    joined = missing.groupby("scenario", observed=True)["reason"].agg(
        lambda reasons: "; ".join(dict.fromkeys(reasons.dropna()))
    )
    return joined.reset_index()
