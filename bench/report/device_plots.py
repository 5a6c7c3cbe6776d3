"""The plots of a run's costs beside time: memory on each device over the run, what it holds, and power."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse import devices, memory_parts
from bench.analyse import memory as held
from bench.analyse.analysed import Analysed
from bench.analyse.launches import only
from bench.core.records import ALLOCATOR
from bench.core.text import plain
from bench.report import drawing
from bench.report.drawing import Artist, Plot, light, locator
from bench.report.tables import TONES
from bench.runs.frames import TableRow
from bench.runs.launches import LaunchRecord
from bench.runs.reader import Run

PANEL_IN, BESIDE_IN = 1.9, 1.2
"""Of a panel: its height with what stands around it, and about how much stands beside its axes."""
HEADROOM = 1.24
"""Of a panel, above its highest value: for the name of its device."""
ABOUT_LAUNCHES = (
    "Seconds since the first sample of the run. A vertical line: a launch begins; the strip on top has the colour of "
    "its scenario, and the number is that of the key (red: the launch failed). A gap: unknown, or no launch ran."
)
ON_GPUS = (
    " A process has the colour of its rank in all panels: one that is on every GPU, as DataParallel's is, has the same "
    "colour and PID in each."
)
ON_CPU = (
    " Host memory is the resident set (RSS), in which shared pages, torch's libraries above all, count in each "
    "process: a stack of several ranks is higher than what the host gave. Dots: the sum of proportional set sizes "
    "(PSS), in which shared pages count once, where it was sampled after the measured steps."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A figure with a panel for each device, and the launches that all of them share: rows with ``launch``, ``start``
    and ``end`` in seconds since ``origin_ns``, the first sample of the run."""

    figure: Artist
    panels: dict[str, Artist]
    launches: list[TableRow]
    origin_ns: int
    range_s: float

    def seconds(self, t_ns: Any) -> Any:
        """Since the first sample of the run."""
        return (t_ns - self.origin_ns) / 1e9

    def columns(self, index_ns: Any) -> Any:
        """The column of a panel that each of these times falls into."""
        return ((index_ns - self.origin_ns) // (self.range_s * 1e9 / drawing.MOST_COLUMNS)).astype("int64")

    def has_room(self, seconds: float, letters: int) -> bool:
        """True if this many small letters fit on a stretch of this length."""
        return seconds / self.range_s * (drawing.width_in() - BESIDE_IN) >= 0.065 * letters


def memory_stack(run: Analysed) -> Plot | None:
    """The memory of each process on each device over the whole run, stacked, so that their sum shows."""
    memory = only(run.memory, (run.memory["source"] != ALLOCATOR) & run.memory["device"].notna())
    samples = only(memory, memory["used_mib"].notna())
    if samples.empty:
        return None
    stage = _stage(run, memory, list(samples["device"].unique()))
    highest = max(float(np.nansum(stack.to_numpy(), axis=1).max()) for stack in run.stacks.values())
    for device, axes in stage.panels.items():
        axes.set(ylim=(0, highest * HEADROOM or 1.0), ylabel="MiB")
        for launch in stage.launches:
            if (launch["launch"], device) in run.stacks:
                _layers(stage, axes, launch["launch"], run.stacks[launch["launch"], device])
        for number, sums in held.proportional(memory).groupby("launch") if device == "cpu" else ():
            look: drawing.Look = {"linestyle": "-", "linewidth": 1.3, "markersize": 2.6, "zorder": 5}
            seconds, gid = stage.seconds(sums["t_ns"]), f"pss-{number}"
            drawing.marks(axes, seconds, sums["pss_mib"], "ink", gid=gid, label="sum of PSS", markeredgewidth=0, **look)
    caption = ABOUT_LAUNCHES + ON_GPUS * bool(set(stage.panels) - {"cpu"}) + ON_CPU * ("cpu" in stage.panels)
    title = "Memory on each device over the whole run, stacked by process"
    return drawing.finished(run, stage.figure, "memory-stack", title, caption, list(samples["scenario"].unique()))


def power(run: Analysed) -> Plot | None:
    timeline = run.power
    if timeline.empty:
        return None
    stage = _stage(run, run.device, list(timeline["device"].unique()))
    means, throttled = run.devices, {"invalid": "held back by heat or protection", "warning": "at its power cap"}
    highest = max(float(timeline["power_w"].max()), float(means["mean_power_w"].max() or 0.0))
    for device, axes in stage.panels.items():
        axes.set(ylim=(0, highest * HEADROOM or 1.0), ylabel="W")
        _power_lines(stage, axes, timeline[timeline["device"] == device])
        for verdict, rows in run.throttled[run.throttled["device"] == device].groupby("verdict"):
            starts, ends = stage.seconds(rows["start_ns"]), stage.seconds(rows["end_ns"])
            places = list(zip(starts, (ends - starts).clip(lower=0.003 * stage.range_s), strict=True))
            look: drawing.Look = {"transform": axes.get_xaxis_transform(), "color": light(TONES[str(verdict)])}
            axes.broken_barh(places, (0, 0.07), linewidth=0, label=throttled[str(verdict)], **look)
            axes.broken_barh(places, (0, 1), alpha=0.13, linewidth=0, zorder=0, **look)
        _means(run, stage, axes, means[(means["device"] == device) & means["mean_power_w"].notna()])
    title = "Power of each device over the whole run"
    return drawing.finished(run, stage.figure, "power", title, ABOUT_LAUNCHES, list(timeline["scenario"].unique()))


def _stage(run: Run, rows: pd.DataFrame, names: list[str]) -> Stage:
    """A panel for each of these devices, GPUs in the order of their index, with the launches marked on it."""
    gpus = {gpu.uuid: gpu for gpu in run.document.machine.gpus}
    order = sorted(names, key=lambda device: (gpus[device].index if device in gpus else len(gpus), str(device)))
    origin_ns = min(int(table["t_ns"].min()) for table in (run.memory, run.device) if len(table))
    launches = _launches(run, held.boundaries(rows), origin_ns)
    range_s = max(*(one["end"] for one in launches), 1e-3)
    figure, axes_of = drawing.sheet(PANEL_IN * len(order), len(order), sharex=True)
    panels = dict(zip(order, axes_of, strict=True))
    stage = Stage(figure=figure, panels=panels, launches=launches, origin_ns=origin_ns, range_s=range_s)
    for device, axes in panels.items():
        axes.set_xlim(0, range_s * 1.005)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_major_locator(locator(4))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        name = f"host memory, {run.document.machine.cpu}" if device == "cpu" else device
        if device in gpus:
            name = f"GPU {gpus[device].index}: {gpus[device].name}"
        axes.set_title(plain(name), y=1.0, pad=-11, x=0.005, zorder=6)
        axes.title.set_bbox(BEHIND_TEXT)
        _mark_launches(stage, axes, numbered=device == order[0])
    axes.set_xlabel("seconds since the first sample of the run")
    return stage


def _launches(run: Run, bounds: pd.DataFrame, origin_ns: int) -> list[TableRow]:
    """The launches with their places on the time axis, status, colour, and the number of their scenario in the key."""
    document = run.document
    by_number = {one.launch: one for one in document.records if isinstance(one, LaunchRecord)}
    launches: list[TableRow] = bounds.to_dict("records")
    records = [by_number[one["launch"]] for one in launches]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(one.scenario for one in records), start=1)}
    bad = {(one.scenario, one.status): None for one in records if one.status != "ok"}
    colours: dict[object, str] = {}
    for one, record in zip(launches, records, strict=True):
        one |= {name: (one[f"{name}_ns"] - origin_ns) / 1e9 for name in ("start", "end")}
        one |= {"number": f"{numbers[record.scenario]}", "status": record.status}
        way = record.scenario, record.strategy, record.precision
        one["colour"] = colours[way] = colours.get(way) or drawing.colour_of(document, record)  # goes by all launches
        failed = ", ".join(status for name, status in bad if name == record.scenario)
        one["label"] = f"{one['number']}  {drawing.short(record.scenario)}" + (f" ({failed})" if failed else "")
    return launches


