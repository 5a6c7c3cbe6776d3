"""The tables of a report: made once of values with units, and shown on a page, on a terminal and in Markdown.

The page's template renders a :class:`Table` as HTML; :meth:`Table.as_text` and :meth:`Table.as_markdown` are its other
forms. What is unknown is a dash, and a note below the table says why.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from bench.analyse.bars import bar, plus_minus
from bench.analyse.intervals import Estimate
from bench.console import align
from bench.core.text import by_key, listed, plain, signed
from bench.core.text import digits as without_exponent
from bench.runs.frames import TableRow

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


def numeric(heading: str, of: str | Callable[[Any], Cell | str], form: str = "", *, group: str = "") -> Column:
    """A column of numbers. ``of``: the key of a record, whose value takes ``form``, or a function of it."""
    show = of if callable(of) else lambda row: number(row[of], form)
    return Column(heading=heading, of=show, number=True, group=group)


def bounded(heading: str, name: str, form: str, *, group: str = "") -> Column:
    """A column of numbers with how far the farther end of the 95 % interval is below each."""
    return numeric(heading, lambda row: Cell(text=number(row[name], form), small=plus_minus(row, name)), group=group)


def ranged(heading: str, names: tuple[str, str, str], form: str, *, group: str = "", cost: bool = False) -> Column:
    """A column of numbers with the 95 % interval below each. ``names``: keys of the value and of both ends. ``cost``:
    they are what something adds, so that one whose interval reaches 0 says that in place of the number."""

    def cell(row: TableRow) -> Cell:
        value, low, high = (number(row[name], form) for name in names)
        if cost and not is_cost(row[names[0]], row[names[1]]):
            value = NOTHING_SHOWN
        return Cell(text=value, small="" if UNKNOWN in (value, low, high) else f"{low} to {high}")

    return numeric(heading, cell, group=group)


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

    def known(self) -> "Table":
        """The same without columns of dashes alone."""
        places = [at for at in range(len(self.columns)) if any(row[at].text != UNKNOWN for row in self.rows)]
        rows = tuple(tuple(row[at] for at in places) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in places), rows=rows)

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
        rows = [[SHORT.get(cell, cell) for cell in row] for row in self.texts(repeats=repeats)]
        return align(rows, left=[column.heading for column in self.columns if not column.number], width=width)

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


def unknown_of(what: str, reasons: Iterable[tuple[str, str]]) -> list[str]:
    """A note for each reason why some scenarios lack something. ``reasons``: each with a scenario."""
    return [f"{what} of {listed(names)} is unknown, or a part of it: {why}." for why, names in by_key(reasons).items()]


def number(value: Any, form: str) -> str:
    """A value as text, or a dash where there is none. Digits that matter, such as ``.3g``, have no exponent."""
    if is_unknown(value):
        return UNKNOWN
    return without_exponent(value, int(form[-2])) if form in (".2g", ".3g", ".4g") else format(value, form)


def form_of(values: Iterable[float | None]) -> str:
    """A form for a column of such values: one decimal, and as many as show three digits of the least below 1."""
    least = min((value for value in values if value and not is_unknown(value)), default=1.0)
    return f",.{1 if least >= 1.0 else 2 - math.floor(math.log10(least))}f"


def digits(value: float | str | None) -> str:
    """A value with as many digits as matter: ``1,234``, ``26.61``; a word as it is."""
    if isinstance(value, str):
        return value
    return number(value, ",.0f" if value is not None and value >= 999.95 else "#,.4g")


def as_change(ratio: float | None) -> str:
    """A ratio as a change: ``+3.1 %``."""
    return change(None if ratio is None else ratio - 1, " %")


def change(part: float | None, unit: str = "", decimals: int = 1) -> str:
    """What is more, or less, as a part of 1, in percent."""
    return UNKNOWN if part is None or is_unknown(part) else f"{signed(100 * part, decimals)}{unit}"


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
    """None and NaN; infinity too, which is no value for a table."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))
