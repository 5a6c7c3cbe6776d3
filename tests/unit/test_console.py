"""What people see on a terminal: lines folded at words, tables that give way, and commands that do what they say."""

import csv
import fcntl
import io
import math
import os
import pty
import struct
import sys
import termios

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import HELP, VERBS, main
from bench.console import RunProgress, align, columns, duration, fold, passing, tell
from bench.report import tables, values
from bench.verbs.options import span

words = st.lists(st.text("abcdef-÷±,;", min_size=1, max_size=12), min_size=1, max_size=40)


@given(words=words, width=st.integers(20, 120))
def test_a_folded_sentence_has_the_same_words(words: list[str], width: int) -> None:
    folded = fold(" ".join(words), width)
    assert folded.split() == " ".join(words).split()
    assert max(map(len, folded.splitlines())) <= width


COMMAND = "python -m bench accept 20210202T013000Z-3257a80a --reason 'WHY' --history n"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("  - one two three four five six", 24, ["  - one two three four", "    five six"]),
        ("CPU      one two three four", 20, ["CPU      one two", "         three four"]),
        ("warning: one two three four", 20, ["warning: one two", "  three four"]),
        (f"  - if it is meant to be so: {COMMAND}", 40, ["  - if it is meant to be so:", f"    {COMMAND}"]),
        (f"see what {COMMAND} does", 40, [f"see what {COMMAND} does"]),
        ("one two three four 15 % five", 22, ["one two three four", "  15 % five"]),
        (row := "ddp       step time (ms)       199.8  198.6  +0.6 %", 30, [row]),
    ],
)
def test_lines_go_on_below_their_text(text: str, width: int, lines: list[str]) -> None:
    """Commands and rows of a table stay whole, and a number has its per cent beside it."""
    assert fold(text, width).splitlines() == lines


def test_a_table_says_the_same_in_each_form() -> None:
    rows = [
        {"name": "ddp_*", "ms": 79.21, "low": 78.0, "high": 81.0},
        {"name": "dp", "ms": None, "low": None, "high": 1.0},
    ]
    speed = tables.numeric("img/s", lambda row: tables.Cell(text="9.5", small="±1.3%" if row["ms"] else ""))
    columns = (tables.text("scenario", "name"), speed, tables.ranged("step ms", ("ms", "low", "high"), ".1f"))
    table = tables.tabulate(columns, rows, ("a note",))
    assert table.as_text().splitlines()[2:] == [
        "ddp_*     9.5 ±1.3%  79.2 (78.0 to 81.0)",
        "dp              9.5                    –",
    ]
    assert table.as_markdown().splitlines()[2:] == [
        "| ddp\\_\\* | 9.5 ±1.3% | 79.2 (78.0 to 81.0) |",
        "| dp | 9.5 | – |",
        "",
        "- a note",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(1234.5, "1,230"), (12345.0, "12,300"), (26.61, "26.6"), (0.5, "0.5"), (None, "–")]
)
def test_digits_that_matter_have_no_exponent(value: float | None, shown: str) -> None:
    assert tables.number(value, ".3g") == shown
    assert [tables.digits(value) for value in (999.94, 999.96, 1e6)] == ["999.9", "1,000", "1,000,000"]


@pytest.mark.parametrize(
    ("part", "shown"), [(-0.0004, "0.0"), (0.0004, "0.0"), (-0.0, "0.0"), (0.0005001, "+0.1"), (-12.5, "-1,250.0")]
)
def test_a_change_that_rounds_to_nothing_has_no_sign(part: float, shown: str) -> None:
    assert (tables.change(part), tables.as_change(1 + part)) == (shown, f"{shown} %")
    assert tables.change(-0.004, " %", 0) == "0 %"


def test_the_last_column_is_folded() -> None:
    rows = [["scenario", "what ran"], ["ddp", "torch DDP · gloo ×2 · native O2 bf16"], ["dp", ""]]
    lines = ["ddp       torch DDP · gloo ×2 ·", "          native O2 bf16", "dp"]
    assert align(rows, ("scenario", "what ran"), 36).splitlines()[2:] == lines