def _mark_launches(stage: Stage, axes: Artist, *, numbered: bool) -> None:
    """Where each launch begins, on top a strip in the colour of its scenario, and its number where there is room."""
    across, range_s = axes.get_xaxis_transform(), stage.range_s
    thin = 0.8 if len(stage.launches) <= 30 else 0.4
    starts = [one["start"] for one in stage.launches]
    axes.vlines(starts, 0, 1, transform=across, color=light("muted"), linewidth=thin, alpha=0.6, zorder=1)
    strips: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one in stage.launches:
        wide = max(one["end"] - one["start"], 0.003 * range_s)
        strips.setdefault((one["label"], one["colour"]), []).append((one["start"], wide))
    for (label, colour), places in strips.items():
        axes.broken_barh(places, (1.0, 0.035), transform=across, color=light(colour), linewidth=0, clip_on=False)
        axes.collections[-1].set_label(label)
    for one, start, next_start in zip(stage.launches, starts, [*starts[1:], range_s], strict=True):
        if numbered and stage.has_room(next_start - start, len(one["number"])):
            place = {"xycoords": across, "textcoords": "offset points", "ha": "center"}
            axes.annotate(one["number"], ((start + next_start) / 2, 1.035), (0, 2), fontsize=7, **place)
            axes.texts[-1].set_color(light("ink" if one["status"] == "ok" else "bad"))


