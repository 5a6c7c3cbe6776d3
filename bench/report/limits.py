"""How far a step is from what this machine can do: its tables and plots."""

from collections.abc import Sequence

from bench.analyse.account import PARTS, limits
from bench.analyse.analysed import Analysed
from bench.analyse.limits import achieved
from bench.console import count
from bench.core.text import digits
from bench.report import drawing
from bench.report.drawing import Plot, light
from bench.report.tables import Cell, Table, in_text, is_unknown, number, numeric, ranged, tabulate, text
from bench.runs.experiments import Limits
from bench.words.limits import NAMES, by_scenario, percent, sentences

MEANING = PARTS | {
    "unexplained": "what is left over; negative where the parts are more than the step",
    "step": "a plain step of these launches",
    "limit": "what no kernels can beat: FLOPs and bytes of each operator over the measured ceilings",
    "own limit": "what these kernels cannot beat: each operator alone and warm",
}


def arithmetic_table(run: Analysed) -> Table | None:
    rows, work = achieved(run).to_dict("records"), run.document.begun(Limits).work
    if work is None or not rows:
        return None
    columns = (
        text("scenario", "scenario"),
        text("type", "type"),
        numeric("devices", "devices", "d"),
        ranged("TFLOP/s", ("tflops_per_s", "tflops_per_s_low", "tflops_per_s_high"), ".3g"),
        numeric("measured TFLOP/s of a rank", "ceiling_tflops", ".3g"),
        numeric("of that", "of_ceiling", ".1%"),
        numeric("nominal TFLOP/s of a device", "nominal_tflops", ",.1f"),
        numeric("MFU", "mfu", ".1%"),
    )
    nominal, ceiling = (any(not is_unknown(row[of]) for row in rows) for of in ("nominal_tflops", "ceiling_tflops"))
    forward, backward = work.forward_flops / 1e9, work.backward_flops / 1e9
    sources = dict.fromkeys(str(row["nominal"]) for row in rows)
    notes = [
        f"An example takes {digits(forward, 3)} GFLOP forward and {digits(backward, 3)} backward (convolutions, matrix "
        "products and attention, as torch.utils.flop_counter counts them); what is computed again, as with activation "
        "checkpointing, does not count. TFLOP/s: over all devices, with its 95 % interval over launches. Measured: "
        "what matrix products of this type hold for seconds (python -m bench limits).",
        "MFU: of the dense nominal peak of all devices. "
        + ("The nominal peak" if nominal else "It is unknown")
        + f": {'; '.join(sources)}.",
    ]
    return tabulate((*columns[:4], *columns[4:6] * ceiling, *columns[6:] * nominal), rows, notes)


def account_table(run: Analysed) -> Table | None:
    rows = limits(run).to_dict("records")
    columns = (
        text("scenario", "scenario"),
        text("part", lambda row: NAMES.get(row["part"], row["part"])),
        ranged("ms", ("ms", "low_ms", "high_ms"), ".3g"),
        numeric("of the step", "share", "z.1%"),
        text("what it is", lambda row: Cell(text=MEANING[row["part"]], wrap=True)),
    )
    notes = (
        "Means over launches that take a step apart, with 95 % intervals; held against the plain steps of the same "
        "launches. Nothing is scaled to fit: what is left over is unexplained.",
    )
    return tabulate(columns, rows, notes) if rows else None


def ceilings_table(run: Analysed) -> Table | None:
    """The rates that the devices hold for seconds, of the slowest and of the fastest rank."""
    rows: list[tuple[str, str, Sequence[float], str]] = []
    for one in run.document.begun(Limits).ceilings:
        where = f"{one.processes} x {one.device}" if one.driver else f"{one.processes} x {count(one.threads, 'thread')}"
        rows += [(where, name, values, "TFLOP/s") for name, values in one.tflops.items()]
        rows += [(where, f"memory: {name.replace('_', ' ')}", of, "GiB/s") for name, of in one.gib_per_s.items()]
        rows += [(where, "call of an operator", one.launch_us, "µs")]
    columns = (
        text("ranks", lambda row: row[0]),
        text("what", lambda row: row[1]),
        numeric("slowest rank", lambda row: number(min(row[2]), ".3g")),
        numeric("fastest rank", lambda row: number(max(row[2]), ".3g")),
        text("unit", lambda row: row[3]),
    )
    notes = ("Of each rank, while all measure at the same time; what holds for seconds, not for an instant.",)
    return tabulate(columns, rows, notes) if rows else None


def on_terminal(run: Analysed, width: int | None) -> list[str]:
    return [*sentences(run), *in_text(account_table(run), arithmetic_table(run), ceilings_table(run), width=width)]


def limits_plot(run: Analysed) -> Plot | None:
    of_all = by_scenario(run)
    if not of_all:
        return None
    height = sum(0.36 * len(rows) + 0.75 for rows in of_all.values())  # room for the two lines of each label
    figure, panels = drawing.sheet(height, rows=len(of_all))
    for axes, (scenario, rows) in zip(panels, of_all.items(), strict=True):
        shown = [name for name in (*PARTS, "unexplained", "step") if name in rows]
        took = {name: f"{digits(rows[name]['ms'], 3)} ms" for name in shown}
        begin, narrow = 0.0, drawing.is_narrow()
        for position, name in enumerate(shown):
            row, at = rows[name], 0.0 if name == "step" else begin
            colour = "muted" if name in ("unexplained", "step") else f"line-{position % 8}"
            axes.barh([position], [row["ms"]], left=[at], height=0.62, color=light(colour))
            drawing.hover(axes.patches[-1], f"{NAMES.get(name, name)}: {took[name]}, {percent(row)} of the step")
            if not narrow:
                drawing.right_label(axes, position, took[name], percent(row))
            begin = at + row["ms"]
        if "limit" in rows:
            axes.axvline(rows["limit"]["ms"], color=light("ink"), linewidth=1.0, linestyle="--", label="limit")
        labels = [NAMES.get(name, name) + f"\n{took[name]}, {percent(rows[name])}" * narrow for name in shown]
        axes.set_yticks(range(len(shown)), labels)
        axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="milliseconds of a step")
        drawing.upright_grid(axes)
        drawing.panel_title(axes, scenario, "")
    caption = "Parts from top to bottom, each where the one above ends; unexplained is what is left over of the step."
    return drawing.finished(run, figure, "limits", "The account of a step", caption, list(of_all))
