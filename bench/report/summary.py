"""The table of a run's scenarios, at length and for a terminal, and that in the form of the published comparison."""

from collections.abc import Sequence

import pandas as pd

from bench.analyse import published
from bench.analyse.analysed import Analysed
from bench.analyse.bars import RSS, about_intervals, about_memory, plus_minus
from bench.analyse.launches import different
from bench.analyse.recommendation import recommendations
from bench.analyse.steps import BASE, about_base, base_of, short_base
from bench.core.text import by_key, listed
from bench.report import tables
from bench.report.tables import UNKNOWN, Cell, Column, Table, bounded, is_unknown, number, numeric, tabulate, text
from bench.runs.frames import TableRow
from bench.runs.reader import Run
from bench.words.advice import is_clear


def summary_table(run: Analysed) -> Table:
    """The summary: speed, memory, energy where it is known, what ran, how it went."""
    table = run.overview
    notes = (*(f"{line}." for line in _about(table)), *_sources(table), *_why_unknown(run, table))
    records = _by_speed(table)
    names = [row["scenario"] for row in records]
    marked = names.index(recommendations(run.document, table).fastest) if is_clear(run.document, table) else None
    return tabulate(_summary_columns(records), records, notes, marked)


def brief_summary(table: pd.DataFrame, *, verbose: bool = False) -> Table:
    """The same columns as far as a terminal has room. ``verbose``: with what ran."""
    records = _by_speed(table)
    hidden = {"validity", "launches ok", *(() if verbose else ("what ran",))}
    columns = [column for column in _summary_columns(records, brief=True) if column.heading not in hidden]
    return tabulate(columns, records, (*_about(table), *about_memory(table), *_failed(table)))


def _by_speed(table: pd.DataFrame) -> list[TableRow]:
    return table.sort_values("throughput_per_s", ascending=False, kind="stable").to_dict("records")


def _summary_columns(rows: Sequence[TableRow], *, brief: bool = False) -> list[Column]:
    first = rows[0]
    times, speeds = (tables.form_of(row[name] for row in rows) for name in ("step_median_ms", "throughput_per_s"))
    highest = max((row["throughput_per_s"] for row in rows if not is_unknown(row["throughput_per_s"])), default=1.0)

    def speed(row: TableRow) -> Cell:
        per_s = row["throughput_per_s"]
        length = 0.0 if is_unknown(per_s) else float(per_s / highest)
        return Cell(text=number(per_s, speeds), small=plus_minus(row, "throughput_per_s"), bar=length)

    def verdict(row: TableRow, name: str, why: str = "") -> Cell:
        if is_unknown(row[name]):
            return Cell(text=UNKNOWN)
        return Cell(text=row[name], small="" if is_unknown(why) else why, tone=tables.TONES[row[name]], wrap=True)

    with_energy = not brief and any(not is_unknown(row["energy_per_1000_j"]) for row in rows)
    known = {name for row in rows for name in ("step_median_ms", "throughput_per_s") if not is_unknown(row[name])}
    no_batch = known == {"step_median_ms"}  # as of an attached script without --global-batch
    return [
        text("scenario", "scenario"),
        *([] if no_batch else [numeric(f"{first['unit_short']}/s", speed)]),
        bounded("step ms", "step_median_ms", times),
        bounded("p95 ms", "step_p95_ms", times),
        *([] if no_batch else [bounded(f"speed ÷ {short_base(first['relative_to'])}", "relative_to_ddp", ".2f")]),
        numeric("MiB/process", "peak_pid_mib", ",.0f"),
        numeric("MiB total", "peak_total_mib", ",.0f"),
        *([bounded(f"J per 1,000 {first['unit']}", "energy_per_1000_j", ",.0f")] if with_energy else []),
        text("validity", lambda row: verdict(row, "validity", row["findings"])),
        text("numerics", lambda row: verdict(row, "parity")),
        *([text("status", "status")] if any(row["status"] != "ok" for row in rows) else []),
        numeric("launches ok", lambda row: f"{row['launches_ok']}/{row['launches']}"),
        text("what ran", lambda row: Cell(text=row["what_ran"] or UNKNOWN, wrap=True)),
    ]


def _about(table: pd.DataFrame) -> list[str]:
    """Notes: the meaning of ±, and the scenario that speeds are relative to."""
    return [*about_intervals(table), *about_base(table["relative_to"].iloc[0])]


def _failed(table: pd.DataFrame) -> list[str]:
    rows = table[(table["status"] != "ok") & table["reason"].notna()].to_dict("records")
    wrong = by_key((f"{row['status']}: {row['reason']}", row["scenario"]) for row in rows)
    return [f"{listed(names)}: {why}" for why, names in wrong.items()]


def _sources(table: pd.DataFrame) -> list[str]:
    by_source = table.groupby("memory_source", sort=False)["scenario"].agg(", ".join)
    each = [f"{source} ({names})" if len(by_source) > 1 else f"{source}" for source, names in by_source.items()]
    added = any(RSS in source for source in each)
    shared = "; in a sum of RSS, memory that ranks share counts once for each rank" if added else ""
    return [f"Source of memory: {'; '.join(each)}{shared}."] if each else []


def _why_unknown(run: Run, table: pd.DataFrame) -> list[str]:
    """A sentence for each scenario that failed, and for each value that one with steps lacks."""
    notes = _failed(table)
    good = table[table["throughput_per_s"].notna()]
    if len(good) and good["relative_to_ddp"].isna().all():
        base = base_of(run.document.request.scenarios)
        notes.append(f"speed ÷ {short_base(base)} is unknown because {base} has no results in this run.")
    reasons = dict.fromkeys(good.loc[good["peak_pid_mib"].isna(), "scenario"], "there is no sample of it")
    unknown = run.memory[run.memory["used_mib"].isna()]
    reasons |= unknown.groupby("scenario", observed=True)["reason"].agg(different).to_dict()
    return notes + tables.unknown_of("Memory", ((reasons[name], name) for name in good["scenario"] if name in reasons))


def published_tables(run: Analysed) -> tuple[Table, Table]:
    """Beside the published ones the times of a run with steps: relative to that of ddp, and elapsed seconds."""
    steps = run.good_iterations
    form = published.table(steps, list(run.document.request.scenarios))
    iterations = published.iterations(int(steps.frame["step"].max()) + 1)
    relative = (
        text("scenario", "scenario"),
        bounded(f"this run: time ÷ {BASE}", "relative", ",.2f"),
        numeric(f"published: time ÷ {BASE}", "published_relative", ".2f"),
    )
    about_relative = (
        f"Time since training began, at iteration {iterations[-1]} here and at {published.PUBLISHED_ITERATIONS[-1]} in "
        f"the post, cold start and warm-up included; above 1 is slower than {BASE}.",
    )
    here, there = "this run: seconds at iteration", "published: seconds at iteration"
    elapsed = (
        text("scenario", "scenario"),
        *(bounded(f"{at}", f"elapsed_s_{at}", ",.2f", group=here) for at in dict.fromkeys(iterations)),
        *(numeric(f"{at}", f"published_s_{at}", ".1f", group=there) for at in published.PUBLISHED_ITERATIONS),
    )
    about_elapsed = (
        "Iteration 0 includes the cold start, and warm-up steps count here and nowhere else. Published: on three GPUs.",
    )
    rows = form[form["relative"].notna() | form["published_relative"].notna()]
    return (
        tabulate(relative, rows.to_dict("records"), about_relative),
        tabulate(elapsed, form.to_dict("records"), about_elapsed),
    )