BEHIND_TEXT = {"facecolor": light("paper"), "edgecolor": "none", "alpha": 0.75, "pad": 1.0}


def _layers(stage: Stage, axes: Artist, launch: int, stack: pd.DataFrame) -> None:
    """The processes of a launch on one device above each other; where one is unknown the ground is shaded."""
    own = stack.loc[:, (stack != 0).any()]
    if own.empty:
        return
    own = _thinned(stage, own)
    times = stage.seconds(own.index.to_numpy()).astype(float)
    values = own.to_numpy(dtype=float)
    if len(times) == 1:  # one sample is drawn as wide as can be seen
        times, values = np.array([times[0], times[0] + 0.004 * stage.range_s]), np.repeat(values, 2, axis=0)
    hidden = np.isnan(values).any(axis=1)
    if hidden.any():
        wider = hidden | np.append(hidden[1:], False) | np.append(False, hidden[:-1])  # a single sample has an extent
        across = axes.get_xaxis_transform()
        axes.fill_between(times, 0, 1, where=wider, transform=across, color=light("shade"), linewidth=0, zorder=0)
        axes.collections[-1].set_label("unknown for a process")
    below = np.zeros(len(times))
    processes: list[Any] = own.columns.to_list()
    for (rank, pid), layer in zip(processes, values.T, strict=True):
        above = below + np.nan_to_num(layer)
        colour = light(f"line-{int(rank) % 8}")
        axes.fill_between(times, below, above, where=~np.isnan(layer), color=colour, alpha=0.85, linewidth=0, zorder=2)
        axes.collections[-1].set(gid=f"stack-{launch}-{rank}-{pid}", label=f"rank {rank}")
        drawing.hover(axes.collections[-1], f"rank {rank}, PID {pid}: at most {np.nan_to_num(layer).max():,.0f} MiB")
        _pid_label(stage, axes, times, below, above, f"PID {pid}")
        below = above


def _pid_label(stage: Stage, axes: Artist, times: Any, below: Any, above: Any, text: str) -> None:
    """The PID within its layer, lying or upright, where there is room for it."""
    tall = above - below >= 0.6 * float((above - below).max())  # where the layer is about as high as it gets
    at = np.flatnonzero(tall)
    wide_s = float(times[at[-1]] - times[at[0]])
    letters_high = float((above - below)[tall].min()) / axes.get_ylim()[1] * PANEL_IN / 0.09
    lying, upright = stage.has_room(wide_s, len(text)) and letters_high >= 2, letters_high >= len(text)
    if lying or (upright and stage.has_room(wide_s, 2)):
        middle = float(times[at[0]] + times[at[-1]]) / 2
        height = float(np.interp(middle, times, (below + above) / 2))
        label = axes.text(middle, height, text, fontsize=6.5, color=light("paper"), ha="center", zorder=5)
        label.set(rotation=0 if lying else 90, va="center_baseline" if lying else "center", in_layout=False)


