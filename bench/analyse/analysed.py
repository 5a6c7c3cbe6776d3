"""A run with the tables that are made of it, each made once: what a report is drawn and written from.

    run = Analysed.of(read("results/RUN", condense=CONDENSE))
    run.stats  # bench.analyse.steps.per_launch

A report asks for the statistics of a launch two dozen times, and of millions of steps each time takes seconds.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Self

import pandas as pd

from bench.analyse import devices
from bench.analyse.between_runs import Compared
from bench.analyse.comparison import against_fastest
from bench.analyse.launches import looked_at, ok_rows
from bench.analyse.memory import beside_torch, growth, peaks, sampled_late, stacks
from bench.analyse.parity import by_scenario, parity
from bench.analyse.recommendation import of_several_replicas, recommendable
from bench.analyse.rounds import Rounds
from bench.analyse.steps import per_iteration, per_launch, phases_by_launch, spread, summary, times
from bench.analyse.validity import findings
from bench.core.records import UNTRUE
from bench.runs.document import RunDocument
from bench.runs.experiments import Tuning
from bench.runs.frames import Iterations, LaunchStats, RankSteps
from bench.runs.reader import Condense, Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Analysed(Run):
    """A run that remembers the tables made of it, which nobody may change. ``good_*``: of launches that are ``ok``."""

    @classmethod
    def of(cls, run: Run) -> Self:
        """The run itself where it is one already."""
        return run if isinstance(run, cls) else cls(**{field.name: getattr(run, field.name) for field in fields(Run)})

    def with_document(self, document: RunDocument) -> Self:
        """The same run, with other verdicts in its document, which no table is made of."""
        other = replace(self, document=document)
        vars(other).update({name: made for name, made in vars(self).items() if name not in vars(other)})
        return other

    @cached_property
    def iterations(self) -> Iterations:
        """Without those of launches that others have taken the place of."""
        iterations = self.timed if isinstance(self.timed, Iterations) else per_iteration(self.timed)
        return iterations.only(iterations.frame["launch"].isin([launch.launch for launch in self.document.launches]))

    good_iterations = cached_property(lambda run: Iterations(ok_rows(run.document, run.iterations.frame)))
    stats = cached_property(lambda run: per_launch(run.iterations))
    good_stats = cached_property(lambda run: LaunchStats(ok_rows(run.document, run.stats.frame)))
    rounds = cached_property(lambda run: Rounds.of(run.good_stats))
    good_phases = cached_property(lambda run: phases_by_launch(run.good_iterations))
    phases = cached_property(
        lambda run: run.good_phases.drop(columns="launch").groupby("scenario", sort=False).median()
    )
    peaks = cached_property(lambda run: peaks(run.memory))
    stacks = cached_property(lambda run: stacks(run.memory))
    growth = cached_property(lambda run: growth(run.memory, run.iterations, run.windows))
    beside_torch = cached_property(lambda run: beside_torch(run.document.good, ok_rows(run.document, run.memory)))
    parity = cached_property(lambda run: parity(run.document, run.iterations, run.numerics))

    @cached_property
    def findings(self) -> pd.DataFrame:
        one_clock = self.document.planned and len(self.document.hosts) < 2
        late = sampled_late(self.memory, self.iterations) if one_clock else set()
        return findings(self.document, self.stats, self.parity, late)

    overview = cached_property(lambda run: overview(run))

    @cached_property
    def since_before(self) -> Compared | None:
        from bench.analyse.history.nights import since_before  # which reads runs to make their digests

        return since_before(self.path)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """:func:`bench.analyse.devices.per_device`, of all launches."""
        if self.per_device is None:
            return devices.per_device(self.device, self.windows if len(self.device) else {})
        return self.per_device[self.per_device["launch"].isin(self.windows)]

    windows = cached_property(lambda run: devices.windows(run.iterations))
    power = cached_property(lambda run: devices.power_timeline(run.device))
    throttled = cached_property(lambda run: devices.throttled_stretches(run.device))
    good_times = cached_property(lambda run: times(run.good_iterations))
    spread = cached_property(lambda run: spread(run.good_times, run.overview))

    @cached_property
    def energy(self) -> pd.DataFrame:
        """:func:`bench.analyse.devices.per_scenario`, over the launches that are ``ok``."""
        units = self.document.workload.units
        samples, good = ok_rows(self.document, self.device), ok_rows(self.document, self.devices)
        return devices.per_scenario(samples, self.good_iterations, units, good)


CONDENSE = Condense(
    steps=lambda rows: per_iteration(RankSteps(rows)).frame,
    devices=lambda steps: partial(devices.per_device, bounds=devices.windows(steps)),
    kept=devices.KEPT,
)

ENERGY = ("energy_per_1000_j", "energy_per_1000_low_j", "energy_per_1000_high_j")


def overview(run: Analysed) -> pd.DataFrame:
    """The summary of a run (:func:`bench.analyse.steps.summary`) and some columns more.

    ``energy_per_1000_j`` with its interval: as in :func:`bench.analyse.devices.per_scenario`. ``parity``: the
    gravest of the launches. ``validity``: ``valid``, ``warning`` or ``invalid``; null without a launch that is ``ok``.
    ``findings``: their codes. ``why_not``: why it cannot be recommended; null for one that can. ``against_fastest``:
    the verdict of :func:`bench.analyse.comparison.against_fastest` among the :func:`recommendable`, and
    ``against_fastest_parallel`` among those of them on several replicas; null for the fastest itself and for others.
    ``*_more``: as from :func:`bench.analyse.comparison.more_launches`.
    """
    table, concerns = summary(run.document, run.stats, run.peaks), run.findings
    gravest = concerns.groupby("scenario")["severity"].min()  # "invalid" < "warning"
    parities = by_scenario(run.parity).set_index("scenario")["verdict"]
    codes, grave = (
        rows.groupby("scenario")["code"].agg(lambda codes: ", ".join(dict.fromkeys(codes)))
        for rows in (concerns, concerns[concerns["severity"] == "invalid"])
    )
    measured = table["launches_ok"] > 0
    validity = {scenario: gravest.get(scenario, "valid") for scenario in table["scenario"]}
    for name, of_scenario in (("parity", parities), ("validity", validity), ("findings", codes)):
        table[name] = table["scenario"].map(of_scenario).where(measured, None)
    untrue = table["parity"].where(table["parity"].isin(UNTRUE), table["scenario"].map(grave))
    why_not = table["status"].where(table["status"] != "ok", untrue).astype("object")
    table["why_not"] = why_not.where(why_not.notna(), None)
    energy = run.energy.set_index("scenario")
    for name in ENERGY:
        table[name] = table["scenario"].map(energy[name]).astype("float64")
    searched = run.document.of(Tuning) is not None
    several = of_several_replicas(run.document, table)
    for column, rows in (("against_fastest", table), ("against_fastest_parallel", several)):
        chosen = recommendable(rows, searched=searched)["scenario"]
        rivals = against_fastest(run.rounds, chosen, looked_at(run.document))
        for name, of_rival in ((column, "verdict"), (f"{column}_more", "more")):
            table[name] = table["scenario"].map({row["scenario"]: row[of_rival] for row in rivals})
    return table
