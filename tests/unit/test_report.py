"""The report of small runs that were written by hand: what it says is what the rows say, and nothing breaks it."""

import base64
import csv
import hashlib
import json
import math
import os
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from io import StringIO
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Bench, Plotting, full_after
from matplotlib.text import Text
from standin.documents import ran_with, with_records
from standin.frames import iterations
from standin.runs import APEX, BROKEN, DDP, FAST, FINITE, GONE, HOSTILE, Launch, analysed, timed, write_run

from bench.analyse import published
from bench.analyse.analysed import Analysed
from bench.analyse.launches import shown
from bench.analyse.steps import losses
from bench.core.records import PHASES
from bench.report import drawing, launch_tables, plots, summary, theme, values
from bench.report import runs as report
from bench.report.search import search_words
from bench.runs.document import HostRecord
from bench.runs.experiments import Bisected, Candidate, Level, Tuning
from bench.runs.launches import Tf32
from bench.runs.reader import excerpt
from bench.words.advice import answer
from bench.words.caveats import caveats

PLOTS = ("speed", "trade-off", "losses", "step-times", "distribution", "ranks", "phases", "elapsed", "memory")
PLOTS += ("memory-stack",)


@dataclass(frozen=True)
class Written:
    out: Path
    files: list[str]
    run: Analysed

    def text(self, name: str) -> str:
        return (self.out / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("mixed")
    launches = [DDP, replace(FAST, checks={"finite_loss": False}), APEX, GONE, BROKEN]
    run = analysed(write_run(folder / "results", launches, label=HOSTILE, host="<i>evil</i>"))
    return Written(folder / "out", report.write([run], str(folder / "out")), run)


class Page(HTMLParser):
    VOID = ("meta", "wbr", "br", "link", "img", "input", "hr", "path", "use")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return "\n".join(text for text in self.texts if text)


def test_page_runs_nothing_but_its_own_script(mixed: Written) -> None:
    html = mixed.text("index.html")
    page = Page(html)
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert script == (Path(report.__file__).parent / "vendor" / "sortable.min.js").read_text()
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{sha256}'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in html
    html = html.replace(script, "")
    assert page.tags["script"] == 1 and not {"link", "img", "iframe", "b", "i", "image"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    loads = [value for _, name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert loads and not [value for value in loads if ":" in value or value.startswith("/")]
    assert not [one for one in ("http:", "https:", "@import") if one in html] and "url(" not in html.split("<svg")[0]
    assert all((mixed.out / value).is_file() for value in loads if not value.startswith("#"))


def test_page_shows_text_from_outside_as_it_is(mixed: Written) -> None:
    text = Page(mixed.text("index.html")).text
    assert HOSTILE in text
    assert f"dp: unsupported: needs <b>CUDA</b> {HOSTILE}" in text
    assert "<i>evil</i>, Linux" in text
    assert "on A CPU of <i>evil</i> $x_1$, 2 cores" in text  # drawn into every plot


def test_ids_of_the_page_are_unique_and_resolve(mixed: Written) -> None:
    page = Page(mixed.text("index.html"))
    ids = Counter(value for _, name, value in page.attributes if name == "id")
    assert [value for value, count in ids.items() if count > 1] == []
    references = [value[1:] for _, name, value in page.attributes if name.endswith("href") and value.startswith("#")]
    references += re.findall(r"url\(#([^)]+)\)", mixed.text("index.html"))
    assert references and set(references) <= set(ids)
    drawn = re.findall(r"<svg [^>]*>", mixed.text("index.html"))
    assert drawn and all(re.search(r'role="img" aria-label="[^"]+"', opening) for opening in drawn)
    assert "None" not in page.texts


def test_colours_of_inline_plots_follow_the_page(mixed: Written) -> None:
    html = mixed.text("index.html")
    svgs = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(svgs) == 2 * len(PLOTS)  # one of each pair is for a phone
    assert not re.findall(r"#[0-9a-f]{6}\b", "".join(svgs))
    used = set(re.findall(r"var\(--([\w-]+)\)", html)) - {"part"}
    assert {"ink", "paper", "blue-o0", "blue-o2", "teal-o0"} <= used <= set(theme.THEME)
    assert html.count("--blue-o0:") == 2  # a light and a dark one
    assert len({light for light, _ in theme.THEME.values()}) == len(theme.THEME)


@pytest.mark.parametrize("number", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read_and_tell_neighbours_apart(number: int) -> None:
    colours = {name: pair[number] for name, pair in theme.THEME.items()}
    for name in colours.keys() - {"paper", "shade", "grid"}:  # what no text has is drawn as marks, which need 3
        least = 3.0 if name.rpartition("-")[0] in theme.HUES else 4.5
        assert theme.contrast(colours[name], colours["paper"]) >= least, name
    for name in ("ink", "muted", "good", "doubt", "bad", "line-0"):
        assert theme.contrast(colours[name], colours["shade"]) >= 4.5, name
    for hue in theme.HUES:
        levels = [colours[f"{hue}-{level}"] for level in theme.LEVELS]
        assert all(theme.contrast(*pair) > 1.3 for pair in pairwise(levels)), hue


def test_every_plot_is_there_as_svg_and_png(mixed: Written) -> None:
    assert [Path(path).name for path in mixed.files] == [
        *("index.html", "summary.csv", "summary.md", "findings.csv", "parity.csv"),
        *(f"{name}.{kind}" for name in PLOTS for kind in ("svg", "png")),
    ]
    assert sorted(os.listdir(mixed.out)) == sorted(Path(path).name for path in mixed.files)
    for name in PLOTS:
        root = ElementTree.fromstring(mixed.text(f"{name}.svg"))
        width, height = float(root.attrib["width"][:-2]), float(root.attrib["height"][:-2])
        png = (mixed.out / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.rstrip(b"\x00").endswith(b"IEND\xaeB`\x82")
        pixels = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]
        assert pixels == [pytest.approx(size / 72 * drawing.PNG_DPI, abs=1) for size in (width, height)]


DRAWINGS = {draw.__name__.replace("_", "-"): draw for draw in plots.DRAWINGS} | {"speed": plots.speeds}


def plot_of(run: Analysed, name: str) -> drawing.Plot:
    with drawing.styled():
        plot = DRAWINGS[name](run)
    assert plot is not None and plot.name == name
    return plot


@pytest.mark.parametrize("name", ["speed", "trade-off", "distribution"])
def test_a_long_name_fits_on_a_phone(name: str, tmp_path: Path) -> None:
    """It covers no value, and does not push the axes or the key out of the figure."""
    long = replace(DDP, scenario="ddp+channels_last+bucket_mb=50+compile+checkpointing+deterministic")
    run = analysed(write_run(tmp_path, [DDP, long]))
    with drawing.styled(drawing.NARROW_IN), warnings.catch_warnings(action="error"):
        plot = DRAWINGS[name](run)
        assert plot is not None
        (axes,), boxes = plot.figure.axes, []
        legend = [] if axes.get_legend() is None else [axes.get_legend()]
        for one in (axes.patch, *axes.texts, *legend):
            boxes.append(one.get_window_extent(plot.figure.canvas.get_renderer()))
    assert boxes[0].width > plot.figure.bbox.width / 2 and all(box.x1 <= plot.figure.bbox.width for box in boxes)
    assert not [pair for pair in combinations(boxes[1:], 2) if pair[0].overlaps(pair[1])]


def test_finalists_that_are_near_each_other_are_told_apart(tmp_path: Path) -> None:
    names = [f"ddp_o{level}+channels_last" for level in (1, 2, 3)]
    about: dict[str, Any] = {"launches": 3, "round": 3, "step_ms": 20.0, "peak_mib": 1000.0}
    candidates = {
        name: Candidate(throughput_per_s=400.0 - at, why_not=None, beaten=None, **about)
        for at, name in enumerate(names)
    }
    search: dict[str, Any] = {"asked": ("ddp",), "finalists": tuple(names), "leanest": names[0], "stopped_by": "race"}
    search |= {"budget_s": 60.0, "memory_limit_mib": None, "floor": "half", "allow": (), "baseline": "ddp"}
    tuning = Tuning(candidates=candidates, **search)
    launches = [replace(DDP, scenario=name) for name in names]
    run = analysed(write_run(tmp_path, launches, also=lambda writer: writer.note(tuning)))
    assert_apart(plots.search_plot, run, [f"{name}  {400 - at}.0 img/s" for at, name in enumerate(names)])
    short = replace(run, document=with_records(run.document, replace(tuning, launches=run.document.launches[:1])))
    assert search_words(short)[0].startswith("The race took 1 launch (numerics at least half). It ended")


def test_the_bracket_of_a_search_can_be_read(tmp_path: Path) -> None:
    names = [f"{number:010x}" for number in range(40)]
    shown = [names[at] for at in (0, 20, 21, 39)]
    levels = {name: Level(ratio=1.0, low=0.9, high=1.1) for name in shown}
    search: dict[str, Any] = {"of": "commits", "metric": "step time", "error": 0.05, "low": shown[1], "high": shown[2]}
    bisected = Bisected(candidates=dict.fromkeys(names, "a change"), levels=levels, **search)
    launches = [replace(DDP, scenario=name) for name in shown]
    run = analysed(write_run(tmp_path, launches, also=lambda writer: writer.note(bisected)))
    assert_apart(plots.bisection_plot, run, shown)


def assert_apart(draw: Any, run: Analysed, begins: list[str]) -> None:
    """In a plot there is one text that begins so for each of these, and they do not cover each other."""
    for width_in in (drawing.WIDE_IN, drawing.NARROW_IN):
        with drawing.styled(width_in):
            figure = draw(run).figure
            texts = [text for text in figure.findobj(Text) if text.get_visible()]
            found = [[one for one in texts if one.get_text().strip().startswith(begin)] for begin in begins]
            boxes = [one.get_window_extent(figure.canvas.get_renderer()) for (one,) in found]
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def svg_texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")]


def test_plots_name_only_what_really_ran(mixed: Written) -> None:
    for name in ("step-times", "phases", "elapsed"):
        texts = svg_texts(mixed.text(f"{name}.svg"))
        assert "native flat-bucket · gloo ×2 · fp32" in texts
        assert "torch DDP · gloo ×2 · native O2 bf16" in texts
        assert not [text for text in texts if re.match(r"dp\b|ddp_o1", text)]
        assert "resnet18, 32 px, global batch 8 · 2 CPU ranks on A CPU of <i>evil</i> $x_1$, 2 cores" in texts
    page = Page(mixed.text("index.html")).text
    assert page.count("Left out: dp (unsupported), ddp_o1 (error).") == 6
    assert "Left out: apex_ddp (no value), dp (unsupported)." in page and "(no results)" not in page


def test_every_measured_step_is_a_dot_at_its_place(mixed: Written) -> None:
    root = ElementTree.fromstring(mixed.text("step-times.svg"))

    def places(name: str) -> list[float]:
        (dots,) = [node for node in root.iter() if node.attrib.get("id") == f"dots-{name}"]
        return [float(node.attrib["x"]) for node in dots.iter() if node.tag.endswith("}use")]

    slope, offset = np.polyfit([40, 40, 30, 60], places("ddp"), 1)  # the slowest rank of each step
    assert slope > 0 and np.polyval([slope, offset], [40, 40, 30, 60]) == pytest.approx(places("ddp"), abs=1e-3)
    assert np.polyval([slope, offset], [10, 10, 20, 20]) == pytest.approx(places("ddp_o2"), abs=1e-3)


def test_lines_are_of_all_steps_and_of_each_process(mixed: Written) -> None:
    svg = mixed.text("distribution.svg")
    assert "ddp: 95 % of the steps within 57.0 ms, 99 % within 59.4 ms" in svg  # of 40, 40, 30 and 60
    assert {"ddp  95 % within 57.0 ms", "apex_ddp  95 % within 50.0 ms"} <= set(svg_texts(svg))
    texts = svg_texts(mixed.text("memory.svg"))
    assert {"rank 0 · PID 0", "rank 1 · PID 1", "rank 0 · PID 400", "rank 1 · PID 401"} <= set(texts)
    assert {"ddp_o1 (error)", "MiB (rss)"} <= set(texts) and "apex_ddp" not in texts


def test_csv_has_the_figures_of_the_steps(mixed: Written) -> None:
    rows = {row["scenario"]: row for row in csv.DictReader(StringIO(mixed.text("summary.csv")))}
    assert list(rows) == ["ddp", "ddp_o2", "apex_ddp", "dp", "ddp_o1"]
    ddp = rows["ddp"]
    names = ("step_median_ms", "throughput_per_s", "step_p95_ms", "peak_pid_mib", "peak_total_mib")
    # 0.85 of the way from 40 to 60 ms
    assert [float(ddp[name]) for name in names] == pytest.approx([40.0, 200.0, 57.0, 300.0, 500.0])
    assert ddp["run"] == mixed.run.id and float(rows["ddp_o2"]["relative_to_ddp"]) == pytest.approx(40 / 15)
    assert rows["apex_ddp"]["peak_total_mib"] == "" and rows["apex_ddp"]["throughput_per_s"] == "160.0"
    assert [rows["dp"][name] for name in ("throughput_per_s", "status", "reason")] == ["", "unsupported", GONE.reason]
    assert (rows["ddp_o1"]["status"], rows["ddp_o1"]["launches_ok"]) == ("error", "0")


def read_back(*launches: Launch) -> pd.DataFrame:
    return pd.DataFrame([row for number, launch in enumerate(launches) for row in launch.step_rows(number, number)])


def test_a_loss_that_is_not_finite_is_a_dash(mixed: Written) -> None:
    steps = read_back(Launch("ddp", [[9, 9, 9]] * 2), Launch("ddp", [[9, 9]]))
    steps.loc[(steps["rank"] == 1) & (steps["step"] >= 1), "loss"] = [math.inf, math.nan]
    table = losses(iterations(steps)).set_index("launch")
    assert math.isnan(table["last_loss"][0]) and table["first_not_finite"][0] == 1
    assert table["last_loss"][1] == 6.0
    *_, last = launch_tables.launches_table(mixed.run).rows[1]
    assert (last.text, last.small) == ("3", "not finite from step 3 on"), "the last is a number"
    page = Page(mixed.text("index.html")).text
    assert page.count("not finite from step") == 1 and "not finite from step 3 on" in page and "<NA>" not in page
    assert "Fastest, untested (one launch): ddp, 200.0 img/s" in page
    assert "ddp_o2 (533.3 images a second) was faster and is not recommended: not finite." in page


def test_what_is_unknown_about_memory_says_why(mixed: Written) -> None:
    table = summary.summary_table(mixed.run)
    (unknown,) = ([cell.text for cell in row[5:7]] for row in table.rows if row[0].text == "apex_ddp")
    assert unknown == ["–", "–"] and table.marked is None, "one launch each is no test"
    assert any(note.startswith("Source of memory: rss (ddp, ddp_o2); unavailable (apex_ddp)") for note in table.notes)
    assert "Memory of apex_ddp is unknown, or a part of it: it hid." in table.notes


def test_markdown_is_inert_and_its_tables_are_whole(mixed: Written) -> None:
    text = mixed.text("summary.md")
    assert "\nLabel: \\<script\\>alert('x')\\</script\\> \\& \"quoted\" \\| \\*pipe\\*\n" in text
    unescaped = re.compile(r"(?<!\\)\|")
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    headings = [block[0].split(" | ")[0] for block in blocks]
    assert headings == ["| scenario", "| finding", *["| scenario"] * 3]
    assert [len(block) - 2 for block in blocks if block[0].startswith("| scenario")] == [5, 3, 3, 5]
    for block in blocks:
        assert len({len(unescaped.findall(line)) for line in block}) == 1
    assert "| ddp_o2 | 533.3 | 15.0 |" in text


def test_each_figure_of_the_summary_has_its_bar(tmp_path: Path, plotting: Plotting) -> None:
    launches = [Launch("ddp", [[9, ms, ms]], [[100.0], [100.0]]) for ms in (40, 41, 42)]
    run = analysed(write_run(tmp_path, [*launches, Launch("ddp_o2", [[9, 20, 20]], precision="O2")]))
    table = summary.summary_table(run)
    alone, ddp = ([(cell.text, cell.small) for cell in row[1:7]] for row in table.rows)
    # Logarithms of 40, 41, 42 deviate by 0.0244; times t (4.303 at 2 degrees of freedom) over root 3: 0.061, so +6.2 %.
    assert [small for _, small in ddp] == ["±6.2%"] * 3 + [""] * 3
    assert [text for text, _ in ddp] == ["195.2", "41.0", "41.0", "1.00", "100", "200"]
    assert [small for _, small in alone] == [""] * 6
    assert table.notes[0] == "±: the wider side of the 95 % interval over launches."
    assert "| ddp | 195.2 ±6.2% | 41.0 ±6.2% |" in report.render([run])["summary.md"].decode()
    assert {"41.0 ms · 195.2 img/s ±6.2%", "20.0 ms · 400.0 img/s"} <= set(svg_texts(plot_of(run, "step-times").svg))
    (ddp_row, _) = csv.DictReader(StringIO(values.csv([values.of_run(run, run.overview)])))
    assert float(ddp_row["step_high_ms"]) / float(ddp_row["step_median_ms"]) == pytest.approx(1.0625, abs=5e-4)


def test_the_published_form_has_ratios_and_sums(mixed: Written) -> None:
    ratios, table = summary.published_tables(mixed.run)
    assert sum(map(sum, published.PUBLISHED_S.values())) == pytest.approx(269.8), "of the blog post"
    rows = {row[0].text: [cell.text for cell in row] for row in table.rows}
    # Iterations 0, 1, 2, 3, 4 of rank 0: 90, 130, 150, 180, 240 ms; of rank 1: 80, 100, 140, 170, 180 ms.
    assert " ".join(rows["ddp"]) == "ddp 0.09 0.13 0.15 0.18 0.24 0.4 2.5 4.6 6.7 8.7"
    assert rows["dp"] == ["dp", *"–––––", "5.6", "9.2", "12.8", "16.3", "20.4"]
    assert rows["ddp_o1"][1:6] == [*"–––––"]  # it failed, whatever steps one of its ranks has left
    assert [span for _, span in table.groups] == [1, 5, 5] and "three GPUs" in " ".join(table.notes)
    assert [" ".join(cell.text for cell in row) for row in ratios.rows] == [
        *("ddp 1.00 1.00", "ddp_o2 0.46 1.21", "apex_ddp 1.21 1.18", "dp – 2.34", "ddp_o1 – 1.47")  # 110 / 240 ms
    ]


def test_published_times_stand_beside_their_like(tmp_path: Path, plotting: Plotting) -> None:
    settings = {"model": "resnet101", "image_size": 224, "learning_rate": 0.01}
    run = analysed(write_run(tmp_path, [DDP], about={"workload": {"device": "cuda", "settings": settings}}))
    assert published.TITLE in Page(report.render([run])["index.html"].decode()).text
    for other in ({"device": "cpu"}, {"settings": settings | {"model": "resnet18"}}):
        assert not published.is_alike(replace(run.document, workload=replace(run.document.workload, **other)))


def test_ranks_are_drawn_as_their_steps_were(tmp_path: Path) -> None:
    steps = [[90, 40, 40, 40, 40], [80, 20, 20, 20, 20]]
    run = analysed(write_run(tmp_path, [Launch(name, steps, strategy="ddp") for name in ("ddp", "ddp_o1")]))
    texts = svg_texts(plot_of(run, "ranks").svg)
    assert {"ddp", "rank", "0", "1", "forward", "backward incl. communication"} <= set(texts) and "ddp_o1" not in texts
    rows = excerpt(run, 0, 3, 4)
    assert rows[["rank", "step"]].to_numpy().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4]]
    file = Path(run.path) / "steps.parquet"
    pd.read_parquet(file).assign(**{f"{phase}_ms": math.nan for phase in PHASES}).to_parquet(file)
    assert plots.ranks(run) is None, "without phases, as of an attached script, there is nothing to draw"


def test_details_show_dtypes_with_their_shares(mixed: Written, tmp_path: Path) -> None:
    alike, table = launch_tables.details(mixed.run)
    names = [column.heading for column in table.columns]
    rows = {row[0].text: dict(zip(names, [cell.text for cell in row], strict=True)) for row in table.rows}
    ddp_o2 = [rows["ddp_o2"][name] for name in ("parameters", "gradients", "compute")]
    assert ddp_o2 == ["bf16 99.8 % + fp32 0.2 %", "bf16 99.8 % + fp32 0.2 %", "bf16"]
    assert {"backend × ranks": "gloo × 2", "batch norm": "fp32"}.items() <= dict(alike).items()
    assert {text for name, text in rows["dp"].items() if name != "scenario"} == {"–"}
    assert not set(dict(alike)) & set(names)
    assert "parallel.<wbr>distributed.<wbr>DistributedDataParallel" in mixed.text("index.html"), "it breaks at a dot"
    alike, table = launch_tables.details(analysed(write_run(tmp_path, [DDP, replace(DDP, scenario="again")])))
    assert alike and table is None, "nothing differs"


def test_details_say_where_cudnn_does_not_search(tmp_path: Path) -> None:
    tf32 = Tf32(cudnn=True, matmul=False)
    ran = ({"cudnn_benchmark": benchmark, "tf32": tf32} for benchmark in (True, False, None))
    _, table = launch_tables.details(ran_with(analysed(write_run(tmp_path, [DDP, FAST, APEX])), *ran))
    column = [column.heading for column in table.columns].index("cuDNN autotuning")
    assert [row[column].text for row in table.rows] == ["on", "off", "–"]
    assert f"cuDNN autotuning is off for {FAST.scenario}: " in " ".join(table.notes)


def test_quartiles_pool_steps_and_medians_launches(tmp_path: Path) -> None:
    run = analysed(write_run(tmp_path, [Launch("ddp", [[0, k, k + 0.5, k + 6]]) for k in (1, 2, 3)]))
    (row,) = run.spread.to_dict("records")
    assert row["median_ms"] == pytest.approx((1.5 * 2.5 * 3.5) ** (1 / 3))
    assert (row["p25_ms"], row["p75_ms"]) == (2.0, 7.0)  # of 1 1.5 2 2.5 3 3.5 7 8 9


FAILED = Launch("ddp_o2", [[9, 9]], [[1.0]], precision="O2", status="killed", reason="SIGKILL")
SINGLE, DP = Launch("single", [[9, 8]], strategy="single"), Launch("dp", [[9, 8]], strategy="dp")
KNOWN = timed({"ddp": (40, 41, 42), "ddp_o2": (20, 20, 20)})


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ([DDP, FINITE], ("Fastest, untested (one launch): ddp_o2, 533.3 img/s, 2.67 times as fast as ddp.",)),
        ([DDP], ("Result: ddp, 200.0", "gloo over loopback")),
        ([GONE, BROKEN], ("No valid result: no scenario has results",)),
        ([DDP, SINGLE], ("(one launch): single, 1,000.0 img/s", "Only valid result on 2 replicas: ddp, 200.0")),
        (KNOWN, ("Fastest: ddp_o2, 400.0 ±0.0% img/s, 2.05 (",)),
        (timed({"ddp": (1, 9000), "ddp_o2": (1, 20)}), (" (0.00 to over 1,000,000) times as fast as ddp.",)),
        ([FAST], ("No valid result: no sc", "a second) is not recommended: not finite.")),
        ([DDP, FAILED, FAST, FAST], ("Only valid result: ddp, 200.0 img/s",)),
        ([APEX, DP], ("No apex was involved in apex_ddp:", "DataParallel a pass-through")),
    ],
)
def test_answers(launches: list[Launch], expected: tuple[str, ...], tmp_path: Path) -> None:
    run = analysed(write_run(tmp_path, launches), allow_incomplete=True)
    table = values.of_run(run, run.overview)
    said = " ".join([answer(run.document, table), *caveats(run.document, table)])
    assert [part for part in expected if part not in said] == []
    assert "was faster" not in said or len(launches) > 1
    assert ("pass-through" in said) == (DP in launches)


