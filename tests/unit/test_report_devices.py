"""What a report says of memory, power, energy and heat: of runs on two GPUs and on the CPU, written by hand."""

import csv
import errno
import os
import re
import select
import signal
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from conftest import Plotting
from standin.documents import launch
from standin.gpu_runs import DDP2, DP, FIRST, GPUS, SECOND, OnGpus
from standin.runs import BROKEN, DDP, FAST, GONE, HOSTILE, SECOND_NS, Launch, analysed, write_run
from test_report import Page, plot_of, svg_texts

from bench.analyse import devices, digest, each
from bench.analyse.analysed import Analysed
from bench.analyse.memory import growth, largest_launches, proportional, resident
from bench.core.text import printable
from bench.report import device_plots, device_tables, drawing, plots, summary, tables, values
from bench.report import runs as report
from bench.report.launch_tables import facts
from bench.runs.document import HostRecord
from bench.runs.experiments import PointRecord, ProofLaunch, Proofs, Scaling
from bench.runs.frames import Iterations
from bench.runs.writer import RunWriter
from bench.words.questions import questions

HOT = replace(DDP2, scenario="ddp_o2", precision="O2", bits={FIRST: 0x40}, watts={FIRST: 350.0, SECOND: 355.0})
HIDDEN = replace(DDP2, scenario="apex_ddp", strategy="apex_ddp", bits={})
HIDDEN = replace(HIDDEN, held={(0, FIRST): None, (1, SECOND): 7000.0}, watts={FIRST: None, SECOND: 200.0})
OUT = replace(DP, scenario="ddp_o3", strategy="ddp", steps_ms=[], status="oom", reason=HOSTILE, reserved={}, watts={})


def written(folder: Path, launches: list[Launch], gpus: Any = GPUS, **options: Any) -> Analysed:
    return analysed(write_run(folder, launches, gpus=gpus, **options), allow_incomplete=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    return written(tmp_path_factory.mktemp("whole"), [DP, DDP2, HOT, HIDDEN, OUT])


def test_gpus_of_all_hosts_are_named(whole: Analysed) -> None:
    """Of two hosts with a GPU each, which has the index 0 on both."""
    document, hosts = whole.document, []
    for number, gpu in enumerate(document.machine.gpus):
        there = replace(document.machine, host=f"node{number}", gpus=(replace(gpu, index=0),))
        hosts.append(HostRecord(name=f"node{number}", machine=there, versions={}, start=document.start))
    ddp = next(one for one in document.good if one.scenario == "ddp")
    points = []
    for slot, host in enumerate(hosts):
        about = {one.name: getattr(ddp, one.name) for one in fields(ddp)}
        about |= {"launch": 100 + slot, "ranks": (replace(ddp.ranks[0], host=host.name),), "status": "error"}
        points.append(PointRecord(**about, global_batch=8, slot=slot))
    scaling = Scaling(counts=(2,), modes=("each",), batch_per_rank=8, launches=tuple(points))
    several = replace(document, machine=hosts[0].machine, hosts=tuple(hosts), experiments={"scaling": scaling})
    assert drawing.device(several) == drawing.device(document) != ""
    both = digest.of_run(replace(whole, document=several))
    assert len(both["hardware"]) == len(both["conditions"]["power_limit_w"]) == 2
    assert all(gpu in dict(facts(several))["GPUs"] for gpu in (FIRST, SECOND))
    names = [one.name for one in each.devices(replace(whole, document=several))]
    assert names == ["node0 GPU 0", "node1 GPU 0"]


def test_cpus_of_all_hosts_are_named(whole: Analysed) -> None:
    """And the CPU of the one host that most runs have."""
    machine = replace(whole.document.machine, cpu="EPYC", cores_usable=8)
    on_cpu = replace(whole.document.workload, device="cpu", replicas=4)
    document, start = replace(whole.document, workload=on_cpu, machine=machine), whole.document.start
    assert drawing.device(document) == "4 CPU ranks on EPYC, 8 cores"
    machines = (machine, machine, replace(machine, cpu="Xeon"))
    hosts = tuple(HostRecord(name="n", machine=one, versions={}, start=start) for one in machines)
    named = drawing.device(replace(document, hosts=hosts))
    assert named == "4 CPU ranks on 2 hosts with EPYC, 8 cores + 1 host with Xeon, 8 cores"
    of_all = digest.of_run(replace(whole, document=replace(document, hosts=hosts)))
    assert of_all["hardware"] == ["EPYC", "EPYC", "Xeon"]


@pytest.fixture(scope="module")
def files(whole: Analysed) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "DRAWINGS", (plots.memory_stack, plots.power))
        return report.render([whole])


