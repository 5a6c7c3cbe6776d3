"""Several interpreters in one run, as tables."""

from bench.analyse.analysed import Analysed
from bench.analyse.environments import differences, pairs
from bench.report.tables import UNKNOWN, Table, numeric, ranged, tabulate, text


def differences_table(run: Analysed) -> Table | None:
    names = list(run.document.environments)
    rows = [{name: value or UNKNOWN for name, value in row.items()} for row in differences(run.document)]
    return tabulate([text(name, name) for name in ("what", *names)], rows) if names else None


def pairs_table(run: Analysed) -> Table | None:
    rows = pairs(run)
    columns = (
        text("scenario", "scenario"),
        text("in", "environment"),
        ranged("time of a step, times", ("ratio", "low", "high"), ".3f"),
        numeric("p", "p_adjusted", ".2g"),
        text("verdict", "verdict"),
    )
    first = next(iter(run.document.environments), "")
    notes = (
        f"Against the same scenario in {first}, with the 95 % interval: below 1 is faster. p: adjusted for all rows. "
        "The launches of all interpreters took turns.",
    )
    return tabulate(columns, rows, notes) if rows else None