def _thinned(stage: Stage, stack: pd.DataFrame) -> pd.DataFrame:
    """No more samples than can be told apart; of neighbours the one with something unknown, or the highest."""
    columns, total = stage.columns(stack.index.to_numpy()), stack.to_numpy().sum(axis=1)
    order = np.lexsort((np.where(np.isnan(total), -np.inf, -total), columns))
    return stack.iloc[order[np.flatnonzero(np.diff(columns[order], prepend=-1))]]


def _power_lines(stage: Stage, axes: Artist, samples: pd.DataFrame) -> None:
    """The power of a device as one line with gaps: between launches, and where it was unknown for long."""
    lines = []
    for _, own in samples.groupby("launch"):
        t_ns = own["t_ns"].to_numpy()
        begins = np.flatnonzero(np.diff(stage.columns(t_ns), prepend=-1))
        both = np.array([stage.seconds(t_ns), own["power_w"].to_numpy(dtype=float)])
        line = np.add.reduceat(both, begins, axis=1) / np.diff(begins, append=len(t_ns))
        gaps = np.flatnonzero(np.diff(t_ns, prepend=t_ns[0])[begins] > devices.LARGEST_GAP_S * 1e9)
        lines += [np.insert(line, gaps, np.nan, axis=1), np.full((2, 1), np.nan)]
    times, watts = np.concatenate(lines, axis=1)
    name = f"power-{samples['device'].iloc[0]}"
    axes.plot(times, watts, color=light("line-0"), linewidth=1.1, zorder=2, label="power", gid=name)
    unknown = np.isnan(np.concatenate([[np.nan], watts]))
    single = ~unknown[1:-1] & unknown[:-2] & unknown[2:]  # which is no line
    drawing.marks(axes, times[:-1][single], watts[:-1][single], "line-0", markersize=3, zorder=2)


def _means(run: Analysed, stage: Stage, axes: Artist, means: pd.DataFrame) -> None:
    """The mean over the measured steps of each launch, as a bar over them with its value where there is room."""
    ends = [stage.seconds(np.array(run.windows[launch], dtype=float)) for launch in means["launch"]]
    watts = means["mean_power_w"].to_list()
    axes.hlines(watts, *np.reshape(ends, (-1, 2)).T, color=light("ink"), linewidth=1.8, zorder=3)
    axes.collections[-1].set_label("mean over the measured steps of a launch" if watts else "")
    for (start, end), mean_w in zip(ends, watts, strict=True):
        text = f"{mean_w:,.0f} W"
        if stage.has_room(end - start, len(text)):
            label = axes.annotate(text, ((start + end) / 2, mean_w), (0, -3), textcoords="offset points")
            label.set(fontsize=7, zorder=5, ha="center", va="top", bbox=BEHIND_TEXT, in_layout=False)


HELD = {
    "parameters": "convolutions",
    "masters": "batch-norm",
    "optimizer": "optimizer",
    "buffers": "loss-scaling",
    "buckets": "bucket-copies",
    "gathered": "casts",
    "batch": "data",
    "gradients": "backward",
    "activations": "forward",
}
"""The parts of memory in the order of the bars, and their colours in the theme."""


def memory_held(run: Run) -> Plot | None:
    table = memory_parts.largest(memory_parts.parts(run.document)).set_index("scenario")
    if table.empty:
        return None
    launches = {launch.scenario: launch for launch in reversed(run.document.good) if launch.scenario in table.index}
    rows = drawing.rows_for(run, {name: launches[name] for name in table.index})
    sizes = table[[f"{part}_mib" for part in HELD]].fillna(0.0).set_axis(list(HELD), axis=1)
    overlap = sizes["gradients"] - table["early_gradients_mib"]
    sizes["activations"] = (sizes["activations"] - overlap).clip(lower=0.0)
    there = [part for part in HELD if (sizes[part] >= 0.05).any()]
    figure, axes = drawing.stacked(rows, sizes[there], HELD, table["measured_mib"], unit="MiB", called="measured peak")
    axes.set_xlabel("predicted peak of the rank that needs most (MiB)")
    caption = (
        "From the sizes of the live objects. Activations: what they take beyond the gradients that come in their "
        "place. Measured: over what the process held before there was a model; of torch's tensors on a GPU, of the "
        "resident set on the CPU."
    )
    title = "What the memory of a rank holds"
    return drawing.finished(run, figure, "memory-parts", title, caption, [row.scenario for row in rows])
