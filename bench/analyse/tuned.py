"""The answer of ``bench tune`` in three lines: fastest, leanest, and what that gains."""

from typing import Any

import pandas as pd

from bench.analyse import advice, scaling_words
from bench.analyse.analysed import Analysed
from bench.analyse.bars import all_mib, plus_minus
from bench.analyse.comparison import ALIKE, FASTER, compared, judged
from bench.analyse.intervals import Ratio
from bench.analyse.parity import CANNOT_TELL
from bench.analyse.rounds import Rounds
from bench.core.text import percent
from bench.runs.experiments import Scaling, Tuning

DOUBTFUL = ": check that it trains as well before you use it"
"""Behind numerics that rounding hides."""


def answer(run: Analysed, table: pd.DataFrame) -> list[str]:
    """The answer of any run, a line or three; ``table``: its overview. A winner was chosen by the race, and its values
    are of fresh launches."""
    tuning = run.document.of(Tuning)
    if run.document.of(Scaling) is not None:
        return scaling_words.answer(run)
    if tuning is None:
        return [advice.answer(run.document, table)]
    if not tuning.finalists:
        return [nothing_usable(tuning)]
    rows: dict[str, dict[Any, Any]] = {row["scenario"]: row for row in table.to_dict("records")}
    winner, rounds = tuning.finalists[0], Rounds.of(run.good_figures)
    if winner not in rounds.values:
        return [f"No valid result: no fresh launch of {winner}, which won the race, ended well."]
    doubt = DOUBTFUL if rows[winner]["parity"] == CANNOT_TELL else ""
    lines = [f"Fastest: {_speed(rows[winner])}{doubt}{_rivals(tuning, rounds)}{_effort(tuning)}"]
    lines.append(f"Leanest within 5 %: {_lean(rows, tuning.leanest or winner, winner)}")
    if tuning.baseline and tuning.baseline in rounds.values and tuning.baseline != winner:
        lines.append(f"Gain over {tuning.baseline}: {_gain(rounds.ratio(winner, tuning.baseline))}")
    elif tuning.baseline == winner:
        lines.append(f"Gain over {winner}: none, nothing that was tried is faster")
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


def _speed(row: dict[Any, Any]) -> str:
    speed = f"{row['throughput_per_s']:,.1f} {row['unit']}/s {plus_minus(row, 'throughput_per_s')}".rstrip()
    return f"{row['scenario']}, {speed}, numerics {row['parity'] or 'unknown'}"


def _rivals(tuning: Tuning, rounds: Rounds) -> str:
    """What the fresh launches say of the other finalists, as far as that casts a doubt."""
    winner, *others = tuning.finalists
    alike, ahead = [], []
    for name in others:
        if name in rounds.values:
            ratio = rounds.ratio(winner, name)
            (one,) = judged([compared(ratio, len(rounds.values[winner]), len(rounds.values[name]))])
            alike += [name] * (one.verdict == ALIKE)
            if one.verdict == FASTER and ratio.value is not None:
                ahead.append(f"{name} was {percent(1 / ratio.value - 1)} faster in the fresh launches")
    tied = f"not distinguishable from {' and '.join(alike)}" if alike else ""
    return "".join(f"; {text}" for text in (*ahead, tied) if text)


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
