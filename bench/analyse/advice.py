"""The recommendation of a run in words, with the figures that it rests on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.answer import listed, of_several_replicas
from bench.analyse.bars import plus_minus
from bench.analyse.comparison import still_wanted
from bench.analyse.overview import LEAN_ENOUGH, recommendation
from bench.analyse.steps import scenarios
from bench.analyse.validity import grouped
from bench.runs.document import Recommendation, RunDocument
from bench.runs.reader import Run

Row = dict[Any, Any]

Advice = tuple[str, str]  # what is advised about, and the advice


def recommendations(document: RunDocument, table: pd.DataFrame) -> Recommendation:
    """The recommendation, and the same of those on several replicas (``parallel``) if that says something new."""
    found = recommendation(table)
    several = of_several_replicas(document, table)
    if found.fastest is None or found.fastest in set(several["scenario"]):
        return found
    parallel = recommendation(several, "against_fastest_parallel")
    return replace(found, parallel=parallel if parallel.fastest else None)


def advice(document: RunDocument, table: pd.DataFrame) -> list[Advice]:
    found = recommendations(document, table)
    rows = {row["scenario"]: row for row in table.to_dict("records")}
    lines = _choice(found, rows, "", "against_fastest")
    if found.fastest is None:
        lines.append(("Fastest", "None: no scenario of this run has figures that can be believed."))
    if found.parallel is not None:
        several = {name: rows[name] for name in of_several_replicas(document, table)["scenario"]}
        where = f" on {document.workload.replicas} replicas"
        lines += _choice(found.parallel, several, where, "against_fastest_parallel")
    if found.left_out:
        lines.append(("Left out", _left_out(found.left_out)))
    return lines


def in_lines(run: Run, table: pd.DataFrame) -> list[str]:
    """The advice, and what was found about the figures with what to do, for a terminal."""
    rows = grouped(Analysed.of(run).findings, scenarios(run.document)).to_dict("records")
    return [
        *(f"{about}: {text}" for about, text in advice(run.document, table)),
        *(f"{row['severity']}: {row['code']} in {row['scenarios']} ({row['what']}); {row['remedy']}" for row in rows),
    ]


def recommended(document: RunDocument, table: pd.DataFrame) -> dict[str, str]:
    """What each recommended scenario is recommended as: ``fastest``, ``leanest`` or both; for marks in a plot."""
    found = recommendations(document, table)
    marks: dict[str, str] = {}
    several = f" on {document.workload.replicas} replicas"
    for choice, where in ((found, ""), (found.parallel or Recommendation(), several)):
        fastest, leanest = choice.fastest, choice.leanest
        if fastest is not None:
            marks[fastest] = f"fastest{' and leanest' if leanest == fastest else ''}{where}"
        if leanest is not None and leanest != fastest:
            marks.setdefault(leanest, f"leanest{where}")
    return marks


def _choice(found: Recommendation, rows: dict[Any, Row], where: str, verdicts: str) -> list[Advice]:
    if found.fastest is None:
        return []
    best = rows[found.fastest]
    lines = [(f"Fastest{where}", f"{_figures(best)}.{_reserve(best)}")]
    title = f"Least memory within {100 * (1 - LEAN_ENOUGH):.0f} % of its speed"
    if found.leanest is None:
        lines.append((title, "Unknown: no peak of memory is known of those that are as fast."))
    elif found.leanest == found.fastest:
        lines.append((title, f"{best['scenario']} itself: none that is as fast is known to need less."))
    else:
        lean = rows[found.leanest]
        slower = 1 - lean["throughput_per_s"] / best["throughput_per_s"]
        text = f"{_figures(lean)}: {100 * slower:.1f} % slower"
        if not _unknown(best["peak_total_mib"]):
            text += f", with {100 * (1 - lean['peak_total_mib'] / best['peak_total_mib']):.0f} % less memory"
        lines.append((title, f"{text}.{_reserve(lean)}"))
    if found.not_told_apart:
        every = len(found.not_told_apart) == sum(row["status"] == "ok" for row in rows.values()) - 1 > 1
        names = "any other" if every else listed(found.not_told_apart)
        known = [more for name in found.not_told_apart if not _unknown(more := rows[name][f"{verdicts}_more"])]
        wanted = still_wanted(max(known)) if len(known) == len(found.not_told_apart) else ""
        text = f"{names}, not distinguishable with this data"
        lines.append((f"Perhaps as fast{where}", f"{text} ({wanted} of each)." if wanted else f"{text}."))
    return lines


def _figures(row: Row) -> str:
    """``ddp_o2, 19.7 ±1.2% samples a second at a peak of 2,544 ±0.3% MiB in all``."""
    speed = " ".join(filter(None, (f"{row['throughput_per_s']:,.1f}", plus_minus(row, "throughput_per_s"))))
    if _unknown(row["peak_total_mib"]):
        return f"{row['scenario']}, {speed} {row['unit']} a second; its memory is unknown"
    peak = " ".join(filter(None, (f"{row['peak_total_mib']:,.0f}", plus_minus(row, "peak_total_mib"))))
    return f"{row['scenario']}, {speed} {row['unit']} a second at a peak of {peak} MiB in all"


def _reserve(row: Row) -> str:
    said = []
    if _unknown(row["parity"]):
        said.append("whether it trains the same model was not shown")
    if row["validity"] == "warning":
        said.append(f"take its figures with care ({row['findings']})")
    text = "; ".join(said)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _left_out(why: Mapping[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for scenario, reason in why.items():
        names.setdefault(reason, []).append(scenario)
    return "; ".join(f"{listed(scenarios)} ({reason})" for reason, scenarios in names.items()) + "."


def _unknown(value: Any) -> bool:
    return bool(pd.isna(value))
