"""How far a step is from what this machine can do, in sentences."""

from collections.abc import Mapping

import pandas as pd

from bench.analyse.account import ADDS_UP, PARTS, UNDECIDED, UNTRIED, accounts, limits, profiled, proofs
from bench.analyse.analysed import Analysed
from bench.analyse.limits import achieved
from bench.core.text import by_key, digits, ends_text
from bench.runs.document import RunDocument
from bench.runs.experiments import NO_KERNELS, Limits, Proofs, Work
from bench.runs.frames import TableRow
from bench.runs.launches import BUSY
from bench.seams import discover, switching

NAMES = {
    "arithmetic": "arithmetic at the ceiling",
    "kernels": "kernels below the ceiling",
    "memory": "memory-bound operators",
    "optimizer": "the optimizer",
    "fresh": "first touch of memory",
    "contention": "operators slower than alone",
    "communication": "exposed communication",
    "stragglers": "stragglers",
    "data": "waiting for data",
    "host": "the host",
    "unexplained": "unexplained",
}


Parts = dict[str, TableRow]
"""By part of a step a row of :func:`bench.analyse.account.limits`."""


def by_scenario(run: Analysed) -> dict[str, Parts]:
    return {
        str(scenario): {row["part"]: row for row in rows.to_dict("records")}
        for scenario, rows in limits(run).groupby("scenario", sort=False)
    }


def percent(row: TableRow) -> str:
    """A share with half of its interval: ``14 % ± 3``."""
    half: str = "" if pd.isna(row["share_low"]) else f" ± {100 * (row['share_high'] - row['share_low']) / 2:.0f}"
    return f"{100 * row['share']:z.0f} %{half}"


def sentences(run: Analysed) -> list[str]:
    """For each scenario how far it is from the limit, and what is largest beside arithmetic."""
    lines = []
    for scenario, parts in by_scenario(run).items():
        if "limit" not in parts:
            continue
        reached = f"{scenario} reaches {percent(parts['limit'])} of what this machine can do on this model"
        beside = [name for name in NAMES if name in parts and name != "arithmetic"]
        largest = max(beside, key=lambda name: parts[name]["ms"])
        most = "most" if 2 * parts[largest]["share"] > 1 - parts["limit"]["share"] else "the largest part"
        lines.append(f"{reached}; {most} of the rest is {NAMES[largest]}: {percent(parts[largest])} of the step.")
    if off := [one for one in accounts(run) if not one.adds_up]:
        apart = [(one.launch, 100 * one.unexplained_ms / one.step_ms, one.scenario) for one in off]
        which = ", ".join(f"launch {launch} ({more:+.0f} %, {scenario})" for launch, more, scenario in apart)
        lines.append(f"The account does not add up within {100 * ADDS_UP:.0f} % of the step in: {which}.")
    return [*lines, *doubts(run.document)]


def doubts(document: RunDocument) -> list[str]:
    """Scenarios without an account, and that others used the cores while steps were taken apart, if they did."""
    cores, launches = document.machine.cores_usable or 0, document.begun(Limits).launches
    good = [one for one in launches if one.status == "ok"]
    ended = {one.scenario: one.status for one in launches if one.scenario not in [other.scenario for other in good]}
    lines = [f"There is no account of {name}: taking its step apart ended with '{how}'." for name, how in ended.items()]
    unseen = dict.fromkeys(one.scenario for one in good if not profiled(one))
    lines += [f"There is no account of {name}: {NO_KERNELS}." for name in unseen]
    foreign = max((one.checks.foreign_cores or 0.0 for one in good if one.scenario not in unseen), default=0.0)
    if foreign > BUSY * cores > 0:
        kept = f"Others kept {foreign:.1f} of {cores} cores busy while steps were taken apart"
        lines.append(f"{kept}: measure again on a quiet machine before you believe the account.")
    return lines


def times(value: float, low: float | None, high: float | None) -> str:
    """A gain with its interval: ``1.12 times (1.08 to 1.16)``."""
    ends = "" if pd.isna(low) or pd.isna(high) else f" ({ends_text(low, high)})"
    return f"{value:.2f} times{ends}"


