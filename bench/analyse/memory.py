"""Memory of processes: peaks that were really reached at one time, never sums of peaks of different times."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.devices import Windows
from bench.analyse.launches import by_launch, different, joined, only
from bench.core.records import ALLOCATOR
from bench.runs.document import RunDocument
from bench.runs.frames import Iterations
from bench.runs.launches import LaunchRecord

APART_NS = 10**10
"""Memory is sampled while steps are measured; a sampler that lags is not 10 s late, unless it was stopped."""
FEWEST_SAMPLES = 3  # of a third of a window


def sampled_late(memory: pd.DataFrame, steps: Iterations) -> set[int]:
    """The launches with a rank that was sampled only :data:`APART_NS` before or after their steps, on one clock."""
    windows = steps.frame.groupby("launch").agg(begin=("begin_ns", "min"), end=("end_ns", "max"))
    samples = memory.groupby(["launch", "rank"])["t_ns"].agg(first="min", last="max").join(windows, how="inner")
    late = (samples["begin"] - samples["last"] > APART_NS) | (samples["first"] - samples["end"] > APART_NS)
    return {int(launch) for launch, _ in samples.index[late]}


def peaks(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch: ``peak_pid_mib`` (the largest process), ``peak_total_mib`` (all at one tick), ``source``.

    Hosts share no clock: of several, the total is the sum of the peaks of each. It is null where the memory of one of
    the processes was never known, or only as torch's own peak, which is not of any one time.
    """
    known = only(memory, memory["used_mib"].notna())
    by_process = known.groupby(["launch", "t_ns", "pid", "rank"])["used_mib"].sum()  # over its devices
    by_pid = by_process.groupby("launch").max().rename("peak_pid_mib")
    own = memory["source"] == ALLOCATOR
    sampled = memory.assign(used_mib=memory["used_mib"].where(~own)) if own.any() else memory
    whole = only(sampled, sampled["used_mib"].notna())
    by_tick = whole.groupby(["launch", "host", "t_ns"], observed=True, dropna=False)["used_mib"].sum()
    by_host = by_tick.groupby(["launch", "host"], observed=True, dropna=False).max()
    total = by_host.groupby("launch").sum().rename("peak_total_mib")
    samples = sampled.groupby(["launch", "pid", "rank"], dropna=False)["used_mib"].count().groupby("launch").min()
    total = total[total.index.isin(samples[samples > 0].index)]
    source = memory[["launch", "source"]].drop_duplicates().groupby("launch")["source"].agg(joined)
    return pd.concat([by_pid, total, source], axis=1).reset_index()


