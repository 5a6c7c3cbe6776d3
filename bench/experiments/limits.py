"""What a step must do, and how much of what this machine can do that is."""

from typing import TYPE_CHECKING

from bench.runs.experiments import Limits
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

    from bench.analyse.analysed import Analysed
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material


def tables(run: "Analysed") -> "dict[str, pd.DataFrame]":
    from bench.analyse.limits import achieved

    return {"arithmetic": achieved(run)}


def chapter(of: "Material") -> "Chapter":
    from bench.report.blocks import Grid, chapter_of
    from bench.report.limits import arithmetic_table

    return chapter_of("limits", "How far from the limit?", Grid("Arithmetic", arithmetic_table(of.run)))


EXPERIMENT = Experiment(record=Limits, order=4, chapter=chapter, tables=tables)