def test_a_run_on_the_cpus_of_two_hosts_names_both(tmp_path: Path) -> None:
    run = analysed(write_run(tmp_path, [DDP]))
    about: dict[str, Any] = {"machine": run.document.machine, "versions": {}, "start": run.document.start}
    document = replace(run.document, hosts=tuple(HostRecord(name=name, **about) for name in "ab"))
    assert "over loopback" not in " ".join(caveats(document, run.overview))
    assert ("Hosts", "a and b; of the first:") in launch_tables.facts(document)


def test_what_is_invalid_is_named_where_no_speed_is_known(tmp_path: Path) -> None:
    hot = replace(DDP, checks={"throttle": {"verdict": "invalid", "devices": {"GPU-a": ["thermal slowdown"]}}})
    run = analysed(write_run(tmp_path, [hot], about={"workload": {"global_batch": None}}))
    assert "ddp is not recommended: throttled." in caveats(run.document, run.overview)
    headings = {column.heading for column in summary.summary_table(run).columns}
    assert "step ms" in headings and not {"img/s", "speed ÷ ddp"} & headings


def test_a_step_of_less_than_a_millisecond_keeps_three_digits(tmp_path: Path) -> None:
    fast = Launch("ddp", [[9, 0.1475, 0.1475]], [[100.0]])
    table = summary.summary_table(analysed(write_run(tmp_path, [fast])))
    shown = {column.heading: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert (shown["img/s"], shown["step ms"], shown["p95 ms"]) == ("54,237.3", "0.147", "0.147")


def test_a_failed_launch_is_shown_if_no_other_has_rows(tmp_path: Path) -> None:
    run = analysed(write_run(tmp_path, [DDP, FAILED, FAST, FAST]))
    launches = {name: launch.launch for name, launch in shown(run.document, run.iterations.frame).items()}
    assert launches == {"ddp": 0, "ddp_o2": 2}
    assert shown(run.document, run.iterations.of(1).frame)["ddp_o2"].status == "killed"


def test_report_says_how_long_a_training_takes(tmp_path: Path, bench: Bench, plotting: Plotting) -> None:
    slow, fast = Launch("ddp", [[9, 80, 80]]), Launch("ddp_o2", [[9, 40, 40]], precision="O2")
    write_run(tmp_path / "results", [slow, fast])
    code, out, err = bench("report", "--out", "out", "latest", "--epochs", "90", "--dataset-size", "1281167", "--json")
    expected = "90 epochs of 1,281,167 images take 6.7 days with ddp_o2, in place of 13.3 days with ddp, at this speed"
    assert code == 0 and expected in err
    assert expected in (tmp_path / "out" / "summary.md").read_text()
    assert expected in Page((tmp_path / "out" / "index.html").read_text()).text
    times = {row["scenario"]: row["seconds"] for row in json.loads(out)["training"]}
    assert times == {"ddp": pytest.approx(90 * 1281167 / 100), "ddp_o2": pytest.approx(90 * 1281167 / 200)}
    code, _, err = bench("report", "--out", "out", "latest", "--epochs", "90")
    assert code == 2 and "--epochs" in err and "--dataset-size" in err


def test_several_runs_share_a_page(tmp_path: Path, bench: Bench, plotting: Plotting) -> None:
    plotting(plots.speeds, plots.before_plot)
    first = write_run(tmp_path / "results", [DDP], label="before")
    second = write_run(tmp_path / "results", [DDP, FAST], label="after")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    document = bench("report", "--out", "out", first.name, second, "--json").well()
    assert [row["run"] for row in document["summary"]] == [first.name, second.name, second.name]
    names = {f"{run.name}-speed.{kind}" for run in (first, second) for kind in ("svg", "png")}
    names |= {f"{second.name}-since-before.{kind}" for kind in ("svg", "png")}
    names |= {"index.html", "summary.csv", "summary.md", "findings.csv", "parity.csv"}
    assert set(os.listdir(tmp_path / "out")) == {"mine.txt", *names}
    assert {os.path.basename(path) for path in document["files"]} == names
    page = Page((tmp_path / "out" / "index.html").read_text())
    assert page.tags["section"] == 2 and page.tags["svg"] == 2 * (2 + 1)
    assert "What changed since the run before?" in page.texts
    assert any(text.startswith("ddp_o2: not comparable") for text in page.texts), "a scenario is called by its name"
    ids = Counter(value for _, name, value in page.attributes if name == "id")
    assert max(ids.values()) == 1
    rows = list(csv.DictReader(StringIO((tmp_path / "out" / "summary.csv").read_text())))
    several = [(first.name, "ddp"), (second.name, "ddp"), (second.name, "ddp_o2")]
    assert [(row["run"], row["scenario"]) for row in rows] == several


def test_the_page_of_a_run_in_which_nothing_ran(tmp_path: Path, bench: Bench) -> None:
    write_run(tmp_path / "results", [GONE])
    assert bench("report", "--out", "out", "--json").well()["summary"][0]["throughput_per_s"] is None
    assert sorted(os.listdir(tmp_path / "out")) == ["index.html", "summary.csv", "summary.md"]
    assert "There is nothing to plot: dp (unsupported)." in Page((tmp_path / "out" / "index.html").read_text()).text
    (tmp_path / "taken" / "summary.md").mkdir(parents=True)
    code, _, err = bench("report", "--out", "taken")
    assert code == 2 and "summary.md is a folder" in err and os.listdir(tmp_path / "taken") == ["summary.md"]


def test_an_incomplete_run_is_read_in_part(tmp_path: Path, bench: Bench, plotting: Plotting) -> None:
    write_run(tmp_path / "results", [DDP], scenarios=["ddp", "ddp_o3"], complete=False)
    rows = bench("report", "--out", "out", "--allow-incomplete", "--json").well()["summary"]
    assert [row["status"] for row in rows] == ["ok", "not run"]
    text = Page((tmp_path / "out" / "index.html").read_text()).text
    for said in ("This run is incomplete", "ddp_o3: not run: this run has no launch of it", "no end was recorded"):
        assert said in text


def test_full_disk_leaves_the_earlier_report_as_it_was(tmp_path: Path, bench: Bench) -> None:
    write_run(tmp_path / "results", [GONE])
    assert bench("report", "--out", "out")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    smallest = min(len(content) for content in before.values())
    write_run(tmp_path / "other", [GONE, BROKEN])
    with full_after(smallest):
        code, _, err = bench("report", "--out", "out", "--results", str(tmp_path / "other"), "latest")
    assert code == 2 and "cannot be written: File too large" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_long_line_keeps_its_ends_and_extremes() -> None:
    steps = np.arange(100_000)
    values = np.zeros(len(steps))
    values[41], values[70_001] = 9.0, -9.0
    row = drawing.Entry(scenario="ddp", label="", colour="ink", dash="solid", marker="o")
    with drawing.styled():
        _, (axes,) = drawing.sheet(2.0)
        drawn = drawing.line_of(axes, row, steps, values).get_xydata().tolist()
    assert len(drawn) < 3 * drawing.MOST_COLUMNS
    assert all(point in drawn for point in ([0, 0], [41, 9], [70_001, -9], [99_999, 0]))


def test_many_steps_are_drawn_in_part(tmp_path: Path) -> None:
    many = [[5.0, *(10.0 + step % 7 for step in range(2 * plots.DOTS_PER_SCENARIO - 1))]]
    run = analysed(write_run(tmp_path, [Launch("ddp", many)]))
    plot = plot_of(run, "step-times")
    assert plots.DOTS_PER_SCENARIO <= plot.svg.count("<use ") < 1.2 * plots.DOTS_PER_SCENARIO
    assert "one measured step (1 in 2 drawn)" in svg_texts(plot.svg)
    assert run.overview["step_median_ms"].tolist() == [13.0]


def test_one_noisy_scenario_flattens_no_other(tmp_path: Path) -> None:
    quiet, noisy = [9, *[40, 42] * 9], [9, *[50, 52] * 5, *[700, 800] * 4]
    run = analysed(write_run(tmp_path, [Launch("ddp", [quiet]), Launch("ddp_o2", [noisy])]))
    plot = plot_of(run, "step-times")
    assert "steps beyond the axis" in svg_texts(plot.svg)
    assert "ddp_o2: 8 steps beyond the axis, up to 800.0 ms" in plot.svg
    assert "100" not in svg_texts(plot.svg), "of a tick"
