"""A comparison for people: in sentences, as a table on a terminal or in Markdown, and as a forest plot.

What is compared and how is in :mod:`bench.analyse.between_runs`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from bench.analyse import between_runs
from bench.analyse.analysed import Analysed
from bench.analyse.between_runs import BETTER, ENERGY, MEMORY, NOT_COMPARABLE, STEP_TIME, TITLES, WORSE, Compared, Row
from bench.analyse.comparable import Digest
from bench.analyse.comparison import ALIKE, LAUNCHES_WANTED, TOO_FEW, still_wanted
from bench.analyse.verdicts import json_value
from bench.core.text import by_key, plain, ratio_text
from bench.report import drawing, markdown
from bench.report.blocks import Chapter, Grid, chapter_of, fold
from bench.report.drawing import Artist, Plot, light
from bench.report.tables import UNKNOWN, Cell, Table, digits, numeric, tabulate, text
from bench.runs.document import what_is_trained

TONES = {BETTER: "good", WORSE: "bad"}


def for_programs(compared: Compared) -> dict[str, object]:
    """The comparison as JSON values; an end of an interval that is infinite, as nothing is known of it, is null."""
    about = ("run", "utc", "label", "profile", "git", "device", "hardware", "replicas")
    names = (*about, "imported", "attached", "workload")
    return {
        **{side: {name: getattr(compared, side).get(name) for name in names} for side in ("base", "new")},
        "within_one_run": compared.within,
        "warnings": list(compared.warnings),
        "comparisons": [json_value(asdict(row)) for row in compared.rows],
    }


def named(digest: Digest) -> str:
    """A run as it is named: its id and label, and the file that it was imported from."""
    label = f" ({plain(digest['label'])})" if digest["label"] else ""
    imported = digest.get("imported")
    return f"{digest['run']}{label}" + (f", imported from {plain(imported['file'])}" if imported else "")


def step_times(compared: Compared) -> Iterator[str]:
    for row in compared.rows:
        if row.metric == STEP_TIME.name and row.ratio is not None:
            span = f" ({_span(row.low, row.high)})" if row.low is not None else ""
            p = f", p {_p(row.p_adjusted)}" if row.p_adjusted is not None else ""
            times = f"{row.scenario} takes {_ratio(row.ratio)}{span} of {row.against}'s time a step"
            yield plain(f"{times}: {row.verdict}{p}")


def in_words(compared: Compared) -> list[str]:
    """The differences, a sentence each, then the scenarios without one, then those that could not be judged."""
    rows = [row for row in compared.rows if row.metric != between_runs.THROUGHPUT.name]
    rows.sort(key=lambda row: row.metric != between_runs.LOSS.name)  # the speed of something else matters less
    lines = [_difference(row, compared) for row in rows if row.change in (BETTER, WORSE)]
    few = f"too few launches for a verdict (a side needs {LAUNCHES_WANTED}: --launches 5)"
    for verdict, begin in ((ALIKE, ALIKE), (TOO_FEW, few)):
        own = [row for row in rows if row.verdict == verdict]
        names = [f"{row.scenario} ({more})" if (more := still_wanted(row.more)) else row.scenario for row in own]
        of = by_key(zip((row.metric for row in own), names, strict=True))
        parts = [f"{title} of {', '.join(of[metric])}" for metric, title in TITLES.items() if metric in of]
        lines += [f"{begin}: {'; '.join(parts)}"] if parts else []
    return [plain(line) for line in (*lines, *_not_comparable(compared))]


def as_text(compared: Compared, width: int | None = None) -> str:
    """For a terminal: what is compared, the table, what was found, and what to keep in mind. ``width``: see `align`."""
    table = _table(compared)
    lines = [*_heading(compared), "", table.as_text(width, repeats=False), "", *in_words(compared)]
    lines += [f"warning: {plain(text)}" for text in compared.warnings]
    lines += [f"note: {text}" for text in table.notes]
    return "\n".join(lines)


def as_markdown(compared: Compared) -> str:
    parts = [
        "# Comparison",
        markdown.bullets(_heading(compared)),
        markdown.bullets(in_words(compared)),
        _table(compared).as_markdown(),
        markdown.bullets(f"Warning: {text}" for text in compared.warnings),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(compared: Compared) -> list[str]:
    if compared.within:
        bases = ", ".join(dict.fromkeys(row.against for row in compared.rows))
        return [f"run:  {named(compared.new)}", f"base: {bases}"]
    return [f"base: {_with_commit(compared.base)}", f"new:  {_with_commit(compared.new)}"]


def _with_commit(digest: Digest) -> str:
    git = digest["git"]
    commit = f", commit {git['commit'][:12]}{' and changes' if git['dirty'] else ''}" if git else ""
    return f"{named(digest)}{commit}"


def _silent(compared: Compared) -> list[str]:
    """The metrics of which neither side says anything, of no scenario that compares."""
    asked = {row.metric for row in compared.rows if row.column is not None}
    measured = {row.metric for row in compared.rows if row.base is not None or row.new is not None}
    return [name for name in TITLES if name in asked - measured]


def _shown(compared: Compared) -> list[Row]:
    """One row of a scenario that does not compare, and of others those of each metric that is not silent."""
    silent, rows = _silent(compared), compared.rows
    return [row for row in rows if (row.metric not in silent if row.column else row.metric == STEP_TIME.name)]


def _table(compared: Compared) -> Table:
    columns = (
        text("scenario", lambda row: row.scenario),
        text("metric", lambda row: UNKNOWN if row.column is None else _metric(row)),
        numeric("base", lambda row: digits(row.base)),
        numeric("new", lambda row: digits(row.new)),
        numeric("ratio", lambda row: UNKNOWN if row.ratio is None else _ratio(row.ratio)),
        numeric("95 % interval", lambda row: _span(row.low, row.high) or UNKNOWN),
        numeric("p adjusted", lambda row: UNKNOWN if row.p_adjusted is None else _p(row.p_adjusted)),
        text("verdict", lambda row: Cell(text=row.verdict, tone=TONES.get(row.change or "", ""))),
    )
    return tabulate(columns, _shown(compared), _notes(compared))


def _metric(row: Row) -> str:
    unit = between_runs.UNITS[row.metric]
    each = " of the largest process" if row.column == "peak_pid_mib" else ""
    return TITLES[row.metric] + each + (f" ({unit})" if unit else "")


def _notes(compared: Compared) -> Iterator[str]:
    silent = [TITLES[name] for name in _silent(compared)]
    if silent:
        yield f"unknown on both sides and left out: {', '.join(silent)}"
    rows = [row for row in compared.rows if row.ratio is not None]
    if rows:
        yield "ratio: new over base, of geometric means, with its own interval; the verdict goes by p, adjusted for all"
    if rows and compared.within:
        yield "launches are compared round by round, with the machine's drift taken out"
    elif any(row.low is not None for row in rows):
        yield "each run's drift is taken out of times and energy, so a ratio need not be that of the two means"
    if any(row.metric == MEMORY.name for row in rows):
        least = f"{100 * between_runs.LEAST_MEMORY:g} %, or {between_runs.PAGE_MIB:g} MiB a process"
        yield f"a difference of memory below {least}, counts as none: runs of the same work differ as much"
    if rows and not compared.within:
        yield f"the intervals are over launches within each run; {between_runs.BETWEEN_RUNS}"


def _difference(row: Row, compared: Compared) -> str:
    who = f"{row.scenario} against {row.against}" if compared.within else row.scenario
    if row.metric == between_runs.PARITY.name:
        return f"{who}: {row.verdict} numerics: {row.new}, where the base is {row.base}"
    assert row.ratio is not None  # it has a verdict
    what = {MEMORY.name: f"{row.verdict} memory", ENERGY.name: f"{row.verdict} energy"}.get(row.metric, row.verdict)
    much = f"{TITLES[row.metric]} {100 * (row.ratio - 1):+.1f} %"
    rests_on = [f"95 % interval {_span(row.low, row.high)}"] if row.low is not None else []
    rests_on += [f"p {_p(row.p_adjusted)}"] if row.p_adjusted is not None else []
    return f"{who}: {what}: {much} (ratio {_ratio(row.ratio)}; {', '.join(rests_on)})"


def _not_comparable(compared: Compared) -> Iterator[str]:
    """Whole scenarios with why, and then single metrics that only one side knows."""
    rows = [row for row in _shown(compared) if row.reason is not None]
    of = by_key((("" if row.column is None else f"{TITLES[row.metric]} ", row.reason), row.scenario) for row in rows)
    for (what, reason), names in of.items():
        yield f"{', '.join(names)}: {what}{NOT_COMPARABLE}: {reason}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else ratio_text(value, 0)


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{_ratio(low)} to {_ratio(high)}"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def since_before(run: Analysed, plot: Plot | None) -> Chapter | None:
    """The changes since the run before, where its folder has one of the same work."""
    compared = run.since_before
    if compared is None:
        return None
    title, table = "What changed since the run before?", _table(compared)
    words = [f"Against {_with_commit(compared.base)}, the last run of the same work in this folder."]
    named_first = tuple(row.scenario for row in compared.rows)  # a name is no word
    for line in (*in_words(compared), *compared.warnings):
        words.append(f"{line if line.startswith(named_first) else line[:1].upper() + line[1:]}.")
    return chapter_of("before", title, *words, fold("Each value of both runs", plot, Grid("Both runs", table)))


def before_plot(run: Analysed) -> Plot | None:
    return None if run.since_before is None else forest(run.since_before, "since-before")


def forest(compared: Compared, file: str = "comparison") -> Plot | None:
    """The ratio of each scenario with its interval, a panel for each metric; None where there is no ratio."""
    shown = {row.metric for row in compared.rows if row.ratio is not None}
    metrics = [metric for metric in (STEP_TIME, MEMORY, ENERGY) if metric.name in shown]  # not the inverse of time
    if not metrics:
        return None
    names = list(dict.fromkeys(row.scenario for row in compared.rows))
    by_key = {(row.scenario, row.metric): row for row in compared.rows}
    title, below, sign = "Two runs, compared", "base", "new ÷"
    about = f"{named(compared.new)} against {named(compared.base)}"
    if compared.within:
        title, below, sign = "Scenarios of one run, compared", compared.rows[0].against, "÷"
        about = f"{named(compared.new)}, against {below}"
    labels = [(name, by_key[name, STEP_TIME.name].what_ran or "") for name in names]
    figure, panels = drawing.row_sheet(labels, columns=len(metrics))
    for axes, metric in zip(panels, metrics, strict=True):
        rows = [by_key[name, metric.name] for name in names]
        _scale(axes, rows)
        for position, row in enumerate(rows):
            _whisker(axes, row, position)
        axes.set_title(f"{metric.title}, {sign} {below}", fontweight="normal")
    work, bench = compared.new["workload"], compared.new["conditions"].get("bench")
    device = ", ".join(dict.fromkeys(compared.new["hardware"])) or "hardware unknown"
    what = what_is_trained(work.get("title"), work.get("global_batch"))
    source = plain(f"bench {bench} · {what} · {device}")
    return drawing.drawn(figure, file, title, " ".join(_caption(compared)), about=about, source=source)


def _scale(axes: Artist, rows: Sequence[Row]) -> None:
    """A logarithmic axis of ratios with round numbers on it, wide enough for all intervals that say something."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    ratios = [row.ratio for row in rows if row.ratio is not None]
    least, most = min([1.0, *ratios]), max([1.0, *ratios])
    reach = max(2.0, (most / least) ** 1.5)
    low = min([least, *(max(row.verdict_low, least / reach) for row in rows if row.verdict_low is not None)])
    high = max([most, *(min(row.verdict_high, most * reach) for row in rows if row.verdict_high is not None)])
    margin = max((high / low) ** 0.08, 1.002)
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin)
    ticks = MaxNLocator(nbins=4, steps=[1, 2, 5, 10]).tick_values(low / margin, high * margin)
    if high / low > 3:
        every = math.ceil(math.log10(high / low) / 4)  # decades; 1 is always one of the ticks
        steps = (1, 2, 5) if high / low <= 20 else (1,)
        ticks = [step * 10.0**power for power in range(-6 * every, 7 * every, every) for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low / margin <= tick <= high * margin]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1.0, color=light("ink"), linewidth=0.9, zorder=1.5)


