"""Memory of processes: peaks that were really reached at one time, never sums of peaks of different times."""

import pandas as pd


def per_process(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, time and process: ``launch, scenario, t_ns, pid, rank, used_mib`` summed over devices.

    A DataParallel process is on every GPU at once; its rows of one tick belong together.
    """
    known = memory[memory["used_mib"].notna()]
    keys = ["launch", "scenario", "t_ns", "pid", "rank"]
    return known.groupby(keys)["used_mib"].sum().reset_index()


def peaks(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch: ``peak_pid_mib`` (the largest process), ``peak_total_mib`` (all at one tick), ``source``.

    The total is unknown (null) where the memory of one of the processes was never known.
    """
    processes = per_process(memory)
    by_pid = processes.groupby("launch")["used_mib"].max().rename("peak_pid_mib")
    by_tick = processes.groupby(["launch", "t_ns"])["used_mib"].sum()
    total = by_tick.groupby("launch").max().rename("peak_total_mib")
    samples = memory.groupby(["launch", "pid", "rank"], dropna=False)["used_mib"].count().groupby("launch").min()
    total = total[total.index.isin(samples[samples > 0].index)]
    source = memory.groupby("launch")["source"].agg(lambda sources: "+".join(sorted(set(sources)))).rename("source")
    return pd.concat([by_pid, total, source], axis=1).reset_index()


def peak_by_process(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, process and device: its peak. ``launch, scenario, rank, pid, device, source, peak_mib``."""
    keys = ["launch", "scenario", "rank", "pid", "device", "source"]
    known = memory[memory["used_mib"].notna()]
    return known.groupby(keys)["used_mib"].max().rename("peak_mib").reset_index()
