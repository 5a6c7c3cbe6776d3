"""The answer of ``bench tune`` in three lines: fastest, leanest, and what that gains."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.bars import all_mib, plus_minus
from bench.analyse.intervals import Ratio
from bench.analyse.parity import CANNOT_TELL
from bench.analyse.recommendation import recommendations
from bench.analyse.rounds import Rounds
from bench.core.text import listed, percent
from bench.runs.document import Recommendation
from bench.runs.experiments import Scaling, Tuning
from bench.words import advice
from bench.words import scaling as scaling_words

DOUBTFUL = ": check that it trains as well before you use it"
"""Behind numerics that rounding hides."""


def answer(run: Analysed, table: pd.DataFrame) -> list[str]:
    """The answer of any run, a line or three; ``table``: its overview. Values are of fresh launches, not the race."""
    tuning = run.document.of(Tuning)
    if run.document.of(Scaling) is not None:
        return scaling_words.answer(run)
    if tuning is None:
        return [advice.answer(run.document, table)]
    if not tuning.finalists:
        return [nothing_usable(tuning)]
    rows: dict[str, dict[Any, Any]] = {row["scenario"]: row for row in table.to_dict("records")}
    advised, base, rounds = recommendations(run.document, table), tuning.baseline, Rounds.of(run.good_figures)
    best = advised.fastest
    if best is None:
        return ["No valid result: no fresh launch of a finalist ended well."]
    doubt = DOUBTFUL if rows[best]["parity"] == CANNOT_TELL else ""
    alike = f"; not distinguishable from {listed(advised.not_told_apart)}" if advised.not_told_apart else ""
    title = f"Nothing beat {base}" if best == base else "Fastest"
    lines = [f"{title}: {_speed(rows[best])}{doubt}{alike}{_ahead(advised, tuning, rounds)}{_effort(tuning)}"]
    lines.append(f"Leanest within 5 %: {_lean(rows, advised.leanest or best, best)}")
    if base and base in rounds.values and base != best:
        lines.append(f"Gain over {base}: {_gain(rounds.ratio(best, base))}")
    untried = [name for name, one in tuning.candidates.items() if not one.round and one.why_not is None]
    if untried:
        names = untried if len(untried) < 7 else [*untried[:5], f"{len(untried) - 5} more"]
        lines.append(f"Not tried within the budget: {listed(names)}")
    return lines


def nothing_usable(tuning: Tuning) -> str:
    reasons = [f"{name}: {one.why_not}" for name, one in tuning.candidates.items() if one.why_not]
    return f"None of the {len(tuning.candidates)} candidates can be used; {'; '.join(reasons[:3])}"


def _lean(rows: dict[str, dict[Any, Any]], lean: str, winner: str) -> str:
    if lean not in rows:
        return f"{lean}, of which no fresh launch ended well"
    peak = rows[lean]["peak_total_mib"]
    memory = "" if pd.isna(peak) else f", {peak:,.0f} {all_mib(rows[lean])}"
    return f"{lean} itself{memory}" if lean == winner else f"{_speed(rows[lean])}{memory}"


def _speed(row: Mapping[object, object]) -> str:
    speed = f"{row['throughput_per_s']:,.1f} {row['unit']}/s {plus_minus(row, 'throughput_per_s')}".rstrip()
    return f"{row['scenario']}, {speed}, numerics {row['parity'] or 'unknown'}"


def _ahead(advised: Recommendation, tuning: Tuning, rounds: Rounds) -> str:
    """How much slower than the best the winner of the race was in fresh launches, if that is beyond noise."""
    winner, best = tuning.finalists[0], advised.fastest
    if best is None or winner not in rounds.values or winner in (best, *advised.not_told_apart):
        return ""
    slower = rounds.ratio(best, winner).value or 1.0
    return f"; {winner}, ahead in the race, takes {percent(slower - 1)} longer"


def _gain(ratio: Ratio) -> str:
    """``ratio``: the time of the baseline over that of the winner."""
    assert ratio.value is not None
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f} times as fast"
    doubt = ", so no difference found" if ratio.low <= 1.0 <= ratio.high else ""
    return f"{ratio.value:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f}{doubt})"


def _effort(tuning: Tuning) -> str:
    tried, of = sum(one.round > 0 for one in tuning.candidates.values()), len(tuning.candidates)
    launches = f"{len(tuning.launches)} launch{'es' * (len(tuning.launches) != 1)}"
    ended = "; the budget ended the search" if tuning.stopped_by == "budget" else ""
    return f" [{tried} of {of} candidates tried in {launches}{ended}]"
