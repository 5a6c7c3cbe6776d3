"""The answer of ``bench tune`` in three lines: fastest, leanest, and what that gains."""

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.bars import all_mib
from bench.analyse.comparison import SHOWN
from bench.analyse.parity import CANNOT_TELL
from bench.analyse.recommendation import recommendations
from bench.core.text import ends_text, listed, percent
from bench.runs.experiments import Scaling, Tuning
from bench.runs.frames import TableRow
from bench.words import advice, limits
from bench.words import scaling as scaling_words

DOUBTFUL = ": check that it trains as well before you use it"  # behind numerics that rounding hides


def answer(run: Analysed, table: pd.DataFrame, *, leanest: bool = True) -> list[str]:
    """The answer of any run, a line or three; ``table``: its overview. Values are of fresh launches, not the race.
    ``leanest``: whether that of a search is one of them."""
    tuning = run.document.of(Tuning)
    if run.document.of(Scaling) is not None:
        return scaling_words.answer(run)
    if list(run.document.experiments) == ["limits"] and (reached := limits.sentences(run)):
        return reached
    if tuning is None:
        return [advice.answer(run.document, table)]
    if not tuning.finalists:
        unknown = "No finalists were chosen yet: if the search was interrupted, bench tune --resume goes on with it."
        return [nothing_usable(tuning) if run.document.complete else unknown]
    rows: dict[str, TableRow] = {row["scenario"]: row for row in table.to_dict("records")}
    advised, base, rounds = recommendations(run.document, table), tuning.baseline, run.rounds
    if (best := advised.fastest) is None:
        return ["No valid result: no fresh launch of a finalist ended well."]
    doubt = DOUBTFUL if rows[best]["parity"] == CANNOT_TELL else ""
    alike = f"; not distinguishable from {listed(advised.not_told_apart)}" if advised.not_told_apart else ""
    quickest = max(rows[name]["throughput_per_s"] for name in (best, *advised.not_told_apart))
    clearly = "clearly " * bool(quickest > (1.0 + SHOWN) * rows[best]["throughput_per_s"])
    title = f"Nothing {clearly}beat {base}" if best == base else "Fastest"
    ahead, winner = "", tuning.finalists[0]
    if winner in advised.left_out:
        ahead = f"; {winner}, ahead in the race, is left out: {advised.left_out[winner]}"
    elif winner in rounds.values and winner not in (best, *advised.not_told_apart):
        slower = rounds.ratio(best, winner).value or 1.0
        ahead = f"; {winner}, ahead in the race, takes {percent(slower - 1)} longer"
    tried, many = sum(one.round > 0 for one in tuning.candidates.values()), len(tuning.launches)
    ended = "; the budget ended the search" if tuning.stopped_by == "budget" else ""
    effort = f"{tried} of {len(tuning.candidates)} candidates tried in {many} launch{'es' * (many != 1)}{ended}"
    lines = [f"{title}: {_speed(rows[best])}{doubt}{alike}{ahead} [{effort}]"]
    lean, text = advised.leanest, "unknown, as no peak of memory is known"
    if lean is not None:
        memory = f"{rows[lean]['peak_total_mib']:,.0f} {all_mib(rows[lean])}"
        text = f"{f'{lean} itself' if lean == best else _speed(rows[lean])}, {memory}"
    lines += [f"Leanest within 5 %: {text}"] * leanest
    if base and base in rounds.values and base != best:
        gain = rounds.ratio(best, base)  # the time of the baseline over that of the winner
        text = f"{gain.value:.2f} times as fast"
        if gain.low is not None and gain.high is not None:
            unsure = ", so no difference found" if gain.low <= 1.0 <= gain.high else ""
            text += f" ({ends_text(gain.low, gain.high)}{unsure})"
        lines.append(f"Gain over {base}: {text}")
    if untried := [name for name, one in tuning.candidates.items() if not one.round and one.why_not is None]:
        lines.append(f"Not tried within the budget: {listed(untried, 5)}")
    return lines


def nothing_usable(tuning: Tuning) -> str:
    reasons = [f"{name}: {one.why_not}" for name, one in tuning.candidates.items() if one.why_not]
    return f"None of the {len(tuning.candidates)} candidates can be used; {'; '.join(reasons[:3])}"


def _speed(row: TableRow) -> str:
    return f"{advice.speed_of(row)}, numerics {row['parity'] or 'unknown'}"
