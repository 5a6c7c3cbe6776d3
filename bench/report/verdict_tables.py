"""The tables behind the verdicts: findings, parity, where the time goes, how steps scatter, several interpreters."""

import pandas as pd

from bench.analyse import communication as diagnosed
from bench.analyse import parity as numerics
from bench.analyse.analysed import Analysed
from bench.analyse.environments import differences, pairs
from bench.analyse.intervals import estimate
from bench.analyse.validity import grouped
from bench.core.records import PARITIES
from bench.core.text import listed, percent
from bench.report import tables
from bench.report.tables import UNKNOWN, Cell, Column, Table, is_unknown, number, numeric, ranged, tabulate, text
from bench.runs.document import RunDocument
from bench.runs.experiments import Numerics
from bench.runs.frames import TableRow
from bench.runs.reader import Run


def findings_table(run: Analysed) -> Table | None:
    records = grouped(run.findings, run.document.request.scenarios).to_dict("records")
    columns = (
        text("finding", lambda row: Cell(text=row["code"], small=row["severity"], tone=tables.TONES[row["severity"]])),
        text("what was seen", lambda row: Cell(text=row["what"], wrap=True)),
        text("scenarios (launches)", lambda row: Cell(text=row["where"], wrap=True)),
        text("what to do", lambda row: Cell(text=row["remedy"], wrap=True)),
    )
    notes = (
        "invalid: the result is wrong, or is of something else. warning: it is right for what happened, which may not "
        "be what was meant. Of several launches that show the same, the worst is the example.",
    )
    return tabulate(columns, records, notes) if records else None


def parity_table(run: Analysed) -> Table | None:
    launches = run.parity
    if launches.empty:
        return None
    launch_of = {launch.launch: launch for launch in run.document.launches}
    errors = {"gradient": "gradient", "update": "update", "buffer": "buffers"}

    def verdict(row: TableRow) -> Cell:
        word, reason = tables.words_of(row, "verdict", "reason")
        return Cell(text=word or "not shown", small=reason, tone=tables.TONES.get(word, ""))

    def error(heading: str, name: str) -> Column:
        return numeric(heading, lambda row: UNKNOWN if is_unknown(row[name]) else percent(row[name]))

    def own_update(row: TableRow) -> Cell:
        if is_unknown(row["own_update_error"]):
            return Cell(text=UNKNOWN)
        return Cell(text=percent(row["own_update_error"]), small=f"rounding\u00a0{percent(row['own_update_bound'])}")

    def alike(row: TableRow) -> str:
        launch, words = launch_of[row["launch"]], {True: "yes", False: "no", None: UNKNOWN}
        before_and_after = (launch.checks.initial_weights_alike, launch.checks.final_weights_alike)
        return "one process" if launch.processes == 1 else " → ".join(words[one] for one in before_and_after)

    columns = (
        text("scenario", "scenario"),
        text("verdict", verdict),
        numeric("launch", lambda row: Cell(text=str(row["launch"]), launch=int(row["launch"]))),
        *(error(f"{heading} in double, worst tensor", f"{name}_error") for name, heading in errors.items()),
        numeric("own update, worst tensor", own_update),
        error("gradient of one replica alone", "gradient_alone"),
        error("first losses", "loss_error"),
        text("ranks alike", alike),
    )
    return tabulate(columns, numerics.by_scenario(launches).to_dict("records"), _about_parity(run.document))


def verdicts(run: Analysed) -> list[tuple[str, str]]:
    """Each verdict on numerics, the gravest first, with its scenarios, and the reason where it is not good."""
    by_verdict: dict[str, dict[str, list[str]]] = {}
    for row in numerics.by_scenario(run.parity).to_dict("records"):
        verdict, reason = tables.words_of(row, "verdict", "reason")
        why = reason if tables.TONES.get(verdict) != "good" else ""
        by_verdict.setdefault(verdict or "not shown", {}).setdefault(why, []).append(row["scenario"])
    return [
        (verdict, "; ".join(f"{listed(names)}{f': {why}' if why else ''}" for why, names in reasons.items()))
        for verdict in (*PARITIES[::-1], "not shown")
        if (reasons := by_verdict.get(verdict))
    ]


def no_reference(document: RunDocument) -> str | None:
    """Why nothing can be said about the numerics of a run; None where something can."""
    references = document.begun(Numerics).references
    failed = [f"failed ({one.status}): {one.reason}" for one in references if one.status != "ok"]
    if references and not failed:
        return None
    why = failed[0] if failed else "was not computed (as with --no-parity)"
    return (
        f"The reference {why}, so nothing can be said about same or not; a loss that is not finite, and ranks "
        "that do not hold the same parameters, show without it."
    )


def _about_parity(document: RunDocument) -> tuple[str, ...]:
    if not document.begun(Numerics).references or no_reference(document):
        return ()
    return (
        "Of each scenario the launch with the gravest verdict: ||g - r|| ÷ ||r|| of the worst tensor, step and rank, "
        "where r is of one process that accumulates the same chunks. In double: trained for a few steps without what "
        "its level casts; its gradient, what a step did to a tensor (against the workload's own optimizer with the "
        f"same gradients) and to the buffers. Up to {percent(numerics.BOUND)} is rounding.",
        "Own update: of one more step of the measured session, in its own types. First losses: of what computes in "
        f"fp32 as the reference does; beyond {percent(numerics.LOSS_BOUND)} nobody can tell.",
        "same: as the reference, in fp32. within half precision: the same training, in less than fp32. differs by "
        "design: what it does on purpose changes the numbers. diverged: beyond rounding, or ranks with different "
        "parameters (ranks alike: SHA-256 of all of them, before the first step → after the last). One replica alone: "
        "how far its gradient is from the average, as a strategy that forgets to average would be.",
    )


