"""A run with the tables that are made of it, each made once: what a report is drawn and written from.

    run = Analysed.of(read("results/RUN", condense=per_iteration))
    run.figures  # bench.analyse.steps.per_launch

A report asks for the figures of a launch two dozen times, and of millions of steps each time takes seconds.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import pandas as pd

from bench.analyse import devices
from bench.analyse.launches import ok_rows
from bench.analyse.memory import peaks, sampled_late
from bench.analyse.overview import overview
from bench.analyse.parity import parity
from bench.analyse.steps import per_iteration, per_launch, phases_by_launch
from bench.analyse.validity import findings
from bench.runs.frames import Iterations, LaunchFigures
from bench.runs.reader import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Analysed(Run):
    """A run that remembers the tables made of it, which nobody may change. ``good_*``: of launches that are ``ok``."""

    @classmethod
    def of(cls, run: Run) -> Self:
        """The run itself where it is one already."""
        return run if isinstance(run, cls) else cls(**{field.name: getattr(run, field.name) for field in fields(Run)})

    @cached_property
    def iterations(self) -> Iterations:
        """Without those of launches that others have taken the place of."""
        known = self.timed if isinstance(self.timed, Iterations) else per_iteration(self.timed)
        return known.only(known.frame["launch"].isin([launch.launch for launch in self.document.launches]))

    @cached_property
    def good_iterations(self) -> Iterations:
        return Iterations(ok_rows(self.document, self.iterations.frame))

    @cached_property
    def figures(self) -> LaunchFigures:
        return per_launch(self.iterations)

    @cached_property
    def good_figures(self) -> LaunchFigures:
        return LaunchFigures(ok_rows(self.document, self.figures.frame))

    @cached_property
    def good_phases(self) -> pd.DataFrame:
        return phases_by_launch(self.good_iterations)

    @cached_property
    def peaks(self) -> pd.DataFrame:
        return peaks(self.memory)

    @cached_property
    def parity(self) -> pd.DataFrame:
        return parity(self.document, self.iterations, self.numerics)

    @cached_property
    def findings(self) -> pd.DataFrame:
        one_clock = self.document.planned and len(self.document.hosts) < 2
        late = sampled_late(self.memory, self.iterations) if one_clock else set()
        return findings(self.document, self.figures, self.parity, late)

    @cached_property
    def overview(self) -> pd.DataFrame:
        return overview(self)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """:func:`bench.analyse.devices.per_device`, of all launches."""
        return devices.per_device(self.device, self.iterations)

    @cached_property
    def windows(self) -> dict[Any, tuple[int, int]]:
        return devices.windows(self.iterations)

    @cached_property
    def energy(self) -> pd.DataFrame:
        """:func:`bench.analyse.devices.per_scenario`, over the launches that are ``ok``."""
        units = self.document.workload.units
        samples, good = ok_rows(self.document, self.device), ok_rows(self.document, self.devices)
        return devices.per_scenario(samples, self.good_iterations, units, good)
