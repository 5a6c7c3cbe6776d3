"""``bench bisect``: which of many versions or commits made a command slower, or changed what it trains.

    python -m bench bisect --git . --good v1.0 --bad main -- python train.py

Each candidate is a scenario of one run, whose launches are those of ``bench attach``, and the search is
:mod:`bench.experiments.plan.bisection`. What it has launched stands in the run, so that an interrupted one goes on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from bench.console import say
from bench.core.errors import BenchError, RequestError
from bench.core.files import scratch_folder
from bench.experiments.attached_command import Commanded, Side
from bench.experiments.attaching import Commands, Wanted, begun
from bench.experiments.candidates import Candidate
from bench.experiments.measure import medians_of
from bench.experiments.plan.bisection import ERROR, FEWEST_BLOCKS, SMALLEST, Bisection
from bench.runs.document import Attached
from bench.runs.experiments import Bisected, Level
from bench.runs.reader import Run, verified
from bench.runs.writer import RunWriter
from bench.seams.experiment import Experiment
from bench.words.bisected import in_words

if TYPE_CHECKING:
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material

STEP_TIME, MEMORY, NUMERICS = "step time", "peak memory", "numerics"
"""Words for a change, upwards and downwards; of numerics it is one either way."""
ROUNDING = 1e-6
"""The smallest change of what is trained: a seeded command that does the same has the same values, bit for bit."""
LONGEST, LEAST_S = 10.0, 60.0
"""A launch may take this many times as long as the longest that ended well, and a minute more."""
NUMERICS_VARIABLE = "BENCH_ATTACH_NUMERICS"


def chapter(of: "Material") -> "Chapter":
    from bench.report.bisection import bisection_table
    from bench.report.blocks import Grid, chapter_of

    words, table = in_words(of.run.document), Grid("Candidates", bisection_table(of.run))
    return chapter_of("bisection", "Which one changed it?", *words, of.plots.get("bisection"), table)


EXPERIMENT = Experiment(
    record=Bisected,
    no_resume=("that run is of bench bisect", "give bench bisect the same options and --resume RUN"),
    chapter=chapter,
    leads=True,
    sentences=lambda run: in_words(run.document)[1:],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``of``: what is searched, in words by which it is known again. ``prepare``: makes the side of a candidate, within
    a folder, or raises a :class:`BenchError` that says why it cannot. ``path``: of the run that goes on."""

    of: str
    candidates: tuple[Candidate, ...]
    prepare: Callable[[Candidate, str], Side]
    metric: str
    budget_s: float
    wanted: Wanted
    path: str | None = None


def bisect(asked: Asked) -> tuple[Run, bool]:
    """Search, and write what was launched. Returns the run, and whether it was interrupted."""
    writer = None if asked.path is None else _reopened(asked.path, asked)
    search, metric = replay(asked, writer)
    first = _record(asked, search, metric, launches=0)
    with scratch_folder("bench-bisect-") as scratch, begun(asked.wanted, (), writer, first) as commands:
        doing = _Searching(asked, commands, scratch, search, metric)
        try:
            interrupted = doing.search_on()
        except KeyboardInterrupt:
            interrupted = True
        except BenchError:
            if commands.writer is not None:
                commands.writer.finish(complete=False)
            raise
        writer = commands.writer
        if writer is None:
            raise KeyboardInterrupt
        request = writer.document.request
        names = tuple(one.name for one in asked.candidates if one.name in request.scenarios)
        writer.note_request(replace(request, scenarios=names))
        doing.note()
        if interrupted:
            writer.finish(complete=False)
            return writer.frames(), True
        run = commands.finish()
        assert run is not None
        return run, False


def _reopened(path: str, asked: Asked) -> RunWriter:
    before = verified(path, allow_incomplete=True, option="--resume").of(Bisected)
    if before is None:
        raise RequestError("--resume", "that run is not of bench bisect", "name one that is, or start a new one")
    if before.of != asked.of or before.candidates != {one.name: one.about for one in asked.candidates}:
        first, *_, last = before.candidates
        problem = f"that run searched something else: {before.of}, from {first} to {last}"
        raise RequestError("--resume", problem, "give the same options and command")
    return RunWriter.reopen(path)