def _whisker(axes: Artist, row: Row, position: int) -> None:
    """A ratio with its interval, and at the right both as text; an interval that leaves the axes ends in an arrow."""
    if row.ratio is None:
        drawing.right_label(axes, position, "", "not comparable" if row.column is None else "unknown")
        return
    tone, few = TONES.get(row.change or "", "muted"), row.verdict == TOO_FEW
    low, high = axes.get_xlim()
    if row.least > 1.0:
        axes.barh(position, row.least - 1 / row.least, left=1 / row.least, height=0.8, color=light("grid"), zorder=1)
    begin, end = row.verdict_low, row.verdict_high
    if begin is not None and end is not None:
        axes.plot([max(low, begin), min(high, end)], [position] * 2, color=light(tone), linewidth=1.8)
        for leaves, edge, arrow in ((begin < low, low, "<"), (end > high, high, ">")):
            if leaves:
                drawing.marks(axes, [edge], [position], tone, arrow, markersize=5, clip_on=False)
    label = TOO_FEW if few else {WORSE: "worse", BETTER: "better"}.get(row.change or "", ALIKE)
    point = drawing.marks(axes, [row.ratio], [position], tone, hollow=few, zorder=3, label=label)
    verdict = {ALIKE: "no difference", TOO_FEW: "too few"}.get(row.verdict, row.verdict)
    span, ink = _span(begin, end), TONES.get(row.change or "", "ink")
    drawing.right_label(axes, position, f"{_ratio(row.ratio)}  {verdict}", span, ink)
    drawing.hover(point, f"{row.scenario}: {_metric(row)} × {_ratio(row.ratio)} ({span}), {verdict}")


def _caption(compared: Compared) -> Iterator[str]:
    how = "launches compared round by round" if compared.within else "Welch's t on logarithms"
    yield (
        f"Points: ratio of the geometric means over launches. Bars: the intervals that the verdicts go by ({how}, "
        "adjusted for the scenarios of each metric), wider than the 95 % interval of each ratio by itself."
    )
    if any(row.least > 1.0 and row.ratio is not None for row in compared.rows):
        yield "Grey: a difference of memory too small to be called one."
    left_out = list(_not_comparable(compared))
    if left_out:
        yield f"Not drawn: {'; '.join(left_out)}."
    numerics = [row for row in compared.rows if row.metric == between_runs.PARITY.name and row.change in TONES]
    yield from (f"{_difference(row, compared)}." for row in numerics)