def cells(table: tables.Table | None) -> list[list[str]]:
    assert table is not None
    assert {len(row) for row in table.rows} == {len(table.columns)}
    return [[cell.text for cell in row] for row in table.rows]


def shapes(svg: str, prefix: str) -> list[tuple[str, list[tuple[float, float]]]]:
    found = []
    for node in ElementTree.fromstring(svg).iter():
        if node.attrib.get("id", "").startswith(prefix):
            paths = " ".join(inner.attrib["d"] for inner in node.iter() if "d" in inner.attrib)
            pairs = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", paths)
            found.append((node.attrib["id"], [(float(x), float(y)) for x, y in pairs]))
    return found


def height(points: list[tuple[float, float]]) -> float:
    return max(y for _, y in points) - min(y for _, y in points)


def test_a_stack_names_gpus_processes_and_launches(files: dict[str, bytes]) -> None:
    svg = files["memory-stack.svg"].decode()
    texts = svg_texts(svg)
    assert texts.count("PID 4000") == 2 and texts.count("PID 4010") == texts.count("PID 4011") == 1
    names = [text for text in texts if text.startswith("GPU ")]
    assert names == ["GPU 0: NVIDIA Some GPU <b>80GB</b>", "GPU 1: NVIDIA Some GPU <b>80GB</b>"]
    first, second = (height(points) for name, points in shapes(svg, "stack-0-") if name == "stack-0-0-4000")
    assert first / second == pytest.approx(9000 / 6000, rel=0.01)
    key = {"1  dp", "2  ddp", "3  ddp_o2", "4  apex_ddp", "5  ddp_o3 (oom)"}
    assert key | {"unknown for a process", "rank 0", "rank 1"} <= set(texts)
    assert [text for text in texts if text in "12345"] == ["1", "2", "3", "4", "5"]
    drawn = dict(shapes(svg, "stack-3-"))
    assert drawn["stack-3-1-4031"] and not drawn["stack-3-0-4030"]


def test_a_stack_stands_on_the_process_before(tmp_path: Path) -> None:
    run = written(tmp_path, [DDP, BROKEN], ())
    plot = plot_of(run, "memory-stack")
    drawn = dict(shapes(plot.svg, "stack-0-"))
    lower, upper = drawn["stack-0-0-0"], drawn["stack-0-1-1"]
    assert min(y for _, y in lower) == pytest.approx(max(y for x, y in upper if x > upper[0][0] + 1), abs=0.1)
    assert height(lower) / (max(y for _, y in lower) - min(y for _, y in upper)) == pytest.approx(300 / 500, rel=0.01)
    assert "sum of PSS" not in svg_texts(plot.svg) and "where it was sampled" in plot.caption
    table = device_tables.beside_torch_table(run)
    assert cells(table) == [["ddp", "0", "0", "0", "300", "–", "–"], ["ddp", "0", "1", "1", "200", "–", "–"]]
    assert table is not None and "Unknown of ddp: there is no sample of it." in table.notes
    assert resident(run.document.launches, run.memory)["launch"].unique().tolist() == [0]
    two = device_tables.beside_torch_table(written(tmp_path / "two", [DDP, FAST], ()))
    assert two is not None and two.notes[2:] == ("Unknown of ddp and ddp_o2: there is no sample of it.",)


@dataclass
class WithPss(Launch):
    def memory_rows(self, launch: int) -> list[dict[str, Any]]:
        rows = super().memory_rows(launch)
        return [row | {"pss_mib": 0.75 * row["used_mib"] if number % 2 else None} for number, row in enumerate(rows)]


def test_proportional_sizes_beside_resident_ones(tmp_path: Path) -> None:
    run = written(tmp_path, [WithPss("ddp", [[9, 8]] * 2, [[100.0, 400.0], [100.0, 200.0]])], ())
    assert proportional(run.memory)["pss_mib"].tolist() == [450.0]
    plot = plot_of(run, "memory-stack")
    assert "sum of PSS" in svg_texts(plot.svg) and "shared pages count once" in plot.caption
    table = device_tables.beside_torch_table(run)
    assert [row[-3:] for row in cells(table)] == [["400", "–", "300"], ["200", "–", "150"]]


