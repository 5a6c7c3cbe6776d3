"""The ladder of a run: what each rung gains over the one before, and whether it gains as much by itself.

Gains of speed multiply where they are independent. The gain of a step on top of others is held against its gain on the
first rung: where their 95 % intervals part, the step interacts with what is below it, and nothing can be added up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.comparison import of_pairs
from bench.analyse.intervals import columns, overlap
from bench.analyse.launches import looked_at
from bench.analyse.parity import by_scenario
from bench.core.text import ends_text
from bench.runs.document import RunDocument
from bench.runs.frames import TableRow

NAME = "ladder"  # of the set of scenarios that a ladder is made of

SCENARIO = ""  # the key of the scenario itself among the things that a name turns on


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From the rung ``before`` to ``rung``. ``change``: such as ``channels_last`` or ``without foreach``.

    ``below``: the rung that its gain is held against that of ``alone`` on the first rung; None if there is no such.
    """

    before: str
    rung: str
    change: str
    below: str
    alone: str | None


def turned_on(name: str) -> dict[str, str]:
    """The parts of a scenario's name: ``ddp+tf32=off`` is {"": "ddp", "tf32": "off"}."""
    scenario, _, environment = name.partition("@")
    base, *specs = scenario.split("+")
    parts = {SCENARIO: base, **dict(spec.partition("=")[::2] for spec in specs)}
    return parts | ({"@": environment} if environment else {})


def steps(names: Sequence[str]) -> list[Step]:
    """The rungs among these scenarios, each one thing away from the one before, the first of all being the lowest."""
    if not names:
        return []
    all_on = {name: turned_on(name) for name in names}
    rungs, made = [names[0]], []
    base = all_on[names[0]]
    for name in names[1:]:
        before, after = all_on[rungs[-1]], all_on[name]
        if len(differ := [key for key in {**before, **after} if before.get(key) != after.get(key)]) != 1:
            continue
        (key,) = differ
        below = next(rung for rung in reversed(rungs) if all_on[rung].get(key) == base.get(key) or rung == names[0])
        by_itself = {**base, key: after[key]} if key in after else {one: base[one] for one in base if one != key}
        alone = next((other for other in names if all_on[other] == by_itself and other != name), None)
        change = after[key] if key == SCENARIO else f"without {key}" if key not in after else key
        change += f"={after[key]}" if key != SCENARIO and after.get(key) else ""
        made.append(Step(before=rungs[-1], rung=name, change=change, below=below, alone=alone))
        rungs.append(name)
    return made


def of_run(document: RunDocument) -> list[Step]:
    """The steps of a run of the set ``ladder``; none of another. What did not end well is no rung."""
    if document.request.more.get("set") != NAME:
        return []
    good = {launch.scenario for launch in document.good}
    return steps([name for name in document.request.scenarios if name in good])


def ladder(run: Analysed) -> pd.DataFrame:
    """One row a step: ``rung, change, step_ms``; ``gain``: how many times as fast as the rung before, with ``low`` and
    ``high`` (95 %, null with fewer than two launches) and ``verdict`` (adjusted over the rungs); ``numerics``;
    ``on_top`` and ``alone``: the gain over the last rung without it, and on the first rung, each with its interval;
    ``interacts``: whether these two intervals part, null if unknown."""
    rounds = run.rounds
    parities = by_scenario(run.parity).set_index("scenario")["verdict"].to_dict()
    rungs = of_run(run.document)
    tested = of_pairs(rounds, [(step.before, step.rung) for step in rungs], looked_at(run.document))
    rows: list[dict[str, object]] = []
    for step, comparison in zip(rungs, tested, strict=True):
        gain, on_top = rounds.ratio(step.rung, step.before), rounds.ratio(step.rung, step.below)
        alone = rounds.ratio(step.alone or "", rungs[0].before)
        rows.append(
            {
                **{name: getattr(step, name) for name in ("before", "rung", "change")},
                "step_ms": run.spread["median_ms"].get(step.rung),
                "gain": gain.value,
                "low": gain.low,
                "high": gain.high,
                "verdict": comparison.verdict,
                "numerics": parities.get(step.rung),
                **columns("on_top{}", on_top),
                **columns("alone{}", alone),
                "interacts": None if (both := overlap(on_top, alone)) is None else not both,
            }
        )
    return pd.DataFrame(rows)


def sentences(table: pd.DataFrame) -> list[str]:
    """The gain of all rungs together, and which steps interact with those below them."""
    if table.empty:
        return []
    rows: list[TableRow] = table.to_dict("records")
    total = math.prod(row["gain"] for row in rows if pd.notna(row["gain"]))
    texts = [f"The top rung, {rows[-1]['rung']}, is {total:.2f} times as fast as {rows[0]['before']}."]
    for row in rows:
        if row["interacts"] is True:
            more = "more" if row["on_top"] > row["alone"] else "less"
            texts.append(
                f"{row['change']} gains {more} on top of the others ({_times(row, 'on_top')}) than by itself "
                f"({_times(row, 'alone')}): they interact, and their gains do not multiply."
            )
    if all(pd.isna(row["low"]) for row in rows):
        texts.append("One launch of each cannot show whether steps interact: use --profile standard.")
    return texts


def _times(row: TableRow, name: str) -> str:
    return f"{row[name]:.2f} times, {ends_text(row[f'{name}_low'], row[f'{name}_high'])}"
