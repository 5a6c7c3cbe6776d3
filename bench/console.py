"""Output for people: a bar on a terminal while bench works, plain lines elsewhere; tables at the end."""

import io
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, TextIO

from bench.core.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from bench.core.channel import Message

PLAIN_INTERVAL_S = 10.0

PHASE_WORDS = {
    "rendezvous": "starting",
    "build": "starting",
    "warmup": "warm-up",
    "record": "recording",
    "probe": "checking",
    "seal": "writing",
}
"""The phases of a rank in words; any other phase is what the launch is for."""

WITH_RATE = ("measuring", "measuring again", "racing")
"""The launches that show a rate: in others steps are slowed down by tools, or have another batch."""


class _Unbreakable:
    """A stream for people: a lost terminal or a full disk does not end a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def say(text: str) -> None:
    """A line for people on standard error."""
    tell(text, file=_unbreakable())


def _unbreakable(stream: TextIO | None = None) -> TextIO:
    return _Unbreakable(stream or sys.stderr)  # type: ignore[return-value]


class RunProgress:
    """Shows scenario, launch, step, throughput and time left (estimated from past launches). A context manager.

    ``counted``: whether anybody knows how many launches there will be; otherwise nothing is said of what is left.
    ``unnamed``: how many will come besides those expected by name. ``spent``: the seconds of all launches by what they
    did.
    """

    def __init__(self, *, steps: int, units: int, unit: str, stream: TextIO | None = None) -> None:
        self.stream, self.steps = _unbreakable(stream), steps
        self.units, self.unit = units, unit
        self.counted, self.unnamed = True, 0
        self._number = 0
        self._coming: list[str] = []
        self._took_s: dict[str, list[float]] = {}
        self._began = self._since = time.monotonic()
        self.spent: dict[str, float] = {}
        self._bar: Progress | None = None
        self._scenario, self._doing, self._phase = "", "measuring", ""
        self._step, self._of = 0, steps
        self._recent: list[tuple[float, int]] = []
        self._first: tuple[float, int] | None = None
        self._last_line = 0.0

    @property
    def _launches(self) -> int:
        """How many are shown, if no more are added: not those that cannot run, which a record numbers, too."""
        return self._number + len(self._coming) + self.unnamed

    @property
    def _place(self) -> str:
        """The number of the launch in hand, and of how many."""
        return f"{self._number}/{self._launches}" if self.counted else f"{self._number}"

    def expect(self, names: Sequence[str]) -> None:
        """Add launches of these to those that are to come."""
        self._coming += names

    def drop(self, name: str) -> None:
        self._coming.remove(name)

    def __enter__(self) -> "RunProgress":
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[launch]}"),
                TextColumn("{task.fields[scenario]}", style="bold", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[detail]}", markup=False),
                TimeElapsedColumn(),
                console=Console(file=self.stream),
                transient=True,
            )
            self._bar.add_task("", total=self._launches, launch="", scenario="", detail="")
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, name: str, doing: str) -> None:
        """A launch starts, expected or not. ``doing``: what its ranks do after their warm-up."""
        if self.spent:
            self._phase = "between launches"
            self._spend()
        self._number += 1
        self._scenario, self._doing, self._phase, self._step, self._of = name, doing, "starting", 0, self.steps
        if name in self._coming:
            self._coming.remove(name)
        self._recent, self._first = [], None
        self._began = self._last_line = self._since = time.monotonic()
        self._show()

    def _spend(self) -> None:
        """The time since this was called last went into the phase in hand."""
        now = time.monotonic()
        self.spent[self._phase] = self.spent.get(self._phase, 0.0) + now - self._since
        self._since = now

    def hear(self, event: "Message") -> None:
        """A message of a rank; only those of rank 0 count."""
        if event.get("rank") != 0 or event["event"] not in ("phase", "step"):
            return
        if event["event"] == "phase":
            self._spend()
            self._phase = PHASE_WORDS.get(event["phase"], self._doing)
        elif event["step"] != self._step:  # a rank that waits for its GPU repeats it
            self._step, self._of = event["step"], event["of"]
            self._recent = [*self._recent[-8:], (time.monotonic(), self._step)]
            self._first = self._first or self._recent[0]
        self._show()

    def end(self, *, status: str, text: str) -> None:
        """The launch ended; ``text`` says how."""
        self._spend()
        self._took_s.setdefault(self._scenario, []).append(time.monotonic() - self._began)
        self._phase, self._step = "", 0
        message = f"[{self._place}] {self._scenario}: {text if status == 'ok' else status + ': ' + text}"
        if self._bar is not None:
            self._bar.console.print(printable(message), markup=False, highlight=False, soft_wrap=True)
        else:
            tell(message + (f"; {self._time_left()} left" if self._launches > self._number else ""), file=self.stream)

    def _time_left(self) -> str:
        """From the mean of the launches of the same scenario, else of all; the one in hand goes by its own steps."""
        from statistics import fmean  # here, since 'bench list' does without it

        everything = [seconds for took in self._took_s.values() for seconds in took]
        had_s = time.monotonic() - self._began
        own_s = None  # until two steps are timed: the first one and the start say nothing of the others
        if self._first is not None and self._step > self._first[1]:
            (first_s, first), (last_s, last) = self._first, self._recent[-1]
            own_s = first_s - self._began + (self._of - first) * (last_s - first_s) / (last - first)
        if own_s is None and not everything:
            return "?"
        usual_s = fmean(everything or [own_s or 0.0])
        expected = {name: fmean(took) for name, took in self._took_s.items()}
        left_s = sum(expected.get(name, usual_s) for name in self._coming) + self.unnamed * usual_s
        if self._phase:
            left_s += max(0.0, (own_s or expected.get(self._scenario, usual_s)) - had_s)
        return duration(left_s)

    def _show(self) -> None:
        probed = self._phase == PHASE_WORDS["probe"]
        detail = self._phase if probed else f"{self._phase} step {self._step}/{self._of}"
        if len(self._recent) > 1 and self._doing in WITH_RATE and not probed:
            (t0, s0), (t1, s1) = self._recent[0], self._recent[-1]
            detail += f", {self.units * (s1 - s0) / (t1 - t0):,.1f} {self.unit}/s"
        detail += f", {self._time_left()} left" * self.counted
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0],
                total=self._launches,
                completed=self._number - 1 + self._step / self._of,
                launch=self._place,
                scenario=printable(self._scenario),
                detail=detail,
            )
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL_S:
            self._last_line = time.monotonic()
            tell(f"[{self._place}] {self._scenario}: {detail}", file=self.stream)


COMMAND = "python -m bench "
"""Begins a command that people copy: it stays on one line, however long."""


def columns(stream: TextIO) -> int | None:
    """The width of the terminal that ``stream`` writes to; None for a file or a pipe, whose lines are not folded."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None
    except (OSError, ValueError):  # closed, or of unknown size
        return None


