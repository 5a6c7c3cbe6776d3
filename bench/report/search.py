"""The race of ``bench tune``: who took part, how far each came, and speed against memory of all that were tried."""

from bench.analyse.analysed import Analysed
from bench.console import count
from bench.report import drawing
from bench.report.drawing import Entry, Plot
from bench.report.tables import UNKNOWN, Cell, Table, number, numeric, tabulate, text
from bench.runs.experiments import Tuning

FINALIST, LEFT, BEATEN, OUT = "finalist", "still in at the end", "beaten", "cannot be used"
MARKS = {FINALIST: ("D", "line-1"), LEFT: ("o", "line-0"), BEATEN: ("o", "muted"), OUT: ("X", "line-3")}
"""The marker of each fate, and its colour in the theme."""


def fate(tuning: Tuning, name: str) -> str:
    one = tuning.candidates[name]
    others = OUT if one.why_not is not None else BEATEN if one.beaten is not None else LEFT
    return FINALIST if name in tuning.finalists else others


def search_table(run: Analysed) -> Table:
    tuning = run.document.begun(Tuning)
    fastest = max((one.throughput_per_s or 0.0 for one in tuning.candidates.values()), default=0.0)

    def speed(name: str) -> Cell:
        value = tuning.candidates[name].throughput_per_s
        return Cell(text=number(value, ",.1f"), bar=(value or 0.0) / (fastest or 1.0))

    columns = (
        text("candidate", str),
        numeric(f"{run.document.workload.unit_short}/s in the race", speed),
        numeric("peak MiB of a device", lambda name: number(tuning.candidates[name].peak_mib, ",.0f")),
        numeric("launches", lambda name: f"{tuning.candidates[name].launches}"),
        numeric("last round", lambda name: f"{tuning.candidates[name].round or UNKNOWN}"),
        text("what became of it", lambda name: Cell(text=_became(tuning, name), wrap=True)),
    )
    notes = (
        "Speeds are of the whole race, with the machine's drift taken out. What became of a candidate was decided "
        "after its last round, by the launches until then.",
    )
    ranked = sorted(tuning.candidates, key=lambda name: -(tuning.candidates[name].throughput_per_s or 0.0))
    return tabulate(columns, ranked, notes)


def search_words(run: Analysed) -> list[str]:
    tuning = run.document.begun(Tuning)
    ended = {"budget": "The budget ended it", "race": "It ended when more launches would not help"}
    limit = f" and at most {tuning.memory_limit_mib / 1024:,.2f} GiB of a device" if tuning.memory_limit_mib else ""
    return [
        f"The race took {count(len(tuning.launches), 'launch', 'launches')} (numerics at least {tuning.floor}{limit}). "
        f"{ended.get(tuning.stopped_by or '', 'It was interrupted')}. Its values chose the finalists and nothing else: "
        "all other tables and plots are of the finalists' fresh launches."
    ]


def search_plot(run: Analysed) -> Plot | None:
    tuning = run.document.of(Tuning)
    if tuning is None:
        return None
    points_of = {  # MiB and speed of each candidate that has both
        name: (one.peak_mib, one.throughput_per_s)
        for name, one in tuning.candidates.items()
        if one.peak_mib is not None and one.throughput_per_s is not None
    }
    if not points_of:
        return None
    figure, (axes,) = drawing.sheet(4.1)
    for kind, (marker, colour) in MARKS.items():
        points = [point for name, point in points_of.items() if fate(tuning, name) == kind]
        if points:
            (x, y), gid = zip(*points, strict=True), f"search-{kind.split()[0]}"
            drawing.marks(axes, x, y, colour, marker, markersize=7, label=kind, gid=gid)
    keys = []
    marker, colour = MARKS[FINALIST]
    for name in (name for name in tuning.finalists if name in points_of):  # whose marks are near each other
        mib, speed = points_of[name]
        label = drawing.short(_became(tuning, name))
        entry = Entry(scenario=name, label=label, colour=colour, dash="solid", marker=marker)
        mark = drawing.marks(axes, [mib], [speed], colour, marker, markersize=7)
        keys.append((mark, entry, f"{speed:,.1f} {run.document.workload.unit_short}/s · {mib:,.0f} MiB"))
    if keys:
        drawing.key_beside(axes, keys)
    axes.margins(x=0.12, y=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(True)
    axes.set(ylim=(0, None), xlabel="peak MiB of a device", ylabel=f"{run.document.workload.unit} a second")
    caption = (
        "The best is at the top left. A mark for each candidate with a launch that ended well; the finalists by name."
    )
    return drawing.finished(run, figure, "search", "Speed against memory of all candidates in the race", caption)


def _became(tuning: Tuning, name: str) -> str:
    one, finalist = tuning.candidates[name], name in tuning.finalists
    if one.why_not is not None or one.beaten is not None:
        return f"{'measured again as a finalist; ' if finalist else ''}{one.why_not or one.beaten}"
    if not one.round:
        return "not tried: the budget was spent"
    return LEFT if not finalist else "won the race" if name == tuning.finalists[0] else FINALIST
