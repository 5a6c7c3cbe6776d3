"""The way to train that a run recommends, from an overview of its scenarios
(:func:`bench.analyse.analysed.overview`)."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from bench.analyse.between_runs import LEAST_MEMORY
from bench.analyse.comparison import SLOWER
from bench.analyse.parity import BY_DESIGN, CANNOT_TELL, SAME, WITHIN_HALF
from bench.runs.document import Recommendation, RunDocument
from bench.runs.experiments import Tuning

TRUE = (SAME, WITHIN_HALF)

LEAN_ENOUGH = 0.95  # of the fastest scenario's speed, for one that needs less memory


def recommendable(table: pd.DataFrame, *, searched: bool) -> pd.DataFrame:
    """The rows that can be recommended. None whose numerics differ by design or cannot be told, if another one trains
    the same; in a search (``searched``) the race has decided that."""
    good = table[table["why_not"].isna()]
    any_true = good["parity"].isin(TRUE).any()
    return good[~good["parity"].isin([BY_DESIGN, CANNOT_TELL])] if any_true and not searched else good


def recommendation(
    table: pd.DataFrame,
    verdicts: str = "against_fastest",
    *,
    searched: bool = False,
    preferred: Sequence[str | None] = (),
) -> Recommendation:
    """The recommendation from an :func:`overview` or some rows of one. ``verdicts``: its column of these rows.
    ``searched``: see :func:`recommendable`.

    ``fastest``: of those that can be recommended, or the first of ``preferred`` that is not told apart from it;
    ``leanest``: the one with the lowest peak of all processes together that is at least :data:`LEAN_ENOUGH` as fast,
    or the fastest if that is not by :data:`LEAST_MEMORY` less.
    ``not_told_apart``: those that may be as fast. ``left_out``: why not, by scenario.
    """
    good = recommendable(table, searched=searched)
    passed_over = table[~table["scenario"].isin(good["scenario"])]
    why_not = passed_over["why_not"].fillna("numerics: " + passed_over["parity"].astype("string"))
    left_out = dict(zip(passed_over["scenario"], why_not, strict=True))
    rows = good.dropna(subset="throughput_per_s").sort_values("throughput_per_s", ascending=False).to_dict("records")
    if not rows:
        return Recommendation(left_out=left_out)
    first = next((row for row in rows if pd.isna(row[verdicts])), rows[0])  # the one that all others are held against
    alike = {row["scenario"]: row for row in (first, *rows) if row is first or row[verdicts] != SLOWER}
    fastest = next((alike[name] for name in preferred if name in alike), first)
    enough_per_s = LEAN_ENOUGH * fastest["throughput_per_s"]
    near = [row for row in rows if row["throughput_per_s"] >= enough_per_s and pd.notna(row["peak_total_mib"])]
    leanest = min(near, key=lambda row: row["peak_total_mib"], default={"scenario": None})
    if fastest in near and leanest["peak_total_mib"] > (1 - LEAST_MEMORY) * fastest["peak_total_mib"]:
        leanest = fastest
    return Recommendation(
        fastest=fastest["scenario"],
        leanest=leanest["scenario"],
        not_told_apart=tuple(name for name, row in alike.items() if row is not fastest),
        left_out=left_out,
    )


def recommendations(document: RunDocument, table: pd.DataFrame) -> Recommendation:
    """The recommendation, and the same of those on several replicas (``parallel``) if that says something new. Of
    scenarios that are not told apart, a search recommends its baseline, which is the simplest, if that trains the same;
    else the one that won its race."""
    tuning = document.of(Tuning)
    same = set(table.loc[table["parity"] == SAME, "scenario"]) if tuning else set()
    preferred = (*({tuning.baseline} & same), *tuning.finalists[:1]) if tuning else ()
    advised = recommendation(table, searched=tuning is not None, preferred=preferred)
    several = of_several_replicas(document, table)
    if advised.fastest is None or advised.fastest in set(several["scenario"]):
        return advised
    parallel = recommendation(several, "against_fastest_parallel", searched=tuning is not None)
    return replace(advised, parallel=parallel if parallel.fastest else None)


def of_several_replicas(document: RunDocument, summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of the scenarios that share a step among several copies of the model, as they ran or were planned."""
    replicas = {
        one.scenario: one.effective.replicas if one.effective else one.replicas or 0 for one in document.launches
    }
    several = (document.workload.replicas or 2) > 1  # one replica may still cut its batch up
    return summary[several & (summary["scenario"].map(replicas) > 1)]