def peak_by_process(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, process and device: its peak. ``launch, scenario, rank, pid, device, source, peak_mib``."""
    keys = ["launch", "scenario", "rank", "pid", "device", "source"]
    known = only(memory, memory["used_mib"].notna())
    peaks_mib = known.groupby(keys, observed=True)["used_mib"].max().rename("peak_mib").reset_index()
    return peaks_mib.astype(dict.fromkeys(("scenario", "device", "source"), "object"))


def growth(memory: pd.DataFrame, steps: Iterations, bounds: Windows) -> dict[int, tuple[float, float]]:
    """By launch how much the process grows that grows most while steps are measured: MiB, and as part of what it holds.

    From the median of the first third of its samples within ``bounds`` to that of the last, where these are enough.
    """
    ends = pd.DataFrame(list(bounds.values()), index=list(bounds), columns=["begin", "end"])
    begin, end = (memory["launch"].map(ends[name]) for name in ends)
    within = memory["used_mib"].notna() & memory["t_ns"].between(begin, end)
    if memory["host"].nunique() > 1:
        first = steps.frame.groupby("launch").head(1).set_index("launch")["host"]  # whose clock the steps are on
        within &= memory["host"].astype("object") == memory["launch"].map(first)
    grown: dict[int, tuple[float, float]] = {}
    keys = ["launch", "rank", "pid", "device"]
    processes: Any = memory.loc[within, [*keys, "used_mib"]].groupby(keys, observed=True, dropna=False)
    for (launch, *_), samples in processes["used_mib"]:
        if (third := len(samples) // 3) >= FEWEST_SAMPLES:
            before = float(samples.iloc[:third].median())
            more = float(samples.iloc[-third:].median()) - before
            grown[launch] = max(grown.get(launch, (-np.inf, 0.0)), (more, more / before if before else 0.0))
    return grown


def beside_torch(launches: Sequence[LaunchRecord], memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, rank and GPU: the driver's peak beside those of torch's allocator (MiB).

    ``launch, scenario, rank, pid, device, source, peak_mib, allocated_mib, reserved_mib, context_mib``.
    ``allocated_mib`` is what tensors held at most, ``reserved_mib`` what torch took from the driver for them;
    ``context_mib`` is ``peak_mib`` less ``reserved_mib``: CUDA's context, kernels, and what NCCL and cuDNN take.
    """
    of_torch = [
        [launch.launch, rank.rank, device, peaks_mib.get(f"max_allocated_mib.{device}"), reserved_mib]
        for launch in launches
        for rank in launch.ranks
        for peaks_mib in [rank.allocator or {}]
        for (kind, _, device), reserved_mib in ((name.partition("."), of) for name, of in peaks_mib.items())
        if kind == "max_reserved_mib" and reserved_mib
    ]
    keys = ["launch", "rank", "device"]
    torch = pd.DataFrame(of_torch, columns=[*keys, "allocated_mib", "reserved_mib"]).astype({"device": "object"})
    peaks_mib = peak_by_process(memory)
    driver = peaks_mib[(peaks_mib["source"] != ALLOCATOR) & (peaks_mib["device"] != "cpu")]
    absent = driver.assign(allocated_mib=None, reserved_mib=None)
    both = driver.merge(torch, on=keys, how="outer") if len(torch) else absent
    scenarios = {launch.launch: launch.scenario for launch in launches}
    pids = {(launch.launch, rank.rank): rank.pid for launch in launches for rank in launch.ranks}
    both["scenario"] = both["launch"].map(scenarios)
    both["pid"] = [pids.get(pair) for pair in zip(both["launch"], both["rank"], strict=True)]
    both["context_mib"] = both["peak_mib"] - both["reserved_mib"].astype("float64")
    order = ["launch", "scenario", "rank", "pid", "device", "source", "peak_mib"]
    return both[[*order, "allocated_mib", "reserved_mib", "context_mib"]].sort_values(keys).reset_index(drop=True)


def stacks(memory: pd.DataFrame) -> dict[tuple[int, str], pd.DataFrame]:
    """By launch and device the memory of each process over time, to be drawn as a stack (MiB).

    Index ``t_ns``; a column for each process, ``(rank, pid)``; 0 where the process is not on the device at that time,
    null where its memory is unknown.
    """
    stacked = {}
    sampled = only(memory, (memory["source"] != ALLOCATOR) & memory["device"].notna())
    for launch, own in by_launch(sampled[["launch", "t_ns", "rank", "pid", "device", "used_mib"]]):
        for device, samples in own.groupby("device", observed=True, sort=False):
            used = samples.groupby(["t_ns", "rank", "pid"])["used_mib"].sum(min_count=1)
            stacked[launch, str(device)] = used.unstack(["rank", "pid"], fill_value=0).sort_index(axis=1)
    return stacked


def proportional(memory: pd.DataFrame) -> pd.DataFrame:
    """Proportional set sizes of CPU ranks: ``launch, t_ns, pss_mib``, summed over processes, where all are known."""
    groups = memory[memory["device"] == "cpu"].groupby(["launch", "t_ns"])["pss_mib"]
    return groups.agg(lambda sizes: sizes.sum(skipna=False)).dropna().reset_index()


def resident(launches: Sequence[LaunchRecord], memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch and rank on the CPU: its peaks of both sizes, and why one is unknown (MiB).

    ``launch, scenario, rank, pid, rss_mib, kernel_peak_mib, pss_mib, reason``. ``kernel_peak_mib``: of the resident
    size as the rank read it at its end (``ru_maxrss``). The proportional size is that after the measured steps.
    """
    kernel: dict[Any, float | None] = {
        (one.launch, rank.rank): (rank.allocator or {}).get("max_rss_mib") for one in launches for rank in one.ranks
    }
    ok = [launch.launch for launch in launches if launch.status == "ok"]
    on_cpu = memory[(memory["device"] == "cpu") & memory["launch"].isin(ok)]
    keys, rows = ["launch", "scenario", "rank", "pid"], []
    for of, samples in on_cpu.groupby(keys, observed=True):
        rss_mib, pss_mib = samples["used_mib"].max(), samples["pss_mib"].max()
        why = different(samples.loc[samples["used_mib"].isna() | samples["pss_mib"].isna(), "reason"])
        reason = (why or "there is no sample of it") if pd.isna(rss_mib) or pd.isna(pss_mib) else None
        rows.append((*of, rss_mib, kernel.get((of[0], of[2])), pss_mib, reason))
    columns = [*keys, "rss_mib", "kernel_peak_mib", "pss_mib", "reason"]
    return pd.DataFrame(rows, columns=columns).astype({"kernel_peak_mib": "float64"})


def largest_launches(document: RunDocument, peaks: pd.DataFrame) -> dict[str, int]:
    """For each scenario with a known peak the first ``ok`` launch with the largest, of all processes or else of one."""
    ok = {launch.launch: launch.scenario for launch in document.good}
    peaks = peaks[peaks["launch"].isin(list(ok))].sort_values("launch")
    ordered = peaks.sort_values(["peak_total_mib", "peak_pid_mib"], ascending=False, kind="stable")["launch"]
    return {ok[launch]: launch for launch in ordered[::-1].tolist()}


def boundaries(memory: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, in order of time: ``launch, start_ns, end_ns`` of its first and last sample."""
    groups = memory.groupby("launch")["t_ns"]
    return groups.agg(start_ns="min", end_ns="max").reset_index().sort_values("start_ns").reset_index(drop=True)


LINE = ["rank", "pid", "device"]  # makes a line: a DataParallel process is on every GPU


def timeline(
    launch: LaunchRecord, memory: pd.DataFrame, steps: Iterations
) -> tuple[pd.DataFrame, tuple[float, float, float] | None]:
    """The known samples of a launch that has some: ``rank, pid, device, seconds, used_mib, source``, by line and time.
    And when its first step began, its first measured step, and when the last one ended; None without measured steps.

    Seconds since its processes came to life, which is ``first_forward_s`` before the end of the first forward pass, or
    the first sample if that is older; samples on the clock of another host are since the first one there.
    """
    samples = memory[(memory["launch"] == launch.launch) & memory["used_mib"].notna()]
    rows = steps.of(launch.launch).frame
    host = str(rows["host"].iloc[0]) if len(rows) and samples["host"].nunique() > 1 else None
    first_ns = samples.groupby("host", observed=True)["t_ns"].transform("min")
    own = samples["host"] == host if host else first_ns.notna()
    starts_ns = [int(first_ns[own].min())] if own.any() else []
    first = rows[rows["step"] == 0]
    if len(first) and launch.first_forward_s is not None:
        starts_ns.append(int(first["forward_end_ns"].iloc[0] - launch.first_forward_s * 1e9))
    origin_ns = min(starts_ns)
    line = samples.assign(seconds=(samples["t_ns"] - first_ns.where(~own, origin_ns)) / 1e9)
    line = line.sort_values([*LINE, "seconds"]).reset_index(drop=True)[[*LINE, "seconds", "used_mib", "source"]]
    if (measured := rows[~rows["warmup"]]).empty:
        return line, None
    marks_ns = (rows["begin_ns"].min(), measured["begin_ns"].min(), measured["end_ns"].max())
    begin, middle, end = ((float(mark) - origin_ns) / 1e9 for mark in marks_ns)
    return line, (begin, middle, end)
