"""A history for people and programs: tables, words, JSON values, and the page with the plots.

    history.html           everything, in one file that needs no network and opens from a disk
    history-*.svg, .png    its plots, one for each value (step-ms, peak-total-mib, energy-per-1000-j)

Each workload and each hardware has its own section, and from the second on a number in the names of its plots.
"""

from collections.abc import Callable, Iterable, Sequence

from bench.analyse.history.nights import LeftOut
from bench.analyse.history.shifts import AT_LEAST, MIN_NIGHTS
from bench.analyse.history.trends import METRICS, RECENT, Event, Track, Trend
from bench.console import count
from bench.core.codec import encode
from bench.core.text import by_key, listed, plain
from bench.report import page
from bench.report.blocks import Grid, chapter_of, filled
from bench.report.drawing import Plot
from bench.report.history_plots import FLAT, WORDS, moving, of_track, span
from bench.report.tables import UNKNOWN, Cell, Column, Table, as_change, digits, numeric, tabulate, text
from bench.runs.files import utf8

LISTED = 10
"""Events, and runs by themselves, that a terminal shows; the page has all."""
NAMED = 4
"""More scenarios than these that shift on the same night are counted, not named."""
NOTHING_ELSE = "nothing on record"
NOTES = (
    f"long term: the median of the last {RECENT} nights over that of the first {RECENT}; of fewer than "
    f"{2 * RECENT}, of the later half over the earlier",
    f"latest: the last night over the median of the {RECENT} before it; of memory and energy, both are of the nights "
    "that were measured in the same way as the last one",
    f"a shift: a level that differs from the one before it by {100 * AT_LEAST:.0f} % or more, beyond chance, and lasts "
    f"{MIN_NIGHTS} nights or more; in parentheses its 95 % interval, Student's t over the nights of both levels",
)


def write(tracks: Sequence[Track], left_out: Sequence[LeftOut], out: str) -> list[str]:
    """Write the page and its plots into the folder ``out``; returns the paths, the page first.

    Files of the same names are replaced, all or none of them.
    """
    files: dict[str, bytes] = {}
    sections = []
    shown, single = worth_showing(tracks)
    for number, track in enumerate(shown, start=1):
        prefix = "history" if number == 1 else f"history-{number}"
        drawn, own = page.placed(of_track(track, prefix, page.form))
        files |= own
        sections.append(_section(track, drawn.values()))
    alone = (f"{one.nights[0].run}, {one.nights[0].date}: {one.work} on {one.place}" for one in single)
    others = filled(
        chapter_of("single", "Runs with nothing to compare to", *alone),
        chapter_of("left-out", "Runs that are left out", *(one.why for one in left_out)),
    )
    if others:
        answer = "Runs in the folder that belong to no track above."
        sections.append(page.Section(name="other runs", answer=answer, chapters=others))
    text = page.render(sections, title="bench history", heading="Nightly history")
    return page.put({"history.html": utf8(text), **files}, out)


def worth_showing(tracks: Sequence[Track]) -> tuple[list[Track], list[Track]]:
    """Those with a section each, and those of a single night, which have none unless there is nothing else."""
    shown = [track for track in tracks if len(track.nights) > 1] or list(tracks[:1])
    return shown, [track for track in tracks if track not in shown]


def _section(track: Track, plots: Iterable[Plot]) -> page.Section:
    shifted = "Nights on which levels shifted, the latest first"
    still = (
        f"There is no plot of the {WORDS[metric].name}: no night of any scenario is further than {100 * FLAT:.1f} % "
        "from the others."
        for metric in METRICS
        if track.of(metric) and not moving(track, metric)
    )
    chapters = filled(
        chapter_of("scenarios", "Scenarios", Grid("Scenarios", summary_table(track))),
        chapter_of("shifted", shifted, Grid(shifted, events_table(track)) if track.events else None),
        chapter_of("trends", "Trends", *plots, *still),
        chapter_of("without", "Nights without a value", *without_value(track)),
    )
    text = " ".join(filter(None, (last_night(track), answer(track))))
    return page.Section(name=f"on {track.place}", label=track.work, answer=text, chapters=chapters)


def answer(track: Track) -> str:
    """The number of shifts, the last one, and what is known to have changed then."""
    if len(track.nights) == 1:
        return f"{span(track)}: a trend needs two or more."
    if not track.events:
        why = f" (it takes {2 * MIN_NIGHTS} nights to tell one)" if len(track.nights) < 2 * MIN_NIGHTS else ""
        return f"{span(track)}: no shift was found{why}."
    last, times = track.events[0], len(track.events)
    when = f"once, on {last.after.date}" if times == 1 else f"{times} times, the last time on {last.after.date}"
    why = f"Commits: {last.commits}; what else changed: {'; '.join(last.differs) or NOTHING_ELSE}"
    return f"{span(track)}: levels shifted {when}: {'; '.join(what_shifted(last))}. {why}."


def last_night(track: Track) -> str:
    """The reasons why the gate stops the last night, and whether a person accepted it; empty if it passes."""
    last = len(track.nights) - 1
    stopped = [trend for trend in track.trends if last in track.regressed(trend)]
    by_metric = by_key((WORDS[trend.metric].name, trend.scenario) for trend in stopped)
    if not by_metric:
        return ""
    night = track.nights[last]
    why = "; ".join(f"{name} of {', '.join(scenarios)}" for name, scenarios in by_metric.items())
    accepted = "" if night.accepted is None else f" A person accepted it: {night.accepted}."
    return f"The gate stops the last night, {night.date}, for {why}.{accepted}"


