"""bench: which way of training in data parallel and mixed precision is fastest here, and at what cost.

    import bench
    run = bench.load("latest")
    run.summary[["scenario", "throughput_per_s"]]

This package's root imports nothing: ``python -m bench --help`` and the measured processes both pass through it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from bench.report.loaded import Loaded

__version__ = "0.3.0"


def load(run: str = "latest", results: str = "results") -> "Loaded":
    """A run as pandas frames and matplotlib figures. ``run``: a folder, a run id under ``results``, or ``latest``.

    Raises :class:`bench.core.errors.RequestError` where there is none, or where it is damaged.
    """
    from bench.report.loaded import Loaded

    return Loaded.of(run, results)


def compare(base: "Loaded | str", new: "Loaded | str", results: str = "results") -> "pd.DataFrame":
    """Two runs, scenario by scenario and metric by metric, as ``bench compare`` does: the ratio of new to base with its
    95 % interval, p-value and verdict. Raises :class:`bench.core.errors.NotComparable` for runs of different work."""
    from bench.report.loaded import compared

    return compared(base, new, results)