@dataclass(slots=True)
class _Searching:
    asked: Asked
    commands: Commands
    scratch: str
    search: Bisection
    metric: str
    sides: dict[str, Side] = field(default_factory=dict)
    walls_s: list[float] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def search_on(self) -> bool:
        """Blocks of launches until the search is over, or would take longer than its budget. True: interrupted."""
        while names := self.search.next_block():
            spent_s, each_s = time.monotonic() - self.began_s, fmean(self.walls_s) if self.walls_s else 0.0
            if spent_s + each_s * len(names) > self.asked.budget_s:
                break
            writer = self.commands.writer
            repeat = 1 + max((one.repeat for one in writer.document.launches), default=-1) if writer else 0
            for name in names:
                launched, why = self._launch(name, repeat)
                if launched is not None and launched.interrupted:
                    return True
                if why is not None:
                    self._skip(name, why)
                    break
            else:
                self._count(len(names))
            self.note()
        return False

    def _launch(self, name: str, repeat: int) -> tuple[Commanded | None, str | None]:
        """A launch of a candidate, and why there is none that counts."""
        if name not in self.sides:
            candidate = next(one for one in self.asked.candidates if one.name == name)
            try:
                self.sides[name] = self.asked.prepare(candidate, self.scratch)
            except BenchError as error:
                return None, str(error)
        limit_s = LONGEST * max(self.walls_s) + LEAST_S if self.walls_s else None
        side = replace(self.sides[name], name=name, limit_s=limit_s)
        if self.asked.metric == NUMERICS:
            side = replace(side, environment={**side.environment, NUMERICS_VARIABLE: "1"})
        launched = self.commands.launch(side, repeat)
        if launched.code and not launched.interrupted:
            late = limit_s is not None and launched.wall_s > limit_s
            why = f"took longer than {limit_s:.0f} s" if late else f"ended with exit code {launched.code}"
            return launched, f"the command {why}"
        if launched.why is None:
            self.walls_s.append(launched.wall_s)
        return launched, launched.why

    def _skip(self, name: str, why: str) -> None:
        for end, option in ((0, "--good"), (-1, "--bad")):
            if name == self.search.candidates[end]:
                raise RequestError(option, f"{name} cannot be measured: {why}", "give one that runs")
        self.search.skipped[name] = why
        say(f"bench: {name} is skipped: {why}")

    def _count(self, block: int) -> None:
        """Add a whole block to the search, and say how it stands."""
        assert self.commands.writer is not None
        self.search, self.metric = replay(self.asked, self.commands.writer)
        search, document = self.search, self.commands.writer.document
        low, high = search.candidates[search.low], search.candidates[search.high]
        words = f"{len(document.launches)} launches: between {low} and {high}, {len(search.left)} left"
        if not search.ends_differ:
            words += "; the ends are not told apart yet"
        elif search.candidate is not None and (odds := search.log_odds):
            side = high if odds > 0 else low
            words += f"; {search.candidate} is as {side} with odds of {min(9999.0, 2.718 ** abs(odds)):,.0f} to 1"
        if search.ends_differ and search.blocks_left:
            words += f"; about {search.blocks_left * block * fmean(self.walls_s) / 60:,.0f} min left"
        say(f"bench: {words}")

    def note(self) -> None:
        if (writer := self.commands.writer) is not None:
            writer.note(_record(self.asked, self.search, self.metric, launches=len(writer.document.launches)))


def replay(asked: Asked, writer: RunWriter | None) -> tuple[Bisection, str]:
    """The search as far as what a run has brings it, and the metric that it goes by."""
    names, smallest = [one.name for one in asked.candidates], ROUNDING if asked.metric == NUMERICS else SMALLEST
    blocks = [] if writer is None else list(_blocks(writer, asked.metric, names))

    def searched(metric: str, blocks: Sequence[dict[str, dict[str, float]]]) -> Bisection:
        search = Bisection(names, smallest)
        for block in blocks:
            search.add({name: launch[metric] for name, launch in block.items()})
        return search

    known = [set(launch) for block in blocks for launch in block.values()]
    possible = sorted(set.intersection(*known)) if known else []
    if blocks and not possible:
        raise BenchError(f"nothing is known of the {asked.metric} of these launches; search by the step time instead")
    # Which metric shows the change best is chosen by the first blocks alone.
    metric = max(possible, key=lambda one: searched(one, blocks[:FEWEST_BLOCKS]).distance, default=asked.metric)
    search = searched(metric, blocks)
    recorded = writer.document.of(Bisected) if writer is not None else None
    search.skipped.update(recorded.skipped if recorded else {})
    return search, metric


def _blocks(writer: RunWriter, metric: str, names: Sequence[str]) -> Iterator[dict[str, dict[str, float]]]:
    """Of each block that is whole the values of its launches, by candidate and by what they are of."""
    document = writer.document
    attached_of = {one.launch: one for one in document.begun(Attached).launches}
    frames = writer.frames()
    of_launch = medians_of(frames)
    if metric == MEMORY:
        from bench.analyse.memory import peaks

        table = peaks(frames.memory)
        of_launch = dict(zip(table["launch"], table["peak_total_mib"], strict=True))
    by_repeat: dict[int, dict[str, dict[str, float]]] = {}
    for launch in document.good:
        noted, values = attached_of[launch.launch], {metric: of_launch.get(launch.launch, 0.0)}
        if metric == NUMERICS:
            values = {**noted.norms, "final loss": noted.final_loss or 0.0}
        if noted.wall_ms is not None:  # which an interrupted one has not
            positive = {name: value for name, value in values.items() if value > 0.0}
            by_repeat.setdefault(launch.repeat, {})[launch.scenario] = positive
    yield from (block for block in by_repeat.values() if {names[0], names[-1]} <= block.keys())


def _record(asked: Asked, search: Bisection, metric: str, *, launches: int) -> Bisected:
    levels = {name: Level(ratio=ratio, low=low, high=high) for name, (ratio, low, high) in search.levels().items()}
    return Bisected(
        of=asked.of,
        candidates={one.name: one.about for one in asked.candidates},
        metric=metric,
        error=ERROR,
        low=search.candidates[search.low],
        high=search.candidates[search.high],
        ends_differ=search.ends_differ,
        ends_alike=search.ends_alike,
        decided=search.over,
        launches=launches,
        levels=levels,
        skipped=search.skipped,
    )