def communication_table(run: Run) -> Table | None:
    rows = diagnosed.communication(run.document, run.diagnostics).to_dict("records")

    def method(row: TableRow) -> Cell:
        word, reason = tables.words_of(row, "method", "reason")
        return Cell(text=word or UNKNOWN, small=reason, wrap=True)

    def with_interval(heading: str, name: str) -> Column:
        return ranged(heading, (f"{name}_ms", f"{name}_low_ms", f"{name}_high_ms"), ",.1f", cost=True)

    columns = (
        text("scenario", "scenario"),
        with_interval("exposed communication ms", "exposed"),
        text("method", method),
        with_interval("cost of synchronising ms", "cost"),
        numeric("backward without it ms", "without_ms", ",.1f"),
        numeric("communication ms", "comm_ms", ",.1f"),
        numeric("of it overlapped ms", "overlap_ms", ",.1f"),
        with_interval("computation slowed by ms", "slowed"),
        text("the two methods agree", lambda row: {True: "yes", False: "no"}.get(row["agree"], UNKNOWN)),
        numeric("pairs of steps", "pairs", ".0f"),
    )
    notes = (
        "From diagnostic launches, whose steps count in no other table; below a value its 95 % interval over steps. "
        "Exposed: the communication after the last gradient is computed, by torch DDP's own logger, elsewhere the "
        "paired difference. Cost: the backward pass with synchronisation less that without, in pairs of steps.",
    )
    return tabulate(columns, rows, notes) if rows else None


def data_parallel_table(run: Run) -> Table | None:
    rows = diagnosed.data_parallel(run.diagnostics).to_dict("records")
    parts = (numeric(f"{part.replace('_', ' ')} ms", f"{part}_ms", ",.2f") for part in diagnosed.PARTS)
    notes = ("Parts of the forward pass, medians over the steps of the diagnostic launch, devices idle in between.",)
    return tabulate((text("scenario", "scenario"), *parts), rows, notes) if rows else None


def spent_table(run: Run) -> Table | None:
    table = diagnosed.spent(run.document)
    if table.empty:
        return None
    names = [name for name in table.columns if name not in ("scenario", "step_ms") and table[name].any()]
    records = [{**row, "whole": sum(row[name] for name in names)} for row in table.to_dict("records")]

    def of_whole(name: str) -> Column:
        def cell(row: TableRow) -> Cell:
            share = row[name] / row["whole"] if row["whole"] > 0 else 0.0
            return Cell(text=number(row[name], ",.1f"), small=f"{100 * share:.1f} %" if share >= 0.0005 else "")

        return numeric(f"{name} ms", cell)

    columns = (
        text("scenario", "scenario"),
        *(of_whole(name) for name in names),
        numeric("all operators ms", "whole", ",.1f"),
        numeric("the profiled step ms", "step_ms", ",.1f"),
    )
    notes = (
        "Self times on rank 0 under the profiler, which makes operators longer; below each its share of all. casts: "
        "conversions and copies between precisions. other: what has no category of its own. Left out: categories "
        "without any time.",
    )
    return tabulate(columns, records, notes)


def statistics_table(run: Analysed) -> Table | None:
    stats = run.good_stats.frame
    if stats.empty:
        return None

    def outliers(launches: pd.DataFrame) -> Cell:
        steps, out = int(launches["measured"].sum()), int(launches["outliers"].sum())
        return Cell(text=str(out), small=f"{100 * out / steps:.1f} %" if out else "")

    def mean(heading: str) -> Column:
        return numeric(f"{heading} ms", lambda launches: tables.step_cell(estimate(launches[f"{heading}_ms"]), None))

    def drift(launches: pd.DataFrame) -> str:
        return tables.change(max(launches["drift"].dropna(), key=abs, default=None))

    columns = (
        text("scenario", lambda launches: launches["scenario"].iloc[0]),
        numeric("launches", lambda launches: str(len(launches))),
        numeric("measured steps", lambda launches: str(launches["measured"].sum())),
        *map(mean, ("median", "mean", "p95", "p99")),
        numeric("middle half ÷ median (%)", lambda of: f"{100 * (of['iqr_ms'] / of['median_ms']).max():.1f}"),
        numeric("outliers", outliers),
        numeric("last third vs first (%)", drift),
        numeric("skew of ranks (%)", lambda launches: number(100 * launches["skew"].max(), ".1f")),
        numeric("waiting for data (%)", lambda launches: number(100 * launches["data_share"].max(), ".1f")),
    )
    by_scenario = dict(list(stats.groupby("scenario")))
    rows = [by_scenario[name] for name in run.document.request.scenarios if name in by_scenario]
    notes = (
        "Of the slowest rank's step, the geometric mean over launches. Outliers (beyond 1.5 interquartile ranges from "
        "the quartiles of their launch) are always included. Other percentages: of the worst launch.",
    )
    return tabulate(columns, rows, notes)


def differences_table(run: Analysed) -> Table | None:
    names = list(run.document.environments)
    rows = [{name: value or UNKNOWN for name, value in row.items()} for row in differences(run.document)]
    return tabulate([text(name, name) for name in ("what", *names)], rows) if names else None


def pairs_table(run: Analysed) -> Table | None:
    rows = pairs(run)
    columns = (
        text("scenario", "scenario"),
        text("in", "environment"),
        ranged("time of a step, times", ("ratio", "low", "high"), ".3f"),
        numeric("p", "p_adjusted", ".2g"),
        text("verdict", "verdict"),
    )
    first = next(iter(run.document.environments), "")
    notes = (
        f"Against the same scenario in {first}, with the 95 % interval: below 1 is faster. p: adjusted for all rows. "
        "The launches of all interpreters took turns.",
    )
    return tabulate(columns, rows, notes) if rows else None