def test_memory_beside_torch_names_the_difference(whole: Analysed) -> None:
    table = device_tables.beside_torch_table(whole)
    rows = cells(table)
    assert rows[:4] == [
        ["dp", "0", "0", "4000", "0", "9,000", "nvml_pid", "8,100", "8,400", "600"],
        ["dp", "0", "0", "4000", "1", "6,000", "nvml_pid", "5,200", "5,500", "500"],
        ["ddp", "1", "0", "4010", "0", "7,000", "nvml_pid", "6,000", "6,300", "700"],
        ["ddp", "1", "1", "4011", "1", "7,100", "nvml_pid", "6,100", "6,400", "700"],
    ]
    hidden = rows[6]
    assert hidden == ["apex_ddp", "3", "0", "4030", "0", "–", "torch_allocator", "6,000", "6,300", "–"]
    notes = " ".join(table.notes)
    assert "nvml_pid: what the driver lists" in notes and "torch_allocator: the driver gave nothing" in notes


def test_the_largest_launch_of_a_scenario_is_shown(tmp_path: Path) -> None:
    larger = replace(DP, held={(0, FIRST): 9500.0, (0, SECOND): 6000.0})
    failed = replace(DP, held={(0, FIRST): 20000.0}, status="oom", reason="no memory")
    run = written(tmp_path, [DP, larger, larger, failed])
    assert largest_launches(run.document, run.peaks) == {"dp": 1}
    assert [row[1] for row in cells(device_tables.beside_torch_table(run))] == ["1", "1"]


def test_energy_and_heat_of_each_scenario(whole: Analysed) -> None:
    table = device_tables.energy_table(whole)
    rows = {row[0]: row[1:] for row in cells(table)}
    # 500 W over 12 s; 24 steps of 8 images. The counters of PCIe rise by 50 and 80 MiB/s on each of two GPUs.
    assert rows["dp"] == [
        *("1", "6,000", "31,250", "counter", "500", "500", "1,800", "1,200", "60", "nothing"),
        *("100", "160"),
    ]
    assert rows["apex_ddp"][:6] == ["1", "–", "–", "–", "–", "–"]
    assert "ddp_o3" not in rows
    assert table is not None
    held_back = {row[0].text: (row[10].text, row[10].tone) for row in table.rows}
    assert held_back["ddp"] == ("power cap", "doubt")
    assert held_back["ddp_o2"] == ("thermal slowdown (hardware)", "bad")
    notes = " ".join(table.notes)
    assert "Energy of apex_ddp is unknown, or a part of it: the driver gives neither energy nor power" in notes
    assert "A dash, or no column: the driver does not offer it" in notes
    assert "Activity of dp, ddp, ddp_o2 and apex_ddp is unknown, or a part of it: this GPU has no GPM metrics" in notes


def test_energy_over_launches_has_an_interval(tmp_path: Path) -> None:
    run = written(tmp_path, [replace(DP, watts={FIRST: watts, SECOND: watts}) for watts in (100.0, 110.0, 121.0)])
    table = device_tables.energy_table(run)
    assert cells(table)[0][1:4] == ["3", "2,640", "13,750"]  # the geometric mean: 220 W
    # Logarithms a step of ln 1.1 apart, times t (4.303) over root 3: 0.2368, so +26.7 %.
    assert table is not None and table.rows[0][2].small == "±27%"
    (row,) = csv.DictReader(StringIO(values.csv([run.overview])))
    ends = [float(row[f"energy_per_1000_{end}j"]) for end in ("", "high_")]
    assert ends == pytest.approx([13750.0, 13750.0 * 1.267], rel=1e-3)
    shown = summary.summary_table(run)
    at = [column.heading for column in shown.columns].index("J per 1,000 images")
    assert (shown.rows[0][at].text, shown.rows[0][at].small) == ("13,750", "±27%")


def test_the_power_plot(whole: Analysed, files: dict[str, bytes]) -> None:
    texts = svg_texts(files["power.svg"].decode())
    assert {"300 W", "200 W", "at its power cap", "held back by heat or protection"} <= set(texts)
    rows = list(csv.DictReader(StringIO(files["energy.csv"].decode())))
    assert [row["energy_j"] for row in rows[:2]] == ["3600.0", "2400.0"]
    stretches = devices.throttled_stretches(whole.device)
    rows = stretches[["launch", "device", "verdict"]].to_numpy().tolist()
    assert rows == [[1, SECOND, "warning"], [2, FIRST, "invalid"]]
    assert ((stretches["end_ns"] - stretches["start_ns"]) / SECOND_NS).tolist() == pytest.approx([1.0, 1.0])


