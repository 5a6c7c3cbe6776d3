"""Limits of a run's results, in a sentence or two each. What is wrong with single launches is a finding
(:mod:`bench.analyse.validity`)."""

from collections.abc import Iterator

import pandas as pd

from bench.analyse.each import each_alone
from bench.core.dtypes import HALF_ON
from bench.core.text import listed
from bench.runs.document import Attached, RunDocument


def caveats(document: RunDocument, summary: pd.DataFrame) -> Iterator[str]:
    """The limits, the gravest first."""
    if not document.complete:
        yield "This run is incomplete: it was interrupted, or is still being written. Its checksums do not count."
    failed = [f"{row['scenario']} ({row['status']})" for row in summary.to_dict("records") if row["status"] != "ok"]
    if failed and not each_alone(document):
        why = "; ".join(failed)
        yield f"Without results, or with results of some launches only: {why}. The reasons stand below the table."
    if (attached := document.of(Attached)) is not None:
        yield from _about_attached(attached, document)
    yield from _about_left_out(summary)
    for launch in document.superseded:
        if launch.status == "ok" and launch.reason:
            yield f"Not counted: {launch.reason}."
    if attached is None:
        yield from _about_device(document)
    yield from about_implementations(document)


def _about_attached(attached: Attached, document: RunDocument) -> Iterator[str]:
    commands = list(dict.fromkeys(" ".join(one.command) for one in attached.commands.values()))
    yield f"Measured by attaching to: {listed(commands)}. A step lasts {attached.step}."
    batch = "" if document.workload.global_batch else ", throughput (--global-batch N)"
    phases = "phases" if all(one.wait_ms is None for one in attached.launches) else "phases but the wait for data"
    yield f"Unknown for a script that bench did not write: its {phases}, numerics{batch}."
    if left_out := dict.fromkeys(one for launch in attached.launches for one in launch.left_out):
        yield f"Left out: {'; '.join(left_out)}."


def _about_left_out(summary: pd.DataFrame) -> Iterator[str]:
    """Scenarios that would be the fastest if their results or their numerics could be trusted."""
    best_per_s = summary.loc[summary["why_not"].isna(), "throughput_per_s"].max()  # of those that can be recommended
    for row in summary[summary["why_not"].notna() & (summary["status"] == "ok")].to_dict("records"):
        if pd.isna(best_per_s) or row["throughput_per_s"] > best_per_s:
            known = pd.notna(row["throughput_per_s"])
            speed = f" ({row['throughput_per_s']:,.1f} {row['unit']} a second)" if known else ""
            than = "" if pd.isna(best_per_s) else "was faster and "
            yield f"{row['scenario']}{speed} {than}is not recommended: {row['why_not']}."


def _about_device(document: RunDocument) -> Iterator[str]:
    if document.workload.device == "cpu":
        way = "gloo" if len(document.hosts) > 1 else "gloo over loopback"
        yield (
            f"Measured on the CPU: the ranks of a host share its cores, all communicate through {way}, and half is "
            f"{HALF_ON['cpu']}, so these ratios do not carry to GPUs."
        )
        if any(launch.strategy == "dp" for launch in document.good):
            yield (
                "On the CPU torch makes DataParallel a pass-through: one process calls the model as it is, so dp here "
                "says nothing about DataParallel on GPUs."
            )
    if document.workload.replicas == 1:
        yield (
            "One replica: no gradient is exchanged, so this run tells what the wrappers and the precision cost, and "
            "nothing about how they scale."
        )


def about_implementations(document: RunDocument) -> list[str]:
    apex = [one for one in document.launches if one.strategy == "apex_ddp" and one.effective]
    native = dict.fromkeys(one.scenario for one in apex if one.effective and one.effective.parallel_impl == "native")
    instead = "bench's own flat-bucket all-reduce ran in place of apex DDP."
    return [f"No apex was involved in {listed(list(native))}: {instead}"] if native else []
