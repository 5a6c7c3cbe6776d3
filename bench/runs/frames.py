"""The three tables of times, each a type, so that none is taken for another. Nobody may change a ``.frame``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pandas as pd

TableRow = dict[Any, Any]  # a row of any table, as `to_dict("records")` of pandas has it


@dataclass(frozen=True, eq=False)
class _Frame:
    frame: "pd.DataFrame"

    def only(self, wanted: "pd.Series[bool]") -> Self:
        """The rows that are wanted: itself where all are, for it may have millions of them."""
        return self if wanted.all() else type(self)(self.frame[wanted])

    def of(self, launch: int) -> Self:
        return self.only(self.frame["launch"] == launch)


class RankSteps(_Frame):
    """A row per launch, rank and step: the columns of ``bench.core.records.STEP_COLUMNS``."""


class Iterations(_Frame):
    """A row per launch and step, of the slowest rank (:func:`bench.analyse.steps.per_iteration`)."""


class LaunchStats(_Frame):
    """A row per launch, over its measured steps (:func:`bench.analyse.steps.per_launch`)."""
