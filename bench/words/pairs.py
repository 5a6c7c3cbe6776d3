"""Two scenarios of a run against each other, in words: in general, and with and without a switch."""

from dataclasses import asdict

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.comparison import ALIKE, TOO_FEW, of_pairs, still_wanted
from bench.analyse.ladder import turned_on
from bench.analyse.launches import looked_at
from bench.console import count
from bench.core.text import ends_text
from bench.runs.frames import TableRow

Answer = tuple[str, str]  # a question and its answer


def times(row: TableRow) -> str:
    """``1.34 times`` with the interval where there is one."""
    text = f"{row['ratio']:.2f} times"
    return text if pd.isna(row["low"]) else f"{text} (95 % interval {ends_text(row['low'], row['high'])})"


def chance(row: TableRow) -> str:
    wanted = still_wanted(row["more"])
    end = f" ({wanted})." if wanted else "."
    if row["verdict"] == TOO_FEW:
        few, many = sorted((row["n_base"], row["n_new"]))
        of = f"{count(few, 'launch', 'launches')} of {'each' if few == many else 'one of them'}"
        return f"With {of} this run cannot tell whether that is chance{end}"
    p = "p <0.001" if row["p_adjusted"] < 0.001 else f"p = {row['p_adjusted']:.2g}"
    adjusted = f"{p} adjusted for all pairs"
    if row["verdict"] == ALIKE:
        return f"This could well be noise ({adjusted}): this run cannot tell which is faster{end}"
    return f"Unlikely to be noise ({adjusted})."


def pair_of(run: Analysed, scenario: str, base: str) -> TableRow:
    """One scenario's step against another's; the verdict by p adjusted over all pairs of the run's scenarios."""
    (pair,) = of_pairs(run.rounds, [(base, scenario)], looked_at(run.document), len(run.rounds.values))
    return asdict(pair)


def longer(run: Analysed, scenario: str, base: str) -> str:
    pair = pair_of(run, scenario, base)
    return f"A step of {scenario} takes {times(pair)} as long as one of {base}. {chance(pair)}"


def partners(run: Analysed, switch: str) -> list[tuple[str, str]]:
    """The scenarios with this switch, each beside the same without it, as far as both were asked for."""
    names = run.document.request.scenarios
    by_parts = {frozenset(turned_on(name).items()): name for name in names}
    pairs = []
    for name in names:
        parts = turned_on(name)
        without = by_parts.get(frozenset((key, value) for key, value in parts.items() if key != switch))
        if switch in parts and without is not None:
            pairs.append((name, without))
    return pairs


def _against(run: Analysed, switch: str) -> list[str]:
    measured = set(run.good_stats.frame["scenario"])
    return [longer(run, *pair) for pair in partners(run, switch) if measured.issuperset(pair)]


def _idle(run: Analysed, switch: str) -> list[str]:
    """Launches in which the switch had no effect."""
    texts = [
        f"In {launch.scenario} it had no effect: {instead}."
        for launch in run.document.good
        for spec, instead in (launch.effective.switches if launch.effective else {}).items()
        if spec.partition("=")[0] == switch and instead is not None
    ]
    return list(dict.fromkeys(texts))


def unused_parameters(run: Analysed) -> Answer | None:
    texts = []
    for switch in ("find_unused", "static_graph"):
        texts += _against(run, switch)
        for name, without in partners(run, switch):
            failed = [one for one in run.document.launches if one.scenario == without and one.status == "error"]
            if any("Expected to have finished reduction" in (one.reason or "") for one in failed):  # DDP's words
                trains = name in set(run.good_stats.frame["scenario"])
                text = f"{without} fails: DDP waits for the gradients of parameters that take no part in the loss."
                texts.append(f"{text} {name} {'trains' if trains else 'does not train either'}.")
    return ("What do unused parameters cost?", " ".join(texts)) if texts else None


def turning_on(run: Analysed, switch: str, question: str) -> Answer | None:
    texts = _against(run, switch) + _idle(run, switch)
    return (question, " ".join(texts)) if texts else None


def compiled(run: Analysed) -> Answer | None:
    if not (texts := _against(run, "compile")):
        return None
    step_ms, without = run.overview.set_index("scenario")["step_median_ms"], dict(partners(run, "compile"))
    compilations = {one.scenario: one.effective.compiled for one in run.document.good if one.effective}
    for name, one in compilations.items():
        if one is None:
            continue
        into = f"into {count(one.graphs, 'graph')} with {count(one.graph_breaks, 'break')}"
        gained_ms = step_ms[without[name]] - step_ms[name] if name in without else 0.0
        gained = f"; {1000 * one.seconds / gained_ms:,.0f} steps gain that back" if gained_ms > 0 else ""
        texts.append(f"{name} compiled for {one.seconds:,.0f} s, apart from the measured steps, {into}{gained}.")
    return "Is torch.compile faster, and what does compiling take?", " ".join([*texts, *_idle(run, "compile")])
