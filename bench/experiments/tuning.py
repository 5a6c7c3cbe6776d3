"""``bench tune``: the fastest way to train something that still trains it, within limits of time and memory.

All candidates race (:mod:`bench.experiments.plan.race`), then the best of them with switches. What trains a
different model is left out. The finalists are measured again by fresh launches, which are the run's. The race is
recorded beside them.
"""

import math
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench.console import count, duration, say
from bench.core.errors import RequestError
from bench.core.job import TOO_SLOW, Job
from bench.core.records import PARITIES
from bench.experiments import measure, numerics, obstacles, resume
from bench.experiments.batch_search import steady_mib
from bench.experiments.lab import Finished, Lab, Start, opened, recorded
from bench.experiments.launch import Performed, perform
from bench.experiments.plan import Request, job_of
from bench.experiments.plan.race import Race
from bench.experiments.plan.tuning import FEWEST_FINAL, FINAL_LAUNCHES, finalists, leanest, next_switches
from bench.runs.document import RunDocument
from bench.runs.experiments import Candidate, Numerics, Tuning
from bench.runs.launches import LaunchRecord
from bench.seams import discover, switching
from bench.seams.discover import SWITCH, Found
from bench.seams.experiment import Experiment
from bench.seams.strategy import LEVELS

if TYPE_CHECKING:
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material


def _again(document: RunDocument) -> list[LaunchRecord]:
    """The launches of a race without finalists that were interrupted or killed: others have shown what they can."""
    tuning = document.begun(Tuning)
    launches = () if tuning.finalists else tuning.launches
    return [one for one in launches if one.status == "killed" or (one.reason or "").startswith("interrupted")]


def _missing(document: RunDocument, request: Request) -> bool:
    if document.begun(Tuning).finalists:
        return any(one.status == "killed" for one in document.launches)
    return bool(_again(document)) or numerics.stopped(document)


def chapter(of: "Material") -> "Chapter":
    from bench.report.blocks import Grid, chapter_of, fold
    from bench.report.search import search_table, search_words

    table = search_table(of.run)
    candidates = fold(f"All candidates ({len(table.rows)})", Grid("All candidates", table))
    return chapter_of("search", "How was the winner found?", of.plots.get("search"), *search_words(of.run), candidates)


EXPERIMENT = Experiment(
    record=Tuning,
    verb="tune",
    missing=_missing,
    alone=True,
    again=_again,
    failed=lambda record: 0,
    chapter=chapter,
    leads=True,
)

SAME, WITHIN_HALF, CANNOT_TELL = PARITIES[0], PARITIES[1], PARITIES[3]
GOOD_ENOUGH = {"same": (SAME,), "half": (SAME, WITHIN_HALF, CANNOT_TELL)}
"""By floor the verdicts on numerics that a winner may have. ``half`` accepts one that nobody can tell, and the answer
says so."""

MOST_FINALISTS = 4
TIMES_AS_SLOW, FEWEST_S = 3.0, 30.0
"""When the first launch of a candidate is stopped: the steps take that many times as long as on the best so far, and
longer than a GPU needs to find its algorithms."""


def needed_gib(peak_mib: float) -> float:
    """The least limit in hundredths of a GiB that this fits into: to nearest, it may be too small."""
    return math.ceil(peak_mib / 1024 * 100) / 100