def test_without_a_device_the_page_says_why(tmp_path: Path, plotting: Plotting) -> None:
    plotting(plots.power)
    run = written(tmp_path, [DDP, DDP], ())
    rendered = report.render([run])
    page = Page(rendered["index.html"].decode())
    assert page.texts.count("Energy, power and heat are unknown: they are measured on GPUs only.") == 1
    assert not {"power.svg", "energy.csv", "memory-beside-torch.csv"} & set(rendered)
    heading = [column.heading for column in summary.summary_table(run).columns]
    assert "J per 1,000 images" not in heading
    silent = written(tmp_path / "silent", [replace(DP, watts={})])
    assert "has a sample of a device" in device_tables.no_energy(silent)
    dead = written(tmp_path / "dead", [replace(DP, status="error", reason="boom")])
    assert "no launch that ended well" in device_tables.no_energy(dead) and device_tables.energy_table(dead) is None


def test_the_memory_answer_names_gpus_of_dataparallel(whole: Analysed) -> None:
    said = dict(questions(whole))
    assert said["Which uses the most memory?"].endswith(
        "dp: one process, 9,000 MiB on GPU 0 and 6,000 MiB on GPU 1. Its peak on GPU 0 is 1.50 times that on GPU 1. "
        "ddp: 2 processes, 7,000 MiB on GPU 0 and 7,100 MiB on GPU 1."
    )
    assert "Of what torch reserved, tensors never held " in said["Is memory fragmented or growing?"]


@pytest.mark.parametrize(("last", "said"), [(5.0, "No process grows"), (8.0, "It grows while steps are measured: ddp")])
def test_memory_that_grows(tmp_path: Path, last: float, said: str) -> None:
    memory = [[5.0] * 7 + [last] * 6] * 2
    run = written(tmp_path, [Launch("ddp", [[9.0, *[500.0] * 12]] * 2, memory)])
    assert dict(questions(run))["Is memory fragmented or growing?"].startswith(said)


def test_growth_is_read_on_the_clock_of_the_steps() -> None:
    each = {"launch": 0, "device": "cpu", "rank": 0, "pid": 1}
    samples = [
        {**each, "host": host, "t_ns": at, "used_mib": base + by * (at >= 6)}
        for host, base, by in (("a", 100.0, 10.0), ("b", 100.0, 50.0))
        for at in range(12)
    ]
    steps = Iterations(pd.DataFrame({"launch": [0, 0], "host": ["a", "a"]}))
    assert growth(pd.DataFrame(samples), steps, {0: (0, 11), 1: (0, 11)}) == {0: (10.0, 0.1)}


def test_a_device_that_is_held_back_to_the_end() -> None:
    table = pd.DataFrame({"launch": 0, "device": FIRST, "t_ns": range(4), "throttle_reasons": [0, 0x4, 0x44, 0x40]})
    stretches = devices.throttled_stretches(table)[["verdict", "start_ns", "end_ns"]]
    assert stretches.to_numpy().tolist() == [["warning", 1, 2], ["invalid", 2, 3]]


def test_many_samples_are_drawn_in_part() -> None:
    ticks = 5 * drawing.MOST_COLUMNS
    index = pd.Index([tick * SECOND_NS for tick in range(ticks)], name="t_ns")
    values = [9.0 if tick == 1003 else None if tick == 2001 else 1.0 for tick in range(ticks)]
    stack = pd.DataFrame({(0, 7): values}, index=index, dtype="float64")
    stage = device_plots.Stage(figure=None, panels={}, launches=[], origin_ns=0, range_s=float(ticks))
    thin = device_plots._thinned(stage, stack)
    assert len(thin) <= drawing.MOST_COLUMNS + 1
    assert thin[(0, 7)].max() == 9.0 and thin[(0, 7)].isna().sum() == 1


@pytest.mark.parametrize("beside", ["nothing", "untuned", "failed"])
def test_cudnns_search_is_no_part_of_dataparallel(tmp_path: Path, beside: str) -> None:
    untuned = replace(DDP2, scenario="ddp_untuned", steps_ms=[[1.2 * ms for ms in DDP2.steps_ms[0]]] * 2)
    failed = replace(untuned, steps_ms=[], status="oom", reason="out of memory")
    slow = replace(DP, steps_ms=[[2 * ms for ms in steps] for steps in DDP2.steps_ms[:1]])
    also = {"nothing": [], "untuned": [untuned], "failed": [failed]}[beside]
    launches = [replace(one, ran={"cudnn_benchmark": one is DDP2}) for one in (slow, DDP2, *also)]
    (said,) = [text for question, text in questions(written(tmp_path, launches)) if "DataParallel slower" in question]
    known = beside == "untuned"
    assert ("(ddp_untuned): +" in said, "run ddp_untuned beside it" in said, "nan" in said) == (known, not known, False)