def what_shifted(event: Event) -> list[str]:
    """For each value the scenarios that shifted, by how much: ``step time: ddp +3.1 % (+2.8 % to +3.4 %)``."""
    texts = []
    for metric in METRICS:
        changes = [change for change in event.changes if change.metric == metric]
        ratios = sorted(change.shift.ratio for change in changes)
        if len(changes) > NAMED:
            ends = dict.fromkeys((as_change(ratios[0]), as_change(ratios[-1])))
            each = f"{len(changes)} scenarios by {' to '.join(ends)}"
        else:
            of = [(one.scenario, *map(as_change, (one.shift.ratio, one.shift.low, one.shift.high))) for one in changes]
            each = ", ".join(f"{scenario} {ratio} ({low} to {high})" for scenario, ratio, low, high in of)
        if changes:
            texts.append(f"{WORDS[metric].name}: {each}")
    return texts


def summary_table(track: Track) -> Table:
    """A row for each scenario and what ran under its name."""
    by_scenario: dict[tuple[str, str], dict[str, Trend]] = {}
    for trend in track.trends:
        if trend.known:
            by_scenario.setdefault((trend.scenario, trend.what_ran), {})[trend.metric] = trend
    whole = track.nights[0].date, track.nights[-1].date

    def nights(row: tuple[tuple[str, str], dict[str, Trend]]) -> Cell:
        known = sorted({night for trend in row[1].values() for night in trend.known})
        first, last = (track.nights[night].date for night in (known[0], known[-1]))
        return Cell(text=f"{len(known):,}", small="" if (first, last) == whole else f"{first} to {last}")

    columns = (
        text("scenario", lambda row: Cell(text=row[0][0], small=row[0][1])),
        numeric("nights", nights),
        *(column for metric in METRICS if track.of(metric) for column in _of_metric(metric)),
    )
    return tabulate(columns, by_scenario.items(), NOTES)


def _of_metric(metric: str) -> list[Column]:
    def column(heading: str, of: Callable[[Trend], str]) -> Column:
        group = WORDS[metric].name
        return numeric(heading, lambda row: of(row[1][metric]) if metric in row[1] else UNKNOWN, group=group)

    return [
        column(WORDS[metric].heading, lambda trend: digits(trend.latest)),
        column("long term", lambda trend: as_change(trend.over_all)),
        column("latest", lambda trend: as_change(trend.over_recent)),
    ]


def events_table(track: Track) -> Table:
    columns = (
        text("first night after", lambda event: Cell(text=event.after.date, small=event.after.run)),
        text("last night before", lambda event: Cell(text=event.before.date, small=event.before.run)),
        text("what shifted", lambda event: Cell(text="; ".join(what_shifted(event)), wrap=True)),
        text("commits", lambda event: Cell(text=event.commits, wrap=True)),
        text("what else changed", lambda event: Cell(text="; ".join(event.differs) or NOTHING_ELSE, wrap=True)),
    )
    about = "commits: of bench and its scenarios, between the two nights; dirty: with changes that no commit holds"
    return tabulate(columns, track.events, [about])


def without_value(track: Track) -> list[str]:
    """Nights without a value, a line for each scenario and reason."""
    return [f"{name} on {count(nights, 'night')}: {why}" for (name, why), nights in track.unusable.items()]


def as_text(tracks: Sequence[Track], width: int | None = None) -> str:
    """For a terminal of this width, if any: each track as a table with its latest events, and what the words mean."""
    shown, single = worth_showing(tracks)
    lines = []
    for track in shown:
        heading = [f"{track.work} · {track.place}", span(track), *filter(None, [last_night(track)])]
        lines += [*map(plain, heading), "", summary_table(track).as_text(width), ""]
        for event in track.events[:LISTED]:
            lines.append(plain(f"shifted on {event.after.date}, between {event.before.run} and {event.after.run}:"))
            texts = (*what_shifted(event), f"commits: {event.commits}", *event.differs)
            lines += [f"  {plain(text)}" for text in texts]
        if len(track.events) > LISTED:
            lines.append(f"and {len(track.events) - LISTED} earlier ones: see the page, or --json")
        if not track.events:
            lines.append(plain(answer(track)))
        lines += [*(plain(f"no value: {text}") for text in without_value(track)), ""]
    if single:
        lines.append(f"runs with nothing to compare to: {listed([track.nights[0].run for track in single], LISTED)}")
    return "\n".join([*lines, *(f"note: {text}" for text in NOTES)])


def for_programs(tracks: Sequence[Track], left_out: Sequence[LeftOut]) -> dict[str, object]:
    """Everything as JSON values; levels, shifts and outliers have nights by their place among those of the track."""
    return {"tracks": [_track(track) for track in tracks], "left_out": encode(left_out)}


def _track(track: Track) -> dict[str, object]:
    why = [{"scenario": name, "why": why, "nights": nights} for (name, why), nights in track.unusable.items()]
    return {
        "work": track.work,
        "place": track.place,
        "nights": encode(track.nights),
        "trends": [
            {**encode(trend), "unit": WORDS[trend.metric].unit, "regressed": track.regressed(trend)}
            | {name: getattr(trend, name) for name in ("latest", "over_all", "over_recent")}
            for trend in track.trends
            if trend.known
        ],
        "shifts": encode(track.events),
        "without_figure": why,
    }