class _OutOfTime(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched(Finished):
    """``finalists``: the recommended one first; empty if no candidate can be used."""

    finalists: tuple[Found, ...]


def tune(request: Request, candidates: tuple[Found, ...], search: Tuning, start: Start) -> Searched:
    """Write a run folder, or go on with one. If the budget turns out to be too short to compare two candidates, raises
    :class:`RequestError` after the first launch and leaves no folder."""
    begun = replace(search, asked=tuple(found.name for found in candidates))
    allowed = [switching.switch_on(one, "--allow") for one in search.allow if one not in LEVELS]
    files = [(SWITCH, one.name, one.file) for one in allowed]
    with opened(request, candidates, start, also=files, begun=begun) as lab, lab.progress:
        hunt = _Hunt(lab)
        hunt.run()
        names = hunt.choose()
        if names:
            request = replace(lab.request, scenarios=names, launches=FINAL_LAUNCHES)
            lab.writer.note_request(*recorded(request))
            lab.progress.counted = True
            lab.progress.expect([name for name, _ in resume.left(request, names, lab.writer.document.launches)])
            ready = tuple(hunt.found[name] for name in names)
            final = replace(lab, request=request, scenarios=ready, obstacles=dict.fromkeys(names))
            measure.in_rounds(final, hunt.affords)
            rounds = 1 + max(one.repeat for one in lab.writer.document.launches)
            if rounds < FINAL_LAUNCHES:
                say(f"the budget ends after {count(rounds, 'round')} of the finalists")
            lab.writer.note_request(*recorded(replace(request, launches=rounds)))
            lab.writer.note(replace(hunt.tuning, spent_s=hunt.spent_s))
    advised = lab.writer.document.recommendation
    ordered = sorted(names, key=lambda name: advised is not None and name != advised.fastest)
    return Searched(run=lab.sealed(), finalists=tuple(hunt.found[name] for name in ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raced:
    """The outcome of a candidate's launch. ``median_ms``: None if it failed; ``peak_mib``: of a device, if known."""

    record: LaunchRecord
    median_ms: float | None
    peak_mib: float | None


@dataclass(slots=True)
class _Hunt:
    """The race with what it needs: its launches, their memory, and the time left.

    ``judged``: candidates whose numerics are known. ``doubtful``: those for which it is unknown whether they train the
    same. ``recorded``: by candidate the launches of an interrupted race, which are not repeated.
    """

    lab: Lab
    race: Race = field(default_factory=lambda: Race([]))
    found: dict[str, Found] = field(default_factory=dict)
    peaks_mib: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, list[float]] = field(default_factory=dict)
    last_round: dict[str, int] = field(default_factory=dict)
    tried: dict[tuple[str, tuple[str, ...]], str | None] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    recorded: dict[str, deque[_Raced]] = field(default_factory=lambda: defaultdict(deque))
    before_s: float = 0.0

    def __post_init__(self) -> None:
        self.before_s = self.tuning.spent_s
        run = self.lab.writer.frames()
        medians_ms = measure.medians_of(run)
        for record in self.tuning.launches:
            memory: Any = run.memory[(run.memory["launch"] == record.launch) & run.memory["used_mib"].notna()]
            median_ms = medians_ms[record.launch] if record.status == "ok" else None
            peak_mib = steady_mib(memory.to_dict("records"), record.ranks)
            self.recorded[record.scenario].append(_Raced(record=record, median_ms=median_ms, peak_mib=peak_mib))
        self._enter(self.lab.scenarios)
        self._note(None)

    @property
    def tuning(self) -> Tuning:
        return self.lab.writer.document.begun(Tuning)

    @property
    def spent_s(self) -> float:
        """Of the budget, before an interruption too."""
        return time.monotonic() - self.lab.began_s + self.before_s

    def run(self) -> None:
        """Rounds until more launches would decide nothing, or the time for the finalists begins."""
        self.lab.progress.counted = False
        try:
            while not self.race.over or self._enter_switches():
                self._round()
            self._note("race")
        except _OutOfTime:
            self._note("budget")

    def _round(self) -> None:
        race = self.race
        number = race.rounds + 1
        for name in race.round():
            self._take(name, number, self.recorded[name].popleft() if self.recorded[name] else self._launched(name))
        self._leave_out_untrue(lambda: [best] if (best := race.best()) else [])  # before it beats others
        race.end_round()
        self._note(None)
        best, left = race.best(), len(race.still_in)
        ahead = f"{best} is ahead, " if best else ""
        say(
            f"round {number}: {ahead}{count(left, 'candidate')} of {len(race.entered)} still in; "
            f"{duration(self.spent_s)} of {duration(self.tuning.budget_s)} spent"
        )

    def _enter(self, scenarios: Sequence[Found]) -> None:
        """Those that can run here and whose numerics can be compared."""
        lab = self.lab
        reasons = obstacles.of_each(tuple(scenarios), lab.request, lab.site.description, lab.site.hosts)
        for one in scenarios:
            self.found[one.name] = one
            self.race.enter([one.name])
            self.race.add(one.name, None, reasons[one.name] or one.strategy.differs)

    def _enter_switches(self) -> bool:
        """Whether there is something new to try."""
        plain = [name for name, found in self.found.items() if found.scenario.precision == "O0"]
        new = next_switches(self.race, self.tried, self._worth_trying(plain), plain)
        for parent, switches in new:
            found = self._with(parent, switches)
            self.tried[parent, switches] = None if found.name == parent else found.name
            self._enter([] if found.name in self.found else [found])
        return bool(new)

    def _with(self, parent: str, switches: Sequence[str]) -> Found:
        """A candidate with these switches, without those that conflict with it or with an earlier one."""
        found = self.found[parent]
        for switch in switches:
            with suppress(RequestError):
                found = switching.with_switches(found, [switch], "--allow")
        return self._as_known(found)

    def _as_known(self, made: Found) -> Found:
        """The candidate that is the same by another name, or a scenario, such as ``ddp_o1`` for ``ddp+o1``; else this
        one."""
        candidates = chain(self.found.values(), _scenarios() if made.level and not made.switches else ())
        return next((one for one in candidates if _way(one) == _way(made)), made)

    def _worth_trying(self, plain: Sequence[str]) -> list[str]:
        """The allowed switches and levels, without those levels at which a candidate was slower than in fp32."""
        levels, slower = self.race.levels(), set()
        for name, level in product(plain, LEVELS.keys() & set(self.tuning.allow)):
            other = self._with(name, [level]).name
            unknown = math.inf if other in self.race.beaten else -math.inf  # inf: it was stopped
            if other != name and levels.get(other, unknown) > levels.get(name, math.inf):
                slower.add(level)
        return [one for one in self.tuning.allow if one not in slower]

    def _launched(self, name: str) -> _Raced:
        """A launch, which is written to disk at once."""
        self._check_time(name)
        request, lab = self.lab.request, self.lab
        job = job_of(request, self.found[name], lab.next_launch(), self.race.launches(name), lab.site.hosts)
        job = replace(job, probe_seed=lab.writer.document.probe_seed)
        done = perform(replace(job, loop_limit_s=self._limit_s(name, job)), lab, "racing", self._kept)
        peak_mib = steady_mib(done.tables["memory"], done.record.ranks)
        return _Raced(record=done.record, median_ms=measure.median_step_ms(done), peak_mib=peak_mib)

    def _limit_s(self, name: str, job: Job) -> float | None:
        """After which a candidate is beaten in any case; none for one that has a launch, such as the best itself."""
        best = self.race.best()
        if best is None or self.race.launches(name):
            return None
        best_s = math.exp(self.race.levels()[best]) / 1000
        limit_s = max(FEWEST_S, TIMES_AS_SLOW * best_s * job.steps) * job.slow_start
        return min(limit_s, max(self.usual_s, self.tuning.budget_s - self.spent_s - self._reserved_s()))

    def _kept(self, done: Performed) -> str:
        self.lab.writer.add_to(Tuning, done.record, **done.tables)
        self.lab.writer.note(replace(self.tuning, spent_s=self.spent_s))
        return measure.how_fast(done)

    def _take(self, name: str, number: int, raced: _Raced) -> None:
        record, peak_mib, limit = raced.record, raced.peak_mib, self.tuning.memory_limit_mib
        self.last_round[name] = number
        self.took_s.setdefault(name, []).append(record.wall_s or 0.0)
        if peak_mib is not None:
            self.peaks_mib[name] = max(peak_mib, self.peaks_mib.get(name, 0.0))
        why_not = None if record.status == "ok" else record.reason or record.status
        if why_not is not None and why_not.startswith(TOO_SLOW):
            self.race.beaten[name] = f"{why_not}, and was stopped"
            return
        if why_not is None and limit is not None and (peak_mib is None or peak_mib > limit):
            needs = "an unknown amount of memory" if peak_mib is None else f"{needed_gib(peak_mib):,.2f} GiB"
            why_not = f"needs {needs}, over the limit of {limit / 1024:,.2f} GiB"
        switches = record.effective.switches if record.effective else {}
        idle = [f"{switch} has no effect: {seen}" for switch, seen in switches.items() if seen is not None]
        self.race.add(name, raced.median_ms, why_not or "; ".join(idle) or None)

    @property
    def usual_s(self) -> float:
        """How long a launch takes, over all so far."""
        return fmean(seconds for took in self.took_s.values() for seconds in took)

    def _reserved_s(self) -> float:
        """For the end of the search: numerics are judged, and the finalists are measured. Of a short budget that is no
        more than half, but always enough to compare two."""
        ahead = self._finalists()
        more = max(0, min(MOST_FINALISTS, len(self.race.still_in)) - len(ahead))
        final_s = FINAL_LAUNCHES * (sum(fmean(self.took_s[one]) for one in ahead) + more * self.usual_s)
        reference = self.lab.writer.document.begun(Numerics).reference_of(None)
        judging_s = (reference.wall_s if reference else None) or self.usual_s  # it is trained again
        judging_s += self.usual_s * (more + len({*ahead} - self.judged))
        least_s = FEWEST_FINAL * 2 * self.usual_s + judging_s / 2
        return max(least_s, min(final_s + judging_s, self.tuning.budget_s / 2))

    def _check_time(self, name: str) -> None:
        """Raises :class:`_OutOfTime` if a launch would end in the time reserved for the finalists;
        :class:`RequestError` if it would be the second one of all."""
        if not self.took_s:
            return
        expected_s = fmean(self.took_s.get(name, [self.usual_s]))
        if self.spent_s + expected_s + self._reserved_s() > self.tuning.budget_s:
            if len(self.took_s) == 1:
                needed_s = self.spent_s + self.usual_s + self._reserved_s()
                shutil.rmtree(self.lab.writer.path)
                two = f"to compare two of {count(len(self.race.still_in), 'candidate')}"
                what = f"{two} takes about {duration(needed_s)} here"
                raise RequestError("--budget", what, f"give at least {math.ceil(needed_s / 60)}m")
            raise _OutOfTime

    def affords(self, names: Sequence[str]) -> bool:
        """Whether there is time for one more launch of each of these, as long as the longest so far."""
        took_s = {name: list(self.took_s[name]) for name in names}
        for launch in self.lab.writer.document.launches:
            if launch.scenario in took_s:
                took_s[launch.scenario].append(launch.wall_s or 0.0)
        return self.spent_s + sum(map(max, took_s.values())) <= self.tuning.budget_s

    def _leave_out_untrue(self, names: Callable[[], Sequence[str]]) -> None:
        """Remove what trains a different model, or less precisely than allowed, until all of these are judged."""
        from bench.analyse.analysed import Analysed
        from bench.analyse.parity import by_scenario

        while new := [name for name in names() if name not in self.judged]:
            self.judged.update(new)
            launches = tuple(one for one in self.tuning.launches if one.scenario in new)
            numerics.judge(self.lab, self.tuning.launches, [self.found[name] for name in new])
            run = self.lab.writer.frames()
            raced = replace(run, document=replace(run.document, launches=launches))
            for row in by_scenario(Analysed.of(raced).parity).to_dict("records"):
                verdict, name = row["verdict"], row["scenario"]
                if verdict == CANNOT_TELL:
                    self.doubtful.add(name)
                if verdict not in GOOD_ENOUGH[self.tuning.floor] and name not in self.race.out:
                    self.race.add(name, None, f"numerics: {verdict or 'unknown'}")

    def choose(self) -> tuple[str, ...]:
        """The finalists, the winner first; empty if no candidate can be used."""
        self._leave_out_untrue(self._finalists)
        names = list(self._finalists())
        spare = [one for one in names[1:] if one != self.tuning.baseline]
        mean_s = {name: fmean(took) for name, took in self.took_s.items()}
        while spare and self.spent_s + FEWEST_FINAL * sum(mean_s[one] for one in names) > self.tuning.budget_s:
            names.remove(spare.pop())
        if names:
            lean, best = leanest(names[0], self.race, self.peaks_mib, self.doubtful), self.race.best()
            if best is not None and best != names[0]:
                why = f"not clearly faster than {names[0]}, and nobody can tell whether it trains the same"
                self.race.beaten[best] = why
                self.race.beaten.pop(names[0], None)
                self._note(self.tuning.stopped_by)
            lean = lean if lean in names else names[0]
            self.lab.writer.note(replace(self.tuning, finalists=tuple(names), leanest=lean))
        return tuple(names)

    def _finalists(self) -> tuple[str, ...]:
        """Who they are if the race ends now."""
        return finalists(self.race, self.peaks_mib, self.tuning.baseline, self.doubtful)

    def _note(self, stopped_by: str | None) -> None:
        """Record the state of the race."""
        race, units, levels = self.race, self.lab.request.workload.units, self.race.levels()
        candidates = {
            name: Candidate(
                launches=race.launches(name),
                round=self.last_round.get(name, 0),
                step_ms=math.exp(levels[name]) if name in levels else None,
                throughput_per_s=1000 * units / math.exp(levels[name]) if name in levels else None,
                peak_mib=self.peaks_mib.get(name),
                why_not=race.out.get(name),
                beaten=race.beaten.get(name),
            )
            for name in race.entered
        }
        self.lab.writer.note(replace(self.tuning, stopped_by=stopped_by, candidates=candidates))


def _scenarios() -> Iterator[Found]:
    """All that have a file, and can be loaded."""
    for name, file in discover.names().items():
        with suppress(RequestError):
            yield switching.load(name, file)


def _way(found: Found) -> tuple[object, ...]:
    """Equal for two scenarios that are the same but for their names."""
    options, switches = sorted(found.scenario.options.items()), [one.spec for one in found.switches]
    return found.strategy_file, options, found.scenario.precision, found.half, found.scenario.needs, switches
