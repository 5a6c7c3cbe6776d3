"""Nightly history of a scenario: trends, the shifts in them, and what else changed on those nights.

Pure: digests (:mod:`bench.analyse.digest`) in the order of time go in. Nights of one track are comparable
(:func:`bench.analyse.comparable.key`); a trend is of one scenario and of what really ran under its name.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median

from bench.analyse import comparable
from bench.analyse.comparable import Digest, Entry, other_source, source_of, unusable
from bench.analyse.history import gate
from bench.analyse.history.rule import METRICS as GATE_METRICS
from bench.analyse.history.rule import Rule
from bench.analyse.history.shifts import Levels, Shift, levels
from bench.core.children import beside
from bench.core.text import by_key
from bench.runs.document import what_is_trained

METRICS = ("step_ms", "peak_total_mib", "energy_per_1000_j")
"""The values of a digest that are followed; lower is better. Throughput is the step time again."""

GATED = {digest: metric for metric, digest in GATE_METRICS.items()}
RECENT = 10  # nights that the latest one is compared with, and that stand for the two ends of a trend
COMMIT_LETTERS = 10

Stopped = dict[tuple[str, str], list[str]]
"""The runs that the gate stops, by scenario and metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run as a point in time. ``dirty``: it had uncommitted changes. ``accepted``: why, or None."""

    run: str
    utc: str | None
    label: str | None
    commit: str | None
    dirty: bool
    accepted: str | None

    @property
    def date(self) -> str:
        """The day, or the run where the time is unknown."""
        return self.utc[:10] if self.utc else self.run

    @property
    def code(self) -> str:
        commit = self.commit[:COMMIT_LETTERS] if self.commit else "unknown"
        return f"{commit} (dirty)" if self.dirty else commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    scenario: str
    what_ran: str
    metric: str
    shift: Shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """All that shifted between the same two nights.

    ``commits``: what may have changed in the code. ``differs``: other conditions that changed, one line each, the way
    of measuring first; if none did, those that changed one night earlier or later.
    """

    before: Night
    after: Night
    changes: tuple[Change, ...]
    commits: str
    differs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One value of one scenario over the nights of its track, None where unknown.

    ``sources``: how it was measured each night, None where there is one way, or it is unknown.
    """

    scenario: str
    what_ran: str
    metric: str
    values: tuple[float | None, ...]
    sources: tuple[str | None, ...]
    levels: Levels

    @cached_property
    def known(self) -> list[int]:
        return [night for night, value in enumerate(self.values) if value is not None]

    @property
    def latest(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def over_all(self) -> float | None:
        """The median of the last ten nights over that of the first ten; of fewer than twenty nights, of the halves."""
        values = self._values
        ends = min(RECENT, len(values) // 2)
        return median(values[-ends:]) / median(values[:ends]) if ends else None

    @property
    def over_recent(self) -> float | None:
        """The last night over the median of the (up to) ten before it."""
        *before, last = self._values or [math.nan]
        return last / median(before[-RECENT:]) if before else None

    @cached_property
    def _values(self) -> list[float]:
        """Of the nights that were measured as the last one was."""
        known = [(value, source) for value, source in zip(self.values, self.sources, strict=True) if value is not None]
        return [value for value, source in known if other_source(source, known[-1][1]) is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Comparable nights, the oldest first, with their trends and the shifts in them, the latest first.

    ``work``, ``place``: what is trained, and on what. ``unusable``: nights without values, by scenario and reason.
    ``stopped``: waits for what the gate stops.
    """

    work: str
    place: str
    nights: tuple[Night, ...]
    trends: tuple[Trend, ...]
    events: tuple[Event, ...]
    unusable: Mapping[tuple[str, str], int]
    stopped: Callable[[], Stopped]

    def regressed(self, trend: Trend) -> list[int]:
        """The nights that the gate stops for a value, by place, accepted by a person or not."""
        runs = set(self.stopped().get((trend.scenario, GATED[trend.metric]), ()) if trend.metric in GATED else ())
        return [night for night in trend.known if self.nights[night].run in runs]

    def of(self, metric: str) -> list[Trend]:
        """The trends of one value that have a night at all."""
        return [trend for trend in self.trends if trend.metric == metric and trend.known]


def tracks(
    digests: Sequence[Digest], rule: Rule, *, scenarios: Sequence[str] = (), accepted: Mapping[str, str] | None = None
) -> list[Track]:
    """The tracks of digests in the order of time, the one with the latest night first.

    ``rule``: the gate's, by which nights are stopped: another process replays it. ``scenarios``: of these alone (none:
    of all). ``accepted``: why runs were accepted, by run.
    """
    wanted = [one for one in digests if not scenarios or not {*scenarios}.isdisjoint(scenarios_of([one]))]
    grouped = by_key((comparable.key(one), one) for one in wanted).values()

    def replayed() -> Stopped:
        return by_key(one for of_track in grouped for one in _stopped(of_track, rule, accepted or {}, scenarios))

    stopped = cache(beside(replayed))
    made = [_track(of_track, scenarios, accepted or {}, stopped) for of_track in grouped]
    return sorted(made, key=lambda track: (track.nights[-1].utc or "", track.nights[-1].run), reverse=True)


def scenarios_of(digests: Sequence[Digest]) -> list[str]:
    return list(dict.fromkeys(row["scenario"] for digest in digests for row in digest["scenarios"]))


def _stopped(
    digests: Sequence[Digest], rule: Rule, accepted: Iterable[str], scenarios: Sequence[str]
) -> Iterator[tuple[tuple[str, str], str]]:
    """What :data:`Stopped` has, one by one."""
    nights = [(digest["run"], digest) for digest in digests]
    replayed = gate.replay(nights, rule, accepted, scenarios or None)
    for (run, _), (rows, _) in zip(nights, replayed, strict=True):
        yield from (((row.scenario, row.metric), run) for row in rows if row.verdict == gate.REGRESSED)


def _track(
    digests: Sequence[Digest], scenarios: Sequence[str], accepted: Mapping[str, str], stopped: Callable[[], Stopped]
) -> Track:
    nights = tuple(
        Night(
            run=digest["run"],
            utc=digest["utc"],
            label=digest["label"],
            commit=(digest["git"] or {}).get("commit"),
            dirty=bool((digest["git"] or {}).get("dirty")),
            accepted=accepted.get(digest["run"]),
        )
        for digest in digests
    )
    work = digests[-1]["workload"]
    usable: dict[tuple[str, str], list[Entry | None]] = {}
    without: Counter[tuple[str, str]] = Counter()
    for place, digest in enumerate(digests):
        for row in digest["scenarios"]:
            if scenarios and row["scenario"] not in scenarios:
                continue
            if (why := unusable(row)) is None:
                usable.setdefault((row["scenario"], row["what_ran"]), [None] * len(digests))[place] = row
            else:
                without[row["scenario"], why] += 1
    trends = tuple(
        Trend(
            scenario=ran[0],
            what_ran=ran[1],
            metric=metric,
            values=values,
            sources=tuple(None if row is None else source_of(row, metric) for row in rows),
            levels=levels(values),
        )
        for metric in METRICS
        for ran, rows in usable.items()
        for values in [tuple(None if row is None else _mean(row["launches"][metric]) for row in rows)]
    )
    return Track(
        work=what_is_trained(work.get("title"), work.get("global_batch")),
        place=_place(digests[-1]),
        nights=nights,
        trends=trends,
        events=_events(trends, nights, digests),
        unusable=without,
        stopped=stopped,
    )


def _mean(launches: Sequence[float | None]) -> float | None:
    """The geometric mean over launches, without arrays, of which a history would make a million; None if unknown."""
    values = [value for value in launches if value is not None]
    if not values or min(values) <= 0.0:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def _events(trends: Sequence[Trend], nights: Sequence[Night], digests: Sequence[Digest]) -> tuple[Event, ...]:
    shifted = by_key(
        ((one.after, one.before), Change(scenario=of.scenario, what_ran=of.what_ran, metric=of.metric, shift=one))
        for of in trends
        for one in of.levels.shifts
    )
    return tuple(
        Event(
            before=nights[before],
            after=nights[after],
            changes=tuple(changes),
            commits=commit_range(nights[before], nights[after]),
            differs=(
                *(_changed(changes, digests[before], digests[after]) or _beside(changes, digests, before, after)),
                *comparable.not_known(digests[before], digests[after]),
            ),
        )
        for (after, before), changes in sorted(shifted.items(), reverse=True)
    )


def _changed(changes: Sequence[Change], before: Digest, after: Digest) -> list[str]:
    """Known differences between two nights: how the shifted values were measured, then the rest."""
    metrics = dict.fromkeys(change.metric for change in changes)
    sources = (text for metric in metrics for text in comparable.other_sources(before, after, metric))
    return [*sources, *comparable.changed(before, after)]


def _beside(changes: Sequence[Change], digests: Sequence[Digest], before: int, after: int) -> Iterator[str]:
    for when, night in (("a night earlier", before), ("a night later", after + 1)):
        if 0 < night < len(digests):
            yield from (f"{when}: {text}" for text in _changed(changes, digests[night - 1], digests[night]))


def commit_range(before: Night, after: Night) -> str:
    """The commits between two nights, as ``git log`` takes them; in words where it cannot."""
    if before.commit is None or after.commit is None:
        return "unknown"
    if before.commit != after.commit:
        return f"{before.code}..{after.code}"
    if before.dirty or after.dirty:
        return f"same commit {before.commit[:COMMIT_LETTERS]}, with changes that no commit holds"
    return f"same commit {before.commit[:COMMIT_LETTERS]}: not the code"


def _place(digest: Digest) -> str:
    hardware, replicas = digest["hardware"], digest["replicas"]
    if digest["device"] == "cpu":
        ranks = f"{replicas} CPU rank{'' if replicas == 1 else 's'} on " if replicas else ""
        return ranks + (", ".join(map(str, dict.fromkeys(hardware))) or "an unknown CPU")
    return " + ".join(f"{hardware.count(name)} × {name}" for name in dict.fromkeys(hardware)) or "unknown hardware"
