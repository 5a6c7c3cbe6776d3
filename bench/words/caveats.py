"""What the figures of a run cannot tell, in a sentence or two each; from the figures and run.json alone."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from bench.analyse.launches import NOT_RUN
from bench.analyse.steps import scenarios
from bench.core.dtypes import HALF_ON
from bench.core.text import listed
from bench.runs.document import Attached, RunDocument
from bench.runs.launches import Checks

REPLICATES_WANTED = 3  # launches; with fewer nothing is said about chance


def fastest(summary: pd.DataFrame) -> dict[str, Any] | None:
    """The row of the fastest scenario of an overview that can be recommended, or None."""
    good = summary[summary["why_not"].isna() & summary["throughput_per_s"].notna()]
    rows: list[Any] = good.to_dict("records")
    return max(rows, key=lambda row: row["throughput_per_s"], default=None)


def caveats(document: RunDocument, summary: pd.DataFrame) -> list[str]:
    """What the figures cannot tell, a sentence or two each; the gravest first."""
    return [
        *_about_completeness(document, summary),
        *_about_attached(document),
        *_about_left_out(summary),
        *_about_checks(document),
        *_about_chance(document, summary),
        *_about_device(document),
        *about_implementations(document),
    ]


def _about_completeness(document: RunDocument, summary: pd.DataFrame) -> list[str]:
    found = []
    if not document.complete:
        found.append(
            "This run is incomplete: it was interrupted, or is still being written. Its checksums do not count."
        )
    failed = summary[summary["status"] != "ok"]
    if len(failed):
        why = "; ".join(f"{row['scenario']} ({row['status']})" for row in failed.to_dict("records"))
        found.append(f"Without figures, or with those of some launches only: {why}. The reasons stand below the table.")
    return found


def _about_attached(document: RunDocument) -> list[str]:
    attached = document.of(Attached)
    if attached is None:
        return []
    batch = "" if document.workload.global_batch else ", throughput (--global-batch N)"
    named = list(dict.fromkeys(" ".join(one.command) for one in attached.commands.values()))
    text = [
        f"Measured by attaching to: {listed(named)}. A step lasts {attached.step}.",
        f"Unknown of a script that bench did not write: its data, forward and backward phases, numerics{batch}.",
    ]
    left_out = [one for launch in attached.launches for one in launch.left_out]
    return [*text, *([f"Left out: {'; '.join(dict.fromkeys(left_out))}."] if left_out else [])]


def _about_left_out(summary: pd.DataFrame) -> list[str]:
    """Scenarios that would be the fastest if their figures or their numerics could be trusted."""
    best = fastest(summary)
    doubted = summary[summary["why_not"].notna() & (summary["status"] == "ok")].to_dict("records")
    if best is None:
        return [f"{row['scenario']} ran to its end and is not recommended: {row['why_not']}." for row in doubted]
    return [
        f"{row['scenario']} was faster ({row['throughput_per_s']:,.1f} {row['unit']} a second) and is not recommended: "
        f"{row['why_not']}."
        for row in doubted
        if row["throughput_per_s"] > best["throughput_per_s"]
    ]


def _about_checks(document: RunDocument) -> list[str]:
    objections: tuple[tuple[Callable[[Checks], bool], str], ...] = (
        (
            lambda checks: checks.finite_loss is False,
            "The loss of {} was not finite: as measured it does not train, whatever its speed.",
        ),
        (
            lambda checks: bool(checks.skipped_steps),
            "The loss scaler of {} skipped optimizer steps in the measured window; those were cheaper.",
        ),
        (
            lambda checks: checks.conservation_ok is False,
            "The steps of {} do not add up to the wall time of their window: do not trust them.",
        ),
        (lambda checks: bool(checks.ranks_differ), "What ran was not the same on all ranks of {}: see the launches."),
    )
    again = [launch.reason for launch in document.superseded if launch.status == "ok" and launch.reason]
    return [f"Not counted: {reason}." for reason in again] + [
        text.format(listed(named))
        for objects, text in objections
        if (named := list(dict.fromkeys(launch.scenario for launch in document.good if objects(launch.checks))))
    ]


def _about_chance(document: RunDocument, summary: pd.DataFrame) -> list[str]:
    launches = summary.loc[summary["launches_ok"] > 0, "launches_ok"]
    if launches.empty or launches.min() >= REPLICATES_WANTED:
        return []
    few = {1: "one launch", 2: "two launches"}[int(launches.min())]
    more = "--launches 5" if document.of(Attached) else "--profile standard"
    which = "per scenario" if launches.nunique() == 1 else "of some scenarios"
    return [f"{few.capitalize()} {which}: no significance claimed; measure again with {more}."]


def _about_device(document: RunDocument) -> list[str]:
    found, workload = [], document.workload
    if document.of(Attached):
        return []
    if workload.device == "cpu":
        found.append(
            "Measured on the CPU: the ranks share its cores, communicate through gloo over loopback, and half is "
            f"{HALF_ON['cpu']}, so these ratios do not carry to GPUs."
        )
        if any(launch.strategy == "dp" for launch in document.good):
            found.append(
                "On the CPU torch makes DataParallel a pass-through: one process calls the model as it is, so dp here "
                "tells nothing about DataParallel on GPUs."
            )
    if workload.replicas == 1:
        found.append(
            "One replica: no gradient is exchanged, so this run tells what the wrappers and the precision cost, and "
            "nothing about how they scale."
        )
    return found


def about_implementations(document: RunDocument) -> list[str]:
    native = [
        launch.scenario
        for launch in document.launches
        if launch.strategy == "apex_ddp" and launch.effective and launch.effective.parallel_impl == "native"
    ]
    if not native:
        return []
    return [
        f"No apex was involved in {listed(list(dict.fromkeys(native)))}: bench's own flat-bucket all-reduce ran in "
        "the place of apex DDP, as the column 'what ran' says."
    ]


def failures(document: RunDocument, names: Sequence[str]) -> str:
    """Which of the run's scenarios are not among ``names``, and why; may be empty."""
    states = {launch.scenario: launch.status for launch in reversed(document.launches)}
    states = {scenario: "no figures" if status == "ok" else status for scenario, status in states.items()}
    missing = [scenario for scenario in scenarios(document) if scenario not in names]
    return ", ".join(f"{scenario} ({states.get(scenario, NOT_RUN)})" for scenario in missing)