def test_every_part_of_a_table_names_its_rows() -> None:
    heading = ("scenario", "metric", "base", "tonight", "verdict")
    rows = [heading, ("ddp", "time", "10.0", "11.0", "slower"), ("", "memory", "5.0", "5.0", "ok")]
    first, second, third = align(rows, ("scenario", "metric", "verdict"), 26).split("\n\n")
    for part, shown in ((first, ("10.0", "5.0")), (second, ("11.0", "5.0")), (third, ("slower", "ok"))):
        assert [line.split() for line in part.splitlines()[2:]] == [["ddp", "time", shown[0]], ["memory", shown[1]]]


def test_a_long_label_leaves_room_for_the_answer() -> None:
    rows = [("run", "label", "scenarios", "fastest"), ("20261128T170937Z", "n" * 20, "2", "ddp (untested)")]
    parts = align(rows, ("run", "label", "fastest"), 40).split("\n\n")
    assert [part.splitlines()[-1].split() for part in parts] == [
        ["20261128T170937Z", "n" * 20],
        ["20261128T170937Z", "2"],
        ["20261128T170937Z", "ddp", "(untested)"],
    ]


@pytest.mark.parametrize(("width", "headings"), [(12, "a    ms  MiB"), (10, "a   ms MiB"), (9, "a    ms")])
def test_columns_stand_closer_where_all_fit_then(width: int, headings: str) -> None:
    assert align([["a", "ms", "MiB"], ["dp", "1.0", "2"]], ("a",), width).splitlines()[0] == headings


def test_a_file_gets_lines_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    tell("a " * 100, "b", file=stream)
    assert stream.getvalue() == "a " * 100 + "\nb\n" and columns(stream) is None
    with passing("reading"):
        assert capsys.readouterr() == ("", "")


def on_a_terminal(width: int, *lines: str) -> list[str]:
    """What a terminal gets; one of width 0 does not tell its width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if width else 0, width, 0, 0))
    with open(child, "w", encoding="utf-8") as terminal:
        assert columns(terminal) == (width or None)
        tell(*lines, file=terminal)
        said = os.read(parent, 10_000).decode().splitlines()
    os.close(parent)
    return said


@pytest.mark.parametrize(("width", "lines"), [(0, 1), (80, 3)])
def test_a_terminal_gets_folded_lines(width: int, lines: int) -> None:
    said = on_a_terminal(width, " ".join(["word"] * 40))
    assert len(said) == lines and max(map(len, said)) <= (width or 200)


def test_nothing_from_outside_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steering = "\x1b]0;title\x07\x9b2J\x7f\u202egnp\u2066\x00\udcff\x85end"
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    with RunProgress(steps=1, units=1, unit="images", stream=screen) as progress:
        progress.expect([steering])
        progress.begin(steering, "measuring")
        progress.end(status="error", text=steering)
    assert main([steering]) == 2
    tell(steering, file=sys.stdout)
    out, err = capsys.readouterr()
    for text in (out, err, screen.getvalue()):
        assert "title\\x07\\x9b2J\\x7f\\u202egnp\\u2066\\x00\\udcff end" in text
        assert not set(text) & set("\x07\x9b\x7f\u202e\u2066\x00\udcff\x85") and "\x1b]" not in text


def test_only_measured_steps_have_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not those of the probe, which come after them, nor those of a diagnostic launch, nor the last one when it is
    repeated while the GPU catches up."""
    monkeypatch.setattr("bench.console.PLAIN_INTERVAL_S", 0.0)
    said = []
    for doing in ("measuring", "diagnosing"):
        screen = io.StringIO()
        with RunProgress(steps=2, units=8, unit="img", stream=screen) as progress:
            progress.expect(["ddp"])
            progress.begin("ddp", doing)
            for event in ("measure", 1, *[2] * 10, "probe", 1, 2):
                what = (
                    {"phase": event, "event": "phase"} if isinstance(event, str) else {"step": event, "event": "step"}
                )
                progress.hear({"rank": 0, "of": 2, **what})
        said.append(screen.getvalue().splitlines())
    measuring, diagnosing = said
    assert "measuring step 2/2, " in measuring[-4] and "img/s" in measuring[-4] and "-" not in measuring[-4]
    assert " 0.0 img/s" not in measuring[-4]
    assert ["checking" in line and "step" not in line and "img" not in line for line in measuring[-3:]] == [True] * 3
    assert "img/s" not in " ".join(diagnosing)


