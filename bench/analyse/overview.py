"""One row per scenario with all that a choice needs: figures, whether to believe them, and the recommendation."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.analyse import validity
from bench.analyse.caveats import of_several_replicas
from bench.analyse.comparison import SLOWER, against_fastest
from bench.analyse.launches import looked_at
from bench.analyse.memory import LEAST_MEMORY
from bench.analyse.parity import BY_DESIGN, CANNOT_TELL, SAME, UNTRUE, WITHIN_HALF, by_scenario
from bench.analyse.steps import scenarios, summary
from bench.runs.document import Recommendation
from bench.runs.experiments import Tuning

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed

ENERGY = ("energy_per_1000_j", "energy_per_1000_low_j", "energy_per_1000_high_j")

TRUE = (SAME, WITHIN_HALF)

LEAN_ENOUGH = 0.95  # of the fastest scenario's speed, for one that needs less memory


def overview(run: "Analysed") -> pd.DataFrame:
    """The summary of a run (:func:`bench.analyse.steps.summary`) and some columns more.

    ``energy_per_1000_j`` with its interval: as in :func:`bench.analyse.devices.per_scenario`. ``parity``: the
    gravest of the launches. ``validity``: ``valid``, ``warning`` or ``invalid``; null without a launch that is ``ok``.
    ``findings``: their codes. ``why_not``: why it cannot be recommended; null for one that can. ``against_fastest``:
    the verdict of :func:`bench.analyse.comparison.against_fastest` among the :func:`recommendable`, and
    ``against_fastest_parallel`` among those of them on several replicas; null for the fastest itself and for others.
    ``*_more``: as from :func:`bench.analyse.comparison.more_launches`.
    """
    table, found = summary(run.document, run.figures, run.peaks), run.findings
    verdict = validity.by_scenario(found, scenarios(run.document))
    parities = by_scenario(run.parity).set_index("scenario")["verdict"]
    codes = found.groupby("scenario")["code"].agg(lambda mine: ", ".join(dict.fromkeys(mine)))
    measured = table["launches_ok"] > 0
    table["parity"] = table["scenario"].map(parities).where(measured, None)
    table["validity"] = table["scenario"].map(verdict).where(measured, None)
    table["findings"] = table["scenario"].map(codes).where(measured, None)
    table["why_not"] = [_why_not(row, found) for row in table.to_dict("records")]
    energy, figures = run.energy.set_index("scenario"), run.good_figures
    for name in ENERGY:
        table[name] = table["scenario"].map(energy[name]).astype("float64")
    searched = run.document.of(Tuning) is not None
    for column, rows in (
        ("against_fastest", table),
        ("against_fastest_parallel", of_several_replicas(run.document, table)),
    ):
        chosen = recommendable(rows, searched=searched)["scenario"]
        rivals = against_fastest(figures, chosen, looked_at(run.document))
        for name, of_rival in ((column, "verdict"), (f"{column}_more", "more")):
            table[name] = table["scenario"].map(dict(zip(rivals["scenario"], rivals[of_rival], strict=True)))
    return table


def _why_not(row: dict[Any, Any], found: pd.DataFrame) -> str | None:
    if row["status"] != "ok":
        return str(row["status"])
    if row["parity"] in UNTRUE:
        return str(row["parity"])
    if row["validity"] == "invalid":
        grave = found[(found["scenario"] == row["scenario"]) & (found["severity"] == "invalid")]
        return ", ".join(dict.fromkeys(grave["code"]))
    return None


def recommendable(table: pd.DataFrame, *, searched: bool) -> pd.DataFrame:
    """The rows that can be recommended. None whose numerics differ by design or cannot be told, if another one trains
    the same; in a search (``searched``) the race has decided that."""
    good = table[table["why_not"].isna()]
    known = good["parity"].isin(TRUE).any()
    return good[~good["parity"].isin([BY_DESIGN, CANNOT_TELL])] if known and not searched else good


def recommendation(table: pd.DataFrame, verdicts: str = "against_fastest", *, searched: bool = False) -> Recommendation:
    """What to train with, from an :func:`overview` or some rows of one. ``verdicts``: its column of these rows.
    ``searched``: see :func:`recommendable`.

    ``fastest``: of those that can be recommended; ``leanest``: the one with the lowest peak of all processes together
    that is at least :data:`LEAN_ENOUGH` as fast, or the fastest if that is not by :data:`LEAST_MEMORY` less.
    ``not_told_apart``: those that may be as fast. ``left_out``: why not, by scenario.
    """
    good = recommendable(table, searched=searched)
    passed_over = table[~table["scenario"].isin(good["scenario"])]
    why_not = passed_over["why_not"].fillna("numerics: " + passed_over["parity"].astype("string"))
    left_out = dict(zip(passed_over["scenario"], why_not, strict=True))
    good = good[good["throughput_per_s"].notna()]
    if good.empty:
        return Recommendation(left_out=left_out)
    fastest, *others = good.sort_values("throughput_per_s", ascending=False).to_dict("records")
    near = [
        row
        for row in (fastest, *others)
        if row["throughput_per_s"] >= LEAN_ENOUGH * fastest["throughput_per_s"] and pd.notna(row["peak_total_mib"])
    ]
    leanest = min(near, key=lambda row: row["peak_total_mib"], default={"scenario": None})
    if fastest in near and leanest["peak_total_mib"] > (1 - LEAST_MEMORY) * fastest["peak_total_mib"]:
        leanest = fastest
    return Recommendation(
        fastest=fastest["scenario"],
        leanest=leanest["scenario"],
        not_told_apart=tuple(row["scenario"] for row in others if row[verdicts] != SLOWER),
        left_out=left_out,
    )
