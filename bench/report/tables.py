"""The tables of a report: made once of values with units, and shown on a page, on a terminal and in Markdown.

The page's template renders a :class:`Table` as HTML; :meth:`Table.as_text` and :meth:`Table.as_markdown` are its other
forms. What is unknown is a dash, and a note below the table says why.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from bench.analyse import memory_timeline, published
from bench.analyse.analysed import Analysed
from bench.analyse.bars import RSS, about_intervals, about_memory, bar, plus_minus
from bench.analyse.intervals import Estimate, half_width_percent
from bench.analyse.recommendation import recommendations
from bench.analyse.steps import BASE, about_base, base_of, scenarios, short_base
from bench.console import align
from bench.core.text import printable
from bench.report.drawing import plain
from bench.runs.frames import TableRow
from bench.runs.reader import Run
from bench.words.advice import is_clear

UNKNOWN = "–"
NOTHING_SHOWN = "not above 0"
"""In place of what something adds, where that is not distinguishable from nothing."""
TONES = {
    "valid": "good",
    "same": "good",
    "within half precision": "good",
    "warning": "doubt",
    "differs by design": "doubt",
    "cannot tell": "doubt",
    "invalid": "bad",
    "diverged": "bad",
    "not finite": "bad",
}
"""The colour of a verdict, by name in the theme; the word itself always stands beside it."""

SHORT = {"within half precision": "half", "differs by design": "by design"}
"""On a terminal, of words too long for a table."""

FORMULA = re.compile(r"\s*([=@\uff1d\uff20]|[-+\uff0b\uff0d](?!\d*\.?\d+$))")
"""The beginning of a formula in a spreadsheet, also where letters are wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: its text, what is smaller below it, the length of a bar (0 to 1), a colour of the theme.

    ``wrap``: on several lines, as a sentence is. ``launch``: the launch whose row of the page the text links to, or,
    with ``anchor``, whose row this is. ``files``: links to files of the run folder, a label and a name each.
    """

    text: str
    small: str = ""
    bar: float = 0.0
    tone: str = ""
    wrap: bool = False
    launch: int | None = None
    anchor: bool = False
    files: tuple[tuple[str, str], ...] = ()

    @property
    def interval(self) -> str:
        """The text below, for one line: ``±1.3%``, ``(0.95 to 1.01)``."""
        small = plain(self.small)
        return small if not small or small.startswith("±") else f"({small})"

    @property
    def sort(self) -> str:
        """The key of sorting: a number as a number, empty for what is unknown."""
        return "" if self.text == UNKNOWN else self.text.replace(",", "").removesuffix(" %").lstrip("<")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading, what it shows of a record, whether that is numbers, the group it stands under if any."""

    heading: str
    of: Callable[[Any], Cell | str] = str
    number: bool = False
    group: str = ""


def text(heading: str, of: str | Callable[[Any], Cell | str], *, group: str = "") -> Column:
    """A column of words. ``of``: the key of a record, or a function of it."""
    return Column(heading=heading, of=of if callable(of) else lambda row: str(row[of]), group=group)


def figure(heading: str, of: str | Callable[[Any], Cell | str], form: str = "", *, group: str = "") -> Column:
    """A column of numbers. ``of``: the key of a record, whose value takes ``form``, or a function of it."""
    show = of if callable(of) else lambda row: number(row[of], form)
    return Column(heading=heading, of=show, number=True, group=group)


def bounded(heading: str, name: str, form: str, *, group: str = "") -> Column:
    """A column of numbers with how far the farther end of the 95 % interval is below each."""
    return figure(heading, lambda row: Cell(text=number(row[name], form), small=plus_minus(row, name)), group=group)