def test_a_unit_is_no_markup() -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    with RunProgress(steps=3, units=8, unit="[/red]", stream=screen) as progress:
        progress.begin("ddp", "measuring")
        for event in ({"phase": "measure", "event": "phase"}, *({"step": n, "event": "step"} for n in (1, 2))):
            progress.hear({"rank": 0, "of": 3, **event})
    assert "[/red]/s" in screen.getvalue()


def test_the_first_guess_waits_for_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start and the first step take 20 s, and each of the nine others half a second."""
    now = [0.0]
    monkeypatch.setattr("bench.console.time.monotonic", lambda: now[0])
    progress = RunProgress(steps=10, units=1, unit="x", stream=io.StringIO())
    progress.expect(["a", "a"])
    progress.begin("a", "measuring")
    progress.hear({"rank": 0, "event": "phase", "phase": "measure"})
    left = []
    for step, at in ((1, 20.0), (2, 20.5), (3, 21.0)):
        now[0] = at
        progress.hear({"rank": 0, "event": "step", "step": step, "of": 10})
        left.append(progress._time_left())
    assert left == ["?", "28 s", "28 s"], "what is left of this launch, and 24.5 s of the next"


@pytest.mark.parametrize(
    ("cell", "kept"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        (" @SUM(1)", "' @SUM(1)"),
        ("\t=1", "' =1"),
        ("\uff1d1", "'\uff1d1"),
        ("-1.5", "-1.5"),
        ("a=b", "a=b"),
        (-1.5, "-1.5"),
    ],
)
def test_a_spreadsheet_calculates_nothing(cell: object, kept: str) -> None:
    written = values.csv([pd.DataFrame({"a": [cell, None], "b": [1, math.nan]})])
    assert list(csv.reader(written.splitlines())) == [["a", "b"], [kept, "1.0"], ["", ""]]


@pytest.mark.parametrize("settings", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_grave_lines_have_a_colour(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | settings).items():
        monkeypatch.setenv(name, value)
    said = on_a_terminal(80, "ddp  1.0  ok", "dp   2.0  regressed", "warning: a", "not regressed")
    red, bold, end = ("", "", "") if settings else ("\033[1;31m", "\033[1m", "\033[0m")
    assert said == ["ddp  1.0  ok", f"dp   2.0  {red}regressed{end}", f"{bold}warning:{end} a", "not regressed"]


@pytest.mark.parametrize("name", VERBS)
def test_help_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main([name, "--help"]) == 0
        said[width] = capsys.readouterr().out
    narrow, wide = (one.split("options:")[0].split("\n\n", 1)[1].split() for one in said.values())
    assert narrow == wide, "nothing is lost"
    shown = (*said[80].splitlines(), *HELP.splitlines())
    assert [line for line in shown if len(line) > 80 and "python -m bench" not in line] == []


def test_lengths_of_time() -> None:
    typed = {"570s": 570, "9m": 540, "9m30s": 570, "1h30m": 5400, "1h0m5s": 3605, "2h1s": 7201, "1.5h.5m": 5430}
    assert {text: span(text) for text in typed} == typed
    shown = {59.4: "59 s", 59.6: "1 min 0 s", 3599: "59 min 59 s", 7500: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in shown} == shown
