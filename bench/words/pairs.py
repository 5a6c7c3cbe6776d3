"""Two scenarios of a run against each other, in the words of an answer."""

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.comparison import ALIKE, TOO_FEW, between_scenarios, pairwise, still_wanted, verdict_of
from bench.analyse.launches import looked_at
from bench.runs.frames import TableRow

Answer = tuple[str, str]  # a question and its answer


def times(row: TableRow) -> str:
    """``1.34 times`` with the interval where there is one."""
    text = f"{row['ratio']:.2f} times"
    return text if pd.isna(row["low"]) else f"{text} (95 % interval {row['low']:.2f} to {row['high']:.2f})"


def chance(row: TableRow) -> str:
    wanted = still_wanted(row["more"])
    end = f" ({wanted})." if wanted else "."
    if row["verdict"] == TOO_FEW:
        few = min(row["n_base"], row["n_new"])
        return f"With {few} launch{'es' if few > 1 else ''} of each this run cannot tell whether that is chance{end}"
    adjusted = f"p = {row['p_adjusted']:.2g} adjusted for all pairs"
    if row["verdict"] == ALIKE:
        return f"This could well be noise ({adjusted}): this run cannot tell which is faster{end}"
    return f"Unlikely to be noise ({adjusted})."


def pair_of(run: Analysed, scenario: str, base: str) -> TableRow:
    """One scenario's step against another's; the verdict by p adjusted over all pairs of the run's scenarios."""
    figures = run.good_figures
    (row,) = between_scenarios(figures, base, [scenario]).to_dict("records")
    pairs = pairwise(figures, before=looked_at(run.document))
    (pair,) = pairs[pairs[["base", "scenario"]].isin([scenario, base]).all(axis=1)].to_dict("records")
    p = pair["p_adjusted"]
    verdict = verdict_of(row["ratio"], None if pd.isna(p) else p)
    return {**row, "p_adjusted": p, "more": pair["more"], "verdict": verdict}