def proved(document: RunDocument) -> list[str]:
    """Each prediction with the measurement, and the verdict on it."""
    if (reason := document.begun(Proofs).reason) is not None:
        return [f"Nothing was proved: {reason}."]
    lines = []
    for row in proofs(document).to_dict("records"):
        foreseen = times(row["predicted"], row["predicted_low"], row["predicted_high"])
        prediction = f"predicted to be {foreseen} as fast as {row['base']}"
        if row["verdict"] == UNTRIED:
            lines.append(f"{row['scenario']} is {prediction}; it was not measured.")
        else:
            measured = times(row["measured"], row["measured_low"], row["measured_high"])
            verdict = f"the prediction was {row['verdict']}"
            if row["verdict"] == UNDECIDED:
                verdict = "these launches cannot tell whether the prediction was right"
            lines.append(f"{row['scenario']} was {prediction}, and is {measured} as fast: {verdict}.")
    return lines


def recoverable(scenario: str, device: str | None, work: Work | None) -> dict[str, list[str]]:
    """By part of a step the switches whose files say that they recover of it, and that this scenario has not on."""
    declared = {name: switching.load_switch(name, file) for name, file in discover.names(discover.SWITCH).items()}
    convolves = work is None or work.convolves
    fits = (name for name, one in declared.items() if convolves or not one.convolutions)
    off = [name for name in fits if name not in scenario.split("+")]
    return by_key((part, name) for name in off for part in declared[name].recovers.get(device or "", ()))


def answers(run: Analysed) -> list[tuple[str, str]]:
    """The questions that people ask first, as far as this run answers them: only the first where no step was taken
    apart, and none where no peak is known either."""
    parts, reached = by_scenario(run), achieved(run)
    known = bool(parts) or bool(reached[["mfu", "of_ceiling"]].notna().any(axis=None))
    normal = [("Is my MFU normal?", _mfu(reached))] if known else []
    if not parts:
        return normal
    waiting = ("Is the GPU waiting for Python?", _waiting(run, parts))
    return [*normal, waiting, ("What would help most?", _help(run, parts))]


def _mfu(reached: pd.DataFrame) -> str:
    if not (rows := reached.to_dict("records")):
        return "Unknown: the FLOPs of a step were not counted."
    row = max(rows, key=lambda one: one["tflops_per_s"])
    held = f"{row['scenario']} computes {digits(row['tflops_per_s'], 3)} TFLOP/s"
    if not pd.isna(row["of_ceiling"]):
        share = f"{100 * row['of_ceiling']:.0f} %"
        held += f", {share} of what matrix products of {row['type']} hold on this machine for seconds"
    if pd.isna(row["mfu"]):
        return f"{held}. There is no MFU: {row['nominal']}."
    return (
        f"{held}, and its MFU is {100 * row['mfu']:.1f} % of the dense nominal peak ({row['nominal']}). An MFU that "
        "divides by the peak with sparsity is half as high."
    )


def _waiting(run: Analysed, parts: Mapping[str, Parts]) -> str:
    shares = "; ".join(f"{scenario} {percent(of['host'])}" for scenario, of in parts.items() if "host" in of)
    if run.document.workload.device == "cpu":
        return f"There is no GPU: Python takes turns with the operators. What is between these, of a step: {shares}."
    return f"What kernels leave of a step that waits for nothing else, while the host is not ahead: {shares}."


def _help(run: Analysed, parts: Mapping[str, Parts]) -> str:
    lines = []
    for scenario, of in parts.items():
        switches = recoverable(scenario, run.document.workload.device, run.document.begun(Limits).work)
        if not (names := [name for name in PARTS if name in of and (name in switches or name == "data")]):
            continue
        largest = max(names, key=lambda name: of[name]["ms"])
        by = "--workers" if largest == "data" else " or ".join(f"+{name}" for name in switches[largest])
        lines.append(f"{scenario}: {NAMES[largest]}, {percent(of[largest])} of the step, which {by} is for")
    ask = " bench run --prove measures the best switch beside the fastest scenario, and scores the prediction."
    helps = "; ".join(lines) or "No switch says that it recovers any of it"
    return f"{helps}.{'' if proved(run.document) else ask}"