def test_who_holds_more_memory_where_only_torch_knows(tmp_path: Path, plotting: Plotting) -> None:
    only = replace(DP, source="torch_allocator")
    less = replace(only, held={place: mib / 2 for place, mib in DP.held.items()})
    less = replace(less, reserved={place: mib / 2 for place, mib in DP.reserved.items()})
    run = written(tmp_path, [less, only])  # the second has the peak of the summary
    said = dict(questions(run))["Which uses the most memory?"]
    assert said.startswith("dp: one process, 9,000 MiB")
    assert plots.memory_stack(run) is None
    assert "No sample of this run tells" not in Page(report.render([run])["index.html"].decode()).text


STEERING = f"=1+{HOSTILE}\x1b[31m\x00\x9b\u202e\ufffe"


SPARSE = (plots.trade_off, plots.step_times, plots.distribution, plots.memory, plots.memory_stack, plots.power)


@pytest.mark.parametrize(
    ("launches", "gpus"),
    [
        ([GONE], ()),
        ([OUT], GPUS),
        ([replace(DP, held={}, reserved={}, watts={})], GPUS),
        ([replace(DP, held={(0, FIRST): None, (0, SECOND): None}, reserved={})], GPUS),
        ([Launch("ddp", [[9, 8]], [[5.0]])], ()),
        ([replace(DP, scenario=STEERING, reason=STEERING)], [GPUS[0] | {"name": STEERING}]),
    ],
    ids=["nothing", "failed", "no samples", "unknown", "one sample", "hostile"],
)
def test_a_run_that_lacks_something_is_rendered(
    launches: list[OnGpus], gpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if launches[0].scenario != STEERING:
        monkeypatch.setattr(plots, "DRAWINGS", SPARSE)
    run = written(tmp_path, launches, gpus)
    files = {name: content.decode() for name, content in report.render([run]).items() if not name.endswith(".png")}
    page = Page(files["index.html"])
    assert "Energy and heat" in page.texts and page.tags["script"] == 1
    assert "nan" not in page.text.lower().split()
    assert [name for name, text in files.items() if text != printable(text)] == []
    for name, text in files.items():
        if name.endswith(".svg"):
            ElementTree.fromstring(text)
        elif name.endswith(".csv"):
            assert not [cell for row in csv.reader(text.splitlines()) for cell in row if cell.startswith("=")]


def test_samples_of_an_experiment_are_drawn(tmp_path: Path) -> None:
    def proved(writer: RunWriter) -> None:
        record = ProofLaunch.of(launch(launch=1, scenario="dp"), step_ms=None)
        writer.add_to(Proofs, record, memory=DP.memory_rows(1), device=DP.device_rows(1))

    run = written(tmp_path, [DDP2], scenarios=["ddp", "dp"], also=proved)
    memory, power = plot_of(run, "memory-stack"), plot_of(run, "power")
    assert "2  dp" in svg_texts(memory.svg) and "2  dp" in svg_texts(power.svg)


def test_power_of_a_long_run_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path, [replace(DP, watts={FIRST: 300.0})])
    monkeypatch.setattr(drawing, "MOST_COLUMNS", 3)  # of 5 s each, longer than what would be a gap
    ((_, line),) = shapes(plot_of(run, "power").svg, "power-")
    assert len(line) >= 3


HERE = os.getpid()


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysed:
    monkeypatch.setattr(plots, "DRAWINGS", (plots.memory_stack, plots.power))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return written(tmp_path, [DP, DDP2])


def test_plots_from_elsewhere_are_the_same(drawn: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begins = os.pipe()

    def either(run: Analysed) -> drawing.Plot | None:
        if os.getpid() == HERE:
            assert select.select([begun], [], [], 120)[0], "no other process draws"
        os.write(begins, b"x")
        return plots.memory_stack(run)

    monkeypatch.setattr(plots, "DRAWINGS", (either,) * 2)
    made = plots.of_run(drawn)
    monkeypatch.setattr(plots, "DRAWINGS", (plots.memory_stack,) * 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert made == plots.of_run(drawn) and len(made) == 2


def test_how_the_other_process_may_end(drawn: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(run: Analysed) -> drawing.Plot | None:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return plots.memory_stack(run)

    def failing(run: Analysed) -> drawing.Plot | None:
        raise ValueError("planted")

    monkeypatch.setattr(plots, "DRAWINGS", (killed, plots.power))
    assert [plot.name for plot in plots.of_run(drawn)] == ["memory-stack", "power"]
    monkeypatch.setattr(plots, "DRAWINGS", (failing, plots.power))
    with pytest.raises(ValueError, match="planted"):
        plots.of_run(drawn)
    monkeypatch.setattr(plots, "DRAWINGS", (plots.memory_stack, plots.power))
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")))
    assert [plot.name for plot in plots.of_run(drawn)] == ["memory-stack", "power"]