GRAVE = (
    r"(?m)^(?:bench: error:|Regressed:|Missing or not comparable:|[ -]*invalid:|✗)|(?<=  )(?:regressed|slower|worse)$"
)
"""Red on a terminal: the beginning of a line that reports harm, and such a verdict at the end of a row."""

NOTED = r"(?m)^(?:[ -]*warning:|Inconclusive:|!)"
"""Bold on a terminal."""


def tell(*lines: str, file: TextIO) -> None:
    """Print text for people: on a terminal folded, in colours unless ``NO_COLOR`` (no-color.org) is set."""
    width = columns(file)
    text = printable("\n".join(lines))
    if width is not None:
        text = fold(text, width)
        if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            text = re.sub(NOTED, "\033[1m\\g<0>\033[0m", re.sub(GRAVE, "\033[1;31m\\g<0>\033[0m", text))
    to = _unbreakable() if file is sys.stderr else file
    print(text, file=to, flush=file is not sys.stdout)  # the answer of a verb goes out, or fails to, at its end


@contextmanager
def passing(what: str) -> Iterator[None]:
    """Show on a terminal what is being done within this context, then erase it; no thread, so forks may follow."""
    to = _unbreakable()
    if not to.isatty():
        yield
        return
    print(f"{printable(what)} ...", end="", file=to, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=to, flush=True)


