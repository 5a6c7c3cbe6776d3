"""Memory of processes: peaks that were really reached at one time, never sums of peaks of different times."""

from typing import Any

import pandas as pd

ALLOCATOR = "torch_allocator"
"""The source of a figure that is torch's own peak, where the driver had none."""


def per_process(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, time and process: ``launch, scenario, t_ns, pid, rank, used_mib`` summed over devices.

    A DataParallel process is on every GPU at once; its rows of one tick belong together.
    """
    known = memory[memory["used_mib"].notna()]
    keys = ["launch", "scenario", "t_ns", "pid", "rank"]
    return known.groupby(keys)["used_mib"].sum().reset_index()


def peaks(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch: ``peak_pid_mib`` (the largest process), ``peak_total_mib`` (all at one tick), ``source``.

    The total is unknown (null) where the memory of one of the processes was never known, or only as torch's own peak,
    which is not of any one time.
    """
    by_pid = per_process(memory).groupby("launch")["used_mib"].max().rename("peak_pid_mib")
    sampled = memory.assign(used_mib=memory["used_mib"].where(memory["source"] != ALLOCATOR))
    by_tick = per_process(sampled).groupby(["launch", "t_ns"])["used_mib"].sum()
    total = by_tick.groupby("launch").max().rename("peak_total_mib")
    samples = sampled.groupby(["launch", "pid", "rank"], dropna=False)["used_mib"].count().groupby("launch").min()
    total = total[total.index.isin(samples[samples > 0].index)]
    source = memory.groupby("launch")["source"].agg(lambda sources: "+".join(sorted(set(sources)))).rename("source")
    return pd.concat([by_pid, total, source], axis=1).reset_index()


def peak_by_process(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, process and device: its peak. ``launch, scenario, rank, pid, device, source, peak_mib``."""
    keys = ["launch", "scenario", "rank", "pid", "device", "source"]
    known = memory[memory["used_mib"].notna()]
    return known.groupby(keys)["used_mib"].max().rename("peak_mib").reset_index()


def beside_torch(launches: list[dict[str, Any]], memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, rank and GPU: the driver's peak beside those of torch's allocator (MiB).

    ``launch, scenario, rank, pid, device, source, peak_mib, allocated_mib, reserved_mib, context_mib``.
    ``launches``: as in run.json. ``allocated_mib`` is what tensors held at most, ``reserved_mib`` what torch took from
    the driver for them; ``context_mib`` is the driver's peak less ``reserved_mib``: CUDA's context, the kernels of the
    libraries, and what NCCL and cuDNN take past torch. It is null where the driver's figure is unknown.
    """
    of_torch = []
    for launch in launches:
        for rank in launch["ranks"]:
            peaks_mib = rank.get("allocator") or {}
            for name, reserved_mib in peaks_mib.items():
                kind, _, device = name.partition(".")
                if kind == "max_reserved_mib" and reserved_mib:
                    allocated_mib = peaks_mib.get(f"max_allocated_mib.{device}")
                    of_torch.append([launch["launch"], rank["rank"], device, allocated_mib, reserved_mib])
    keys = ["launch", "rank", "device"]
    torch = pd.DataFrame(of_torch, columns=[*keys, "allocated_mib", "reserved_mib"]).astype({"device": "object"})
    driver = peak_by_process(memory[(memory["source"] != ALLOCATOR) & (memory["device"] != "cpu")])
    both = (
        driver.merge(torch, on=keys, how="outer")
        if len(torch)
        else driver.assign(allocated_mib=None, reserved_mib=None)
    )
    scenarios = {launch["launch"]: launch["scenario"] for launch in launches}
    pids = {(launch["launch"], rank["rank"]): rank["pid"] for launch in launches for rank in launch["ranks"]}
    both["scenario"] = both["launch"].map(scenarios)
    both["pid"] = [pids.get(pair) for pair in zip(both["launch"], both["rank"], strict=True)]
    both["context_mib"] = both["peak_mib"] - both["reserved_mib"].astype("float64")
    order = ["launch", "scenario", "rank", "pid", "device", "source", "peak_mib"]
    return both[[*order, "allocated_mib", "reserved_mib", "context_mib"]].sort_values(keys).reset_index(drop=True)


def stacked(memory: pd.DataFrame, device: str) -> pd.DataFrame:
    """What each process held on one device over the whole run, to be drawn as a stack (MiB).

    Index ``launch, t_ns``; a column for each process, ``(rank, pid)``; 0 where the process is not on the device at that
    time, null where its memory is unknown. Where a launch begins, the index says so: see :func:`boundaries`.
    """
    mine = memory[(memory["device"] == device) & (memory["source"] != ALLOCATOR)]
    groups = mine.groupby(["launch", "t_ns", "rank", "pid"])["used_mib"]
    known = groups.sum(min_count=1).unstack(["rank", "pid"]).sort_index(axis=1)
    there = groups.size().unstack(["rank", "pid"]).reindex_like(known)
    stack: pd.DataFrame = known.where(there.notna(), 0.0)
    return stack


def boundaries(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, in order of time: ``launch, scenario, start_ns, end_ns`` of its first and last sample."""
    groups = memory.groupby(["launch", "scenario"])["t_ns"]
    return groups.agg(start_ns="min", end_ns="max").reset_index().sort_values("start_ns").reset_index(drop=True)