def ranged(heading: str, names: tuple[str, str, str], form: str, *, group: str = "", cost: bool = False) -> Column:
    """A column of numbers with the 95 % interval below each. ``names``: keys of the value and of both ends. ``cost``:
    they are what something adds, so that one whose interval reaches 0 says that in place of the number."""

    def cell(row: TableRow) -> Cell:
        value, low, high = (number(row[name], form) for name in names)
        if cost and not is_cost(row[names[0]], row[names[1]]):
            value = NOTHING_SHOWN
        return Cell(text=value, small="" if UNKNOWN in (value, low, high) else f"{low} to {high}")

    return figure(heading, cell, group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of cells. ``notes``: sentences for below it. ``marked``: the number of the row to stand out, or None."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    marked: int | None = None

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of neighbouring columns and how many columns each spans; empty where there are none."""
        spans = [(name, len([*own])) for name, own in groupby(column.group for column in self.columns)]
        return spans if any(name for name, _ in spans) else []

    def texts(self, *, repeats: bool = True) -> list[list[str]]:
        """The headings and the cells. Without ``repeats`` a first cell is empty if it is that of the row before."""
        columns = []
        for column, cells in zip(self.columns, zip(*self.rows, strict=True), strict=bool(self.rows)):
            room = max(len(cell.interval) for cell in cells) if column.number and not cells[0].wrap else 0
            intervals = [f" {cell.interval:>{room}}" if room and cell.interval else "" for cell in cells]
            columns.append([plain(cell.text) + interval for cell, interval in zip(cells, intervals, strict=True)])
        lines = [list(row) for row in zip(*columns, strict=True)]
        before = ""
        for line in () if repeats else lines:
            line[0], before = ("" if line[0] == before else line[0]), line[0]
        return [[column.heading for column in self.columns], *lines]

    def as_text(self, width: int | None = None, *, repeats: bool = True) -> str:
        """For a terminal of this width, if any; without the notes."""
        words = [column.heading for column in self.columns if not column.number]
        rows = [[SHORT.get(cell, cell) for cell in row] for row in self.texts(repeats=repeats)]
        return align(rows, left=words, width=width)

    def as_markdown(self) -> str:
        """With the notes below it."""
        headings = (inert(f"{column.group} {column.heading}".strip()) for column in self.columns)
        rule = ("---:" if column.number else "---" for column in self.columns)
        rows = ((inert(f"{cell.text} {cell.interval}".rstrip()) for cell in row) for row in self.rows)
        lines = [f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows)]
        return "\n".join([*lines, "", *(f"- {inert(note)}" for note in self.notes)]).rstrip()


def in_text(*tables: Table | None, width: int | None, notes: bool = False) -> list[str]:
    """Those tables that there are for a terminal of this width, if any, each after a blank line."""
    return [line for one in tables if one for line in ("", one.as_text(width), *(one.notes if notes else ()))]


def inert(text: str) -> str:
    """Text on one line that Markdown shows as it is: no table border, tag, entity, link, emphasis or code."""
    flat = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", plain(text))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)  # within a word it is no emphasis


def tabulate(
    columns: Sequence[Column], records: Iterable[Any], notes: Iterable[str] = (), marked: int | None = None
) -> Table:
    """A table with a row for each record."""
    cells = ((column.of(record) for column in columns) for record in records)
    rows = tuple(tuple(Cell(text=cell) if isinstance(cell, str) else cell for cell in row) for row in cells)
    return Table(columns=tuple(columns), rows=rows, notes=tuple(notes), marked=marked)


def of_run(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the run's id as its first column."""
    return table.assign(run=run.id)[["run", *table.columns]]


def csv(tables: Sequence[pd.DataFrame]) -> str:
    """The tables of all runs below each other; figures in full, unknown ones empty."""
    whole = pd.concat([table.astype("object") for table in tables], ignore_index=True)
    for name in whole:
        whole[name] = pd.Series(map(_no_formula, whole[name]), dtype="object")
    return whole.to_csv(index=False, lineterminator="\n")


def _no_formula(cell: object) -> object:
    """Text that a spreadsheet would calculate gets the mark of text before it; numbers stay."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if FORMULA.match(text) else text


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
    first = rows[0] if rows else {"unit": "examples", "unit_short": "ex", "relative_to": BASE}
    highest = max((row["throughput_per_s"] for row in rows if not is_unknown(row["throughput_per_s"])), default=1.0)

    def speed(row: TableRow) -> Cell:
        per_s = row["throughput_per_s"]
        length = 0.0 if is_unknown(per_s) else float(per_s / highest)
        return Cell(text=number(per_s, ",.1f"), small=plus_minus(row, "throughput_per_s"), bar=length)

    def verdict(row: TableRow, name: str, why: str = "") -> Cell:
        if is_unknown(row[name]):
            return Cell(text=UNKNOWN)
        return Cell(text=row[name], small="" if is_unknown(why) else why, tone=TONES[row[name]], wrap=True)

    energy = f"J per 1,000 {first['unit']}"
    with_energy = not brief and any(not is_unknown(row["energy_per_1000_j"]) for row in rows)
    return [
        text("scenario", "scenario"),
        figure(f"{first['unit_short']}/s", speed),
        bounded("step ms", "step_median_ms", ",.1f"),
        bounded("p95 ms", "step_p95_ms", ",.1f"),
        bounded(f"speed ÷ {short_base(first['relative_to'])}", "relative_to_ddp", ".2f"),
        bounded("MiB/process", "peak_pid_mib", ",.0f"),
        bounded("MiB total", "peak_total_mib", ",.0f"),
        *([bounded(energy, "energy_per_1000_j", ",.0f")] if with_energy else []),
        text("validity", lambda row: verdict(row, "validity", row["findings"])),
        text("numerics", lambda row: verdict(row, "parity")),
        *([text("status", "status")] if any(row["status"] != "ok" for row in rows) else []),
        figure("launches ok", lambda row: f"{row['launches_ok']}/{row['launches']}"),
        text("what ran", lambda row: Cell(text=row["what_ran"] or UNKNOWN, wrap=True)),
    ]


def _about(table: pd.DataFrame) -> list[str]:
    """Notes: the meaning of ±, and the scenario that speeds are relative to."""
    return [*about_intervals(table), *about_base(table["relative_to"].iloc[0] if len(table) else BASE)]


def _failed(table: pd.DataFrame) -> list[str]:
    wrong = table[(table["status"] != "ok") & table["reason"].notna()].to_dict("records")
    return [f"{row['scenario']}: {row['status']}: {row['reason']}" for row in wrong]


def _sources(table: pd.DataFrame) -> list[str]:
    by_source = table.groupby("memory_source", sort=False)["scenario"].agg(", ".join)
    each = [f"{source} ({names})" if len(by_source) > 1 else f"{source}" for source, names in by_source.items()]
    added = any(RSS in source for source in each)
    shared = "; in a sum of RSS, a page that ranks share counts once in each" if added else ""
    return [f"Source of memory: {'; '.join(each)}{shared}."] if each else []


def _why_unknown(run: Run, table: pd.DataFrame) -> list[str]:
    """A sentence for each scenario that failed, and for each value that one with steps lacks."""
    notes = _failed(table)
    good = table[table["throughput_per_s"].notna()]
    if len(good) and good["relative_to_ddp"].isna().all():
        base = base_of(scenarios(run.document))
        notes.append(f"speed ÷ {short_base(base)} is unknown because {base} gave no figures in this run.")
    reasons = memory_timeline.unknown(run.memory).set_index("scenario")["reason"]
    told = [scenario for scenario in good["scenario"] if scenario in reasons.index]
    notes += [f"Memory of {scenario} is unknown, or a part of it: {reasons[scenario]}." for scenario in told]
    silent = set(good.loc[good["peak_pid_mib"].isna(), "scenario"]) - set(told)
    notes += [f"Memory of {scenario} is unknown: there is no sample of it." for scenario in sorted(silent)]
    return notes


def published_tables(run: Analysed) -> tuple[Table, Table]:
    """Beside the published ones the times of a run with steps: relative to that of ddp, and elapsed seconds."""
    steps = run.good_iterations
    form = published.table(steps, scenarios(run.document))
    iterations = published.iterations(int(steps.frame["step"].max()) + 1)
    relative = (
        text("scenario", "scenario"),
        _with_bar(f"this run: time ÷ {BASE}", "relative"),
        figure(f"published: time ÷ {BASE}", "published_relative", ".2f"),
    )
    about_relative = (
        f"Time since training began, at iteration {iterations[-1]} here and at {published.PUBLISHED_ITERATIONS[-1]} in "
        f"the post, cold start and warm-up included; above 1 is slower than {BASE}. Seconds do not carry from one "
        "machine to another; such ratios do between like machines.",
    )
    here, there = "this run: seconds at iteration", "published: seconds at iteration"
    elapsed = (
        text("scenario", "scenario"),
        *(_with_bar(f"{at}", f"elapsed_s_{at}", group=here) for at in dict.fromkeys(iterations)),
        *(figure(f"{at}", f"published_s_{at}", ".1f", group=there) for at in published.PUBLISHED_ITERATIONS),
    )
    about_elapsed = (
        "Iteration 0 includes the cold start, and warm-up steps count here and nowhere else, because the author "
        "printed the time since training began.",
        "Published: the author's own times, on three GPUs; there is no row for a single process.",
    )
    rows = form[form["relative"].notna() | form["published_relative"].notna()]
    return (
        tabulate(relative, rows.to_dict("records"), about_relative),
        tabulate(elapsed, form.to_dict("records"), about_elapsed),
    )


def _with_bar(heading: str, name: str, group: str = "") -> Column:
    """A column of the published form, each figure with its interval below it."""

    def cell(row: TableRow) -> Cell:
        ends = (None if is_unknown(row[column]) else row[column] for column in published.ends(name))
        return Cell(text=number(row[name], ",.2f"), small=bar(half_width_percent(*ends)))

    return figure(heading, cell, group=group)


def number(value: Any, form: str) -> str:
    """A figure as text, or a dash where there is none."""
    return UNKNOWN if is_unknown(value) else format(value, form)


def digits(value: float | str | None) -> str:
    """A figure with as many digits as matter: ``1,234``, ``26.61``; a word as it is."""
    if isinstance(value, str):
        return value
    return number(value, ",.0f" if value is not None and value >= 1000 else "#,.4g")


def as_change(ratio: float | None) -> str:
    """A ratio as a change: ``+3.1 %``; a change that rounds to nothing has no sign."""
    text = UNKNOWN if ratio is None else f"{100 * (ratio - 1):+,.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def step_cell(step: Estimate, failed: str | None) -> Cell:
    """The milliseconds of a step with their interval, or why they are unknown."""
    if step.value is None:
        return Cell(text=UNKNOWN, small=failed or "", wrap=True)
    return Cell(text=f"{step.value:,.1f}", small=bar(step.half_width_percent))


def words_of(row: TableRow, *names: str) -> list[str]:
    """The texts of a row under these names; of what is unknown an empty one."""
    return [row[name] if isinstance(row[name], str) else "" for name in names]


def is_cost(value: float | None, low: float | None) -> bool:
    """True if what something adds is distinguishable from 0: the low end of its interval, if it has one, is above."""
    return is_unknown(value) or (value if is_unknown(low) else low) > 0  # type: ignore[operator]


def is_unknown(value: Any) -> bool:
    """None, NaN and pandas' NA; infinity too, which is no figure for a table."""
    return bool(pd.isna(value)) or (isinstance(value, float) and math.isinf(value))