def fold(text: str, width: int) -> str:
    """Lines of at most ``width`` columns, broken between words, with a hanging indent.

    Rows of a table (more than two gaps of two or more blanks) are not broken. A command gets a whole line.
    """
    return "\n".join(folded for line in text.splitlines() for folded in _folded(line, max(width, 20)))


def _folded(line: str, width: int) -> list[str]:
    import textwrap

    gaps = [match.end() for match in re.finditer(r"(?<=\S) {2,}(?=\S)", line)]
    if len(line) <= width or len(gaps) > 2:
        return [line]
    mark = re.match(r" *(- |[✗!·±] |so: |do: )?", line)
    inner = gaps[-1] if gaps else (mark.end() if mark else 0)
    hang = " " * (inner or 2)
    before, colon, command = line.partition(f": {COMMAND}")
    if not colon and COMMAND in line:
        return [line]
    whole = re.sub(r"(?<=\d) %", "\u00a0%", before + colon[:1])  # a line does not end between a number and its unit
    wrapped = textwrap.wrap(whole, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)
    folded = [part.replace("\u00a0%", " %") for part in wrapped]
    return [*folded, f"{hang}{COMMAND}{command}"] if colon else folded


def count(number: int, one: str, many: str | None = None) -> str:
    """``1 launch``, ``3 launches``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


LEAST = 24
"""The least width to which the last column of a table is folded."""


def align(rows: Sequence[Sequence[str]], left: Sequence[str], width: int | None = None) -> str:
    """Rows of cells as aligned lines; the first row is the heading, columns named in ``left`` are left-aligned.

    ``width``: of the terminal, if any. The last column is folded to fit, and columns stand closer if all of them fit
    then; those that still do not follow in another table, which begins with the leading columns in ``left``, or with
    the first alone where these leave no room.
    """
    from rich.cells import cell_len
    from rich.console import Console

    room = 10_000 if width is None else width
    out = Console(file=io.StringIO(), width=10_000, color_system=None)
    *longest, of_last = (max(1, *map(cell_len, cells)) for cells in zip(*rows, strict=True))
    words = [cell_len(word) for row in rows for word in row[-1].split()]
    least = [*longest, max([min(of_last, LEAST), *words])]
    rest = list(range(len(rows[0])))
    label = [rest.pop(0) for _ in takewhile(lambda name: name in left, rows[0][:-1])] or [rest.pop(0)]

    def fits(columns: Sequence[int], gap: int) -> bool:
        return sum(least[column] + gap for column in columns) <= room + gap

    if not all(fits([*label, column], 1) for column in rest):
        label, rest = label[:1], [*label[1:], *rest]
    whole = [*label, *rest]
    gap = 1 if fits(whole, 1) and not fits(whole, 2) else 2
    texts = []
    while rest:
        shown = [*label, rest.pop(0)]
        while rest and fits([*shown, rest[0]], gap):
            shown.append(rest.pop(0))
        with out.capture() as captured:
            out.print(_table(rows, shown, left, gap, least), width=room)
        texts.append("\n".join(line.rstrip() for line in captured.get().splitlines()))
    return "\n\n".join(texts)


def _table(
    rows: Sequence[Sequence[str]], columns: Sequence[int], left: Sequence[str], gap: int, least: Sequence[int]
) -> "Table":
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, gap, 0, 0), pad_edge=False)
    for column in columns:
        last = column == len(rows[0]) - 1
        justify: Literal["left", "right"] = "left" if rows[0][column] in left else "right"
        table.add_column(justify=justify, no_wrap=not last, min_width=least[column])
    heading, *others = ([Text(row[column]) for column in columns] for row in rows)
    table.add_row(*heading)
    table.add_row(*[Rule(characters="-", style="")] * len(columns))
    for row in others:
        table.add_row(*row)
    return table
