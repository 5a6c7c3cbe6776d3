"""A run for a notebook: ``bench.load`` and ``bench.compare``."""

from dataclasses import asdict
from functools import cached_property
from typing import Any

import pandas as pd

from bench.analyse import between_runs
from bench.analyse.analysed import Analysed
from bench.analyse.comparable import refuse_unlike
from bench.analyse.history import nights
from bench.core.errors import RequestError
from bench.report import drawing, plots
from bench.runs.names import find
from bench.runs.reader import read
from bench.words import tuned


class Loaded(Analysed):
    """``steps``, ``memory``, ``device``, ``numerics``, ``diagnostics``: the tables of the run folder, see docs/data.md.
    ``document``: run.json as values."""

    @classmethod
    def of(cls, run: Any, results: str = "results") -> "Loaded":
        return super().of(read(find(run, results)))

    @property
    def summary(self) -> pd.DataFrame:
        """One row per scenario: the table that ``bench run`` ends with, with all its columns."""
        return self.overview

    @cached_property
    def launches(self) -> pd.DataFrame:
        """One row per launch: how it ended and, of one that ended well, its values."""
        columns = ("launch", "scenario", "repeat", "status", "reason", "strategy", "precision", "processes", "wall_s")
        rows = [{name: getattr(launch, name) for name in columns} for launch in self.document.launches]
        stats = self.good_stats.frame.drop(columns=["scenario", "repeat"], errors="ignore")
        return pd.DataFrame(rows, columns=list(columns)).merge(stats, on="launch", how="left")

    @cached_property
    def answer(self) -> str:
        """The result of the run, in words."""
        return "\n".join(tuned.answer(self, self.overview))

    def plot(self, name: str) -> Any:
        """A plot of the page as a ``matplotlib.figure.Figure``. Raises :class:`RequestError` for a name that there is
        none of, with those that there are."""
        names = []
        with drawing.styled():
            for draw in plots.DRAWINGS:
                made = draw(self)
                if made is not None and made.name == name:
                    return made.figure
                names += [made.name] if made is not None else []
        raise RequestError("plot", f"this run has no plot {name!r}", f"choose from {', '.join(names)}")

    def __repr__(self) -> str:
        return f"run {self.id}: {self.answer}"


def compared(base: Loaded | str, new: Loaded | str, results: str) -> pd.DataFrame:
    """As :func:`bench.compare`."""
    paths = [one.path if isinstance(one, Loaded) else find(one, results) for one in (base, new)]
    before, after = (nights.with_findings(path) for path in paths)
    refuse_unlike(before, after)
    return pd.DataFrame([asdict(row) for row in between_runs.runs(before, after).rows])
